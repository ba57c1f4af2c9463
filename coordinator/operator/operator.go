// Package operator gives operators' commands to a cluster: take a node out of service, pause, move or pin a unit, hand
// the term over.
//
//	ops := operator.Client{Store: store, Actor: "alice"}
//	args := daemon.CommandArgs{Node: "node-1"}
//	drain, err := ops.Do(ctx, daemon.Command{Kind: daemon.CommandDrain, Args: args.Encode(), Reason: "new kernel"})
//
// A command is a row in the store. The leader reads it there and carries it out; the client needs no node. A command
// survives a change of the leader, and its ID makes it idempotent: sent twice, it is carried out once. Cordon, drain,
// pause and pin stay in force until another command lifts them. They are kept by the node's name, so they outlive
// the process. docs/how-to/operate.md shows them from the command line.
package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/storage"
)

// Client sends commands. It has no goroutines and nothing to close. Its methods may be called from any goroutine.
type Client struct {
	Store storage.Store
	Actor string // who asks, shown in the history; a command's own Actor wins
}

// Move is a change of a unit's place that a command would cause.
type Move struct {
	Unit daemon.Unit `json:"unit"`
	From string      `json:"from,omitempty"` // name of the node that holds it; empty if none does
	To   string      `json:"to,omitempty"`   // empty if the unit would run nowhere
	Why  string      `json:"why"`
}

// RefusedError says that a command was not carried out, and nothing was changed. The command's Outcome is
// daemon.ResultConflict if the term or generation is not the expected one, else daemon.ResultRefused.
type RefusedError struct{ Command daemon.Command }

// Error has the leader's reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("command %s: %s", e.Command.Kind, e.Command.Result)
}

// PendingError says that the context ended before the command was carried out. If Err is nil, the command is stored,
// and waits for a leader. Otherwise it is not known whether it was stored. The same command, sent again with its ID,
// shows.
type PendingError struct {
	Command daemon.Command
	Err     error
}

// Error names the command and what is known about it.
func (e *PendingError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("it is not known whether command %s was stored: %v", e.Command.ID, e.Err)
	}
	return fmt.Sprintf("command %s is stored, but not carried out yet", e.Command.ID)
}

// Unwrap returns Err.
func (e *PendingError) Unwrap() error { return e.Err }

// Preview returns what the command would move, by the leader's own rules over the present cluster. It changes
// nothing. A command that would not be carried out is a *RefusedError.
func (o *Client) Preview(ctx context.Context, c daemon.Command) ([]Move, error) {
	snap, err := o.Store.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	if c, err = o.complete(snap, c); err != nil {
		return nil, err
	}
	moves, err := preview(snap, c)
	if err != nil {
		return nil, err
	}
	out := make([]Move, len(moves))
	for i, m := range moves {
		out[i] = Move(m)
	}
	return out, nil
}

// preview returns what a complete command would move, or why it would not be carried out.
func preview(snap *daemon.Snapshot, c daemon.Command) ([]plan.Move, error) {
	if c.Term != 0 && c.Term != snap.Term.Number {
		c.Result = fmt.Sprintf("%s: expected term %d, the term is %d", daemon.ResultConflict, c.Term, snap.Term.Number)
		return nil, &RefusedError{c}
	}
	answer, moves := plan.Preview(plan.OfSnapshot(snap), c)
	c.Result = answer.Result
	if refused(c) {
		return nil, &RefusedError{c}
	}
	return moves, nil
}

// Do stores the command and waits until it was carried out, refused or, for a standing command, is in force. A refusal
// is a *RefusedError, and the end of ctx a *PendingError. An ID is generated if there is none. A move or restart
// without an expected generation expects the present one.
func (o *Client) Do(ctx context.Context, c daemon.Command) (daemon.Command, error) {
	if c.ID == "" {
		snap, err := o.Store.Snapshot(ctx)
		if err != nil {
			return c, fmt.Errorf("read the cluster: %w", err)
		}
		if c, err = o.complete(snap, c); err != nil {
			return c, err
		}
		if _, err := preview(snap, c); err != nil {
			return c, err
		}
	}
	return o.follow(ctx, c, func(c daemon.Command) bool { return !c.DoneAt.IsZero() || c.Kind.Stands() && c.Result != "" })
}

