package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/host"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/broker"
	"github.com/emitd/emitd/queue/client"
)

// queues is what the queue commands share: how to reach a node. Any node forwards calls.
type queues struct {
	a       *app
	address string
	token   string // the file with the token
	tls     bool
}

func (a *app) queueCommand() *cobra.Command {
	q := &queues{a: a}
	g := group("queue", "Submit jobs, work on them, and manage queues",
		q.ls(), q.declare(), q.reshard(), q.remove(), q.stats(),
		q.enqueue(), q.importing(), q.claim(), q.settle(queue.Complete), q.settle(queue.Fail), q.settle(queue.Release), q.settle(queue.Extend),
		q.peek(), q.act(queue.RunNow), q.act(queue.Redrive), q.act(queue.Cancel), q.act(queue.Pause), q.act(queue.Resume), q.act(queue.Purge),
		q.bench(), q.adopt(), q.verify(), q.repair())
	q.flags(g.PersistentFlags())
	for _, c := range g.Commands() {
		if c.Name() != "ls" && c.Name() != "declare" {
			a.complete(c, queueNames)
		}
	}
	return g
}

// flags adds the flags that say how to reach a node.
func (q *queues) flags(fl *pflag.FlagSet) {
	fl.StringVar(&q.address, "addr", "", "host:port or URL of a node; by default any live node of the store's cluster")
	fl.StringVar(&q.token, "token-file", "", "file with the bearer token of the nodes' API")
	fl.BoolVar(&q.tls, "tls", false, "call the nodes with TLS; implied if api.tls.ca or api.tls.cert is set")
}

// with makes a client and passes it to f, within --timeout plus wait, the time that f itself waits.
func (q *queues) with(ctx context.Context, wait time.Duration, f func(ctx context.Context, c *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, q.a.timeout+wait)
	defer cancel()
	return q.withClient(ctx, func(c *client.Client) error { return f(ctx, c) })
}

// withClient makes a client, within --timeout, and passes it to f, which may take any time. It is for an f that
// reads input of any length; f bounds each of its calls by --timeout, as enqueueBatch does.
func (q *queues) withClient(ctx context.Context, f func(c *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, q.a.timeout)
	defer cancel()
	c, err := q.client(ctx, q.nodes)
	if err != nil {
		return err
	}
	defer c.Close()
	return queueFault(f(c))
}

// enqueueBatch submits jobs in one call, within --timeout.
func (q *queues) enqueueBatch(ctx context.Context, c *client.Client, name string, jobs []queue.Job) ([]queue.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, q.a.timeout)
	defer cancel()
	return c.Enqueue(ctx, name, jobs)
}

func (q *queues) client(ctx context.Context, nodes func(context.Context) ([]string, error)) (*client.Client, error) {
	cfg, err := q.config(ctx, nodes)
	if err != nil {
		return nil, err
	}
	return dial(cfg)
}

// dial makes a client.
func dial(cfg client.Config) (*client.Client, error) {
	c, err := client.New(cfg)
	if err != nil {
		return nil, fault.New(fault.Usage, "--addr: %w", err)
	}
	return c, nil
}

// config returns how to reach the nodes.
func (q *queues) config(ctx context.Context, nodes func(context.Context) ([]string, error)) (client.Config, error) {
	cfg := client.Config{Addresses: []string{q.address}}
	if q.address == "" {
		found, err := nodes(ctx)
		if err != nil {
			return cfg, err
		}
		cfg.Addresses = found
	}
	if err := q.authenticate(&cfg); err != nil {
		return cfg, err
	}
	settings, err := q.a.load(q.a.input())
	if err != nil {
		return cfg, err
	}
	if cfg.TLS, err = host.ClientTLS(settings.API.TLS); err != nil {
		return cfg, err
	}
	if q.tls && cfg.TLS == nil {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return cfg, nil
}

// authenticate sets the token: that of --token-file, or of the configuration's api.tokens_file, which an
// emitd dev in this directory has too. The latter is meant for the cluster's own nodes, so it is not sent
// to an --addr beyond this machine.
func (q *queues) authenticate(to *client.Config) error {
	if q.token != "" {
		text, err := os.ReadFile(q.token)
		if err != nil {
			return fault.New(fault.AccessFile, "--token-file: %w", err)
		}
		to.Token = firstToken(text)
	} else if q.address == "" || config.Loopback(q.address) {
		cfg, err := q.a.loadToRead()
		if err != nil || cfg.API.TokensFile == "" {
			return nil //nolint:nilerr // without a configuration there is no token
		}
		text, _ := os.ReadFile(cfg.API.TokensFile) // a node that requires a token will say so
		to.Token = firstToken(text)
	}
	if to.Token != "" {
		q.a.secrets = append(q.a.secrets, to.Token)
	}
	return nil
}

// firstToken returns the first token that a file has as it is sent: a file of tokens, or one with a token alone.
func firstToken(text []byte) string {
	for l := range strings.Lines(string(text)) {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "#") && !strings.ContainsAny(l, " \t") {
			return l
		}
	}
	return ""
}

