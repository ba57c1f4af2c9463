// Package api serves a queue over HTTP. It has the project's own JSON API and a protobuf service for throughput, both
// for all queues. For the queue "default" it also has osqueue's REST paths, WebSocket protocol and Connect service.
// docs/reference/queue-http.md lists every path and body; a test compares it with the routes of this package.
//
//	/v1/queues/{queue}/…            own API, JSON (package wire has the bodies)
//	/emitd.queue.v1.QueueService/…  own batches as protobuf: Connect, gRPC, gRPC-Web
//	/v1/jobs… /v1/stats /state …    osqueue's REST
//	/v1/ws                          osqueue's WebSocket protocol
//	/osqueue.v1.QueueService/…      osqueue's service: Connect, gRPC, gRPC-Web
//
// Every transport promises:
//
//  1. A 2xx answer to a write means that the write is durable, as [queue.Service] says.
//  2. A mistake of the caller is answered with 4xx, a tag, a message and a hint; never with 5xx. A
//     refused call has no effect. A stale or forged claim is 409 StaleClaim.
//  3. A call that is answered with 503 or 429 may be repeated; its Retry-After says when. After
//     UnknownOutcome the call may have had an effect: repeat it with the same ids, keys or
//     request_id.
//  4. No answer lists more than 1,000 jobs. osqueue's lists, which have no pages, say "truncated".
//  5. Memory is bounded. The size of a body is limited after decompression. [Limits] bounds all
//     bodies and answers in flight together. A call has at most 1,000 jobs, which is checked while
//     it is decoded. A client that sends or reads too slowly is disconnected.
//
// Authentication and the rejection of unknown host names are not here. They belong to the listener
// (the guard of cmd/emitd). It answers rejected requests with [Handler.Refuse] and lets a
// [Preflight] through. What a caller may do is decided here, by Options.Authorize. This package refuses calls from web pages of other origins unless they are
// configured, so that a web site cannot write to the emitd on its visitor's machine.
//
// gRPC needs HTTP/2, also without TLS: configure the server with [Protocols].
package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/broker"
)

// Options configure the API. The zero value is a good default.
type Options struct {
	// Queues declares, lists and removes queues. Nil: these calls are answered with 501.
	Queues Directory
	// Origins are the origins whose pages may call from a browser, such as
	// "https://queue.example.org". Empty: only the server's own. There is no wildcard.
	Origins []string
	// Authorize decides whether a call is allowed, before it has an effect: on every transport, for each
	// message of a WebSocket too. An empty queue means all of them. The context is that of the HTTP call, so the
	// listener's authentication can leave there who calls. An error refuses the call: a [queue.Error] as it is, any
	// other with 403 and its text. Nil: every call is allowed.
	Authorize func(ctx context.Context, right Right, queue string) error
	// Healthy decides the answer of /healthz. Nil asks the queue "default" for its statistics, which a broker refuses
	// if it was replaced or cannot reach its store.
	Healthy func(ctx context.Context) error
	// ThrottleStats returns the answer of /v1/throttle-stats; nil: zeros.
	ThrottleStats func() ThrottleStats
	// Limiter bounds memory; the handlers of one process should share one. Nil: a new one with
	// the default [Limits].
	Limiter *Limiter
	// Timeout is how long a call waits for the service, in addition to a claim's own wait;
	// default 30 s.
	Timeout time.Duration
	// Logger receives the server's own errors; default slog.Default().
	Logger *slog.Logger
}

// Directory manages the queues of a cluster; *broker.Registry is one.
type Directory interface {
	// List returns the declared queues, sorted by name.
	List(ctx context.Context) ([]queue.Settings, error)
	// Amend creates a queue, or changes its settings, and returns them complete. revise derives them from the current
	// ones; if the queue does not exist, revise gets settings with only the name. Declaring the same again changes
	// nothing.
	Amend(ctx context.Context, name string, revise func(queue.Settings) (queue.Settings, error)) (queue.Settings, error)
	// Remove removes a queue and its jobs. [queue.QueueNotFound] if there is none.
	Remove(ctx context.Context, name string) error
	// Reshard begins to change the number of a queue's shards, and returns the settings; Settings.Resharding says how
	// far the change is. Asking for the number that the queue has now cancels a change that is still being prepared.
	Reshard(ctx context.Context, name string, shards int) (queue.Settings, error)
}

var _ Directory = (*broker.Registry)(nil)

// ThrottleStats are the counters of a throttled object store, with osqueue's names. The totals count the requests that
// were sent. ThrottledReads counts reads and listings that waited or were refused; ThrottledWrites counts writes and
// deletions that waited, were refused, or exceeded the daily budget.
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

