package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/outbox"
)

// outboxes is what the outbox commands share. They work on the database itself or, with --addr, over a node.
type outboxes struct{ a *app }

func (a *app) outboxCommand() *cobra.Command {
	o := &outboxes{a: a}
	g := group("outbox", "Inspect the outbox, and handle messages that could not be delivered",
		o.stats(), o.ls(), o.show(), o.retry(), o.skip(), o.purge(), o.replay(), o.pause(true), o.pause(false), o.forget(), o.publish())
	for _, c := range g.Commands() {
		if c.Name() != "publish" { // it is part of a transaction of the database; its first argument is a topic, which may be new
			o.completeSubscriptions(a.addrFlags(c))
		}
	}
	return g
}

// with opens the outbox and passes it to f, within --timeout.
func (o *outboxes) with(ctx context.Context, f func(ctx context.Context, box *backend.Outbox) error) error {
	ctx, cancel := context.WithTimeout(ctx, o.a.timeout)
	defer cancel()
	if o.a.node.address != "" {
		node, err := o.a.remote()
		if err != nil {
			return err
		}
		return f(ctx, &backend.Outbox{Operator: remoteOutbox{node}})
	}
	return o.withBox(ctx, func(box *backend.Outbox) error { return f(ctx, box) })
}

// withBox opens the outbox of the database, within --timeout, and passes it to f, which may take any time. It is for an f
// that reads input of any length; f bounds each of its calls by --timeout.
func (o *outboxes) withBox(ctx context.Context, f func(box *backend.Outbox) error) (err error) {
	cfg, err := o.a.loadToRead()
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, o.a.timeout)
	defer cancel()
	box, err := backend.OpenOutbox(opening, backend.Options{Config: cfg.Config, Policy: backend.ReadOnly, Logger: o.a.commandLog(cfg)})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(ctx, o.a.timeout)
		defer cancel()
		err = errors.Join(err, box.Close(ctx))
	}()
	box.Operator = recordedOutbox{box.Operator, o.a, cfg}
	if err := f(box); err != nil {
		return backend.OutboxFault(err)
	}
	return nil
}

// of is with for one subscription, which must exist.
func (o *outboxes) of(ctx context.Context, name string, f func(ctx context.Context, box *backend.Outbox) error) error {
	return o.with(ctx, func(ctx context.Context, box *backend.Outbox) error {
		if err := known(ctx, box, name); err != nil {
			return err
		}
		return f(ctx, box)
	})
}

// known returns a fault unless each subscription exists.
func known(ctx context.Context, box *backend.Outbox, wanted ...string) error {
	all, err := box.Stats(ctx, "")
	if err != nil {
		return err
	}
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Subscription
	}
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			return noSubscription(name, names)
		}
	}
	return nil
}

func noSubscription(name string, names []string) error {
	out := fault.New(fault.NoSubscription, "the outbox has no subscription %q", name)
	switch near := config.Nearest(name, names); {
	case near != "":
		out.What += fmt.Sprintf("; did you mean %s?", near)
	case len(names) == 0:
		return out.Hint("start a node with outbox.subscriptions: no relay has opened a subscription yet")
	}
	return out
}

func (o *outboxes) stats() *cobra.Command {
	return o.a.watchFlags(o.a.outputFlag(&cobra.Command{
		Use: "stats [SUBSCRIPTION]", Short: "Show pending messages, their age and the reading nodes",
		Args: atMost(1, "the name of a subscription"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.with(cmd.Context(), func(ctx context.Context, box *backend.Outbox) error {
				found, err := box.Stats(ctx, "")
				if err != nil {
					return err
				}
				all, names := []view.OutboxStats{}, []string{}
				for _, s := range found {
					if names = append(names, s.Subscription); len(args) == 0 || args[0] == s.Subscription {
						all = append(all, view.OutboxStatsOf(s))
					}
				}
				if len(args) == 1 && len(all) == 0 {
					return noSubscription(args[0], names)
				}
				d := list(all, func(s view.OutboxStats) string { return s.Subscription }, func(wide bool) *view.Table { return view.OutboxTable(all, wide) })
				if len(args) == 1 {
					d.whole = all[0]
				}
				return o.a.print(d)
			})
		},
	}))
}

func (o *outboxes) ls() *cobra.Command {
	var sel selection
	f := &sel.f
	cmd := &cobra.Command{
		Use: "ls [SUBSCRIPTION]", Short: "List messages that are parked after a failure, held or dead",
		Long: "List messages that could not be delivered, in log order: waiting (for another attempt), held (for an operator),\n" +
			"behind (an earlier message of the key) and dead. emitd outbox stats counts the messages not tried yet.",
		Args: atMost(1, "the name of a subscription"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := sel.parse(time.Now()); err != nil {
				return err
			}
			if f.Limit < 1 {
				return fault.New(fault.Usage, "--limit is %d, want 1 or more", f.Limit)
			}
			if len(args) == 1 {
				f.Subscription = args[0]
				return o.of(cmd.Context(), args[0], func(ctx context.Context, box *backend.Outbox) error { return o.list(ctx, box, *f) })
			}
			return o.with(cmd.Context(), func(ctx context.Context, box *backend.Outbox) error { return o.list(ctx, box, *f) })
		},
	}
	fl := cmd.Flags()
	sel.flags(cmd, "waiting, held, behind or dead; empty: all")
	fl.Int64Var(&f.After, "after", 0, "only messages after this number")
	fl.IntVar(&f.Limit, "limit", 100, "most entries to list")
	return o.a.watchFlags(o.a.outputFlag(cmd))
}

