package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/bundle"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// debugBundle is the command emitd debug bundle.
type debugBundle struct {
	a       *app
	q       *queues // how to reach a node
	file    string
	nodes   int           // most nodes to ask
	events  int           // most events
	maxWait time.Duration // see emitd status

	cfg    *config.Loaded
	out    *bundle.Bundle
	caller nodeapi.Caller
}

func (a *app) debugCommand() *cobra.Command {
	d := &debugBundle{a: a, q: &queues{a: a}}
	cmd := &cobra.Command{
		Use: "bundle", Short: "Write an archive with the state of a cluster, for a report of a problem",
		Long: "Write an archive (.tar.gz) for somebody who looks into a problem of the cluster: the settings with their origins,\n" +
			"status, nodes, units, queues, outbox, terms and the newest events as the store has them, and of each node that\n" +
			"answers its version, settings, health, metrics and the stacks of its goroutines. What cannot be read is named in\n" +
			"missing.txt, so a bundle can be made of a cluster that is broken.\n\n" +
			"Secrets of the configuration, and what looks like a password, a token or a key in any other text, are replaced\n" +
			"by ***. Names of nodes, daemons, queues and hosts are not. Payloads and the output of commands are not part of it,\n" +
			"but the last lines of a command that failed are. The file is never overwritten, and only its owner can read it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.write(cmd.Context()) },
	}
	fl := cmd.Flags()
	fl.StringVar(&d.file, "output", "", "file to write; by default emitd-debug-CLUSTER-TIME.tar.gz in this directory")
	fl.IntVar(&d.nodes, "nodes", 32, "most nodes to ask, the leader first")
	fl.IntVar(&d.events, "events", 5000, "most events, the newest ones")
	maxWaitFlag(cmd, &d.maxWait)
	d.q.flags(fl)
	return group("debug", "Collect what helps to find the cause of a problem", cmd)
}

// fileWord matches what does not go into the name of a file.
var fileWord = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// write writes the bundle.
func (d *debugBundle) write(ctx context.Context) (err error) {
	if d.cfg, err = d.a.loadToRead(); err != nil {
		return err
	}
	now := time.Now().UTC()
	name := d.file
	if name == "" {
		name = fmt.Sprintf("emitd-debug-%s-%s.tar.gz", fileWord.ReplaceAllString(d.cfg.Cluster, "_"), now.Format("20060102T150405Z"))
	}
	if d.out, err = bundle.Create(name, d.cfg.Secrets(), now); err != nil {
		return err
	}
	d.a.progress.Step("reading the cluster")
	members := d.cluster(ctx)
	d.a.progress.Step(fmt.Sprintf("asking %d nodes", len(members)))
	d.queryAll(ctx, members)
	d.text("README.txt", d.readme(now, len(members)))
	d.json("version.json", buildInfo())
	d.json("settings.json", d.cfg.Settings())
	files, err := d.out.Close()
	if err != nil {
		return err
	}
	d.a.message("wrote %s: %d files, %d missing", name, files, d.out.Missing())
	_, err = fmt.Fprintln(d.a.Out, name)
	return err
}

func (d *debugBundle) text(name, text string) { d.out.Add(name, text) }

func (d *debugBundle) json(name string, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		d.out.Miss(name, err)
		return
	}
	d.out.Add(name, string(text)+"\n")
}

func (d *debugBundle) readme(now time.Time, nodes int) string {
	b := buildInfo()
	return fmt.Sprintf("Debug bundle of the emitd cluster %s, made at %s by emitd %s (%s) on %s.\n\n", d.cfg.Cluster, now.Format(time.RFC3339), b.Version, b.Commit, b.Platform) +
		"status.txt     what emitd status -o wide shows; status.json has the same for programs\n" +
		"terms.json     who led when, and why it ended\n" +
		"events.jsonl   the newest events of the history\n" +
		"settings.json  settings of the program that made this bundle, with their origins\n" +
		"nodes/         of each node that was asked: version, settings, health, metrics, stacks of goroutines\n" +
		"missing.txt    what could not be read, and why; absent if nothing is missing\n\n" +
		fmt.Sprintf("%d nodes were asked. Secrets are replaced by ***.\n", nodes)
}

