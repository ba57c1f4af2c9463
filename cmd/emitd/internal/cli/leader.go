package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

func (a *app) leaderCommand() *cobra.Command {
	show := &cobra.Command{
		Use: "show", Short: "Show the leader", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd.Context(), false, func(_ context.Context, c *cluster) error { return a.showLeader(c.status()) })
		},
	}
	var since time.Duration
	history := &cobra.Command{
		Use: "history", Short: "List terms, newest first", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd.Context(), false, func(ctx context.Context, c *cluster) error { return a.history(ctx, c, since) })
		},
	}
	sinceFlag(history, &since, "only terms that ended in this last period, such as 1h, by the store's clock")
	return group("leader", "Show leadership, and move it", a.addrFlags(a.watchFlags(a.outputFlag(show))), a.addrFlags(a.watchFlags(a.outputFlag(history))), a.resignCommand(), a.releaseCommand())
}

func (a *app) showLeader(s view.Status) error {
	d := data{whole: s.Leader, table: func(w io.Writer, _ bool) error { return s.LeaderTable().Write(w) }}
	if s.Leader != nil {
		d.names = []string{s.Leader.Node}
	}
	if err := a.print(d); err != nil || s.Leader != nil {
		return err
	}
	return fault.New(fault.NoLeader, "cluster %s has no leader", s.Cluster)
}

func (a *app) history(ctx context.Context, c *cluster, since time.Duration) error {
	terms, err := c.terms(ctx, since)
	if err != nil {
		return err
	}
	return a.print(list(terms, func(r view.Term) string { return fmt.Sprint(r.Term) }, func(bool) *view.Table { return view.TermTable(terms) }))
}

// terms returns the terms in the history, the newest first.
func (c *cluster) terms(ctx context.Context, since time.Duration) ([]view.Term, error) {
	if c.node != nil {
		return c.node.terms(ctx, since)
	}
	var all []daemon.Event
	err := pages(ctx, c.store, func(es []daemon.Event) error {
		for _, e := range es {
			if e.Kind == daemon.LeaderElected || e.Kind == daemon.LeaderLost {
				all = append(all, e)
			}
		}
		return nil
	})
	return view.RecentTerms(view.Terms(all, c.snap.Now), c.snap.Now, since), err
}

// resignation holds the operator's options.
type resignation struct {
	cooldown      time.Duration
	reason, actor string
	to            string // node that is to lead; "" = any
	dryRun        bool
	timeoutGiven  bool // --timeout was given
}

func (a *app) resignCommand() *cobra.Command {
	var r resignation
	cmd := &cobra.Command{
		Use: "resign", Short: "Ask the leader to resign; daemons keep running",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if r.cooldown < 0 {
				return fault.New(fault.Usage, "--cooldown is %v, want 0 or more", r.cooldown)
			}
			r.timeoutGiven = cmd.Flags().Changed("timeout")
			return a.resign(cmd.Context(), r)
		},
	}
	fl := cmd.Flags()
	fl.DurationVar(&r.cooldown, "cooldown", 0, "how long that node does not campaign again, unless another node has led")
	fl.StringVar(&r.to, "to", "", "name of the node that is to lead; the others let it campaign first")
	a.completeFlag(cmd, "to", nodeNames)
	fl.StringVar(&r.reason, "reason", "", "reason, shown in the history")
	fl.StringVar(&r.actor, "actor", "", "who asks, shown in the history; by default the user of this process")
	fl.BoolVar(&r.dryRun, "dry-run", false, "only show what would happen")
	fl.BoolVarP(&a.yes, "yes", "y", false, "do not ask for confirmation")
	return a.addrFlags(a.outputFlag(cmd))
}

func (a *app) resign(ctx context.Context, r resignation) error {
	return a.withCluster(ctx, false, func(_ context.Context, c *cluster) error {
		l := c.status().Leader
		if l == nil {
			return fault.New(fault.NoLeader, "cluster %s has no leader, so no node can resign", c.status().Cluster)
		}
		if l.Expired {
			return fault.New(fault.NoLeader, "the lease of %s has expired, so no node can resign", l.Node)
		}
		effect := fmt.Sprintf("%s resigns term %d; daemons keep running where they are", l.Node, l.TermOrdinal)
		if r.to != "" {
			effect += "; " + view.Line(r.to) + " is to lead"
		}
		if r.cooldown > 0 {
			effect += fmt.Sprintf("; it campaigns again when another node has led, or after %s", r.cooldown)
		}
		if r.dryRun {
			a.message("would ask: %s", effect)
			return nil
		}
		if err := a.confirm(effect); err != nil {
			return err
		}
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("generate an ID: %w", err)
		}
		wait := a.timeout
		t, err := a.timing(c)
		if err != nil {
			return err
		}
		if !r.timeoutGiven {
			wait = max(wait, t.Late()+t.LeaderStopTimeout+t.QueryTimeout)
		}
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		switch {
		case c.node != nil:
			return a.resignNode(ctx, c, r, l)
		case r.to != "":
			return a.handOver(ctx, c, r, l)
		}
		return a.submit(ctx, c, l, storage.Command{
			ID: id.String(), Kind: daemon.CommandResign, Actor: cmp.Or(r.actor, actor()),
			Reason: r.reason, Term: l.Term, Cooldown: r.cooldown,
		})
	})
}

