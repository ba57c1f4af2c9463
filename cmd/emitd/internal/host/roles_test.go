package host

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// tokenOf returns a token for a test, and its line with the given roles.
func tokenOf(t *testing.T, name, roles string, expires time.Time) (text, line string) {
	t.Helper()
	text = "emitd_test-token-of-" + name
	e := access.EntryOf(text)
	e.Name, e.Expires = name, expires
	for role := range strings.SplitSeq(roles, ",") {
		g, err := access.ParseGrant(role)
		if err != nil {
			t.Fatal(err)
		}
		e.Grants = append(e.Grants, g)
	}
	return text, e.Line() + "\n"
}

// session is what GET /session answers.
type session struct {
	Actor string   `json:"actor"`
	Roles []string `json:"roles"`
	Login bool     `json:"login"`
}

// TestSignIn checks the way of a person in a browser: sign in with a token, read, be refused what the token may not do,
// sign out. The cookie is no token, is not sent to other sites, and counts only for calls that say from which page they come.
func TestSignIn(t *testing.T) {
	t.Parallel()
	reader, readerLine := tokenOf(t, "reader", "read", time.Time{})
	operator, operatorLine := tokenOf(t, "operator", "operate", time.Time{})
	file := write(t, "tokens", readerLine+operatorLine)
	o := rig(t, func(c *config.Config, _ *Options) { c.API.TokensFile = file })
	err := started(t, o, func(ctx context.Context, r *Running) {
		api := r.URL + "/api/v1"
		whoami := func(headers ...string) (s session) {
			if got := send(ctx, t, "GET", api+"/session", "", headers...); got.status != 200 || json.Unmarshal([]byte(got.body), &s) != nil {
				t.Errorf("%d %s", got.status, got.body)
			}
			return s
		}
		if s := whoami(); len(s.Roles) != 0 || !s.Login || s.Actor != "" {
			t.Errorf("%+v", s)
		}
		if s := whoami("Cookie", cookieName+"=nonsense"); len(s.Roles) != 0 {
			t.Errorf("%+v", s)
		}
		for _, bad := range []string{"", "wrong", access.NewSession(operator, time.Now().Add(time.Hour))} {
			got := send(ctx, t, "POST", api+"/session", fmt.Sprintf(`{"token": %q}`, bad), "Content-Type", "application/json")
			if got.status != 401 || got.header.Get("Set-Cookie") != "" || !strings.Contains(got.body, string(fault.NotAllowed)) {
				t.Errorf("signed in with %q: %d %s", bad, got.status, got.body)
			}
		}
		signIn := func(token string) string {
			got := send(ctx, t, "POST", api+"/session", fmt.Sprintf(`{"token": %q}`, token), "Content-Type", "application/json")
			c, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
			if err != nil || got.status != 200 || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || strings.Contains(c.Value, token) {
				t.Fatalf("%d %v %+v", got.status, err, c)
			}
			return c.Name + "=" + c.Value
		}
		read, operate := signIn(reader), signIn(operator)
		if s := whoami("Cookie", read); !slices.Equal(s.Roles, []string{"read"}) || s.Actor != "reader" {
			t.Errorf("%+v", s)
		}
		if s := whoami("Cookie", operate); !slices.Equal(s.Roles, []string{"read", "operate"}) {
			t.Errorf("%+v", s)
		}
		const command = `{"kind": "node.cordon", "node": "nobody", "dry_run": true}`
		own := []string{"Origin", r.URL, "Content-Type", "application/json"}
		for _, c := range []struct {
			method, path, body string
			headers            []string
			status             int
		}{
			{"GET", "/overview", "", []string{"Cookie", read}, 200},
			{"GET", "/overview", "", nil, 401},
			{"POST", "/commands", command, append([]string{"Cookie", operate}, own...), 404},                                              // there is no such node
			{"POST", "/commands", command, append([]string{"Cookie", read}, own...), 403},                                                 // the role is missing
			{"POST", "/commands", command, []string{"Cookie", operate, "Content-Type", "application/json"}, 403},                          // from where?
			{"POST", "/commands", command, []string{"Cookie", operate, "Content-Type", "application/json", "Origin", "http://evil"}, 403}, // from there
			{"POST", "/commands", command, []string{"Authorization", "Bearer " + operator, "Content-Type", "application/json"}, 404},      // a program
			{"DELETE", "/session", "", append([]string{"Cookie", operate}, own...), 200},
		} {
			got := send(ctx, t, c.method, api+c.path, c.body, c.headers...)
			if got.status != c.status || !strings.Contains(got.header.Get("Content-Security-Policy"), "default-src 'self'") {
				t.Errorf("%s %s %q: %d %s, want %d", c.method, c.path, c.headers, got.status, got.body, c.status)
			}
			if c.method == "DELETE" && !strings.Contains(got.header.Get("Set-Cookie"), "Max-Age=0") {
				t.Errorf("the cookie stays: %q", got.header.Get("Set-Cookie"))
			}
		}
		if got := send(ctx, t, "GET", r.URL+"/v1/queues", "", "Cookie", read); got.status != 401 {
			t.Errorf("the cookie opens the API of the queues: %d", got.status)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestStreamOfRevokedToken checks that a stream ends with the reason when its token is removed from the file.
func TestStreamOfRevokedToken(t *testing.T) {
	t.Parallel()
	token, line := tokenOf(t, "reader", "read", time.Time{})
	_, other := tokenOf(t, "other", "admin", time.Time{})
	file := write(t, "tokens", line+other)
	reload := make(chan func() (*config.Loaded, error))
	o := rig(t, func(c *config.Config, o *Options) { c.API.TokensFile, o.Reload = file, reload })
	err := started(t, o, func(ctx context.Context, r *Running) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/api/v1/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		stream, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Body.Close()
		if err := os.WriteFile(file, []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		reload <- func() (*config.Loaded, error) { return o.Config, nil }
		last := ""
		lines := bufio.NewScanner(stream.Body)
		for lines.Scan() {
			if lines.Text() != "" {
				last = lines.Text()
			}
		}
		if lines.Err() != nil || !strings.Contains(last, `"code":"`+string(fault.NotAllowed)+`"`) || !strings.Contains(last, "revoked") {
			t.Errorf("the stream ended with %q, %v", last, lines.Err())
		}
		if got := send(ctx, t, "GET", r.URL+"/api/v1/overview", "", "Authorization", "Bearer "+token); got.status != 401 {
			t.Errorf("%d %s", got.status, got.body)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	if err != nil {
		t.Error(err)
	}
}

// guarded calls a handler behind a guard and returns the status.
func guarded(g *guard, r *http.Request, behind http.Handler) int {
	w := httptest.NewRecorder()
	g.wrap(behind, func(w http.ResponseWriter, _ *http.Request, e *queue.Error) { w.WriteHeader(refusal.HTTPStatus(e.Tag)) }).ServeHTTP(w, r)
	return w.Code
}

// TestExpiry checks that a token, a session and the session of a token that ends earlier are valid until their end, and
// that a call that is under way ends with them.
func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		token, line := tokenOf(t, "ci", "read", time.Now().Add(time.Hour).Truncate(time.Second))
		lasting, lastingLine := tokenOf(t, "lasting", "read", time.Time{})
		g, err := newGuard(config.API{TokensFile: write(t, "tokens", line+lastingLine)}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		signed := httptest.NewRequest(http.MethodPost, sessionPath, nil)
		short, err := g.SignIn(signed, token)
		if err != nil {
			t.Fatal(err)
		}
		long, err := g.SignIn(signed, lasting)
		if err != nil {
			t.Fatal(err)
		}
		ended := map[string]time.Duration{}
		begun, ends := time.Now(), make(chan string)
		for _, sent := range []string{token, short.Value, long.Value} {
			go func() {
				r := httptest.NewRequest(http.MethodGet, "/api/v1/stream", nil)
				r.Header.Set("Authorization", "Bearer "+sent)
				guarded(g, r, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					if e := context.Cause(r.Context()); queue.TagOf(e) != queue.Unauthorized || !strings.Contains(e.Error(), "expired") {
						t.Errorf("ended with %v", e)
					}
				}))
				ends <- sent
			}()
		}
		for range 3 {
			ended[<-ends] = time.Since(begun)
		}
		for sent, want := range map[string]time.Duration{token: time.Hour, short.Value: time.Hour, long.Value: sessionLength} {
			if ended[sent] != want {
				t.Errorf("%.20s ended after %v, want %v", sent, ended[sent], want)
			}
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.Header.Set("Authorization", "Bearer "+sent)
			if code := guarded(g, r, teapot); code != 401 {
				t.Errorf("%.20s is valid after its end: %d", sent, code)
			}
		}
	})
}

// TestProxiesAndCertificates checks whom the guard believes: a header counts only from a proxy that is named, a certificate
// only if it was verified, and a token counts more than both.
func TestProxiesAndCertificates(t *testing.T) {
	t.Parallel()
	token, line := tokenOf(t, "ci", "produce", time.Time{})
	file := write(t, "tokens", line+"user name=alice roles=operate\nuser name=* roles=read\ncertificate name=ops.example.org roles=operate\n")
	g, err := newGuard(config.API{TokensFile: file, UserHeader: "X-User", Proxies: []string{"10.0.0.7", "192.0.2.0/24", "certificate:proxy.example.org"}}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(verified bool, name string) *tls.ConnectionState {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
		s := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}
		if verified {
			s.VerifiedChains = [][]*x509.Certificate{{c}}
		}
		return s
	}
	for _, c := range []struct {
		from   string
		tls    *tls.ConnectionState
		users  []string
		bearer string
		want   string
	}{
		{"10.0.0.7:99", nil, []string{"alice"}, "", "user alice operate"},
		{"[::ffff:10.0.0.7]:99", nil, []string{"alice"}, "", "user alice operate"},
		{"192.0.2.200:99", nil, []string{"bob"}, "", "user bob read"},
		{"10.0.0.8:99", nil, []string{"alice"}, "", ""},
		{"10.0.0.7:99", nil, nil, "", ""},
		{"10.0.0.7:99", nil, []string{"alice", "bob"}, "", ""},
		{"10.0.0.7:99", nil, []string{"*"}, "", ""},
		{"10.0.0.7:99", nil, []string{"ali ce"}, "", ""},
		{"10.0.0.7:99", nil, []string{"alice"}, token, "token ci produce"},
		{"10.0.0.8:99", certificate(true, "proxy.example.org"), []string{"alice"}, "", "user alice operate"},
		{"10.0.0.8:99", certificate(false, "proxy.example.org"), []string{"alice"}, "", ""},
		{"10.0.0.8:99", certificate(true, "ops.example.org"), []string{"alice"}, "", "certificate ops.example.org operate"},
		{"10.0.0.8:99", certificate(false, "ops.example.org"), nil, "", ""},
		{"10.0.0.8:99", certificate(true, "ci"), nil, "", ""},
		{"10.0.0.8:99", certificate(true, "ops.example.org"), nil, "wrong", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/overview", nil)
		r.RemoteAddr, r.TLS = c.from, c.tls
		for _, u := range c.users {
			r.Header.Add("X-User", u)
		}
		if c.bearer != "" {
			r.Header.Set("Authorization", "Bearer "+c.bearer)
		}
		got := ""
		code := guarded(g, r, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			who := callerOf(r.Context())
			got = strings.Join([]string{string(who.Kind), who.Name, who.Roles()}, " ")
		}))
		if got != c.want || (c.want == "") != (code == 401) {
			t.Errorf("%+v: %d %q, want %q", c, code, got, c.want)
		}
	}
}
