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

// replay is the command that delivers messages again.
type replay struct {
	o                         *outboxes
	r                         outbox.ReplayRequest
	source                    string
	topic, since, until, into string
	after, upTo               bool // the flags are set
}

func (o *outboxes) replay() *cobra.Command {
	p := &replay{o: o}
	cmd := &cobra.Command{
		Use: "replay SUBSCRIPTION", Short: "Deliver messages again: all after a position, or those of a key, a topic or a range",
		Long: "Deliver messages of the log again; it keeps delivered messages for outbox.retention. Messages keep their IDs.\n" +
			"Only --after or --since: everything from there on, in log order and before any later messages. With another\n" +
			"flag: copies of the messages that all flags select, at most 100,000. They arrive in log order, and before all\n" +
			"messages of their keys that are not delivered yet; other keys do not wait. What is selected and not delivered\n" +
			"yet is not copied, because it is delivered anyway. Unless --topic says otherwise, only topics are selected\n" +
			"that the subscription has in this command's configuration. With --into another subscription delivers them.",
		Args: exactly(1, "the name of a subscription"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.source = args[0]
			p.after, p.upTo = cmd.Flags().Changed("after"), cmd.Flags().Changed("up-to")
			if err := p.parse(time.Now()); err != nil {
				return err
			}
			return p.run(cmd.Context())
		},
	}
	fl := cmd.Flags()
	fl.Int64Var(&p.r.After, "after", 0, "only messages after the one with this number; 0: from the beginning")
	fl.Int64Var(&p.r.UpTo, "up-to", 0, "only messages up to the one with this number")
	fl.StringVar(&p.since, "since", "", "only messages published since this time (RFC 3339), or in this last period, such as 1h")
	fl.StringVar(&p.until, "until", "", "only messages published before this time, or at least this period ago")
	fl.StringVar(&p.r.Key, "key", "", "only messages of this key")
	fl.StringVar(&p.topic, "topic", "", "only messages of this topic, or of those with a prefix that ends in *")
	fl.StringVar(&p.into, "into", "", "the subscription that delivers the messages, with its own sink; default SUBSCRIPTION")
	fl.BoolVar(&p.r.DryRun, "dry-run", false, "only count the messages; change nothing")
	fl.BoolVarP(&o.a.yes, "yes", "y", false, "do not ask for confirmation")
	return o.a.outputFlag(cmd)
}

// parse parses and validates the flags.
func (p *replay) parse(now time.Time) (err error) {
	switch {
	case !p.after && !p.upTo && p.since+p.until+p.r.Key+p.topic == "":
		return fault.New(fault.Usage, "replay: nothing is selected").
			Hint("give --after 0 for everything in the log, --since 1h, --key, --topic, or several of them; --dry-run only counts")
	case p.after && p.since != "":
		return fault.New(fault.Usage, "want either --after with the number of a message (0: before the first) or --since with a time")
	case p.upTo && p.until != "":
		return fault.New(fault.Usage, "want either --up-to with the number of a message or --until with a time")
	case p.r.After < 0, p.upTo && p.r.UpTo < 1:
		return fault.New(fault.Usage, "--after %d, --up-to %d: no message has such a number", p.r.After, p.r.UpTo)
	case p.upTo && p.r.UpTo <= p.r.After:
		return fault.New(fault.Usage, "no message is after number %d and up to number %d", p.r.After, p.r.UpTo)
	case strings.Contains(strings.TrimSuffix(p.topic, "*"), "*"):
		return fault.New(fault.Usage, "--topic is %.80q, want a topic, or a prefix followed by *", p.topic)
	}
	if p.r.Since, err = moment("--since", p.since, now); err != nil {
		return err
	}
	if p.r.Until, err = moment("--until", p.until, now); err != nil {
		return err
	}
	if p.until != "" && !p.r.Since.Before(p.r.Until) {
		return fault.New(fault.Usage, "--since %s is not before --until %s, so no message can be between them", p.since, p.until)
	}
	p.r.Subscription = p.source
	if p.into != "" {
		p.r.Subscription = p.into
	}
	return p.selectTopics()
}

// selectTopics restricts a replay that does not move the cursors back to the topics of the subscription.
func (p *replay) selectTopics() error {
	if p.topic != "" {
		p.r.Topics = []string{p.topic}
		return nil
	}
	if p.into == "" && p.r.Key == "" && !p.upTo && p.until == "" {
		return nil // its relay selects them
	}
	if p.o.a.node.address != "" {
		return fault.New(fault.Usage, "with --addr the topics of the subscription are not known here: name one with --topic")
	}
	cfg, err := p.o.a.loadToRead()
	if err != nil {
		return err
	}
	for _, s := range cfg.Outbox.Subscriptions {
		if s.Name == p.source {
			p.r.Topics = s.Topics
		}
	}
	if p.into != "" && len(p.r.Topics) == 0 {
		p.r.Topics = []string{"*"} // whatever the other subscription selects
	}
	return nil
}

// run counts the messages, asks, and replays them.
func (p *replay) run(ctx context.Context) error {
	counted := p.r
	counted.DryRun = true
	after, counts, err := p.call(ctx, counted)
	if err != nil {
		return err
	}
	nothing := counts[outbox.Delivered] == 0 && !p.whole()
	if !p.r.DryRun && !nothing {
		if err := p.o.a.confirm(p.number(counts) + " of the log are delivered again by " + p.r.Subscription); err != nil {
			return err
		}
		if after, counts, err = p.call(ctx, p.r); err != nil {
			return err
		}
	}
	return p.o.done(p.r.Subscription, "replay", p.report(after, counts, nothing), map[string]any{
		"after": after, "replayed": counts[outbox.Delivered], "undelivered": counts[outbox.Waiting], "dry_run": p.r.DryRun,
	})
}

// whole reports whether everything after a position is replayed.
func (p *replay) whole() bool {
	return p.r.Key == "" && len(p.r.Topics) == 0 && !p.upTo && p.until == ""
}

func (p *replay) call(ctx context.Context, r outbox.ReplayRequest) (after int64, counts map[outbox.Kind]int, err error) {
	err = p.o.with(ctx, func(ctx context.Context, box *backend.Outbox) (err error) {
		if err := known(ctx, box, p.source, r.Subscription); err != nil {
			return err
		}
		after, counts, err = box.Replay(ctx, r)
		return err
	})
	return after, counts, err
}

// number writes the number of the messages that are delivered again, which is counted up to a limit.
func (p *replay) number(counts map[outbox.Kind]int) string {
	n := counts[outbox.Delivered]
	switch {
	case n > 100_000:
		return "more than 100000 messages"
	case n == 1:
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

// report says what was done.
func (p *replay) report(after int64, counts map[outbox.Kind]int, nothing bool) string {
	name := p.r.Subscription
	coming := ""
	if n := counts[outbox.Waiting]; n > 0 {
		coming = fmt.Sprintf("; %d more are not delivered yet and come anyway", n)
	}
	switch {
	case nothing:
		return fmt.Sprintf("no delivered message of %s is selected; nothing was changed", name) + coming
	case p.r.DryRun:
		return fmt.Sprintf("%s of the log are selected for %s; nothing was changed", p.number(counts), name) + coming
	case p.whole():
		return fmt.Sprintf("%s delivers again the messages after number %d: %s", name, after, p.number(counts)) + coming
	}
	return fmt.Sprintf("%s delivers %s again", name, p.number(counts)) + coming
}