func (a *app) releaseCommand() *cobra.Command {
	cmd := a.clusterWideCommand(daemon.CommandRelease, "Release the brake: take over from the nodes that look dead",
		"Release the brake. It holds while more than half of the nodes look dead at once, because then the cause is more likely\n"+
			"the network than the nodes. If you know that they are dead, the others need not wait: what the dead nodes ran goes to\n"+
			"the others as soon as each has been silent for node_registration_ttl.",
		func(c *cluster, dryRun bool) error {
			switch {
			case c.status().Leader == nil:
				return fault.New(fault.NoLeader, "cluster %s has no leader, so no brake holds", c.status().Cluster)
			case dryRun:
				return nil
			}
			return a.confirm("the nodes that look dead lose their units to the others")
		})
	cmd.Flags().BoolVarP(&a.yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

// submitEvery is how often a command is submitted again.
const submitEvery = 100 * time.Millisecond

// submit submits the command until it is done. Submitting is idempotent, so each repetition also queries
// the command, and finds out what happened if an answer was lost.
func (a *app) submit(ctx context.Context, c *cluster, l *view.Leader, cmd storage.Command) error {
	tick := time.NewTicker(submitEvery)
	defer tick.Stop()
	unknown := errors.New("the store did not answer in time") // why the outcome is unknown; nil: it waits in the store
	for first := true; ; first = false {
		done, err := c.store.Submit(ctx, cmd)
		switch {
		case err == nil && !done.DoneAt.IsZero():
			return a.printSubmitted(l, *done)
		case err == nil:
			unknown = nil
		case ctx.Err() != nil: // the call was cut off, so nothing new is known
		case first && refused(err):
			return fmt.Errorf("store the command: %w", err)
		default:
			unknown = err
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		if unknown != nil {
			return fault.New(fault.CommandUnknown, "it is not known whether command %s was carried out: %s", cmd.ID, backend.Fault(unknown).What)
		}
		return fault.New(fault.NotAnswered, "command %s is stored, but not carried out yet", cmd.ID)
	}
}

// refused reports whether the error says that nothing was written and that a repetition would not help.
func refused(err error) bool {
	code := backend.Fault(err).Code
	return code != fault.Unreachable && code != fault.Locked
}

func (a *app) printSubmitted(l *view.Leader, done storage.Command) error {
	if strings.HasPrefix(done.Result, "conflict") {
		return notLeader(l)
	}
	return a.print(data{
		whole: resigned{l.Node, done.Term, l.TermOrdinal, done.ID, done.Result, view.Time{Time: done.DoneAt}},
		names: []string{done.ID},
		table: func(w io.Writer, _ bool) error {
			_, err := fmt.Fprintf(w, "%s resigned term %d after %s\n", view.Line(l.Node), l.TermOrdinal, view.Exact(max(done.DoneAt.Sub(done.CreatedAt), 0)))
			return err
		},
	})
}

func notLeader(l *view.Leader) error {
	return fault.New(fault.NotLeader, "%s is no longer the leader: its term %d has ended", l.Node, l.TermOrdinal).
		Because("nothing was written. The command was refused by its term check, not lost.")
}

type resigned struct {
	Node    string    `json:"node"`
	Term    int64     `json:"term"`
	Ordinal int64     `json:"term_ordinal"`
	Command string    `json:"command"`
	Result  string    `json:"result"`
	DoneAt  view.Time `json:"done_at"`
}

// confirm asks before an irreversible action. A script that cannot be asked must pass --yes, so that a
// mistyped command does no harm.
func (a *app) confirm(effect string) error {
	if a.yes {
		return nil
	}
	if !isTerminal(a.In) {
		return fault.New(fault.Usage, "%s: this needs a confirmation, and standard input is not a terminal; nothing was done", effect).Hint("add --yes")
	}
	a.progress.Pause()
	defer a.progress.Resume()
	fmt.Fprintf(a.Err, "%s. Continue? [y/N] ", effect)
	answer, _ := bufio.NewReader(a.In).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	if answer != "y" && answer != "yes" {
		return fault.New(fault.Usage, "not confirmed, nothing was done").Hint("answer y, or give --yes")
	}
	return nil
}

// actor returns the name of the user of this process.
func actor() string {
	u, err := user.Current()
	if err != nil || u.Username == "" {
		return "cli"
	}
	return u.Username
}
