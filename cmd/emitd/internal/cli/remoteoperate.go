package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/coordinator/operator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/lease"
)

// request returns the command for the admin API.
func (o order) request(args daemon.CommandArgs) body.CommandRequest {
	r := body.CommandRequest{
		Kind: o.kind, Node: args.Node, Daemon: args.Daemon, To: args.To, Term: o.term, Generation: args.Generation,
		CooldownMS: o.cooldown.Milliseconds(), Actor: cmp.Or(o.actor, actor()), Reason: o.reason, DryRun: o.dryRun,
	}
	if u := args.Unit(); !u.IsZero() {
		r.Daemon, r.Unit = "", u
	}
	return r
}

// longestWait is the longest time for which a node may be asked to hold back its answer until a command is carried
// out.
const longestWait = 60 * time.Second

// order gives a command to the node, and waits until it is carried out or ctx ends. The ID makes repeated calls one
// command, so a broken connection neither loses nor repeats it.
func (r *remote) order(ctx context.Context, to body.CommandRequest) (body.CommandAnswer, error) {
	if to.DryRun {
		return r.post(ctx, to, "", 0)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return body.CommandAnswer{}, fmt.Errorf("generate an ID: %w", err)
	}
	return r.follow(ctx, id.String(), longestWait, func(answer body.CommandAnswer) (bool, error) {
		return answer.Done, nil
	}, to)
}

// follow gives a command again and again until done reports true or ctx ends. The node answers each call after wait
// at the latest.
func (r *remote) follow(ctx context.Context, id string, wait time.Duration, done func(body.CommandAnswer) (bool, error), to body.CommandRequest) (body.CommandAnswer, error) {
	tick := time.NewTicker(submitEvery)
	defer tick.Stop()
	unknown := errors.New("the node did not answer in time")
	for first := true; ; first = false {
		within := wait
		if end, ok := ctx.Deadline(); ok { // leave the answer a second to come back
			within = max(0, min(wait, time.Until(end)-time.Second))
		}
		answer, err := r.post(ctx, to, id, within)
		switch f := (*fault.Fault)(nil); {
		case err == nil:
			unknown = nil
			if ended, err := done(answer); ended || err != nil {
				return answer, err
			}
		case errors.As(err, &f) && !again(f.Code), first && unsent(err):
			return answer, err
		case ctx.Err() == nil:
			unknown = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return answer, fault.FromCommand(&operator.PendingError{Command: daemon.Command{ID: id, Kind: to.Kind}, Err: unknown}, asFault)
		}
	}
}

// again reports whether a call that failed with this code may be repeated: the node or its store does not answer.
func again(code fault.Code) bool {
	return code == fault.NodeUnreachable || code == fault.Unreachable || code == fault.CommandUnknown
}

// unsent reports whether a call failed before anything was sent.
func unsent(err error) bool {
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "dial"
}

func asFault(err error) *fault.Fault {
	if f := (*fault.Fault)(nil); errors.As(err, &f) {
		return f
	}
	return fault.New(fault.NodeUnreachable, "%s", err)
}

// post makes one call for a command.
func (r *remote) post(ctx context.Context, to body.CommandRequest, id string, wait time.Duration) (answer body.CommandAnswer, err error) {
	text, err := json.Marshal(to)
	if err != nil {
		return answer, fmt.Errorf("encode the command: %w", err)
	}
	query := url.Values{"wait": {wait.String()}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+"/commands?"+query.Encode(), bytes.NewReader(text))
	if err != nil {
		return answer, fault.New(fault.Usage, "--addr: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if id != "" {
		req.Header.Set("Idempotency-Key", id)
	}
	return answer, r.do(req, &answer)
}

// drained waits until the node holds no unit and does not lead, and the units that it held at first are active
// elsewhere. It also returns when somebody lifts the drain.
func (r *remote) drained(ctx context.Context, first view.Status, id string, to body.CommandRequest, progress func(held, starting int)) (body.CommandAnswer, error) {
	left := map[daemon.Unit]bool{}
	for _, u := range first.Daemons {
		left[u.Unit] = left[u.Unit] || u.Node == to.Node
	}
	lastHeld, lastStarting := -1, -1
	return r.follow(ctx, id, 0, func(answer body.CommandAnswer) (bool, error) {
		s, err := r.status(ctx, true, 0)
		if err != nil {
			return false, nil //nolint:nilerr // the next look may succeed
		}
		held, starting := 0, 0
		for _, u := range s.Daemons {
			switch {
			case u.Node == to.Node && !u.State.IsFree():
				left[u.Unit] = true
				held++
			case left[u.Unit] && u.State != daemon.Active && u.State != view.Crashing:
				starting++
			}
		}
		if held != lastHeld || starting != lastStarting {
			lastHeld, lastStarting = held, starting
			progress(held, starting)
		}
		return !answer.Command.DoneAt.IsZero() || held+starting == 0 && answer.Command.Outcome() == daemon.ResultDrained, nil
	}, to)
}

// orderNode shows what a command would move, or gives it to the node and waits for the answer: see carryOut.
func (a *app) orderNode(ctx context.Context, c *cluster, o order, args daemon.CommandArgs, subject string) error {
	to := o.request(args)
	answer, err := c.node.order(ctx, to)
	if err != nil {
		return err
	}
	if o.dryRun {
		return a.printMoves(answer.Moves)
	}
	if o.wait {
		answer, err = c.node.drained(ctx, c.seen, answer.Command.ID, to, func(held, starting int) { a.drainProgress(subject, held, starting) })
		if err != nil {
			return err
		}
	}
	return a.printCommand(*answer.Command, subject)
}

// timing returns the durations that decide how long a command waits. They come from the configuration of this
// process; the node that is asked may have other ones.
func (a *app) timing(c *cluster) (lease.Timing, error) {
	if c.cfg != nil {
		return c.cfg.Timing(), nil
	}
	cfg, err := a.load(a.input())
	if err != nil {
		return lease.Timing{}, err
	}
	return cfg.Timing(), nil
}

// resignNode asks any node to make the leader resign.
func (a *app) resignNode(ctx context.Context, c *cluster, r resignation, l *view.Leader) error {
	o := order{kind: daemon.CommandResign, reason: r.reason, actor: r.actor, term: l.Term, cooldown: r.cooldown}
	answer, err := c.node.order(ctx, o.request(daemon.CommandArgs{To: r.to}))
	if f := (*fault.Fault)(nil); r.to == "" && errors.As(err, &f) && f.Code == fault.CommandConflict {
		return notLeader(l)
	}
	switch {
	case err != nil:
		return err
	case r.to != "":
		return a.printCommand(*answer.Command, l.Node)
	}
	return a.printSubmitted(l, *answer.Command)
}
