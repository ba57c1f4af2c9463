package host

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/plaincall"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// refuse answers requests that the guard rejects: calls of the queue API and of the admin API in their formats, others
// as text.
func (h *host) refuse(w http.ResponseWriter, r *http.Request, e *queue.Error) {
	switch {
	case ofQueues(r.URL.Path):
		h.routes.Load().door().Refuse(w, r, e)
		return
	case ofAdmin(r.URL.Path):
		refuseAdmin(w, e)
		return
	}
	p := refusal.ProblemOf(e)
	http.Error(w, p.Message+": "+p.Hint, p.Status)
}

// routes are the handlers of the listener: at first those of waiting, then those of the nodes.
type routes struct {
	mux  http.Handler
	door func() *api.Handler // refuses calls of the queue API, and ends their WebSockets
}

// web is the listener's HTTP server.
type web struct {
	server *http.Server
	places net.Listener        // *connections, behind plain
	plain  *plaincall.Listener // answers frequent calls in front of the server; nil with TLS
	tls    bool
	// sockets ends hijacked connections (WebSockets), which the server does not track.
	sockets func(context.Context) error
	stopped sync.Once
}

// Limits of the listener. The time for a body and an answer is bounded by the limiter instead, because a
// claim may wait for jobs as long as it likes.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 60 * time.Second
	headerBytes   = 32 << 10
	streamsAtOnce = 100 // of one HTTP/2 connection
)

// withLimits puts the limiter, and behind it the guard, in front of all handlers, so that no handler can
// forget them.
func (h *host) withLimits(mux http.Handler) http.Handler {
	return withHeaders(h.limiter.Wrap(h.guard.wrap(mux, h.refuse), func(w http.ResponseWriter, r *http.Request, e *queue.Error) {
		if open[r.URL.Path] { // a node that is overloaded is not unhealthy
			mux.ServeHTTP(w, r)
			return
		}
		h.refuse(w, r, e)
	}))
}

// policy is the Content-Security-Policy of everything that is served to browsers: scripts, styles and calls only from the
// listener itself, nothing inline, no frames.
const policy = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// withHeaders adds the headers that protect browsers. The queue's API serves no pages, and sets its own.
func withHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ofQueues(r.URL.Path) {
			h := w.Header()
			h.Set("Content-Security-Policy", policy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cross-Origin-Opener-Policy", "same-origin")
			h.Set("Cross-Origin-Resource-Policy", "same-origin")
		}
		next.ServeHTTP(w, r)
	})
}

// web makes the server for l.
func (h *host) web(l net.Listener) *web {
	places := newConnections(l, h.places, h.log)
	all := h.withLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.routes.Load().mux.ServeHTTP(w, r) }))
	s := &http.Server{
		Handler:           all,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes, ConnState: places.note,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: streamsAtOnce, SendPingTimeout: idleTimeout, WriteByteTimeout: headerTimeout},
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug), Protocols: api.Protocols(),
	}
	secured := h.guard.id.Load().server != nil
	if secured {
		s.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return h.guard.id.Load().server, nil // the current certificates
		}}
	}
	out := &web{server: s, places: places, tls: secured, sockets: func(ctx context.Context) error { return h.routes.Load().door().Shutdown(ctx) }}
	if !secured {
		out.plain = plaincall.Listen(places, plaincall.Config{
			Handler: all, Path: func(path string) bool { return strings.HasPrefix(path, "/v1/") },
			HeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, State: places.note, ErrorLog: s.ErrorLog,
		})
		out.places = out.plain
	}
	return out
}

// start serves until stop. It returns nil unless serving failed.
func (w *web) start() error {
	var err error
	if w.tls {
		err = w.server.ServeTLS(w.places, "", "")
	} else {
		err = w.server.Serve(w.places)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fault.New(fault.CannotListen, "the listener failed: %w", err)
}

// stop waits within ctx for answers in progress and closes the server. Only the first call has an effect.
func (w *web) stop(ctx context.Context) (err error) {
	w.stopped.Do(func() { err = w.shutdown(ctx) })
	return err
}

func (w *web) shutdown(ctx context.Context) error {
	ended := make(chan error, 2)
	go func() { ended <- w.sockets(ctx) }()
	go func() { ended <- w.plain.Shutdown(ctx) }()
	err := w.server.Shutdown(ctx)
	if err = errors.Join(err, <-ended, <-ended); err != nil {
		return w.server.Close() // what remains is cut off: the nodes have stopped
	}
	return nil
}

// about answers requests for the root with a list of what is served, if they come from no browser.
func (h *host) about(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	var b strings.Builder
	fmt.Fprintf(&b, "emitd %s, cluster %s\n", h.Version, h.Config.Cluster)
	for _, path := range []string{"/livez", "/readyz", "/leaderz", "/startupz", "/metrics", "/api/v1/openapi.json"} {
		b.WriteString(path + "\n")
	}
	_, _ = io.WriteString(w, b.String())
}
