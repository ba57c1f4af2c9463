package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/outbox"
)

// Limits beyond which the state of an outbox is a warning.
const (
	oldestLimit        = time.Minute // age of the oldest pending message
	minPartitionsAhead = 2           // empty partitions for new messages
)

// outbox checks the outbox, as the status does. If none is configured and the database lacks its tables,
// there is no outbox.
func (d *doctor) outbox(ctx context.Context, a *app) {
	begun := time.Now()
	kind, all, err := a.readOutbox(ctx, d.cfg)
	if err != nil {
		if f := backend.OutboxFault(err); !noOutbox(d.cfg, f) {
			d.bad("outbox", f)
		}
		return
	}
	d.add("outbox", fine, "", "%s, %d subscriptions, read in %s", kind, len(all), milliseconds(time.Since(begun)))
	known := map[string]bool{}
	for _, s := range all {
		known[s.Subscription] = true
		d.subscription(s)
	}
	for _, s := range d.cfg.Outbox.Subscriptions {
		if !known[s.Name] {
			d.add("outbox", warn, "emitd daemon explain "+string(outbox.ID(s.Name).In(d.cfg.Node.Group)), "no relay has claimed the subscription %s yet", s.Name)
		}
	}
}

// subscription checks the state of a subscription.
func (d *doctor) subscription(s outbox.Stats) {
	var wrong []string
	do := "emitd outbox ls " + s.Subscription
	if s.Dead > 0 || s.HeldKeys > 0 {
		wrong = append(wrong, fmt.Sprintf("%d dead messages, %d keys are held", s.Dead, s.HeldKeys))
	}
	if s.PartitionsAhead >= 0 && s.PartitionsAhead < minPartitionsAhead {
		do = "run the sweeper on a node whose role may execute the outbox's functions"
		wrong = append(wrong, fmt.Sprintf("%d partitions are ready for new messages: publishing fails when there is none", s.PartitionsAhead))
	}
	if age := s.Now.Sub(s.OldestAt); !s.OldestAt.IsZero() && age > oldestLimit {
		wrong = append(wrong, "the oldest message has waited for "+view.Exact(age))
	}
	for _, c := range s.Cursors {
		if c.Problem != "" {
			do = "check the receiver; the relay tries again by itself"
			wrong = append(wrong, fmt.Sprintf("node %s reports that its sink is down: %s", c.Node, c.Problem))
		}
	}
	if s.Paused {
		do = "emitd outbox resume " + s.Subscription
		wrong = append(wrong, "it is paused")
	}
	if len(wrong) > 0 {
		d.add("outbox", warn, do, "subscription %s: %s", s.Subscription, strings.Join(wrong, "; "))
	}
}