// member is a node to ask.
type member struct{ name, address string }

// cluster adds what the store has, and returns the nodes to ask, the leader first.
func (d *debugBundle) cluster(ctx context.Context) []member {
	var out []member
	if d.q.address != "" {
		out = append(out, member{"addr", d.q.address})
	}
	s, err := d.a.readStatus(ctx, d.q, d.maxWait)
	if err != nil {
		d.out.Miss("status", d.a.asFault(err))
		return out
	}
	d.json("status.json", s)
	var text bytes.Buffer
	if err := s.Table(&text, true); err != nil {
		d.out.Miss("status.txt", err)
	}
	d.text("status.txt", text.String())
	if err := d.history(ctx, s); err != nil {
		d.out.Miss("events", d.a.asFault(err))
	}
	for _, leads := range []bool{true, false} {
		for _, n := range s.Nodes {
			if n.Leader == leads && n.Address != "" && len(out) < d.nodes {
				out = append(out, member{n.Name + "-" + string(n.ID), n.Address})
			}
		}
	}
	return out
}

// history adds terms and events.
func (d *debugBundle) history(ctx context.Context, s view.Status) error {
	ctx, cancel := context.WithTimeout(ctx, d.a.timeout)
	defer cancel()
	return d.a.withClusterOf(ctx, d.cfg, true, func(ctx context.Context, c *cluster) error {
		var terms []daemon.Event
		var lines bytes.Buffer
		newest := c.snap.Head - int64(d.events)
		err := pages(ctx, c.store, func(es []daemon.Event) error {
			for _, e := range es {
				if e.Kind == daemon.LeaderElected || e.Kind == daemon.LeaderLost {
					terms = append(terms, e)
				}
				if e.Seq > newest {
					_ = view.JSONLine(&lines, view.EventOf(e)) // a buffer takes everything
				}
			}
			return nil
		})
		d.json("terms.json", view.Terms(terms, s.At.Time))
		d.text("events.jsonl", lines.String())
		return err
	})
}

// nodesAtOnce is how many nodes are asked at the same time.
const nodesAtOnce = 8

// part is a text about a node.
type part struct {
	name string
	text string
	err  error
}

// queryAll adds what the nodes say about themselves.
func (d *debugBundle) queryAll(ctx context.Context, members []member) {
	if len(members) == 0 {
		return
	}
	cfg, err := d.q.config(ctx, func(context.Context) ([]string, error) { return []string{members[0].address}, nil })
	if err != nil {
		d.out.Miss("nodes", d.a.asFault(err))
		return
	}
	d.caller.TLS = cfg.TLS
	if cfg.Token != "" {
		d.caller.Authorization = "Bearer " + cfg.Token
	}
	parts := make([][]part, len(members))
	slots := make(chan struct{}, nodesAtOnce)
	var all sync.WaitGroup
	for i, m := range members {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			parts[i] = d.query(ctx, m)
		})
	}
	all.Wait()
	for _, of := range parts {
		for _, p := range of {
			if p.err != nil {
				d.out.Miss(p.name, p.err)
				continue
			}
			d.text(p.name, fault.Redact(p.text, cfg.Token))
		}
	}
}

// query asks a node.
func (d *debugBundle) query(ctx context.Context, m member) []part {
	ctx, cancel := context.WithTimeout(ctx, d.a.timeout)
	defer cancel()
	dir := "nodes/" + fileWord.ReplaceAllString(m.name, "_") + "/"
	var out []part
	var p nodeapi.Process
	text, err := d.caller.Get(ctx, m.address, nodeapi.Debug, nil)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		out = append(out, part{dir + "process.json", "", err})
	} else {
		out = append(out, part{dir + "goroutines.txt", p.Goroutines, nil})
		p.Goroutines = ""
		process, err := json.MarshalIndent(p, "", "  ")
		out = append(out, part{dir + "process.json", string(process) + "\n", err})
	}
	text, err = d.caller.Get(ctx, m.address, "/metrics", nil)
	out = append(out, part{dir + "metrics.txt", string(text), err})
	status, health, err := getHealth(ctx, m.address, "/readyz?verbose", d.caller.TLS)
	return append(out, part{dir + "ready.txt", fmt.Sprintf("%d\n%s", status, health), err})
}
