package host

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// guard protects the listener by certificates and bearer tokens. The health endpoints need no token,
// because probes have none and the endpoints reveal only health.
//
// A loopback listener without tokens accepts only requests whose Host header names this machine.
// Otherwise a web site whose name resolves to 127.0.0.1 would be the same origin to a visitor's browser
// (DNS rebinding), and could read and write whatever is served.
type guard struct {
	api   config.API
	log   *slog.Logger
	id    atomic.Pointer[identity]
	hint  string   // where to find a token; empty: the usual text
	names []string // of this machine, beside loopback addresses; nil: any Host is accepted

	grants atomic.Pointer[grants] // nil: no token is required
	mu     sync.Mutex             // held by load
}

// grants are the valid tokens.
type grants []*accessToken

// accessToken is a token, valid until it is revoked.
type accessToken struct {
	sum    [sha256.Size]byte
	valid  context.Context // ends when the token is revoked
	revoke context.CancelCauseFunc
}

func newGuard(c config.API, log *slog.Logger) (*guard, error) {
	g := &guard{api: c, log: log}
	return g, g.load()
}

// accept makes the guard require the program's own token, if there is one and no token file is
// configured.
func (g *guard) accept(own Token) {
	if g.api.TokensFile != "" || own.Text == "" {
		return
	}
	g.hint = own.Hint
	x := &accessToken{sum: sha256.Sum256([]byte(own.Text))}
	x.valid, x.revoke = context.WithCancelCause(context.Background())
	g.grants.Store(&grants{x})
}

// shortestToken is the shortest token that the token file may contain, to keep out guessable words.
const shortestToken = 16

// load reads the certificates and the token file. It is called again when they change. If a file is
// wrong, nothing changes. Tokens that were removed are revoked, and calls made with them end.
func (g *guard) load() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	id, err := readIdentity(g.api.TLS)
	if err != nil {
		return err
	}
	sums, err := g.tokens()
	if err != nil {
		return err
	}
	g.id.Store(id)
	if sums == nil {
		return nil
	}
	var fresh grants
	old := g.grants.Load()
	for _, sum := range sums {
		if i := old.find(sum); i >= 0 {
			fresh = append(fresh, (*old)[i])
			continue
		}
		x := &accessToken{sum: sum}
		x.valid, x.revoke = context.WithCancelCause(context.Background())
		fresh = append(fresh, x)
	}
	g.grants.Store(&fresh)
	if old == nil {
		return nil
	}
	for _, x := range *old {
		if fresh.find(x.sum) < 0 {
			x.revoke(queue.Refuse(queue.Unauthorized, "the bearer token was revoked"))
		}
	}
	return nil
}

// tokens reads the token file; nil if none is configured.
func (g *guard) tokens() (sums [][sha256.Size]byte, err error) {
	file := g.api.TokensFile
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.New(fault.AccessFile, "api.tokens_file: %w", err)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if len(line) < shortestToken || strings.ContainsAny(line, " \t") {
			return nil, fault.New(fault.AccessFile, "api.tokens_file %s:%d: a token is at least %d characters without spaces", file, number, shortestToken)
		}
		sums = append(sums, sha256.Sum256([]byte(line)))
	}
	if len(sums) == 0 {
		return nil, fault.New(fault.AccessFile, "api.tokens_file %s has no token: every call would be refused", file)
	}
	if note := TokensReadable(file); note != "" {
		g.log.Warn(note)
	}
	return sums, nil
}

// TokensReadable returns a warning if other users of this machine can read the token file, else "".
func TokensReadable(file string) string {
	info, err := os.Stat(file)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o004 == 0 {
		return ""
	}
	return fmt.Sprintf("api.tokens_file %s can be read by every user of this machine (mode %04o): chmod o-r", file, info.Mode().Perm())
}

func (g *guard) scheme() string {
	if g.id.Load().server != nil {
		return "https"
	}
	return "http"
}

// peers returns how this node calls others: as it listens itself.
func (g *guard) peers() *tls.Config { return g.id.Load().client }

func (g *guard) secured() bool { return g.id.Load().server != nil && g.grants.Load() != nil }

// find returns the index of a token, -1 if it is unknown. It takes constant time, so that the duration of
// an answer reveals nothing about a token.
func (l *grants) find(sum [sha256.Size]byte) int {
	found := -1
	if l == nil {
		return found
	}
	for i, x := range *l {
		if subtle.ConstantTimeCompare(sum[:], x.sum[:]) == 1 {
			found = i
		}
	}
	return found
}

