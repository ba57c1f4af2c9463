package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// cluster is an open store with a snapshot or, for a read with --addr, what a node shows of its cluster.
type cluster struct {
	cfg   *config.Loaded
	store *backend.Store
	snap  *daemon.Snapshot
	all   bool // show also nodes that have left and units that are no longer declared

	node *remote // nil for a store; the fields above are those of a store
	seen view.Status
}

func (c *cluster) status() view.Status {
	if c.node != nil {
		return c.seen
	}
	return view.Of(c.snap, reader(c.cfg, c.store, c.all))
}

// explain returns why a unit is where it is.
func (c *cluster) explain(ctx context.Context, u view.Unit) (view.Explained, error) {
	if c.node != nil {
		return c.node.explain(ctx, u.Unit)
	}
	return view.Explained{Unit: u, Plan: view.Explain(c.snap, reader(c.cfg, c.store, true), u.Unit)}, nil
}

// eventSource has the events of a cluster: a store, or a node that is asked for them.
type eventSource interface {
	Events(ctx context.Context, after int64, limit int) (*storage.EventPage, error)
}

// scheduled is status with the schedules of periodic daemons. If they cannot be read, a notice says so.
func (c *cluster) scheduled(ctx context.Context) view.Status {
	s := c.status()
	if c.node != nil {
		return s // the node has read them
	}
	if states, ok := c.store.Store.(daemon.StateStore); ok {
		s.AddSchedules(states.UnitStates(ctx, daemon.Unit{}))
	}
	return s
}

// withCluster opens the store, takes a snapshot and passes it to f, within --timeout.
func (a *app) withCluster(ctx context.Context, all bool, f func(ctx context.Context, c *cluster) error) error {
	if a.node.address != "" {
		return a.withNode(ctx, all, 0, f)
	}
	cfg, err := a.loadToRead()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.withClusterOf(ctx, cfg, all, f)
}

// withNode asks a node for the state of its cluster and passes it to f, within --timeout. What waits longer than maxWait
// needs attention; 0 is without limit.
func (a *app) withNode(ctx context.Context, all bool, maxWait time.Duration, f func(ctx context.Context, c *cluster) error) error {
	node, err := a.remote()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	seen, err := node.status(ctx, all, maxWait)
	if err != nil {
		return err
	}
	return f(ctx, &cluster{all: all, node: node, seen: seen})
}

// withClusterOf is withCluster with a loaded configuration, within ctx.
func (a *app) withClusterOf(ctx context.Context, cfg *config.Loaded, all bool, f func(ctx context.Context, c *cluster) error) error {
	s, end, err := a.openToRead(ctx, cfg)
	if err != nil {
		return err
	}
	defer end()
	snap, err := s.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("read the cluster: %w", err)
	}
	return f(ctx, &cluster{cfg: cfg, store: s, snap: snap, all: all})
}

func (a *app) statusCommand() *cobra.Command {
	var failOnProblem bool
	var limit time.Duration
	q := &queues{a: a}
	cmd := &cobra.Command{
		Use: "status", Short: "Show the cluster: leader, nodes, daemons, outbox, queues, and what needs attention",
		Long: "Show the cluster: leader, nodes, daemons, and what needs attention. For the outbox, if the configuration\n" +
			"or the store's database has one, it shows the age of the oldest undelivered message, the number of undelivered\n" +
			"messages, and how many are parked or dead; -o wide and json show this for each subscription. For the queues,\n" +
			"which a node reports, it shows how many jobs are waiting, active and dead. A part that does not answer within\n" +
			"a second is shown as unknown.\n\n" +
			"Each line that begins with ! is a problem, the worst first: what it is, since when, why, and a command that\n" +
			"shows details or corrects it. With --exit-code, exit code 0 means that there is no such line.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if failOnProblem && a.watching != nil {
				return fault.New(fault.Usage, "--exit-code and --watch exclude each other: a watch ends with 0 when it is interrupted")
			}
			s, err := a.readStatus(cmd.Context(), q, limit)
			if err != nil {
				return err
			}
			err = a.print(data{whole: s, table: s.Table, names: []string{s.Cluster}})
			if err == nil && failOnProblem && len(s.Attention) > 0 {
				err = fault.New(fault.Degraded, "cluster %s is degraded: %s", s.Cluster, s.Attention[0].Text)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&failOnProblem, "exit-code", false, "exit with 6 if anything needs attention")
	maxWaitFlag(cmd, &limit)
	q.flags(cmd.Flags())
	cmd.Flags().Lookup("addr").Usage = "ask the node at this host:port or URL for everything, instead of the store; without it, any live node is asked for the queues"
	return a.watchFlags(a.outputFlag(cmd))
}

