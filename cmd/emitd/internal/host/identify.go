package host

import (
	"crypto/x509"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/queue"
)

// identify finds out who makes a call. What is most specific counts: a token or session in the header, the name that a proxy
// states, the name in the certificate, and last the cookie, which a browser sends unasked.
func (g *guard) identify(r *http.Request) (*identified, *queue.Error) {
	list := g.grants.Load()
	if text, sent := bearerOf(r); sent {
		return list.bearer(text)
	}
	if user, ok := g.proxied(r); ok {
		if access.CheckName(user) != nil {
			return nil, queue.Refuse(queue.Unauthorized, "the proxy states no user, more than one, or a name that is malformed")
		}
		if x := list.named(access.User, user); x != nil && !x.Expired(time.Now()) {
			c := x.Caller
			c.Name = user // of a line for *
			return &identified{Caller: &c, grant: x, until: x.Expires}, nil
		}
		return nil, queue.Refuse(queue.Unauthorized, "the user %.100q has no line in api.tokens_file", user)
	}
	if x := list.named(access.Certificate, certified(r)...); x != nil && !x.Expired(time.Now()) {
		return &identified{Caller: &x.Caller, grant: x, until: x.Expires}, nil
	}
	if c := sessionCookie(r); c != "" && !ofQueues(r.URL.Path) {
		who, e := list.bearer(c)
		if who != nil {
			who.cookie = true
			r.Header.Set("Authorization", "Bearer "+c) // for the node to which the call may be forwarded
		}
		return who, e
	}
	return nil, queue.Refuse(queue.Unauthorized, "a bearer token is required")
}

// bearerOf returns the token or session in the header of a call.
func bearerOf(r *http.Request) (text string, sent bool) {
	return strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// bearer returns the caller with a token or a session.
func (l *grants) bearer(text string) (*identified, *queue.Error) {
	var x *grant
	var until time.Time
	s, isSession := access.ParseSession(text)
	if isSession {
		x, until = l.session(s), s.Until
	} else {
		x = l.token(text)
	}
	if x == nil {
		return nil, queue.Refuse(queue.Unauthorized, "the bearer token is not one of this server's")
	}
	if !x.Expires.IsZero() && (until.IsZero() || x.Expires.Before(until)) {
		until = x.Expires
	}
	if !until.IsZero() && !time.Now().Before(until) {
		return nil, expired(x.Kind)
	}
	who := &identified{Caller: &x.Caller, grant: x, until: until}
	if isSession {
		who.text = text
	}
	return who, nil
}

// proxied returns the user whom a trusted proxy states; ok is false if the call does not come from one.
func (g *guard) proxied(r *http.Request) (user string, ok bool) {
	if g.api.UserHeader == "" || !g.trusted(r) {
		return "", false
	}
	switch values := r.Header.Values(g.api.UserHeader); {
	case len(values) == 0:
		return "", false
	case len(values) > 1:
		return "", true
	default:
		return values[0], true
	}
}

// trusted reports whether a call comes from a proxy of api.proxies: by its address, or by its certificate.
func (g *guard) trusted(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	names := certified(r)
	return slices.ContainsFunc(g.api.Proxies, func(p string) bool {
		if name, ok := strings.CutPrefix(p, "certificate:"); ok {
			return slices.Contains(names, name)
		}
		if prefix, bad := netip.ParsePrefix(p); bad == nil {
			return err == nil && prefix.Contains(from.Addr().Unmap())
		}
		ip, bad := netip.ParseAddr(p)
		return err == nil && bad == nil && ip.Unmap() == from.Addr().Unmap()
	})
}

// certified returns the names in the caller's verified certificate.
func certified(r *http.Request) []string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil
	}
	return namesOf(r.TLS.VerifiedChains[0][0])
}

func namesOf(c *x509.Certificate) []string {
	names := slices.Concat(c.DNSNames, c.EmailAddresses)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	if c.Subject.CommonName != "" {
		names = append(names, c.Subject.CommonName)
	}
	return names
}

// The names of the cookie. With TLS a browser accepts it only from this very host.
const (
	cookieName       = "emitd_session"
	secureCookieName = "__Host-emitd_session"
)

// sessionLength is how long a session lasts.
const sessionLength = 12 * time.Hour

func sessionCookie(r *http.Request) string {
	for _, name := range []string{secureCookieName, cookieName} {
		if c, err := r.Cookie(name); err == nil {
			return c.Value
		}
	}
	return ""
}

// fromPage reports whether a browser says from which page a call comes. The handlers refuse what comes from another origin;
// here a call that changes something and says nothing is refused.
func fromPage(r *http.Request) bool {
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	return safe || r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != ""
}

var _ admin.Sessions = (*guard)(nil)

// SignIn implements [admin.Sessions].
func (g *guard) SignIn(r *http.Request, token string) (*http.Cookie, error) {
	list := g.grants.Load()
	if list == nil {
		return nil, errors.New("this server has no tokens")
	}
	if _, ok := access.ParseSession(token); ok {
		return nil, queue.Refuse(queue.Unauthorized, "the bearer token is not one of this server's") // sessions are not prolonged
	}
	who, e := list.bearer(token)
	if e != nil {
		return nil, e
	}
	until := time.Now().Add(sessionLength)
	if !who.until.IsZero() && who.until.Before(until) {
		until = who.until
	}
	c := newCookie(r, access.NewSession(token, until))
	c.Expires = until
	return c, nil
}

// SignOut implements [admin.Sessions].
func (g *guard) SignOut(r *http.Request) *http.Cookie {
	c := newCookie(r, "")
	c.MaxAge = -1
	return c
}

func newCookie(r *http.Request, value string) *http.Cookie {
	c := &http.Cookie{Name: cookieName, Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if r.TLS != nil {
		c.Name, c.Secure = secureCookieName, true
	}
	return c
}
