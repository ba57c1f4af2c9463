package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/emitd/emitd/queue"
)

// timeLimited is a service with a time limit: a broker that waits for a store that does not answer must
// not keep callers waiting for ever.
type timeLimited struct {
	svc   queue.Service
	limit time.Duration
}

var _ queue.Service = timeLimited{}

// within makes one call with a time limit. tag is the refusal's tag if there is no answer in time.
func within[T any](ctx context.Context, limit time.Duration, tag queue.Tag, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := do(ctx)
	if err != nil && ctx.Err() != nil && queue.TagOf(err) == "" {
		return out, queue.Refuse(tag, "the call had no answer in time: %w", err)
	}
	return out, err
}

func (b timeLimited) Enqueue(ctx context.Context, name string, jobs []queue.Job) ([]queue.Receipt, error) {
	return within(ctx, b.limit, queue.UnknownOutcome, func(ctx context.Context) ([]queue.Receipt, error) {
		return b.svc.Enqueue(ctx, name, jobs)
	})
}

func (b timeLimited) Claim(ctx context.Context, name string, req queue.ClaimRequest) ([]queue.Claimed, error) {
	return within(ctx, b.limit+req.Wait, queue.UnknownOutcome, func(ctx context.Context) ([]queue.Claimed, error) {
		return b.svc.Claim(ctx, name, req)
	})
}

func (b timeLimited) Settle(ctx context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	return within(ctx, b.limit, queue.UnknownOutcome, func(ctx context.Context) ([]queue.Outcome, error) {
		return b.svc.Settle(ctx, name, what)
	})
}

func (b timeLimited) Get(ctx context.Context, name, id string) (*queue.Info, []byte, error) {
	var payload []byte
	info, err := within(ctx, b.limit, queue.Unavailable, func(ctx context.Context) (info *queue.Info, err error) {
		info, payload, err = b.svc.Get(ctx, name, id)
		return info, err
	})
	return info, payload, err
}

func (b timeLimited) List(ctx context.Context, name string, q queue.Query) (*queue.Page, error) {
	return within(ctx, b.limit, queue.Unavailable, func(ctx context.Context) (*queue.Page, error) {
		return b.svc.List(ctx, name, q)
	})
}

func (b timeLimited) Stats(ctx context.Context, name string) (*queue.Stats, error) {
	return within(ctx, b.limit, queue.Unavailable, func(ctx context.Context) (*queue.Stats, error) {
		return b.svc.Stats(ctx, name)
	})
}

func (b timeLimited) Do(ctx context.Context, name string, c queue.Command) (int, error) {
	return within(ctx, b.limit, queue.UnknownOutcome, func(ctx context.Context) (int, error) {
		return b.svc.Do(ctx, name, c)
	})
}

// rpcBodies converts refusals of bodies into errors that the RPC library passes on.
func (h *Handler) rpcBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = rpcBody{ReadCloser: r.Body, h: h, r: r}
		next.ServeHTTP(w, r)
	})
}

type rpcBody struct {
	io.ReadCloser
	h *Handler
	r *http.Request
}

// Read implements [io.Reader].
func (b rpcBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if queue.TagOf(err) != "" {
		return n, b.h.rpcError(b.r.Context(), err)
	}
	return n, err
}