func maxWaitFlag(cmd *cobra.Command, limit *time.Duration) {
	cmd.Flags().DurationVar(limit, "max-wait", 5*time.Minute, "how long a job or a message of the outbox may wait; 0s: no limit")
}

// readStatus reads the cluster, its outbox and its queues, within --timeout.
func (a *app) readStatus(ctx context.Context, q *queues, limit time.Duration) (s view.Status, err error) {
	if q.address != "" {
		a.node = nodeFlags{q.address, q.token, q.tls}
		err = a.withNode(ctx, false, limit, func(_ context.Context, c *cluster) error {
			s = c.status()
			return nil
		})
		return s, err
	}
	cfg, err := a.loadToRead()
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	awaitOutbox := a.startOutboxRead(ctx, cfg)
	err = a.withClusterOf(ctx, cfg, false, func(ctx context.Context, c *cluster) error {
		s = c.scheduled(ctx)
		s.AddQueues(q.readQueues(ctx, c), limit)
		s.AddOutbox(awaitOutbox(), limit)
		return nil
	})
	return s, err
}

func (a *app) nodeCommand() *cobra.Command {
	var all bool
	ls := &cobra.Command{
		Use: "ls", Short: "List nodes", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd.Context(), all, func(_ context.Context, c *cluster) error {
				s := c.status()
				return a.print(list(s.Nodes, func(n view.Node) string { return n.Name }, s.NodeTable))
			})
		},
	}
	ls.Flags().BoolVar(&all, "all", false, "also show nodes that have left")
	return group("node", "Show nodes, and take them out of service", a.addrFlags(a.watchFlags(a.outputFlag(ls))),
		a.operateCommand(daemon.CommandCordon, "Give a node no further units, until uncordon",
			"Give a node no further units. What runs there stays. The cordon is kept by the node's name, so it outlives a\n"+
				"restart of the node, and ends with emitd node uncordon."),
		a.operateCommand(daemon.CommandUncordon, "End the cordon or drain of a node", ""),
		a.operateCommand(daemon.CommandDrain, "Move everything away from a node, before maintenance",
			"Move everything away from a node. It gets no further units, each of its units is handed over to another node,\n"+
				"and if it leads, another node takes over. Units that no other node can take stop: see --dry-run. The node's\n"+
				"process goes on, and may be stopped. The drain is kept by the node's name, until emitd node uncordon."),
		a.operateCommand(daemon.CommandForget, "End every cordon, drain and pin of a node that is gone", ""),
	)
}

