package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/coordinator/operator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// order is an operator's command with the options of the command line.
type order struct {
	kind          daemon.CommandKind
	reason, actor string
	to            string
	term          int64
	generation    int64
	cooldown      time.Duration
	dryRun, wait  bool
	timeoutGiven  bool // --timeout was given
}

// operateCommand makes the subcommand for a kind of command about a node, or about a daemon or unit.
func (a *app) operateCommand(kind daemon.CommandKind, short, long string) *cobra.Command {
	o := order{kind: kind}
	onNode := forNode(kind)
	subject, what, names := "UNIT", "a unit, such as acme:reports/0", unitNames
	switch {
	case onNode:
		subject, what, names = "NODE", "the name of a node", nodeNames
	case kind == daemon.CommandPause || kind == daemon.CommandResume:
		subject, what = "DAEMON[/INDEX]", "a daemon or unit, such as acme:reports or acme:reports/0"
	}
	cmd := &cobra.Command{
		Use: kind.Verb() + " " + subject, Short: short, Long: long, Args: exactly(1, what),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.timeoutGiven = cmd.Flags().Changed("timeout")
			return a.operate(cmd.Context(), o, args[0])
		},
	}
	fl := cmd.Flags()
	o.flags(fl)
	switch kind {
	case daemon.CommandMove, daemon.CommandPin:
		fl.StringVar(&o.to, "to", "", "name of the node")
		a.completeFlag(cmd, "to", nodeNames)
	case daemon.CommandDrain:
		fl.BoolVar(&o.wait, "wait", false, "return when every unit is active on another node, and another node leads")
	}
	if kind == daemon.CommandMove || kind == daemon.CommandRestart {
		fl.Int64Var(&o.generation, "generation", 0, "refuse unless the unit has this generation")
	}
	a.complete(cmd, names)
	return a.addrFlags(a.outputFlag(cmd))
}

// flags adds the flags that all of these commands have.
func (o *order) flags(fl *pflag.FlagSet) {
	fl.StringVar(&o.reason, "reason", "", "reason, shown in the history and wherever the command is in force")
	fl.StringVar(&o.actor, "actor", "", "who asks, shown in the history; by default the user of this process")
	fl.BoolVar(&o.dryRun, "dry-run", false, "only show what would move")
	fl.Int64Var(&o.term, "term", 0, "refuse unless this term leads (the number, not the ordinal)")
}

// forNode reports whether a kind of command is about a node.
func forNode(kind daemon.CommandKind) bool {
	switch kind {
	case daemon.CommandCordon, daemon.CommandUncordon, daemon.CommandDrain, daemon.CommandForget:
		return true
	}
	return false
}

// clusterWideCommand makes the subcommand for a kind of command about no node and no unit. Before the command is shown or
// given, permit may refuse it.
func (a *app) clusterWideCommand(kind daemon.CommandKind, short, long string, permit func(c *cluster, dryRun bool) error) *cobra.Command {
	o := order{kind: kind}
	cmd := &cobra.Command{
		Use: kind.Verb(), Short: short, Long: long, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.timeoutGiven = cmd.Flags().Changed("timeout")
			// The context of the read ends with --timeout, and the command may take longer.
			return a.withCluster(cmd.Context(), true, func(_ context.Context, c *cluster) error {
				if err := permit(c, o.dryRun); err != nil {
					return err
				}
				return a.carryOut(cmd.Context(), c, o, daemon.CommandArgs{}, "cluster "+c.status().Cluster)
			})
		},
	}
	o.flags(cmd.Flags())
	return a.addrFlags(a.outputFlag(cmd))
}

func (a *app) rebalanceCommand() *cobra.Command {
	return a.clusterWideCommand(daemon.CommandRebalance, "Move units until the loads are even, as after a node has joined",
		"Move units until the loads are even. The leader does so by itself after nodes have joined, left or returned, but not\n"+
			"after failures and operators' moves. It moves at most coordinator.max_moves_per_round units at a time. The command\n"+
			"returns when no further move would make the loads more even.",
		func(*cluster, bool) error { return nil })
}

func (a *app) operate(ctx context.Context, o order, subject string) error {
	return a.withCluster(ctx, true, func(_ context.Context, c *cluster) error {
		args, err := o.arguments(c.status(), subject)
		if err != nil {
			return err
		}
		return a.carryOut(ctx, c, o, args, subject)
	})
}

// carryOut shows what a command would move, or gives it to the cluster and waits for the answer.
func (a *app) carryOut(ctx context.Context, c *cluster, o order, args daemon.CommandArgs, subject string) error {
	timing, err := a.timing(c)
	if err != nil {
		return err
	}
	ctx, cancel := a.withTimeout(ctx, timing, o)
	defer cancel()
	if c.node != nil {
		return a.orderNode(ctx, c, o, args, subject)
	}
	op := &operator.Client{Store: c.store, Actor: cmp.Or(o.actor, actor())}
	command := daemon.Command{Kind: o.kind, Reason: o.reason, Term: o.term, Args: args.Encode()}
	if o.dryRun {
		moves, err := op.Preview(ctx, command)
		if err != nil {
			return commandFault(err)
		}
		return a.printMoves(moves)
	}
	done, err := op.Do(ctx, command)
	if err != nil {
		return commandFault(err)
	}
	if o.wait {
		done, err = op.Drained(ctx, done, func(held, starting int) { a.drainProgress(subject, held, starting) })
		if err != nil {
			return commandFault(err)
		}
	}
	return a.printCommand(done, subject)
}

