// Package api serves a queue over HTTP: the project's own JSON API, osqueue's REST paths,
// WebSocket protocol and Connect service on the queue "default", and a protobuf service for
// throughput. docs/reference/queue-http.md lists every path and body; a test holds it against
// the mux of this package.
//
//	/v1/queues/{queue}/…            own API, JSON (package wire has the bodies)
//	/emitd.queue.v1.QueueService/…  own batches as protobuf: Connect, gRPC, gRPC-Web
//	/v1/jobs… /v1/stats /state …    osqueue's REST
//	/v1/ws                          osqueue's WebSocket protocol
//	/osqueue.v1.QueueService/…      osqueue's service: Connect, gRPC, gRPC-Web
//
// What holds on every transport:
//
//  1. A 2xx answer to a write means that the write is durable, as [queue.Service] says.
//  2. What a caller did wrong is a 4xx with a tag, a message and a hint; never a 5xx. Of a
//     refused call nothing is kept. A stale or forged claim is 409 StaleClaim.
//  3. A 503 or 429 may be repeated; its Retry-After says when. After UnknownOutcome the call may
//     have happened: repeat it with the same ids, keys or request_id.
//  4. No answer lists more than 1,000 jobs; osqueue's lists, which have no pages, say "truncated".
//  5. Memory is bounded: a body by what it decodes to, all bodies and answers under way by [Limits], a
//     call by 1,000 jobs, which is checked while it is decoded. Who sends or reads too slowly is cut off.
//
// Not here: authentication and the refusal of foreign hosts belong to the listener (the guard of
// cmd/emitd), which answers with [Handler.Refuse] what it does not let through and lets a [Preflight]
// through. This package refuses pages of other origins unless they are named, so that a site
// somebody visits cannot write to the emitd on their machine.
//
// gRPC needs HTTP/2, without TLS too: give the server [Protocols].
package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/daemon/queue/api/refusal"
)

// Options of the API. The zero value is good.
type Options struct {
	// Queues declares, lists and removes queues. Nil: these calls are answered 501.
	Queues Directory
	// Origins may call from a browser, such as "https://queue.example.org". Empty: none but the
	// server's own. There is no wildcard.
	Origins []string
	// Healthy is asked by /healthz; nil asks the queue "default" for its statistics, which a
	// deposed or storeless broker refuses.
	Healthy func(ctx context.Context) error
	// Throttle is told at /v1/throttle-stats; nil: zeros.
	Throttle func() ThrottleStats
	// Limiter bounds memory; handlers of one process share one. Nil: one with the default [Limits].
	Limiter *Limiter
	// Timeout is how long a call may be without an answer of the service, on top of what a claim
	// waits; default 30 s.
	Timeout time.Duration
	// Logger gets what is a mistake of this side; default slog.Default().
	Logger *slog.Logger
}

// Directory knows the queues of a cluster; *queue.Registry is one.
type Directory interface {
	// List returns the declared queues by name.
	List(ctx context.Context) ([]queue.Settings, error)
	// Amend makes a queue be, or changes its settings, and returns them whole. They are made of those
	// in force, as revise says; of a queue that is not there, of its name. The same again changes nothing.
	Amend(ctx context.Context, name string, revise func(queue.Settings) (queue.Settings, error)) (queue.Settings, error)
	// Remove takes a queue and its jobs away. [queue.QueueNotFound] if there is none.
	Remove(ctx context.Context, name string) error
}

var _ Directory = (*queue.Registry)(nil)

// ThrottleStats are the counters of a throttled object store, under osqueue's names.
type ThrottleStats struct {
	TotalReads          int64 `json:"totalReads"`
	TotalWrites         int64 `json:"totalWrites"`
	ThrottledReads      int64 `json:"throttledReads"`
	ThrottledWrites     int64 `json:"throttledWrites"`
	TotalReadDelayMS    int64 `json:"totalReadDelayMs"`
	TotalWriteDelayMS   int64 `json:"totalWriteDelayMs"`
	DailyWriteCount     int64 `json:"dailyWriteCount"`
	DailyBudgetExceeded bool  `json:"dailyBudgetExceeded"`
}

// Handler serves the API. Make it with [New].
type Handler struct {
	svc      queue.Service
	opts     Options
	mux      *http.ServeMux
	guard    *http.CrossOriginProtection
	limiter  *Limiter
	limited  http.Handler // answer, under the limiter
	sockets  sockets
	log      *slog.Logger
	routes   []string
	services []string // paths of the RPC services, each ends in "/"
}