// granted returns the grant of a token, nil if there is none.
func (g *guard) granted(token string) *accessToken {
	list := g.grants.Load()
	if i := list.find(sha256.Sum256([]byte(token))); i >= 0 {
		return (*list)[i]
	}
	return nil
}

// under runs a call that ends when its token is revoked, because long polls and WebSockets may last long.
func (x *accessToken) under(next http.Handler, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stop := context.AfterFunc(x.valid, func() { cancel(context.Cause(x.valid)) })
	defer stop()
	next.ServeHTTP(w, r.WithContext(ctx))
}

// anonymous reports whether a caller lacks the required certificate.
func (g *guard) anonymous(r *http.Request) bool {
	return g.id.Load().mutual && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0)
}

var open = map[string]bool{"/livez": true, "/readyz": true, "/leaderz": true, "/startupz": true, "/healthz": true}

// confine limits the accepted Host names if the listener is on loopback. listen is the setting; its host
// is a name of this machine.
func (g *guard) confine(at net.Addr, listen string) {
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		name, _, _ := net.SplitHostPort(listen) // valid, because the listener uses it
		g.names = []string{"localhost", strings.ToLower(name)}
	}
}

// otherHost reports whether a request with this Host header is meant for another machine. A caller that
// sends no Host header is not a browser and is accepted.
func (g *guard) otherHost(host string) bool {
	if g.names == nil || g.grants.Load() != nil || host == "" {
		return false
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil { // no port
		name = strings.Trim(host, "[]")
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	ip, err := netip.ParseAddr(name)
	return (err != nil || !ip.Unmap().IsLoopback()) && !slices.Contains(g.names, name)
}

// wrap passes on requests that are meant for this machine and have a token or need none. refuse answers
// the others.
func (g *guard) wrap(next http.Handler, refuse func(w http.ResponseWriter, r *http.Request, e *queue.Error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, sent := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case g.otherHost(r.Host):
			refuse(w, r, queue.Refuse(refusal.Forbidden, "this server does not answer to the host %.100q", r.Host).
				WithHint("call it by a loopback address, localhost or the host in listen; with api.tokens_file any host is accepted"))
		case open[r.URL.Path] || ofQueues(r.URL.Path) && api.Preflight(r):
			next.ServeHTTP(w, r)
		case g.anonymous(r):
			refuse(w, r, queue.Refuse(queue.Unauthorized, "a client certificate is required").WithHint("use one issued by an authority in api.tls.client_ca"))
		case g.grants.Load() == nil:
			next.ServeHTTP(w, r)
		default:
			if sent { // a token gives every right; see api.Handler.RightOf
				if x := g.granted(token); x != nil {
					x.under(next, w, r)
					return
				}
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="emitd"`)
			e := queue.Refuse(queue.Unauthorized, "a bearer token is required")
			if sent {
				e = queue.Refuse(queue.Unauthorized, "the bearer token is not one of this server's")
			}
			if g.hint != "" {
				e = e.WithHint("%s", g.hint)
			}
			refuse(w, r, e)
		}
	})
}

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
	places *connections
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
	return h.limiter.Wrap(h.guard.wrap(mux, h.refuse), func(w http.ResponseWriter, r *http.Request, e *queue.Error) {
		if open[r.URL.Path] { // a node that is overloaded is not unhealthy
			mux.ServeHTTP(w, r)
			return
		}
		h.refuse(w, r, e)
	})
}

// web makes the server for l.
func (h *host) web(l net.Listener) *web {
	places := newConnections(l, h.places, h.log)
	s := &http.Server{
		Handler:           h.withLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.routes.Load().mux.ServeHTTP(w, r) })),
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
	return &web{server: s, places: places, tls: secured, sockets: func(ctx context.Context) error { return h.routes.Load().door().Shutdown(ctx) }}
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
	ended := make(chan error, 1)
	go func() { ended <- w.sockets(ctx) }()
	err := w.server.Shutdown(ctx)
	if err = errors.Join(err, <-ended); err != nil {
		return w.server.Close() // what remains is cut off: the nodes have stopped
	}
	return nil
}

// about answers requests for the root with a list of what is served.
func (h *host) about(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	var b strings.Builder
	fmt.Fprintf(&b, "emitd %s, cluster %s\n", h.Version, h.Config.Cluster)
	for _, path := range []string{"/livez", "/readyz", "/leaderz", "/startupz", "/metrics", "/api/v1/openapi.json"} {
		b.WriteString(path + "\n")
	}
	_, _ = io.WriteString(w, b.String())
}