func (a *app) drainProgress(subject string, held, starting int) {
	a.message("%s: %d left, %d starting elsewhere", view.Line(subject), held, starting)
}

// withTimeout bounds a command: by --timeout, or by what a change of the leader and a hand-over may take.
func (a *app) withTimeout(ctx context.Context, t lease.Timing, o order) (context.Context, context.CancelFunc) {
	wait := a.timeout
	if !o.timeoutGiven {
		wait = max(wait, t.Late()+t.LeaseDuration+t.ForceAfter(t.DrainTimeout)+t.AcknowledgeTimeout)
		if o.wait {
			wait *= 2
		}
	}
	return context.WithTimeout(ctx, wait)
}

// arguments finds what the command is about. Unknown names are refused before anything is stored.
func (o order) arguments(s view.Status, subject string) (daemon.CommandArgs, error) {
	args := daemon.CommandArgs{To: o.to, Generation: o.generation}
	if (o.kind == daemon.CommandMove || o.kind == daemon.CommandPin) && o.to == "" {
		return args, fault.New(fault.Usage, "--to is missing: the name of the node").Hint("list them: emitd node ls")
	}
	known := func(name string) error {
		for _, m := range s.Nodes {
			if m.Name == name {
				return nil
			}
		}
		lifts := o.kind == daemon.CommandUncordon || o.kind == daemon.CommandForget
		if lifts && slices.ContainsFunc(s.Orders, func(in view.Order) bool { return forNode(in.Kind) && in.Subject == name || in.To == name }) {
			return nil // what is in force outlives the node's row
		}
		return fault.New(fault.NoNode, "there is no node %q", name)
	}
	if o.to != "" {
		if err := known(o.to); err != nil {
			return args, err
		}
	}
	if forNode(o.kind) {
		args.Node = subject
		return args, known(subject)
	}
	units := find(s.Daemons, subject)
	if len(units) == 0 {
		return args, noDaemon(s, subject)
	}
	args.Daemon = units[0].Daemon
	if units[0].Unit.String() == subject {
		args.SetUnit(units[0].Unit)
		return args, nil
	}
	if o.kind == daemon.CommandPause || o.kind == daemon.CommandResume {
		return args, nil
	}
	if len(units) > 1 {
		return args, fault.New(fault.Usage, "%s has %d units: name one of them, such as %s", subject, len(units), units[0].Unit)
	}
	args.SetUnit(units[0].Unit)
	return args, nil
}

// commandFault says why a command was not carried out.
func commandFault(err error) error { return fault.FromCommand(err, backend.Fault) }

// printCommand says how a command has ended. One that another has lifted in the meantime is no success.
func (a *app) printCommand(c daemon.Command, subject string) error {
	if c.Outcome() == daemon.ResultLifted {
		return fault.New(fault.CommandConflict, "%s %s: %s", c.Kind.Verb(), subject, c.Result).
			Because("the command was in force, and another one has ended it since.").Hint("see emitd events --kind 'operator.*'")
	}
	return a.print(data{whole: c, names: []string{c.ID}, table: func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "%s %s: %s\n", c.Kind.Verb(), view.Line(subject), view.Line(c.Result))
		return err
	}})
}

// planned is what a command would move, for scripts.
type planned struct {
	Moves []operator.Move `json:"moves"`
}

func (a *app) printMoves(moves []operator.Move) error {
	d := data{whole: planned{append([]operator.Move{}, moves...)}}
	for _, m := range moves {
		d.names = append(d.names, m.Unit.String())
	}
	d.table = func(w io.Writer, _ bool) error {
		if len(moves) == 0 {
			_, err := fmt.Fprintln(w, "no unit would move")
			return err
		}
		t := &view.Table{Head: []string{"UNIT", "FROM", "TO", "WHY"}}
		for _, m := range moves {
			t.Add(m.Unit.String(), cmp.Or(m.From, "-"), cmp.Or(m.To, "nowhere"), m.Why)
		}
		return t.Write(w)
	}
	return a.print(d)
}

// handOver asks the leader to hand the term over to a node.
func (a *app) handOver(ctx context.Context, c *cluster, r resignation, l *view.Leader) error {
	known := slices.ContainsFunc(c.snap.Nodes, func(m node.Member) bool { return m.Name == r.to })
	if !known {
		return fault.New(fault.NoNode, "there is no node %q", r.to)
	}
	op := &operator.Client{Store: c.store, Actor: cmp.Or(r.actor, actor())}
	done, err := op.Do(ctx, daemon.Command{
		Kind: daemon.CommandResign, Reason: r.reason, Term: l.Term, Cooldown: r.cooldown,
		Args: daemon.CommandArgs{To: r.to}.Encode(),
	})
	if err != nil {
		return commandFault(err)
	}
	return a.printCommand(done, l.Node)
}