func (o *outboxes) list(ctx context.Context, box *backend.Outbox, f outbox.Filter) error {
	want := f.Limit
	f.Limit++ // to find out whether there are more
	found, err := box.List(ctx, f)
	if err != nil {
		return err
	}
	var all []view.OutboxMessage
	for _, e := range found[:min(len(found), want)] {
		all = append(all, view.OutboxMessageOf(e, false))
	}
	err = o.a.print(list(all, func(m view.OutboxMessage) string { return strconv.FormatInt(m.Seq, 10) },
		func(wide bool) *view.Table { return view.OutboxMessages(all, wide) }))
	if err == nil && len(found) > want {
		o.a.message("more messages: --after %d", all[want-1].Seq)
	}
	return err
}

func (o *outboxes) show() *cobra.Command {
	return o.a.outputFlag(&cobra.Command{
		Use: "show SUBSCRIPTION SEQ", Short: "Show a message that could not be delivered, with its payload and the reason",
		Args: exactly(2, "the name of a subscription and the number of a message"),
		RunE: func(cmd *cobra.Command, args []string) error {
			seqs, err := numbers(args[1:])
			if err != nil {
				return err
			}
			return o.of(cmd.Context(), args[0], func(ctx context.Context, box *backend.Outbox) error {
				found, err := box.List(ctx, outbox.Filter{Subscription: args[0], Seq: seqs[0]})
				if err != nil {
					return err
				}
				if len(found) == 0 {
					return fault.New(fault.NoMessage, "no parked or dead message %d in %s", seqs[0], args[0])
				}
				m := view.OutboxMessageOf(found[0], true)
				return o.a.print(data{whole: m, names: args[1:], table: func(w io.Writer, _ bool) error { return m.Table().Write(w) }})
			})
		},
	})
}

// numbers parses the numbers of messages.
func numbers(args []string) ([]int64, error) {
	out := make([]int64, len(args))
	for i, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 1 {
			return nil, fault.New(fault.Usage, "%q is not the number of a message", arg).Hint("see the column SEQ of emitd outbox ls")
		}
		out[i] = n
	}
	return out, nil
}

// done prints what was done to a subscription.
func (o *outboxes) done(name, act, text string, more map[string]any) error {
	whole := map[string]any{"subscription": name, "act": act}
	for k, v := range more {
		whole[k] = v
	}
	return o.a.print(data{whole: whole, names: []string{name}, table: func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintln(w, view.Line(text))
		return err
	}})
}

// withConfirmation adds --yes to a command and asks before it runs.
func (o *outboxes) withConfirmation(cmd *cobra.Command, effect func(args []string) string) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.a.confirm(effect(args)); err != nil {
			return err
		}
		return run(cmd, args)
	}
	cmd.Flags().BoolVarP(&o.a.yes, "yes", "y", false, "do not ask for confirmation")
	return o.a.outputFlag(cmd)
}

// moment parses a time in the past, or a duration before now, of a flag; an empty text gives the zero time.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fault.New(fault.Usage, "%s %s is neither a time such as 2030-01-31T09:00:00Z nor a duration such as 1h", flag, text)
	}
	if t.After(now) {
		return t, fault.New(fault.Usage, "%s %s is in the future; it is now %s", flag, text, now.UTC().Format(time.RFC3339))
	}
	return t, nil
}

func (o *outboxes) pause(paused bool) *cobra.Command {
	use, short, text := "resume", "Deliver again", "%s delivers"
	if paused {
		use, short, text = "pause", "Pause a subscription until it is resumed; messages are kept", "%s delivers nothing until it is resumed"
	}
	return o.a.outputFlag(&cobra.Command{
		Use: use + " SUBSCRIPTION", Short: short, Args: exactly(1, "the name of a subscription"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.of(cmd.Context(), args[0], func(ctx context.Context, box *backend.Outbox) error {
				if err := box.Pause(ctx, args[0], paused); err != nil {
					return err
				}
				return o.done(args[0], use, fmt.Sprintf(text, args[0]), map[string]any{"paused": paused})
			})
		},
	})
}

func (o *outboxes) forget() *cobra.Command {
	return o.withConfirmation(&cobra.Command{
		Use: "forget SUBSCRIPTION", Short: "Delete an unused subscription, so that old messages can be removed",
		Long: "Delete a subscription with its position in the log, its parked keys and its dead letters. First remove it\n" +
			"from the configuration of every node. The command is refused (exit code 5) while a node of the group\n" +
			"(node.group) has the subscription in its configuration, or has not ended its relay: the relay would create it\n" +
			"again, starting at the oldest message in the log. Until it is deleted, the log keeps messages for it. It is\n" +
			"paused and then deleted in parts: if the command fails, as after --timeout, repeat it or resume what is left.",
		Args: exactly(1, "the name of a subscription"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.of(cmd.Context(), args[0], func(ctx context.Context, box *backend.Outbox) error {
				if err := box.Delete(ctx, args[0]); err != nil {
					return err
				}
				return o.done(args[0], "forget", "forgot "+args[0], nil)
			})
		},
	}, func(args []string) string {
		return fmt.Sprintf("subscription %s is deleted with its undelivered messages and its dead letters", args[0])
	})
}

// atMost refuses more than n arguments.
func atMost(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= n {
			return nil
		}
		return exactly(n, "at most "+what)(cmd, args)
	}
}

// atLeast refuses fewer than n arguments.
func atLeast(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= n {
			return nil
		}
		return exactly(n, what)(cmd, args)
	}
}
