package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox"
)

// selection is the flags by which the outbox commands select messages that could not be delivered.
type selection struct {
	f                  outbox.Filter
	kind, since, until string
}

func (s *selection) flags(cmd *cobra.Command, kinds string) {
	fl := cmd.Flags()
	fl.StringVar(&s.kind, "kind", "", kinds)
	fl.StringVar(&s.f.Key, "key", "", "only messages of this key")
	fl.StringVar(&s.f.Topic, "topic", "", "only messages of this topic, or of those with a prefix that ends in *")
	fl.StringVar(&s.f.Cause, "cause", "", "only messages whose cause contains this text")
	fl.StringVar(&s.since, "since", "", "only messages parked or dead since this time (RFC 3339), or for at most this period, such as 1h")
	fl.StringVar(&s.until, "until", "", "only messages parked or dead before this time, or for at least this period")
}

// any reports whether one of the flags is set.
func (s *selection) any() bool {
	return s.kind+s.f.Key+s.f.Topic+s.f.Cause+s.since+s.until != ""
}

// parse parses and validates the flags.
func (s *selection) parse(now time.Time) (err error) {
	switch s.f.Kind = outbox.Kind(s.kind); s.f.Kind {
	case "", outbox.Waiting, outbox.Held, outbox.Behind, outbox.Dead:
	default:
		return fault.New(fault.Usage, "--kind %s is not known, want waiting, held, behind or dead", s.kind)
	}
	if strings.Contains(strings.TrimSuffix(s.f.Topic, "*"), "*") {
		return fault.New(fault.Usage, "--topic is %.80q, want a topic, or a prefix followed by *", s.f.Topic)
	}
	if s.f.Since, err = moment("--since", s.since, now); err != nil {
		return err
	}
	if s.f.Until, err = moment("--until", s.until, now); err != nil {
		return err
	}
	if s.until != "" && !s.f.Since.Before(s.f.Until) {
		return fault.New(fault.Usage, "--since %s is not before --until %s, so no message can be between them", s.since, s.until)
	}
	return nil
}

// bulk is a command that changes messages: those with given numbers, or all that flags select.
type bulk struct {
	o      *outboxes
	to     outbox.Kind
	kinds  []outbox.Kind // that may change, those of the default first
	done   string        // what has become of the messages: are retried
	effect string        // what becomes of them, for the question; empty: nobody is asked
	some   bool          // numbers, a flag or --all must be given
	// bySeqs changes the messages with these numbers, and returns how many keys and messages it changed.
	bySeqs func(ctx context.Context, box *backend.Outbox, name string, seqs []int64) (int, error)

	sel         selection
	all, dryRun bool
}

// command adds flags and the run to a command.
func (b *bulk) command(cmd *cobra.Command) *cobra.Command {
	cmd.Args = atLeast(1, "the name of a subscription, and optionally numbers of messages")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		seqs, err := numbers(args[1:])
		if err == nil {
			err = b.check(cmd.Name(), len(seqs))
		}
		switch {
		case err != nil:
			return err
		case len(seqs) > 0, cmd.Name() == "retry" && !b.sel.any() && !b.dryRun:
			return b.changeNumbered(cmd, args[0], seqs)
		}
		b.sel.f.Subscription = args[0]
		return b.changeSelected(cmd)
	}
	names := make([]string, len(b.kinds))
	for i, k := range b.kinds {
		names[i] = string(k)
	}
	b.sel.flags(cmd, "only messages that are "+strings.Join(names, ", "))
	cmd.Flags().BoolVar(&b.dryRun, "dry-run", false, "only count the messages; change nothing")
	if b.some {
		cmd.Flags().BoolVar(&b.all, "all", false, "all such messages of the subscription")
	}
	if b.effect != "" {
		cmd.Flags().BoolVarP(&b.o.a.yes, "yes", "y", false, "do not ask for confirmation")
	}
	return b.o.a.outputFlag(cmd)
}

// check validates the flags, given the number of messages that are named.
func (b *bulk) check(name string, seqs int) error {
	if err := b.sel.parse(time.Now()); err != nil {
		return err
	}
	switch {
	case seqs > 0 && (b.sel.any() || b.all || b.dryRun):
		return fault.New(fault.Usage, "%s: want either numbers of messages or flags that select them", name)
	case b.some && seqs == 0 && !b.sel.any() && !b.all:
		return fault.New(fault.Usage, "%s: nothing is selected", name).
			Hint("give numbers of messages, flags such as --topic and --cause, or --all; --dry-run only counts")
	case b.sel.kind != "" && !contains(b.kinds, b.sel.f.Kind):
		return fault.New(fault.Usage, "%s: messages that are %s cannot be changed so", name, b.sel.kind)
	}
	return nil
}

func contains(kinds []outbox.Kind, kind outbox.Kind) bool {
	for _, k := range kinds {
		if k == kind {
			return true
		}
	}
	return false
}

// changeNumbered changes the messages with these numbers, or everything by the command's default.
func (b *bulk) changeNumbered(cmd *cobra.Command, name string, seqs []int64) error {
	if b.effect != "" {
		if err := b.o.a.confirm(fmt.Sprintf("%d messages of %s %s", len(seqs), name, b.effect)); err != nil {
			return err
		}
	}
	return b.o.of(cmd.Context(), name, func(ctx context.Context, box *backend.Outbox) error {
		n, err := b.bySeqs(ctx, box, name, seqs)
		if err != nil {
			return err
		}
		what := "messages"
		if b.to == outbox.Waiting {
			what = "keys and messages"
		}
		return b.o.done(name, cmd.Name(), fmt.Sprintf("%d %s of %s %s", n, what, name, b.done), map[string]any{b.countField(): n})
	})
}