// Drained waits until the nodes of a drain hold no unit and do not lead, and every unit that they held is active
// elsewhere, or the drain was lifted. It returns the drain as it is then: its Outcome is [daemon.ResultDrained] or
// [daemon.ResultLifted]. Whenever the numbers change, it calls progress with the units that the nodes
// still hold, and those that are free or starting elsewhere. A unit that no other node can take keeps it waiting.
func (o *Client) Drained(ctx context.Context, drain daemon.Command, progress func(held, starting int)) (daemon.Command, error) {
	args, err := drain.Arguments()
	if err != nil {
		return drain, err
	}
	left := map[daemon.Unit]bool{}
	lastHeld, lastStarting := -1, -1
	return o.follow(ctx, drain, func(c daemon.Command) bool {
		snap, err := o.Store.Snapshot(ctx)
		if err != nil {
			return false
		}
		held, starting := 0, 0
		for i := range snap.Units {
			switch r := &snap.Units[i]; {
			case r.Holder.Name == args.Node && !r.State.IsFree():
				left[r.Unit] = true
				held++
			case r.Retired || r.State == daemon.Active:
			case left[r.Unit], r.Holder.Name == args.Node && !r.Since.Before(c.CreatedAt),
				r.State == daemon.Assigning && !r.AssignedAt.Before(c.CreatedAt): // it may have left before the first look
				left[r.Unit] = true
				starting++
			}
		}
		if held != lastHeld || starting != lastStarting {
			lastHeld, lastStarting = held, starting
			progress(held, starting)
		}
		return !c.DoneAt.IsZero() || held+starting == 0 && c.Outcome() == daemon.ResultDrained
	})
}

// complete sets what the caller has left out.
func (o *Client) complete(snap *daemon.Snapshot, c daemon.Command) (daemon.Command, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return c, fmt.Errorf("generate an ID: %w", err)
	}
	c.ID, c.CreatedAt = id.String(), snap.Now
	if c.Actor == "" {
		c.Actor = o.Actor
	}
	args, err := c.Arguments()
	if err != nil {
		return c, err
	}
	switch c.Kind {
	case daemon.CommandMove, daemon.CommandRestart:
		for i := range snap.Units {
			if r := &snap.Units[i]; r.Unit == args.Unit() && args.Generation == 0 {
				args.Generation = r.Generation
			}
		}
	case daemon.CommandResign, daemon.CommandRelease:
		if c.Term == 0 {
			c.Term = snap.Term.Number
		}
	}
	args.Before = plan.Before(snap, c.Kind, args)
	c.Args = args.Encode()
	return c, nil
}

// followEvery is how often a command is read again. Reading is submitting it again, which changes nothing.
const followEvery = 100 * time.Millisecond

// follow submits the command again and again until done reports true or ctx ends.
func (o *Client) follow(ctx context.Context, c daemon.Command, done func(daemon.Command) bool) (daemon.Command, error) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	unknown := errors.New("the store did not answer in time")
	for first := true; ; first = false {
		stored, err := o.Store.Submit(ctx, c)
		switch {
		case err == nil && refused(*stored):
			return *stored, &RefusedError{*stored}
		case err == nil && done(*stored):
			return *stored, nil
		case err == nil:
			unknown = nil
		case ctx.Err() != nil: // the call was cut off, so nothing new is known
		case first && !errors.Is(err, storage.ErrUnavailable):
			return c, fmt.Errorf("store the command: %w", err)
		default:
			unknown = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return c, &PendingError{c, unknown}
		}
	}
}

// refused reports whether a command was not carried out.
func refused(c daemon.Command) bool {
	return c.Outcome() == daemon.ResultRefused || c.Outcome() == daemon.ResultConflict
}
