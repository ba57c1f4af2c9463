package api

import (
	"context"
	"errors"

	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// Right is the permission that a call needs.
type Right string

// The rights. Declaring has its own right: a queue costs memory and units on every node as long as
// it exists, and a program that only submits jobs must not cause that.
const (
	RightRead    Right = "read"    // see queues, jobs and counts
	RightProduce Right = "produce" // submit jobs
	RightConsume Right = "consume" // claim jobs and settle claims
	RightOperate Right = "operate" // change what others submitted: cancel, redrive, purge, pause
	RightDeclare Right = "declare" // create, change, reshard and remove queues
)

// authorize asks Options.Authorize. Its refusal is what the caller is told.
func (h *Handler) authorize(ctx context.Context, right Right, name string) error {
	if h.opts.Authorize == nil {
		return nil
	}
	err := h.opts.Authorize(ctx, right, name)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e
	}
	return queue.Refuse(refusal.Forbidden, "%w", err).WithHint("use a token with the right %s for this queue", right)
}

// authorized is the service behind all transports: each call is allowed or refused here, where its queue is known,
// so no route, message or batch can go around it.
type authorized struct {
	svc queue.Service
	h   *Handler
}

var _ queue.Service = authorized{}

// Enqueue implements [queue.Producer].
func (a authorized) Enqueue(ctx context.Context, name string, jobs []queue.Job) ([]queue.Receipt, error) {
	if err := a.h.authorize(ctx, RightProduce, name); err != nil {
		return nil, err
	}
	return a.svc.Enqueue(ctx, name, jobs)
}

// Claim implements [queue.Consumer].
func (a authorized) Claim(ctx context.Context, name string, req queue.ClaimRequest) ([]queue.Claimed, error) {
	if err := a.h.authorize(ctx, RightConsume, name); err != nil {
		return nil, err
	}
	return a.svc.Claim(ctx, name, req)
}

// Settle implements [queue.Consumer].
func (a authorized) Settle(ctx context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	if err := a.h.authorize(ctx, RightConsume, name); err != nil {
		return nil, err
	}
	return a.svc.Settle(ctx, name, what)
}

// Get implements [queue.Operator].
func (a authorized) Get(ctx context.Context, name, id string) (*queue.Info, []byte, error) {
	if err := a.h.authorize(ctx, RightRead, name); err != nil {
		return nil, nil, err
	}
	return a.svc.Get(ctx, name, id)
}

// List implements [queue.Operator].
func (a authorized) List(ctx context.Context, name string, q queue.Query) (*queue.Page, error) {
	if err := a.h.authorize(ctx, RightRead, name); err != nil {
		return nil, err
	}
	return a.svc.List(ctx, name, q)
}

// Stats implements [queue.Operator].
func (a authorized) Stats(ctx context.Context, name string) (*queue.Stats, error) {
	if err := a.h.authorize(ctx, RightRead, name); err != nil {
		return nil, err
	}
	return a.svc.Stats(ctx, name)
}

// Do implements [queue.Operator].
func (a authorized) Do(ctx context.Context, name string, c queue.Command) (int, error) {
	if err := a.h.authorize(ctx, RightOperate, name); err != nil {
		return 0, err
	}
	return a.svc.Do(ctx, name, c)
}

// authorizedDirectory is the same for declaring queues. A list has the queues that the caller may read.
type authorizedDirectory struct {
	Directory
	h *Handler
}

// List implements [Directory].
func (a authorizedDirectory) List(ctx context.Context) ([]queue.Settings, error) {
	unlimited := a.h.authorize(ctx, RightRead, "")
	all, err := a.Directory.List(ctx)
	if unlimited == nil || err != nil {
		return all, err
	}
	out := []queue.Settings{}
	for _, s := range all {
		if a.h.authorize(ctx, RightRead, s.Name) == nil {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, unlimited
	}
	return out, nil
}

// Amend implements [Directory].
func (a authorizedDirectory) Amend(ctx context.Context, name string, revise func(queue.Settings) (queue.Settings, error)) (queue.Settings, error) {
	if err := a.h.authorize(ctx, RightDeclare, name); err != nil {
		return queue.Settings{}, err
	}
	return a.Directory.Amend(ctx, name, revise)
}

// Remove implements [Directory].
func (a authorizedDirectory) Remove(ctx context.Context, name string) error {
	if err := a.h.authorize(ctx, RightDeclare, name); err != nil {
		return err
	}
	return a.Directory.Remove(ctx, name)
}

// Reshard implements [Directory].
func (a authorizedDirectory) Reshard(ctx context.Context, name string, shards int) (queue.Settings, error) {
	if err := a.h.authorize(ctx, RightDeclare, name); err != nil {
		return queue.Settings{}, err
	}
	return a.Directory.Reshard(ctx, name, shards)
}
