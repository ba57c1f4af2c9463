// Package audit makes events of what people and programs change outside the cluster's own rows: jobs, queues, messages of
// the outbox. Operators' commands have events of their own (operator.*).
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// The kinds of event begin with these words, and end with the action.
const (
	Queue  = "queue."
	Outbox = "outbox."
)

// The kinds of event of declarations.
const (
	Declare = Queue + "declare"
	Remove  = Queue + "remove"
	Reshard = Queue + "reshard"
)

// Change is what somebody has changed, or has tried to.
type Change struct {
	Kind    string // Queue or Outbox and a verb
	Subject string // name of the queue or the subscription
	By      By
	Args    any // what was selected
	// Before and After are the counts or settings before and after the change; nil if they are not known.
	Before, After any
	Count         int   // of jobs or messages that were changed
	Err           error // the call failed; it may have had an effect all the same
}

// By is who has changed something.
type By struct {
	Actor, Role, Address string
	// Forwarded says that the call came from another node, or from a program that claims to be one.
	Forwarded bool
}

// detail is the detail of an event.
type detail struct {
	Actor        string `json:"actor"`
	Role         string `json:"role,omitempty"`
	Address      string `json:"address,omitempty"`
	Forwarded    bool   `json:"forwarded,omitempty"`
	Queue        string `json:"queue,omitempty"`
	Subscription string `json:"subscription,omitempty"`
	Args         any    `json:"args,omitempty"`
	Before       any    `json:"before,omitempty"`
	After        any    `json:"after,omitempty"`
	Count        int    `json:"count"`
	Result       string `json:"result"`
}

// mostDetail bounds the detail in bytes: a bucket keeps the newest events in one object. Beyond it, what was selected is left
// out.
const mostDetail = 4 << 10

// Event returns the event of a change.
func (c Change) Event() daemon.Event {
	d := detail{
		Actor: cmp.Or(c.By.Actor, "unknown"), Role: c.By.Role, Address: c.By.Address, Forwarded: c.By.Forwarded,
		Args: c.Args, Before: c.Before, After: c.After, Count: c.Count, Result: daemon.ResultDone,
	}
	if c.ofQueue() {
		d.Queue = c.Subject
	} else {
		d.Subscription = c.Subject
	}
	if c.Err != nil {
		d.Result = fmt.Sprintf("failed: %.500s", c.Err.Error())
	}
	text, err := json.Marshal(d)
	if err != nil || len(text) > mostDetail {
		d.Args = "too long to be kept"
		text, _ = json.Marshal(d) // counts and settings always marshal
	}
	return daemon.Event{Kind: daemon.EventKind(c.Kind), Reason: c.reason(d), Detail: text}
}

func (c Change) ofQueue() bool { return len(c.Kind) > len(Queue) && c.Kind[:len(Queue)] == Queue }

// reason says it for people.
func (c Change) reason(d detail) string {
	text := fmt.Sprintf("%s by %s", c.Subject, d.Actor)
	if c.Count > 0 {
		text += fmt.Sprintf(": %d", c.Count)
	}
	if c.Err != nil {
		text += "; " + d.Result
	}
	return text
}

// timeout bounds the write of an event, which goes on when the caller has gone.
const timeout = 5 * time.Second

// Record writes the event of a change to the history and to the log. While the store does not answer, the change has
// happened all the same, so the log has it with everything that the event would have had.
func Record(ctx context.Context, to storage.Store, log *slog.Logger, c Change) {
	e := c.Event()
	log.InfoContext(ctx, "audit", "kind", c.Kind, "subject", c.Subject, "actor", c.By.Actor, "role", c.By.Role, "address", c.By.Address, "count", c.Count, "error", c.Err)
	r, ok := to.(storage.Recorder)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err := r.Record(ctx, e); err != nil {
		log.ErrorContext(ctx, "an audit event could not be stored", "kind", c.Kind, "detail", string(e.Detail), "error", err)
	}
}
