package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/filelock"
	"github.com/emitd/emitd/cmd/emitd/internal/host"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/node"
)

// dev is a run of emitd dev.
type dev struct {
	nodes     int
	ephemeral bool
	sample    bool
	demo      bool

	a    *app
	cfg  *config.Loaded
	dir  string // the state directory; empty if there is none
	shop *demo  // the sample orders; nil without --demo

	token host.Token // of the listener; empty if api.tokens_file is set
}

// mostNodes bounds --nodes, because the nodes share one process and one file.
const mostNodes = 50

func (a *app) devCommand() *cobra.Command {
	d := &dev{a: a}
	cmd := &cobra.Command{
		Use: "dev", Short: "Run a cluster of three nodes in this process, for experiments and development",
		Long: "Run a cluster in this process: three nodes on a SQLite file in ./" + DevDir + ". The file is kept, and a later\n" +
			"emitd dev in this directory continues with its state. The profile is fast, and the listener is loopback.\n" +
			"In the same directory, emitd status, events and the like need no --store. Other users of the machine are\n" +
			"refused: the listener requires the token in ./" + DevDir + "/token, which emitd queue finds in the same directory.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) },
	}
	cmd.Flags().IntVar(&d.nodes, "nodes", 3, "number of nodes")
	cmd.Flags().BoolVar(&d.ephemeral, "ephemeral", false, "keep the state in memory: no file is written, and other processes cannot see it")
	cmd.Flags().BoolVar(&d.sample, "sample", true, "run a sample daemon of six units, unless daemons.exec has entries")
	cmd.Flags().BoolVar(&d.demo, "demo", false, "show everything at work: orders that go through the outbox to a queue and to webhooks, leaders that change, a daemon that crashes")
	return cmd
}

func (d *dev) run(ctx context.Context) error {
	if d.nodes < 1 || d.nodes > mostNodes {
		return fault.New(fault.Usage, "--nodes is %d, want 1 to %d", d.nodes, mostNodes)
	}
	in, err := d.input()
	if err != nil {
		return err
	}
	if d.cfg, err = d.a.load(in); err != nil {
		return err
	}
	if d.cfg.Node.ID != "" && d.nodes > 1 {
		return fault.New(fault.Usage, "node.id is set, and %d nodes cannot share one ID", d.nodes).Hint("remove node.id, or use --nodes 1")
	}
	unlock, err := d.openStateDir()
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.secure(); err != nil {
		return err
	}
	level := telemetry.Level(d.cfg.Telemetry.Log.Level)
	board := &console{out: d.a.Out, quiet: d.a.quiet}
	var alongside func(context.Context, *host.Running)
	if d.demo {
		if d.shop, err = newDemo(ctx, d.cfg, board); err != nil {
			return err
		}
		defer d.shop.close()
		alongside = d.shop.run
	}
	_, chosen := in.Flags["listen"]
	return host.Run(ctx, host.Options{
		Config: d.cfg, Version: buildInfo().Version,
		Handler: d.a.logHandler(d.cfg, level), Level: level,
		Nodes: d.names(), NextPort: !chosen && d.cfg.Listen == config.Defaults("").Listen,
		Token: d.token, Open: d.open, OpenOutbox: d.openOutbox, Extra: d.extra(), Alongside: alongside,
		Started: func(r *host.Running) { board.begin(d, r) },
		Hooks:   board.hooks,
	})
}

// input presets the settings of emitd dev. Every other layer may override them.
func (d *dev) input() (config.Input, error) {
	in := d.a.input()
	in.Serving, in.Dev = true, true
	in.Preset = map[string]string{"cluster": "dev", "profile": "fast", "telemetry.log.level": "warn"}
	in.PresetName = "emitd dev"
	if d.ephemeral {
		in.Preset["objects.url"] = "mem://"
		return in, nil
	}
	dir, err := filepath.Abs(DevDir)
	if err != nil {
		return in, fault.New(fault.StateDir, "state directory: %w", err)
	}
	d.dir = dir
	in.Preset["store.url"] = config.SQLiteURL(filepath.Join(dir, "emitd.db"))
	in.Preset["objects.url"] = config.FileURL(filepath.Join(dir, "objects"))
	return in, nil
}

