package host

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
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
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// guard protects the listener: it finds out who calls, by certificates, tokens, sessions and what a proxy says. The health
// endpoints need none of that, because probes have none and the endpoints reveal only health. What a caller may do is
// decided where the call is answered; see roles.go.
//
// A loopback listener without tokens accepts only requests whose Host header names this machine.
// Otherwise a web site whose name resolves to 127.0.0.1 would be the same origin to a visitor's browser
// (DNS rebinding), and could read and write whatever is served.
type guard struct {
	api   config.API
	log   *slog.Logger
	id    atomic.Pointer[identity]
	hint  string                 // where to find a token; empty: the usual text
	names []string               // of this machine, beside loopback addresses; nil: any Host is accepted
	own   atomic.Pointer[string] // the Host that was accepted last; most calls have the same

	grants atomic.Pointer[grants] // nil: nobody is asked who calls
	out    signOuts
	mu     sync.Mutex // held by load
	inUse  string     // stamp of the files that were loaded last
}

// grants are the entries of the access file.
type grants []*grant

// grant is an entry, valid until it expires or is revoked.
type grant struct {
	access.Entry
	valid  context.Context // ends when the entry is revoked
	revoke context.CancelCauseFunc
}

func newGrant(e access.Entry) *grant {
	x := &grant{Entry: e}
	x.valid, x.revoke = context.WithCancelCause(context.Background())
	return x
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
	e := access.EntryOf(own.Text)
	e.Grants = access.Everything()
	g.grants.Store(&grants{newGrant(e)})
}

// load reads the certificates and the access file. It is called again when they change. If a file is
// wrong, nothing changes. What was removed from the access file is revoked, and calls made with it end.
func (g *guard) load() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	stamp := g.stamp() // before the files are read, so that a change during the reads is found
	id, err := readIdentity(g.api.TLS)
	if err != nil {
		return err
	}
	entries, err := g.entries()
	if err != nil {
		return err
	}
	g.id.Store(id)
	g.inUse = stamp
	if g.api.TokensFile == "" {
		return nil
	}
	var fresh grants
	old := g.grants.Load()
	for _, e := range entries {
		if x := old.same(&e); x != nil {
			fresh = append(fresh, x)
			continue
		}
		fresh = append(fresh, newGrant(e))
	}
	g.grants.Store(&fresh)
	if old == nil {
		return nil
	}
	for _, x := range *old {
		if !slices.Contains(fresh, x) {
			x.revoke(queue.Refuse(queue.Unauthorized, "the %s was revoked, or its roles were changed", x.Kind))
		}
	}
	return nil
}

// emptyFor is how long the access file must be empty before that revokes everything: programs that do not replace a file
// as a whole empty it before they write it.
const emptyFor = 250 * time.Millisecond

// entries reads the access file; none if no file is configured. A file without entries is refused at the start. Later it
// says that everything was revoked.
func (g *guard) entries() ([]access.Entry, error) {
	file := g.api.TokensFile
	if file == "" {
		return nil, nil
	}
	entries, err := readEntries(file)
	if err == nil && len(entries) == 0 && g.grants.Load() != nil {
		time.Sleep(emptyFor)
		entries, err = readEntries(file)
	}
	switch {
	case err != nil:
		return nil, err
	case len(entries) > 0:
	case g.grants.Load() == nil:
		return nil, fault.New(fault.AccessFile, "api.tokens_file %s has no token: every call would be refused", file)
	default:
		g.log.Warn("the access file has no entry any more: every call is refused", "file", file)
	}
	if note := TokensReadable(file); note != "" {
		g.log.Warn(note)
	}
	return entries, nil
}

func readEntries(file string) ([]access.Entry, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.New(fault.AccessFile, "api.tokens_file: %w", err)
	}
	entries, err := access.Parse(string(text))
	if err != nil {
		return nil, fault.New(fault.AccessFile, "api.tokens_file %s:%w", file, err)
	}
	return entries, nil
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

// same returns the grant of an equal entry, nil if there is none.
func (l *grants) same(e *access.Entry) *grant {
	if l == nil {
		return nil
	}
	for _, x := range *l {
		if x.Sum == e.Sum && x.Kind == e.Kind && x.Name == e.Name && x.Roles() == e.Roles() && x.Expires.Equal(e.Expires) {
			return x
		}
	}
	return nil
}

// token returns the grant of a token, nil if it is unknown. It takes constant time, so that the duration of an answer
// reveals nothing about a token.
func (l *grants) token(text string) *grant {
	sum := access.EntryOf(text).Sum
	var found *grant
	for _, x := range *l {
		if subtle.ConstantTimeCompare(sum[:], x.Sum[:]) == 1 && x.Kind == access.Token {
			found = x
		}
	}
	return found
}