// nodes returns the addresses of live nodes of the store's cluster: see serving.
func (q *queues) nodes(ctx context.Context) (found []string, err error) {
	err = q.a.withCluster(ctx, false, func(_ context.Context, c *cluster) error {
		found, err = serving(c)
		return err
	})
	return found, err
}

// serving returns the addresses of a cluster's live nodes. If some serve queues, it returns only those,
// because only they have the list of queues.
func serving(c *cluster) (found []string, err error) {
	var serving []string
	for _, n := range c.snap.Nodes {
		if !n.Present() || n.LeaderState != "" || n.Address == "" {
			continue
		}
		found = append(found, n.Address)
		if slices.Contains(c.snap.Advert(n).Kinds, queue.Kind) {
			serving = append(serving, n.Address)
		}
	}
	if len(serving) > 0 {
		found = serving
	}
	if len(found) == 0 {
		return nil, fault.New(fault.QueueDown, "no node of cluster %s is up, so no queue is served", c.cfg.Cluster).
			Hint("start one with emitd serve, or name a node with --addr")
	}
	return found, nil
}

// queueFault turns a broker's refusal into a fault. Other errors are returned unchanged.
func queueFault(err error) error {
	if refused, ok := errors.AsType[*queue.Error](err); ok {
		return fault.FromQueue(refused)
	}
	return err
}

// parseAny parses JSON into values that every output format can show.
func parseAny(text []byte) any {
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return string(text)
	}
	return v
}

// field returns the list with a name in an answer of the API.
func field(text []byte, name string) []any {
	m, _ := parseAny(text).(map[string]any)
	l, _ := m[name].([]any)
	return l
}

func (q *queues) ls() *cobra.Command {
	return q.a.watchFlags(q.a.outputFlag(&cobra.Command{
		Use: "ls", Short: "List queues", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.with(cmd.Context(), 0, func(ctx context.Context, c *client.Client) error {
				declared, err := c.Queues(ctx)
				if err != nil {
					return err
				}
				if len(declared) == 0 {
					q.a.message("there are no queues yet: emitd queue declare NAME creates one")
				}
				var all []wire.Stats
				changing := map[string]*wire.Resharding{}
				for _, d := range declared {
					changing[d.Name] = wire.DeclarationOf(d).Resharding
					s := wire.Stats{Queue: d.Name, Shards: max(d.Shards, 1)}
					if got, err := c.Stats(ctx, d.Name); err == nil {
						s = wire.StatsOf(got)
					} else if ctx.Err() != nil {
						return err
					} else {
						q.a.message("queue %s: %v", d.Name, err)
					}
					all = append(all, s)
				}
				return q.a.print(list(all, func(s wire.Stats) string { return s.Queue }, func(wide bool) *view.Table { return statsTable(all, changing, wide) }))
			})
		},
	}))
}

func statsTable(all []wire.Stats, changing map[string]*wire.Resharding, wide bool) *view.Table {
	t := &view.Table{Head: []string{"QUEUE", "WAITING", "DELAYED", "ACTIVE", "DEAD", "OLDEST", "IN/S", "DONE/S", "BROKER", "STATE", "WRITE BUDGET"}}
	if wide {
		t.Head = append(t.Head, "SHARDS", "ENQUEUED", "COMPLETED", "FAILED", "DEDUP", "WRITES")
	}
	for _, s := range all {
		state := "running"
		switch x := changing[s.Queue]; {
		case x != nil:
			state = fmt.Sprintf("%s for %d shards", x.Stage, x.To)
		case s.Paused:
			state = "paused"
		case s.Broker == "":
			state = "no broker"
		}
		row := []string{
			s.Queue, fmt.Sprint(s.Waiting), fmt.Sprint(s.Delayed), fmt.Sprint(s.Active), fmt.Sprint(s.Dead),
			view.Exact(time.Duration(s.OldestAgeMS) * time.Millisecond), fmt.Sprintf("%.1f", s.EnqueueRate), fmt.Sprintf("%.1f", s.CompleteRate),
			s.Broker, state, writeBudget(s),
		}
		if wide {
			row = append(row, fmt.Sprint(s.Shards), fmt.Sprint(s.Enqueued), fmt.Sprint(s.Completed), fmt.Sprint(s.Failed), fmt.Sprint(s.DedupIDs), fmt.Sprint(s.Writes))
		}
		t.Add(row...)
	}
	return t
}