// names returns the names of the nodes.
func (d *dev) names() []string {
	prefix := "dev"
	if o := d.cfg.OriginOf("node.name"); o.Layer != config.FromDefault {
		prefix = d.cfg.Node.Name
	}
	out := make([]string, d.nodes)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return out
}

// openStateDir creates the state directory, locks it against another emitd dev, and writes the configuration by
// which reads find the cluster.
func (d *dev) openStateDir() (unlock func(), err error) {
	if d.dir == "" || d.cfg.OriginOf("store.url").Layer != config.FromDefault {
		if d.ephemeral && d.cfg.Store.URL != "" {
			return nil, fault.New(fault.Usage, "--ephemeral keeps the state in memory, but store.url (%s) names a store", d.cfg.OriginOf("store.url"))
		}
		d.dir = ""
		return func() {}, nil
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, fault.New(fault.StateDir, "state directory: %w", err)
	}
	unlock, err = filelock.Lock(filepath.Join(d.dir, "lock"))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fault.New(fault.StateDir, "another emitd dev runs on %s", d.dir)
	}
	if err != nil {
		return nil, fault.New(fault.StateDir, "state directory: %w", err)
	}
	text := "# written by emitd dev; read by emitd status and other commands that run next to this directory\n" +
		fmt.Sprintf("cluster: %q\nprofile: %s\nstore:\n  url: %q\nobjects:\n  url: %q\napi:\n  tokens_file: %q\n",
			d.cfg.Cluster, d.cfg.Profile, d.cfg.Store.URL, d.cfg.Objects.URL, cmp.Or(d.cfg.API.TokensFile, filepath.Join(d.dir, devToken)))
	if err := os.WriteFile(filepath.Join(d.dir, DevConfig), []byte(text), 0o600); err != nil {
		unlock()
		return nil, fault.New(fault.StateDir, "state directory: %w", err)
	}
	return unlock, nil
}

// devToken is the file in DevDir with the bearer token that the listener requires.
const devToken = "token"

// secure generates a token against other users of the machine: they can reach the loopback listener but
// cannot read the token. It is stored with the state. Without a state directory it is printed.
func (d *dev) secure() error {
	if d.cfg.API.TokensFile != "" {
		return nil
	}
	d.token = host.Token{Text: rand.Text(), Hint: "this is emitd dev, only for its own user: curl -H \"Authorization: Bearer TOKEN\" with the token that emitd dev printed"}
	if d.dir == "" {
		d.a.secrets = append(d.a.secrets, d.token.Text)
		return nil
	}
	path := filepath.Join(d.dir, devToken)
	d.token.Hint = fmt.Sprintf("this is emitd dev, only for its own user: in its directory, curl -H \"Authorization: Bearer $(cat %s)\"", filepath.ToSlash(filepath.Join(DevDir, devToken)))
	text, err := os.ReadFile(path)
	if old := strings.TrimSpace(string(text)); err == nil && len(old) >= len(d.token.Text) {
		d.token.Text = old
		err = os.Chmod(path, 0o600)
	} else {
		err = os.WriteFile(path, []byte(d.token.Text+"\n"), 0o600)
	}
	if err != nil {
		return fault.New(fault.StateDir, "token of the listener: %w", err)
	}
	d.a.secrets = append(d.a.secrets, d.token.Text)
	return nil
}

func (d *dev) open(ctx context.Context, t *telemetry.Telemetry) (*backend.Store, error) {
	if d.ephemeral {
		return backend.Memory(), nil
	}
	return backend.Open(ctx, backend.Options{Config: d.cfg.Config, Policy: backend.Auto, Logger: t.Logger, Meter: t.Meter})
}

func (d *dev) openOutbox(ctx context.Context, t *telemetry.Telemetry) (*backend.Outbox, error) {
	return backend.OpenOutbox(ctx, backend.Options{Config: d.cfg.Config, Policy: backend.Auto, Logger: t.Logger, Meter: t.Meter})
}

// sampleID is the ID of the sample daemon.
const sampleID = "demo:clock"