// countField is the field of the output that has the number of messages.
func (b *bulk) countField() string {
	switch b.to {
	case outbox.Waiting:
		return "retried"
	case outbox.Dead:
		return "skipped"
	default:
		return "purged"
	}
}

// changeSelected counts the messages that the flags select, asks, and changes them.
func (b *bulk) changeSelected(cmd *cobra.Command) error {
	counts, err := b.settle(cmd, true)
	if err != nil {
		return err
	}
	name := b.sel.f.Subscription
	if total(counts) > 0 && !b.dryRun {
		if b.effect != "" {
			if err := b.o.a.confirm(fmt.Sprintf("%s of %s %s", count(counts), name, b.effect)); err != nil {
				return err
			}
		}
		if counts, err = b.settle(cmd, false); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("%s of %s %s", count(counts), name, b.done)
	switch {
	case total(counts) == 0:
		text = fmt.Sprintf("no message of %s is selected; nothing was changed", name)
	case b.dryRun:
		text = fmt.Sprintf("%s of %s are selected; nothing was changed", count(counts), name)
	}
	return b.o.done(name, cmd.Name(), text, map[string]any{b.countField(): total(counts), "counts": counts, "dry_run": b.dryRun})
}

func (b *bulk) settle(cmd *cobra.Command, dryRun bool) (counts map[outbox.Kind]int, err error) {
	err = b.o.of(cmd.Context(), b.sel.f.Subscription, func(ctx context.Context, box *backend.Outbox) error {
		counts, err = box.SettleAll(ctx, b.sel.f, b.to, dryRun)
		if err != nil && total(counts) > 0 {
			err = fmt.Errorf("after %s were changed: %w", count(counts), err)
		}
		return err
	})
	return counts, err
}

func total(counts map[outbox.Kind]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// count writes counts for people: 3 held and 12 dead messages.
func count(counts map[outbox.Kind]int) string {
	var parts []string
	for _, kind := range []outbox.Kind{outbox.Waiting, outbox.Held, outbox.Behind, outbox.Dead} {
		if n := counts[kind]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, kind))
		}
	}
	return strings.Join(parts, " and ") + " messages"
}

func (o *outboxes) retry() *cobra.Command {
	b := &bulk{
		o: o, to: outbox.Waiting, kinds: []outbox.Kind{outbox.Held, outbox.Dead, outbox.Waiting}, done: "are retried",
		bySeqs: func(ctx context.Context, box *backend.Outbox, name string, seqs []int64) (int, error) {
			return box.Retry(ctx, name, seqs...)
		},
	}
	return b.command(&cobra.Command{
		Use: "retry SUBSCRIPTION [SEQ…]", Short: "Retry messages now: the given ones, those that flags select, or all that are held or dead",
		Long: "Retry messages now and count their attempts from zero. Without numbers: all that are held or dead, or those of\n" +
			"them that the flags select. A dead message arrives after later messages of its key that were delivered\n" +
			"meanwhile; it keeps its ID.",
	})
}

func (o *outboxes) skip() *cobra.Command {
	b := &bulk{
		o: o, to: outbox.Dead, kinds: []outbox.Kind{outbox.Held, outbox.Waiting, outbox.Behind}, some: true,
		done: "are dead letters; their keys continue", effect: "become dead letters, and their keys continue without them",
		bySeqs: func(ctx context.Context, box *backend.Outbox, name string, seqs []int64) (int, error) {
			return len(seqs), box.Skip(ctx, name, seqs...)
		},
	}
	return b.command(&cobra.Command{
		Use: "skip SUBSCRIPTION [SEQ…]", Short: "Skip parked messages: they become dead letters, and their keys continue",
		Long: "Skip messages that wait or are held: they become dead letters, which are kept for outbox.dead_retention, and\n" +
			"their keys continue without them. Either all given messages are skipped or none. Without numbers: those that\n" +
			"the flags select, only held ones unless --kind says otherwise.",
	})
}

func (o *outboxes) purge() *cobra.Command {
	b := &bulk{
		o: o, to: outbox.Dropped, kinds: []outbox.Kind{outbox.Dead}, some: true,
		done: "are deleted", effect: "are deleted for ever",
		bySeqs: func(ctx context.Context, box *backend.Outbox, name string, seqs []int64) (int, error) {
			for _, dryRun := range []bool{true, false} { // first look whether all are there
				for _, seq := range seqs {
					counts, err := box.SettleAll(ctx, outbox.Filter{Subscription: name, Seq: seq}, outbox.Dropped, dryRun)
					if err != nil {
						return 0, err
					}
					if dryRun && total(counts) == 0 {
						return 0, fault.New(fault.NoMessage, "no dead message %d in %s", seq, name)
					}
				}
			}
			return len(seqs), nil
		},
	}
	return b.command(&cobra.Command{
		Use: "purge SUBSCRIPTION [SEQ…]", Short: "Delete dead letters: the given ones, or those that flags select",
		Long: "Delete dead letters for ever: the given ones, those that the flags select, or --all. The sweeper deletes those\n" +
			"that are older than outbox.dead_retention. Messages that wait or are held cannot be deleted: skip them first.",
	})
}