func (a *app) daemonCommand() *cobra.Command {
	var all bool
	var on string
	ls := &cobra.Command{
		Use: "ls", Short: "List daemons, one unit per line", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd.Context(), all, func(ctx context.Context, c *cluster) error {
				s := c.scheduled(ctx)
				return a.print(list(s.Daemons, func(u view.Unit) string { return u.Unit.String() }, s.UnitTable))
			})
		},
	}
	ls.Flags().BoolVar(&all, "all", false, "also show units that are no longer declared")
	explain := &cobra.Command{
		Use: "explain DAEMON[/INDEX]", Short: "Explain why a unit is on its node and where it would be placed",
		Args: exactly(1, "the ID of a daemon or unit, such as acme:reports or acme:reports/2"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCluster(cmd.Context(), true, func(ctx context.Context, c *cluster) error { return a.explain(ctx, c, args[0], on) })
		},
	}
	explain.Flags().StringVar(&on, "node", "", "only this node")
	a.complete(explain, unitNames)
	a.completeFlag(explain, "node", nodeNames)
	return group("daemon", "Show daemons, and act on their units", a.addrFlags(a.watchFlags(a.outputFlag(ls))), a.addrFlags(a.watchFlags(a.outputFlag(explain))), a.logsCommand(),
		a.operateCommand(daemon.CommandPause, "Stop a unit, or all units of a daemon, until resume", ""),
		a.operateCommand(daemon.CommandResume, "End a pause", ""),
		a.operateCommand(daemon.CommandRestart, "End a unit's run in order, and start it again", ""),
		a.operateCommand(daemon.CommandMove, "Hand a unit over to another node, once",
			"Hand a unit over to another node. The command returns when the unit is active there. Later changes of the\n"+
				"cluster may move it again: emitd daemon pin keeps it there."),
		a.operateCommand(daemon.CommandPin, "Keep a unit on a node, until unpin",
			"Keep a unit on a node. Whenever that node can take the unit, it runs there. While it cannot (it is dead,\n"+
				"cordoned or failed to run it), the unit runs elsewhere."),
		a.operateCommand(daemon.CommandUnpin, "End a pin; the unit stays where it is", ""),
		a.rebalanceCommand(), a.keysCommand(), a.ownerCommand(),
	)
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fault.New(fault.Usage, "%s takes no arguments, but got %q", cmd.CommandPath(), args).
		Hint("see %s --help", cmd.CommandPath())
}

// exactly refuses any other number of arguments, and names what is expected.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return fault.New(fault.Usage, "%s requires %s, but got %d arguments", cmd.CommandPath(), what, len(args)).
			Hint("see %s --help", cmd.CommandPath())
	}
}

// explain shows all units of a daemon, or one unit.
func (a *app) explain(ctx context.Context, c *cluster, name, on string) error {
	s := c.scheduled(ctx)
	units := find(s.Daemons, name)
	if len(units) == 0 {
		return noDaemon(s, name)
	}
	known := on == ""
	var out []view.Explained
	for _, u := range units {
		e, err := c.explain(ctx, u)
		if err != nil {
			return err
		}
		if on != "" {
			e = e.Only(on)
			known = known || len(e.Plan.Rows) > 0
		}
		out = append(out, e)
	}
	if !known {
		return fault.New(fault.NoNode, "there is no node %q", on)
	}
	d := list(out, func(e view.Explained) string { return e.Unit.Unit.String() }, nil)
	d.table = func(w io.Writer, _ bool) error {
		for i, e := range out {
			if i > 0 {
				fmt.Fprintln(w)
			}
			if err := e.Table(w, s); err != nil {
				return err
			}
		}
		return nil
	}
	return a.print(d)
}

// find returns the units with a name: one unit, or all of a daemon.
func find(units []view.Unit, name string) []view.Unit {
	var out []view.Unit
	for _, u := range units {
		if u.Unit.String() == name {
			return []view.Unit{u}
		}
		if string(u.Daemon) == name {
			out = append(out, u)
		}
	}
	return out
}

func noDaemon(s view.Status, name string) error {
	var ids []string
	for _, u := range s.Daemons {
		ids = append(ids, string(u.Daemon))
		if strings.HasPrefix(name, string(u.Daemon)+"/") {
			ids = append(ids, u.Unit.String())
		}
	}
	slices.Sort(ids)
	f := fault.New(fault.NoDaemon, "there is no daemon or unit %q", name)
	if near := config.Nearest(name, slices.Compact(ids)); near != "" {
		f.What += fmt.Sprintf("; did you mean %s?", near)
	}
	return f
}

// pages passes all events to f, page by page, up to the newest one.
func pages(ctx context.Context, s eventSource, f func([]daemon.Event) error) error {
	for after := int64(0); ; {
		p, err := s.Events(ctx, after, pageSize)
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if len(p.Events) == 0 {
			return nil
		}
		if err := f(p.Events); err != nil {
			return err
		}
		after = p.Events[len(p.Events)-1].Seq
	}
}

const pageSize = 500