var _ http.Handler = (*Handler)(nil)

const defaultTimeout = 30 * time.Second

// New makes the handler of a queue service: a broker in this process, or a [Forwarder].
func New(svc queue.Service, o Options) (*Handler, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	h := &Handler{svc: bounded{svc: svc, limit: o.Timeout}, opts: o, mux: http.NewServeMux(), guard: http.NewCrossOriginProtection(), log: o.Logger}
	if h.log == nil {
		h.log = slog.Default()
	}
	for _, origin := range o.Origins {
		if err := h.guard.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("queue api: origin: %w", err)
		}
	}
	if h.limiter = o.Limiter; h.limiter == nil {
		var err error
		if h.limiter, err = NewLimiter(Limits{}); err != nil {
			return nil, err
		}
	}
	h.limited = h.limiter.Wrap(http.HandlerFunc(h.answer), h.Refuse)
	h.own()
	h.osqueue()
	h.rpc()
	return h, nil
}

// Protocols returns what the API's server must speak: HTTP/1.1 and HTTP/2, which gRPC needs, with
// TLS and without.
func Protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// Routes lists the patterns served, as "METHOD /path" (services end in "/").
func (h *Handler) Routes() []string { return slices.Clone(h.routes) }

// ServeHTTP answers one request, under the limiter unless a listener has put it under one already.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if limited(r) {
		h.answer(w, r)
		return
	}
	h.limited.ServeHTTP(w, r)
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if named := h.mark(w, r); r.Header.Get("Origin") != "" && Preflight(r) {
		preflight(w, r, named)
		return
	}
	if err := h.guard.Check(r); err != nil {
		h.deny(w, r, queue.Refuse(refusal.Forbidden, "a page of another origin may not call: %w", err))
		return
	}
	if ctx := withHop(r.Context(), r); ctx != r.Context() {
		r = r.WithContext(ctx) // a copy of the request
	}
	if _, pattern := h.mux.Handler(r); pattern == "" {
		h.lost(w, r)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// endpoint answers one call; its error is written as a refusal.
type endpoint func(c *call) error

func (h *Handler) handle(pattern string, e endpoint) {
	h.routes = append(h.routes, pattern)
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		c := &call{h: h, w: w, r: r}
		defer c.release()
		if err := e(c); err != nil {
			refuse(w, h.refusal(r.Context(), err))
		}
	})
}

func (h *Handler) mount(path string, handler http.Handler) {
	h.routes, h.services = append(h.routes, path), append(h.services, path)
	h.mux.Handle(path, handler)
}

// lost answers what no pattern matches: 405 if another method would, else 404.
func (h *Handler) lost(w http.ResponseWriter, r *http.Request) {
	probe := &headers{h: http.Header{}}
	h.mux.ServeHTTP(probe, r) // only to learn the methods
	if allow := probe.h.Get("Allow"); probe.status == http.StatusMethodNotAllowed && allow != "" {
		w.Header().Set("Allow", allow)
		refuse(w, queue.Refuse(refusal.MethodNotAllowed, "%.20s is not for %.200s", r.Method, r.URL.Path).WithHint("allowed: %s", allow))
		return
	}
	refuse(w, queue.Refuse(refusal.NotFound, "there is no %.200s", r.URL.Path))
}

// headers is a response nobody reads.
type headers struct {
	h      http.Header
	status int
}

func (p *headers) Header() http.Header         { return p.h }
func (p *headers) Write(b []byte) (int, error) { return len(b), nil }
func (p *headers) WriteHeader(s int)           { p.status = s }

// refusal turns any error of a service into what a caller may see.
func (h *Handler) refusal(ctx context.Context, err error) *queue.Error {
	if e, ok := errors.AsType[*queue.Error](context.Cause(ctx)); ok && e.Tag == queue.Unauthorized {
		return e // the listener ended the call: its token was revoked
	}
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e
	}
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return queue.Refuse(queue.UnknownOutcome, "the call was given up before its answer")
	}
	h.log.ErrorContext(ctx, "queue call", "error", err)
	return queue.Refuse(refusal.Internal, "a mistake on the server's side; its log has it")
}

func refuse(w http.ResponseWriter, e *queue.Error) {
	p := refusal.Of(e)
	if p.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", seconds(p.RetryAfterMS))
	}
	w.Header().Set("Content-Type", refusal.MediaType)
	w.WriteHeader(p.Status)
	_, _ = w.Write(encode(p)) // the client has gone: nobody to tell
}