// extra returns the sample daemon and those of the demo. The sample daemon only waits, so that there is something to
// place and move.
func (d *dev) extra() (extra []host.Daemon) {
	if d.shop != nil {
		extra = d.shop.daemons()
	}
	if !d.sample || len(d.cfg.Daemons.Exec) > 0 {
		return extra
	}
	wait := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		select {
		case <-a.Draining():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return append(extra, host.Daemon{Spec: daemon.Spec{ID: sampleID, Instances: 6}, Agent: wait})
}

// console prints what a person at the terminal wants to see on standard output.
type console struct {
	mu    sync.Mutex
	out   io.Writer
	quiet bool
}

func (b *console) printf(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.quiet {
		fmt.Fprintf(b.out, format+"\n", args...)
	}
}

// begin prints what runs where, and what to try.
func (b *console) begin(d *dev, r *host.Running) {
	state := "in memory, gone when this ends"
	switch {
	case d.dir != "":
		state = "." + string(filepath.Separator) + DevDir + " (SQLite and a directory of objects, kept across restarts)"
	case !d.ephemeral:
		state = config.RedactURL(d.cfg.Store.URL)
	}
	var names, daemons []string
	for _, c := range r.Nodes {
		names = append(names, c.Node().Name)
	}
	for _, s := range r.Daemons {
		if s.Keyed() {
			daemons = append(daemons, string(s.ID)+" (keyed)")
			continue
		}
		daemons = append(daemons, fmt.Sprintf("%s ×%d", s.ID, s.WithDefaults().Instances))
	}
	if r.Queues {
		daemons = append(daemons, "emit:queue/…")
	}
	slices.Sort(daemons)
	b.printf("emitd %s dev cluster %q     state: %s", buildInfo().Version, d.cfg.Cluster, state)
	b.printf("  console  %s/     api  %s/api/v1     health  /readyz     metrics  /metrics", r.URL, r.URL)
	b.printf("  nodes    %s     daemons  %s", strings.Join(names, "  "), strings.Join(daemons, "  "))
	b.printf("  token    %s", d.tokenPlace())
	b.printf("%s", d.suggestions())
	b.printf("Ctrl-C drains and stops; again after a second forces the end.  dev mode: profile %s, loopback and this user only.", d.cfg.Profile)
}

// tokenPlace describes where the listener's token is.
func (d *dev) tokenPlace() string {
	switch {
	case d.cfg.API.TokensFile != "":
		return "in " + d.cfg.API.TokensFile
	case d.dir == "":
		return d.token.Text
	}
	return "in ." + string(filepath.Separator) + filepath.Join(DevDir, devToken) + ", which emitd in this directory uses"
}

// suggestions returns commands to try that work from this directory.
func (d *dev) suggestions() string {
	if d.ephemeral {
		return "Try:  without --ephemeral, emitd status and emitd events -f show the cluster from another terminal"
	}
	at, as := "", ""
	if d.dir == "" {
		at = " --store …"
	}
	if goRun(os.Args[0]) {
		as = " (emitd is go run ./cmd/emitd here)"
	}
	text := fmt.Sprintf("Try, from this directory%s:  emitd status%s      emitd events -f%s      emitd leader resign%s\n"+
		"      emitd queue enqueue default '{\"hello\":\"world\"}'%s      emitd queue ls%s", as, at, at, at, at, at)
	if d.shop != nil {
		text += fmt.Sprintf("\n      emitd outbox stats%s      emitd outbox ls%s      emitd outbox retry %s%s", at, at, demoToHook, at)
		text += fmt.Sprintf("\n      emitd top%s      emitd leader history%s      emitd daemon explain %s%s", at, at, demoCrashID, at)
	}
	return text
}

// goRun reports whether go run built and started the program. Then there is no emitd command to suggest.
func goRun(program string) bool {
	return strings.Contains(filepath.ToSlash(program), "/go-build")
}

// hooks print changes of leadership as they happen.
func (b *console) hooks(name string) coordinator.Hooks {
	clock := func() string { return time.Now().Format("15:04:05") }
	return coordinator.Hooks{
		OnLeaderElected: func(_ context.Context, t node.Term) {
			b.printf("%s  %s leads term %d", clock(), view.Line(name), t.Ordinal)
		},
		OnLeaderLost: func(t node.Term, why node.LossReason) {
			b.printf("%s  %s no longer leads term %d: %s", clock(), view.Line(name), t.Ordinal, why)
		},
	}
}
