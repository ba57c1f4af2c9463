package host

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// waiting answers for a process whose store is not open yet: it is live, but neither started nor ready.
type waiting struct {
	h         *host
	door      *api.Handler                // refuses calls of the queue API in its form
	openError atomic.Pointer[fault.Fault] // why the store could not be opened; nil before the first failure
}

var _ admin.Source = (*waiting)(nil)

// newWaiting makes the listener answer that the process waits. Its errors are mistakes in the
// configuration.
func (h *host) newWaiting() (*waiting, error) {
	w := &waiting{h: h}
	var err error
	if w.door, err = api.New(nil, api.Options{Origins: h.Config.API.Origins, Limiter: h.limiter, Logger: h.log}); err != nil {
		return nil, fault.New(fault.BadValue, "api.origins: %w", err)
	}
	mux := http.NewServeMux()
	h.addConsole(mux)
	for _, path := range queuePaths {
		mux.HandleFunc(path, w.refuse)
	}
	mux.HandleFunc(adminPath, w.refuseAdmin)
	mux.Handle("/", admin.Handler(w, h.metrics()))
	h.routes.Store(&routes{mux: mux, door: func() *api.Handler { return w.door }})
	return w, nil
}

// refuse answers calls of the queue API.
func (w *waiting) refuse(to http.ResponseWriter, r *http.Request) {
	e := queue.Refuse(queue.Unavailable, "%w", w.why()).WithHint("ask another node; this one serves as soon as its cluster store answers")
	e.RetryAfter = time.Second
	w.door.Refuse(to, r, e)
}

// refuseAdmin answers calls of the admin API.
func (w *waiting) refuseAdmin(to http.ResponseWriter, _ *http.Request) {
	to.Header().Set("Retry-After", "1")
	writeProblem(to, fault.New(fault.Unreachable, "%w", w.why()).Hint("ask another node; this one serves as soon as its cluster store answers").Problem(0))
}

// why returns what the process waits for.
func (w *waiting) why() error {
	f := w.openError.Load()
	if f == nil {
		return errors.New("this node is opening its cluster store")
	}
	return errors.New("this node waits for its cluster store: " + fault.Redact(f.Error(), w.h.Config.Secrets()...))
}

// Live implements [admin.Source].
func (w *waiting) Live() map[string]error { return map[string]error{"process": nil} }

// Started implements [admin.Source].
func (w *waiting) Started() map[string]error { return map[string]error{"store": w.why()} }

// Ready implements [admin.Source].
func (w *waiting) Ready(context.Context) map[string]error { return w.Started() }

// Degraded implements [admin.Source].
func (w *waiting) Degraded() map[string]error { return nil }

// Leadership implements [admin.Source].
func (w *waiting) Leadership() (node.Term, context.Context, bool) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(w.why())
	return node.Term{}, ctx, false
}

// retries are the pauses between two attempts to open the store. They have jitter, so that nodes that wait for
// one database do not all return at the same moment.
var retries = backoff.Policy{First: time.Second, Limit: 5 * time.Second}

// remindEvery is how often a wait that goes on is logged again.
const remindEvery = time.Minute

// open opens the store. If the store cannot be reached, it tries again until ctx ends or the listener
// fails, unless store.wait is false.
func (w *waiting) open(ctx context.Context, broken <-chan error) (*backend.Store, error) {
	begun := time.Now()
	var logged time.Time
	for attempts := 1; ; attempts++ {
		s, err := w.h.Open(ctx, w.h.tel)
		if err == nil {
			if w.openError.Load() != nil {
				w.h.log.Info("the cluster store answers", "waited", time.Since(begun))
			}
			return s, nil
		}
		if ctx.Err() != nil || !w.h.Config.Store.Wait || !backend.Away(err) {
			return nil, err
		}
		why := backend.Fault(err)
		w.openError.Store(why)
		if logged.IsZero() || time.Since(logged) >= remindEvery {
			logged = time.Now()
			w.h.log.Warn("the cluster store cannot be reached; this node waits for it", "code", why.Code, "error", why.What, "do", why.Advice(), "waited", time.Since(begun), "address", w.h.up.Address)
		}
		w.h.notifySystemdOnce(startingLonger)
		select {
		case <-time.After(retries.Jittered(attempts)):
		case <-ctx.Done():
			return nil, ctx.Err()
		case err := <-broken:
			return nil, err
		}
	}
}
