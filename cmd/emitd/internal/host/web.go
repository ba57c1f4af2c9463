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
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/daemon/queue/api"
)

// guard is what stands between the network and the mux: a certificate and bearer tokens. Health
// endpoints need no token, because probes have none and they tell nothing but health.
type guard struct {
	cert   *tls.Certificate
	file   string
	tokens atomic.Pointer[[][sha256.Size]byte] // nil: no tokens wanted
}

func newGuard(api config.API) (*guard, error) {
	g := &guard{file: api.TokensFile}
	if api.TLS.Cert != "" {
		cert, err := tls.LoadX509KeyPair(api.TLS.Cert, api.TLS.Key)
		if err != nil {
			return nil, fault.New(fault.AccessFile, "api.tls.cert %s and api.tls.key %s: %w", api.TLS.Cert, api.TLS.Key, err).
				Hint("name a PEM certificate chain and its private key, readable for this user")
		}
		g.cert = &cert
	}
	return g, g.load()
}

// shortestToken keeps guessable words out of the token file.
const shortestToken = 16

// load reads the token file; it is read again on reload.
func (g *guard) load() error {
	if g.file == "" {
		return nil
	}
	text, err := os.ReadFile(g.file)
	if err != nil {
		return fault.New(fault.AccessFile, "api.tokens_file: %w", err)
	}
	tokens := [][sha256.Size]byte{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if len(line) < shortestToken || strings.ContainsAny(line, " \t") {
			return fault.New(fault.AccessFile, "api.tokens_file %s:%d: a token is at least %d characters without spaces", g.file, number, shortestToken)
		}
		tokens = append(tokens, sha256.Sum256([]byte(line)))
	}
	if len(tokens) == 0 {
		return fault.New(fault.AccessFile, "api.tokens_file %s has no token: nobody could be let in", g.file)
	}
	g.tokens.Store(&tokens)
	return nil
}

func (g *guard) scheme() string {
	if g.cert != nil {
		return "https"
	}
	return "http"
}

// peers says how this node calls others: they listen as it does.
func (g *guard) peers() *tls.Config {
	if g.cert == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12}
}

func (g *guard) secured() bool { return g.cert != nil && g.tokens.Load() != nil }

// knows compares in constant time, so that an answer's time tells nothing of a token.
func (g *guard) knows(token string) bool {
	sum, found := sha256.Sum256([]byte(token)), 0
	for _, t := range *g.tokens.Load() {
		found |= subtle.ConstantTimeCompare(sum[:], t[:])
	}
	return found == 1
}

var open = map[string]bool{"/livez": true, "/readyz": true, "/leaderz": true, "/startupz": true, "/healthz": true}

// wrap asks for a token.
func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.tokens.Load() != nil && !open[r.URL.Path] {
			token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok || !g.knows(token) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="emitd"`)
				http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// web is the listener's server.
type web struct {
	server *http.Server
	tls    bool
	// sockets ends what the server does not know of.
	sockets func(context.Context) error
}

// Timeouts of the listener. Answers have none: a claim may wait for jobs as long as it likes.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 60 * time.Second
)

func (h *host) web() *web {
	s := &http.Server{
		Handler:           h.guard.wrap(h.mux()),
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug), Protocols: api.Protocols(),
	}
	if h.guard.cert != nil {
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*h.guard.cert}, MinVersion: tls.VersionTLS12}
	}
	return &web{s, h.guard.cert != nil, h.front.shutdown}
}

// start serves until stop; only a failure is an error.
func (w *web) start(l net.Listener) error {
	var err error
	if w.tls {
		err = w.server.ServeTLS(l, "", "")
	} else {
		err = w.server.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fault.New(fault.CannotListen, "the listener failed: %w", err)
}

// stop lets answers under way finish within ctx.
func (w *web) stop(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- w.sockets(ctx) }()
	err := w.server.Shutdown(ctx)
	if err = errors.Join(err, <-ended); err != nil {
		return w.server.Close() // what is left is cut off: the nodes have stopped
	}
	return nil
}

// about answers the root: what listens here.
func (h *host) about(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	var b strings.Builder
	fmt.Fprintf(&b, "emitd %s, cluster %s\n", h.Version, h.Config.Cluster)
	for _, path := range []string{"/livez", "/readyz", "/leaderz", "/startupz", "/metrics"} {
		b.WriteString(path + "\n")
	}
	_, _ = io.WriteString(w, b.String())
}