// writeBudget shows how many small commits a second a queue may make.
func writeBudget(s wire.Stats) string {
	switch {
	case s.Broker == "":
		return "-"
	case s.WriteBudget == 0:
		return "none"
	}
	return fmt.Sprintf("%.4g/s", s.WriteBudget)
}

func (q *queues) stats() *cobra.Command {
	return q.a.watchFlags(q.a.outputFlag(&cobra.Command{
		Use: "stats QUEUE", Short: "Show a queue's counts, ages, rates and memory",
		Args: exactly(1, "the name of a queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return q.with(cmd.Context(), 0, func(ctx context.Context, c *client.Client) error {
				got, err := c.Stats(ctx, args[0])
				if err != nil {
					return err
				}
				s := wire.StatsOf(got)
				return q.a.print(data{whole: s, names: []string{s.Queue}, table: func(w io.Writer, wide bool) error {
					return statsTable([]wire.Stats{s}, nil, wide).Write(w)
				}})
			})
		},
	}))
}

func (q *queues) declare() *cobra.Command {
	var shards, attempts int
	var claims string
	var visibility, dedup time.Duration
	cmd := &cobra.Command{
		Use: "declare QUEUE", Short: "Create a queue or change its settings",
		Long: "Create a queue or change its settings. In an existing queue, settings without a flag stay as they are; 0 or\n" +
			"an empty text means the default. If a queue of this name was removed a moment ago, this takes up to 5 s,\n" +
			"until all brokers know.",
		Args: exactly(1, "the name of a queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			fields := map[string]any{}
			cmd.Flags().Visit(func(f *pflag.Flag) {
				switch f.Name {
				case "shards":
					fields["shards"] = shards
				case "claims":
					fields["claims"] = claims
				case "visibility-timeout":
					fields["visibility_ms"] = visibility.Milliseconds()
				case "dedup-window":
					fields["dedup_window_ms"] = dedup.Milliseconds()
				case "max-attempts":
					fields["retry"] = map[string]any{"max_attempts": attempts}
				}
			})
			return q.with(cmd.Context(), 0, func(ctx context.Context, c *client.Client) error {
				made, err := c.Amend(ctx, args[0], fields)
				if err != nil {
					return err
				}
				return q.printDone(made.Name, "declared %s", wire.DeclarationOf(made))
			})
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&shards, "shards", 0, "number of shards; jobs keep their order within one (default 1)")
	fl.StringVar(&claims, "claims", "", "soft: a claim is answered at once and stored within a second; durable: it is answered once it is stored (default queue.claims of the node that answers: soft)")
	fl.DurationVar(&visibility, "visibility-timeout", 0, "how long a claimed job stays hidden (default queue.visibility_timeout of the node that answers: 30s)")
	fl.DurationVar(&dedup, "dedup-window", 0, "how long a submitted ID is recognised (default queue.dedup_window of the node that answers: 10m)")
	fl.IntVar(&attempts, "max-attempts", 0, "attempts before a job becomes a dead letter (default 3)")
	return q.a.outputFlag(cmd)
}

// printDone prints what was done to a queue.
func (q *queues) printDone(name, text string, whole any) error {
	return q.a.print(data{whole: whole, names: []string{name}, table: func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, text+"\n", view.Line(name))
		return err
	}})
}

func (q *queues) remove() *cobra.Command {
	cmd := &cobra.Command{
		Use: "remove QUEUE", Short: "Delete a queue and all its jobs",
		Args: exactly(1, "the name of a queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := q.a.confirm(fmt.Sprintf("queue %s and all its jobs are deleted for good", args[0])); err != nil {
				return err
			}
			return q.with(cmd.Context(), 0, func(ctx context.Context, c *client.Client) error {
				if err := c.Remove(ctx, args[0]); err != nil {
					return err
				}
				return q.printDone(args[0], "removed %s", map[string]string{"queue": args[0]})
			})
		},
	}
	cmd.Flags().BoolVarP(&q.a.yes, "yes", "y", false, "do not ask for confirmation")
	return q.a.outputFlag(cmd)
}

