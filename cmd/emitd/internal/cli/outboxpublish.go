package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/cmd/emitd/internal/view"
	"github.com/emitd/emitd/outbox"
)

// publisher holds the options of one publish command.
type publisher struct {
	outbox.Message
	id        string
	headers   []string
	delay     time.Duration
	notBefore string
}

// like returns the parts that all messages of the command share.
func (p *publisher) like(now time.Time) (outbox.Message, error) {
	m := p.Message
	for _, h := range p.headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return m, fault.New(fault.Usage, "--header %.60q is not name=value", h)
		}
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[name] = value
	}
	switch {
	case p.delay != 0 && p.notBefore != "":
		return m, fault.New(fault.Usage, "--delay and --not-before say the same: give one")
	case p.delay < 0:
		return m, fault.New(fault.Usage, "--delay is %v, want 0s or more", p.delay)
	case p.delay > 0:
		m.NotBefore = now.Add(p.delay)
	case p.notBefore != "":
		at, err := time.Parse(time.RFC3339, p.notBefore)
		if err != nil {
			return m, fault.New(fault.Usage, "--not-before %s is not a time such as 2030-01-31T09:00:00Z", p.notBefore)
		}
		m.NotBefore = at
	}
	return m, nil
}

func (o *outboxes) publish() *cobra.Command {
	p := publisher{}
	cmd := &cobra.Command{
		Use: "publish TOPIC PAYLOAD", Short: "Publish a message, or one for each line of standard input, to try things",
		Long: "Publish a message in a transaction of its own, to try things: applications publish in theirs. The payload is\n" +
			"any text; - reads standard input, where each line is the payload of one message, in one transaction for each\n" +
			"thousand lines.",
		Args: exactly(2, "a topic and a payload, or - for one payload a line of standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Topic = args[0]
			m, err := p.like(time.Now())
			if err != nil {
				return err
			}
			if p.id != "" {
				if m.ID, err = uuid.Parse(p.id); err != nil {
					return fault.New(fault.Usage, "--id %.60q is no UUID", p.id)
				}
			}
			return o.with(cmd.Context(), func(ctx context.Context, box *backend.Outbox) error {
				if args[1] != "-" {
					m.Payload = []byte(args[1])
					return o.put(ctx, box, m)
				}
				if p.id != "" {
					return fault.New(fault.Usage, "--id names one message, and standard input may hold many")
				}
				return o.putLines(ctx, box, m)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&p.Key, "key", "", "messages of one key keep their order")
	fl.StringVar(&p.Type, "type", "", "what it is, such as order.placed")
	fl.StringArrayVar(&p.headers, "header", nil, "name=value; may be repeated")
	fl.StringVar(&p.id, "id", "", "UUID by which receivers drop repetitions; drawn by default")
	fl.DurationVar(&p.delay, "delay", 0, "not before so long from now")
	fl.StringVar(&p.notBefore, "not-before", "", "not before this time (RFC 3339)")
	return o.a.outputFlag(cmd)
}

// linesOnce is how many lines share a transaction.
const linesOnce = 1000

// putLines publishes the lines of standard input.
func (o *outboxes) putLines(ctx context.Context, box *backend.Outbox, like outbox.Message) error {
	lines := bufio.NewReader(o.a.In)
	for {
		var messages []outbox.Message
		for len(messages) < linesOnce {
			line, err := lines.ReadString('\n')
			if text := strings.TrimRight(line, "\r\n"); text != "" {
				m := like
				m.Payload = []byte(text)
				messages = append(messages, m)
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					return fmt.Errorf("read standard input: %w", err)
				}
				return o.put(ctx, box, messages...)
			}
		}
		if err := o.put(ctx, box, messages...); err != nil {
			return err
		}
	}
}

// published is a message that was published.
type published struct {
	ID    string `json:"id"`
	Topic string `json:"topic"`
}

// put publishes messages, all or none.
func (o *outboxes) put(ctx context.Context, box *backend.Outbox, messages ...outbox.Message) error {
	if len(messages) == 0 {
		return nil
	}
	messages, err := outbox.Prepare(ctx, messages)
	if err != nil {
		return fault.New(fault.BadMessage, "%w", err)
	}
	if err := box.Publish(ctx, messages...); err != nil {
		return err
	}
	all := make([]published, len(messages))
	for i, m := range messages {
		all[i] = published{m.ID.String(), m.Topic}
	}
	return o.a.print(list(all, func(m published) string { return m.ID }, func(bool) *view.Table {
		t := &view.Table{Head: []string{"ID", "TOPIC"}}
		for _, m := range all {
			t.Add(m.ID, m.Topic)
		}
		return t
	}))
}