// Handler serves the API. Create it with [New].
type Handler struct {
	svc           queue.Service // asks Options.Authorize
	direct        queue.Service // does not
	opts          Options
	mux           *http.ServeMux // the routes
	all           *http.ServeMux // the routes, and notFound for everything else
	guard         *http.CrossOriginProtection
	limiter       *Limiter
	limitedAnswer http.Handler // answer, wrapped by the limiter
	sockets       sockets
	log           *slog.Logger
	routes        []string
	services      []string // paths of the RPC services; each ends in "/"
}

var _ http.Handler = (*Handler)(nil)

const defaultTimeout = 30 * time.Second

// New creates the handler of a queue service: a broker in this process, or a [Forwarder].
func New(svc queue.Service, o Options) (*Handler, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	h := &Handler{direct: timeLimited{svc: svc, limit: o.Timeout}, opts: o, mux: http.NewServeMux(), all: http.NewServeMux(), guard: http.NewCrossOriginProtection(), log: o.Logger}
	h.svc = authorized{h.direct, h}
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
	h.limitedAnswer = h.limiter.Wrap(http.HandlerFunc(h.answer), h.Refuse)
	h.own()
	h.osqueue()
	h.rpc()
	h.all.HandleFunc("/", h.notFound)
	return h, nil
}

// Protocols returns the protocols that the API's server must support: HTTP/1.1 and HTTP/2, which
// gRPC needs, with and without TLS.
func Protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// Routes returns the patterns that are served, as "METHOD /path" (services end in "/").
func (h *Handler) Routes() []string { return slices.Clone(h.routes) }

// ServeHTTP answers one request. It applies the limiter unless the listener has applied one
// already.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if limited(r) {
		h.answer(w, r)
		return
	}
	h.limitedAnswer.ServeHTTP(w, r)
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request) {
	w.Header()["X-Content-Type-Options"] = nosniff
	if named := h.setCORSHeaders(w, r); r.Header.Get("Origin") != "" && Preflight(r) {
		preflight(w, r, named)
		return
	}
	if err := h.guard.Check(r); err != nil {
		h.writeRefusal(w, r, queue.Refuse(refusal.Forbidden, "a page of another origin may not call this API: %w", err))
		return
	}
	if ctx := withHop(r.Context(), r); ctx != r.Context() {
		r = r.WithContext(ctx) // a copy of the request
	}
	h.all.ServeHTTP(w, r)
}

// endpoint answers one call. An error is written as a refusal.
type endpoint func(c *call) error

func (h *Handler) handle(pattern string, e endpoint) {
	h.routes = append(h.routes, pattern)
	answer := func(w http.ResponseWriter, r *http.Request) {
		c := &call{h: h, w: w, r: r}
		defer c.release()
		if err := e(c); err != nil {
			refuse(w, h.refusal(r.Context(), err))
		}
	}
	h.mux.HandleFunc(pattern, answer)
	h.all.HandleFunc(pattern, answer)
}

func (h *Handler) mount(path string, handler http.Handler) {
	h.routes, h.services = append(h.routes, path), append(h.services, path)
	h.mux.Handle(path, handler)
	h.all.Handle(path, handler)
}

// notFound answers a request that no pattern matches: 405 if another method would match, otherwise 404.
func (h *Handler) notFound(w http.ResponseWriter, r *http.Request) {
	probe := &discardResponse{h: http.Header{}}
	h.mux.ServeHTTP(probe, r) // only to learn the allowed methods
	if allow := probe.h.Get("Allow"); probe.status == http.StatusMethodNotAllowed && allow != "" {
		w.Header().Set("Allow", allow)
		refuse(w, queue.Refuse(refusal.MethodNotAllowed, "%.20s is not for %.200s", r.Method, r.URL.Path).WithHint("allowed: %s", allow))
		return
	}
	refuse(w, queue.Refuse(refusal.NotFound, "there is no %.200s", r.URL.Path))
}

// discardResponse is a response whose body is discarded.
type discardResponse struct {
	h      http.Header
	status int
}

func (p *discardResponse) Header() http.Header         { return p.h }
func (p *discardResponse) Write(b []byte) (int, error) { return len(b), nil }
func (p *discardResponse) WriteHeader(s int)           { p.status = s }

// refusal converts any error of a service into one that a caller may see.
func (h *Handler) refusal(ctx context.Context, err error) *queue.Error {
	if e, ok := errors.AsType[*queue.Error](context.Cause(ctx)); ok && e.Tag == queue.Unauthorized {
		return e // the listener ended the call because its token was revoked
	}
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e
	}
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return queue.Refuse(queue.UnknownOutcome, "the call was cancelled before its answer")
	}
	h.log.ErrorContext(ctx, "queue call", "error", err)
	return queue.Refuse(refusal.Internal, "an error on the server's side; see its log")
}

func refuse(w http.ResponseWriter, e *queue.Error) {
	p := refusal.ProblemOf(e)
	if p.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", seconds(p.RetryAfterMS))
	}
	w.Header().Set("Content-Type", refusal.MediaType)
	w.WriteHeader(p.Status)
	_, _ = w.Write(encode(p)) // an error means that the client has gone
}