func (q *queues) peek() *cobra.Command {
	var query queue.Query
	var state string
	cmd := &cobra.Command{
		Use: "peek QUEUE [JOB]", Short: "List jobs without claiming them, or show one",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return exactly(1, "the name of a queue, and optionally the ID of a job")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			query.State = queue.State(state)
			return q.with(cmd.Context(), 0, func(ctx context.Context, c *client.Client) error {
				if len(args) == 2 {
					return q.show(ctx, c, args[0], args[1])
				}
				return q.list(ctx, c, args[0], query)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&state, "state", "", "waiting, delayed, active or dead; empty: all")
	fl.StringVar(&query.Type, "type", "", "only jobs of this type")
	fl.IntVar(&query.Limit, "limit", 100, "most entries to list")
	fl.BoolVar(&query.Payload, "payload", false, "show payloads")
	return q.a.watchFlags(q.a.outputFlag(cmd))
}

// list reads pages until it has as many jobs as requested.
func (q *queues) list(ctx context.Context, c *client.Client, name string, query queue.Query) error {
	var all queue.Page
	for want := cmp.Or(query.Limit, 100); want > 0; want = query.Limit - len(all.Jobs) {
		query := query
		query.Limit, query.Cursor = min(want, queue.MaxPage), all.Cursor
		page, err := c.List(ctx, name, query)
		if err != nil {
			return err
		}
		all.Jobs, all.Payloads, all.Cursor = append(all.Jobs, page.Jobs...), append(all.Payloads, page.Payloads...), page.Cursor
		if page.Cursor == "" {
			break
		}
	}
	items := field(wire.AppendPage(nil, &all), "jobs")
	d := data{whole: items, items: items, table: func(w io.Writer, _ bool) error { return jobTable(all).Write(w) }}
	if items == nil {
		d.whole, d.items = []any{}, []any{}
	}
	for _, j := range all.Jobs {
		d.names = append(d.names, j.ID)
	}
	if err := q.a.print(d); err != nil || all.Cursor == "" {
		return err
	}
	q.a.message("more jobs: --limit %d", 10*len(all.Jobs))
	return nil
}

func (q *queues) show(ctx context.Context, c *client.Client, name, id string) error {
	info, payload, err := c.Get(ctx, name, id)
	if err != nil {
		return err
	}
	page := queue.Page{Jobs: []queue.Info{*info}, Payloads: [][]byte{payload}}
	return q.a.print(data{
		whole: parseAny(wire.AppendJob(nil, info, payload)), names: []string{info.ID},
		table: func(w io.Writer, _ bool) error { return jobTable(page).Write(w) },
	})
}

func jobTable(p queue.Page) *view.Table {
	t := &view.Table{Head: []string{"JOB", "TYPE", "STATE", "PRIORITY", "ATTEMPTS", "WORKER", "CREATED", "CAUSE"}}
	payloads := slices.ContainsFunc(p.Payloads, func(b []byte) bool { return b != nil })
	if payloads {
		t.Head = append(t.Head, "PAYLOAD")
	}
	for i, j := range p.Jobs {
		row := []string{
			j.ID, j.Type, string(j.State), fmt.Sprint(j.Priority), fmt.Sprintf("%d/%d", j.Attempts, j.MaxAttempts),
			j.Worker, j.CreatedAt.UTC().Format(time.RFC3339), j.Cause,
		}
		if payloads {
			row = append(row, string(p.Payloads[i]))
		}
		t.Add(row...)
	}
	return t
}

// acts describes each act for people; the texts state the effect.
var acts = map[queue.Act]struct{ use, short, effect string }{
	queue.RunNow:  {"retry QUEUE [JOB…]", "Run delayed jobs now", "delayed jobs of %s become waiting"},
	queue.Redrive: {"redrive QUEUE [JOB…]", "Retry dead jobs with new attempts", "dead jobs of %s are retried"},
	queue.Cancel:  {"cancel QUEUE JOB…", "Cancel jobs; workers lose their claims", "jobs of %s are cancelled"},
	queue.Pause:   {"pause QUEUE", "Stop delivering jobs", "queue %s stops delivering jobs"},
	queue.Resume:  {"resume QUEUE", "Deliver jobs again", "queue %s delivers jobs again"},
	queue.Purge:   {"purge QUEUE", "Delete jobs for good", "jobs of %s are deleted for good"},
}

func (q *queues) act(act queue.Act) *cobra.Command {
	text := acts[act]
	c := queue.Command{Act: act}
	var state string
	cmd := &cobra.Command{
		Use: text.use, Short: text.short,
		Args: func(cmd *cobra.Command, args []string) error {
			jobs := act == queue.RunNow || act == queue.Redrive || act == queue.Cancel
			if len(args) == 0 || (len(args) > 1 && !jobs) || (len(args) == 1 && act == queue.Cancel) {
				return exactly(1, strings.ToLower(strings.TrimPrefix(text.use, string(act)+" ")))(cmd, slices.Concat(args, []string{"", ""}))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.State = queue.State(state); len(args) > 1 {
				c.IDs = args[1:]
			}
			effect := fmt.Sprintf(text.effect, args[0])
			if act == queue.Purge || act == queue.Cancel {
				if err := q.a.confirm(effect); err != nil {
					return err
				}
			}
			return q.with(cmd.Context(), 0, func(ctx context.Context, cl *client.Client) error {
				n, err := cl.Do(ctx, args[0], c)
				if err != nil {
					return err
				}
				return q.a.print(data{
					whole: map[string]any{"queue": args[0], "act": act, "jobs": n}, names: []string{args[0]},
					table: func(w io.Writer, _ bool) error {
						if act == queue.Pause || act == queue.Resume {
							_, err := fmt.Fprintln(w, view.Line(effect))
							return err
						}
						_, err := fmt.Fprintf(w, "%d jobs\n", n)
						return err
					},
				})
			})
		},
	}
	fl := cmd.Flags()
	if act == queue.Purge {
		fl.StringVar(&state, "state", "", "waiting, delayed, active or dead; empty: all but active ones")
	}
	if act != queue.Pause && act != queue.Resume {
		fl.StringVar(&c.Type, "type", "", "only jobs of this type")
	}
	if act == queue.Purge || act == queue.Cancel {
		fl.BoolVarP(&q.a.yes, "yes", "y", false, "do not ask for confirmation")
	}
	return q.a.outputFlag(cmd)
}

// adopt needs no node, because it works on the object store and the cluster store themselves.
func (q *queues) adopt() *cobra.Command {
	cmd := &cobra.Command{
		Use: "adopt QUEUE", Short: "Adopt a queue of another cluster store",
		Long: "Adopt a queue whose objects were written under another cluster store: after that store was lost and created\n" +
			"again, or after the bucket was copied. No node of the other cluster may run any more. Shards that already\n" +
			"belong to this cluster are not changed. Needs --objects and --store (or their settings).",
		Args: exactly(1, "the name of a queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := q.a.confirm(fmt.Sprintf("queue %s will belong to this cluster; nodes of any other cluster lose it", args[0])); err != nil {
				return err
			}
			return q.a.withCluster(cmd.Context(), false, func(ctx context.Context, c *cluster) error {
				if c.cfg.Objects.URL == "" {
					return fault.New(fault.ObjectsURL, "objects.url is not set, so the queues cannot be found")
				}
				bucket, err := backend.Bucket(ctx, c.cfg.Objects.URL)
				if err != nil {
					return err
				}
				b, err := broker.New(broker.Config{
					Bucket: bucket, StoreID: backend.LastingID(c.snap.StoreID), Owner: "adopt-" + client.NewID(),
					Now: func() time.Time { return c.snap.Now }, Logger: q.a.commandLog(c.cfg),
				})
				if err != nil {
					return err
				}
				taken, err := b.Adopt(ctx, args[0])
				if err != nil {
					return queueFault(err)
				}
				text := "adopted %s"
				if taken == 0 {
					text = "%s already belongs to this cluster"
				}
				return q.printDone(args[0], text, map[string]any{"queue": args[0], "store_id": backend.LastingID(c.snap.StoreID), "shards": taken})
			})
		},
	}
	cmd.Flags().BoolVarP(&q.a.yes, "yes", "y", false, "do not ask for confirmation")
	return q.a.outputFlag(cmd)
}