// session returns the grant of the token that a session stands for, nil if there is none.
func (l *grants) session(s access.Session) *grant {
	for _, x := range *l {
		if x.Kind == access.Token && s.Of(&x.Entry) {
			return x
		}
	}
	return nil
}

// named returns the grant of a certificate or user, nil if there is none. A user that has no line gets that of *.
func (l *grants) named(kind access.Kind, names ...string) *grant {
	for _, name := range names {
		for _, x := range *l {
			if x.Kind == kind && x.Name == name && name != "*" {
				return x
			}
		}
	}
	for _, x := range *l {
		if kind == access.User && len(names) > 0 && x.Kind == kind && x.Name == "*" {
			return x
		}
	}
	return nil
}

// identified is who makes a call.
type identified struct {
	*access.Caller
	grant  *grant
	until  time.Time // the end of what identifies the caller; zero: it has none
	text   string    // the session; empty: it is none
	cookie bool      // a browser has sent it by itself
}

// under runs a call that ends when the caller's right ends, because long polls and WebSockets may last long.
func (i *identified) under(out *signOuts, next http.Handler, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancelCause(withCaller(r.Context(), i.Caller))
	defer cancel(nil)
	stop := context.AfterFunc(i.grant.valid, func() { cancel(context.Cause(i.grant.valid)) })
	defer stop()
	if i.text != "" && r.URL.Path != sessionPath { // the call that signs out is answered
		defer out.call(i.text, cancel)()
	}
	if !i.until.IsZero() {
		end := time.AfterFunc(time.Until(i.until), func() { cancel(expired(i.grant.Kind)) })
		defer end.Stop()
	}
	next.ServeHTTP(w, r.WithContext(ctx))
}

func expired(kind access.Kind) *queue.Error {
	return queue.Refuse(queue.Unauthorized, "the %s has expired", kind)
}

// anonymous reports whether a caller lacks the required certificate.
func (g *guard) anonymous(r *http.Request) bool {
	return g.id.Load().mutual && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0)
}

var open = map[string]bool{"/livez": true, "/readyz": true, "/leaderz": true, "/startupz": true, "/healthz": true}

// sessionPath is where people sign in, so it needs no token.
const sessionPath = adminPath + "v1/session"

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
	if last := g.own.Load(); last != nil && *last == host {
		return false
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil { // no port
		name = strings.Trim(host, "[]")
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	ip, err := netip.ParseAddr(name)
	if (err != nil || !ip.Unmap().IsLoopback()) && !slices.Contains(g.names, name) {
		return true
	}
	g.own.Store(&host)
	return false
}

// wrap passes on requests that are meant for this machine and whose caller is known or need not be. refuse answers
// the others.
func (g *guard) wrap(next http.Handler, refuse func(w http.ResponseWriter, r *http.Request, e *queue.Error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case g.otherHost(r.Host):
			refuse(w, r, queue.Refuse(refusal.Forbidden, "this server does not answer to the host %.100q", r.Host).
				WithHint("call it by a loopback address, localhost or the host in listen; with api.tokens_file any host is accepted"))
			return
		case open[r.URL.Path] || ofQueues(r.URL.Path) && api.Preflight(r):
			next.ServeHTTP(w, r)
			return
		case g.anonymous(r):
			refuse(w, r, queue.Refuse(queue.Unauthorized, "a client certificate is required").WithHint("use one issued by an authority in api.tls.client_ca"))
			return
		case g.grants.Load() == nil || ofConsole(r): // the console itself asks for a token
			next.ServeHTTP(w, r)
			return
		}
		who, e := g.identify(r)
		if who != nil && who.text != "" && g.out.over(who.text) {
			who, e = nil, signedOut()
		}
		switch {
		case who != nil && who.cookie && !fromPage(r):
			refuse(w, r, queue.Refuse(refusal.Forbidden, "the call has a cookie, and does not say from which page it comes").
				WithHint("programs send Authorization: Bearer … and no cookie"))
		case who != nil:
			who.under(&g.out, next, w, r)
		case r.URL.Path == sessionPath:
			next.ServeHTTP(w, r.WithContext(withCaller(r.Context(), &access.Caller{}))) // who may do nothing
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="emitd"`)
			if g.hint != "" {
				e = e.WithHint("%s", g.hint)
			}
			refuse(w, r, e)
		}
	})
}
