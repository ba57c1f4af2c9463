package host

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// TestUnknownHosts checks that a loopback listener without tokens refuses requests that are meant for
// another host.
func TestUnknownHosts(t *testing.T) {
	t.Parallel()
	near, far := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7070}, &net.TCPAddr{IP: net.IPv4zero, Port: 7070}
	for _, c := range []struct {
		at     net.Addr
		listen string
		tokens bool
		host   string
		want   int
	}{
		{near, "127.0.0.1:7070", false, "127.0.0.1:7070", 418},
		{near, "127.0.0.1:7070", false, "127.8.9.1", 418},
		{near, "127.0.0.1:7070", false, "[::1]:80", 418},
		{near, "127.0.0.1:7070", false, "[::1]", 418},
		{near, "127.0.0.1:7070", false, "[::ffff:127.0.0.1]:1", 418},
		{near, "127.0.0.1:7070", false, "localhost", 418},
		{near, "127.0.0.1:7070", false, "LocalHost.:7071", 418},
		{near, "127.0.0.1:7070", false, "", 418},
		{near, "Desk.example.org:7070", false, "desk.example.org:7070", 418},
		{near, "127.0.0.1:7070", false, "desk.example.org:7070", 403},
		{near, "127.0.0.1:7070", false, "evil.example.org", 403},
		{near, "127.0.0.1:7070", false, "127.0.0.1.evil.example.org", 403},
		{near, "127.0.0.1:7070", false, "evil.localhost:7070", 403},
		{near, "127.0.0.1:7070", false, "10.0.0.1:7070", 403},
		{near, "127.0.0.1:7070", false, "[fe80::1]:7070", 403},
		{near, "127.0.0.1:7070", true, "evil.example.org", 401},
		{far, ":7070", false, "queue.example.org", 418},
	} {
		g, err := newGuard(config.API{}, quiet)
		if c.tokens {
			g, err = newGuard(config.API{TokensFile: write(t, "tokens", token+"\n")}, quiet)
		}
		if err != nil {
			t.Fatal(err)
		}
		g.confine(c.at, c.listen)
		h := g.wrap(teapot, func(w http.ResponseWriter, _ *http.Request, e *queue.Error) { w.WriteHeader(refusal.HTTPStatus(e.Tag)) })
		for _, path := range []string{"/livez", "/metrics", "/v1/jobs", "/v1/ws"} {
			if c.tokens && path == "/livez" {
				continue // needs no token
			}
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host = c.host
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != c.want {
				t.Errorf("listen %s (%v), tokens %v: %s with Host %q: %d, want %d", c.listen, c.at, c.tokens, path, c.host, w.Code, c.want)
			}
		}
	}
}

// answer is an answer of the listener.
type answer struct {
	status int
	header http.Header
	body   string
}

// send makes a request to a listener; headers alternates names and values.
func send(ctx context.Context, t *testing.T, method, url, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// problem fails unless the answer is a refusal with its tag, a message and a hint.
func (s answer) problem(t *testing.T, status int, tag queue.Tag) {
	t.Helper()
	var p refusal.Problem
	err := json.Unmarshal([]byte(s.body), &p)
	if err != nil || s.status != status || p.Tag != tag || p.Message == "" || p.Hint == "" || s.header.Get("Content-Type") != refusal.MediaType {
		t.Errorf("%d %v %s, want %d %s: %v", s.status, s.header, s.body, status, tag, err)
	}
}

// TestRefusedAtTheDoor checks that refusals of the listener look like those of the queue, on every
// transport.
func TestRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	const connectPath = "/osqueue.v1.QueueService/ListJobs"
	err := started(t, rig(t, nil), func(ctx context.Context, r *Running) {
		for _, path := range []string{"/v1/jobs", "/v1/ws", "/state", "/healthz", "/v1/queues"} {
			send(ctx, t, "GET", r.URL+path, "", "Host", "evil.example.org").problem(t, 403, refusal.Forbidden)
		}
		if s := send(ctx, t, "GET", r.URL+"/metrics", "", "Host", "evil.example.org"); s.status != 403 || !strings.Contains(s.body, "loopback") {
			t.Errorf("%d %s", s.status, s.body)
		}
		s := send(ctx, t, "POST", r.URL+connectPath, "{}", "Host", "evil.example.org", "Content-Type", "application/json")
		if s.status != 403 || s.header.Get("Emitd-Tag") != "Forbidden" || !strings.Contains(s.body, `"permission_denied"`) {
			t.Errorf("%d %v %s", s.status, s.header, s.body)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestTokensAndOrigins checks that tokens do not exclude pages of a configured origin. A browser's
// preflight request has no token, and the page must see why it was refused.
func TestTokensAndOrigins(t *testing.T) {
	t.Parallel()
	const origin, connectPath = "https://queue.example.org", "/emitd.queue.v1.QueueService/Claim"
	file := write(t, "tokens", token+"\n")
	o := rig(t, func(c *config.Config, _ *Options) { c.API.TokensFile, c.API.Origins = file, []string{origin} })
	err := started(t, o, func(ctx context.Context, r *Running) {
		for _, path := range []string{"/v1/jobs", "/v1/queues/mail/claim", connectPath} {
			s := send(ctx, t, "OPTIONS", r.URL+path, "", "Origin", origin, "Access-Control-Request-Method", "POST")
			if s.status != 204 || s.header.Get("Access-Control-Allow-Origin") != origin || !strings.Contains(s.header.Get("Access-Control-Allow-Headers"), "Authorization") {
				t.Errorf("preflight of %s: %d %v", path, s.status, s.header)
			}
			send(ctx, t, "OPTIONS", r.URL+path, "", "Origin", "https://evil.example.org", "Access-Control-Request-Method", "POST").problem(t, 403, refusal.Forbidden)
		}
		for _, auth := range []string{"", "Bearer none-of-the-tokens"} {
			s := send(ctx, t, "GET", r.URL+"/v1/queues", "", "Origin", origin, "Authorization", auth)
			s.problem(t, 401, queue.Unauthorized)
			if s.header.Get("Access-Control-Allow-Origin") != origin || s.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%v", s.header)
			}
			s = send(ctx, t, "POST", r.URL+connectPath, "{}", "Origin", origin, "Authorization", auth, "Content-Type", "application/json")
			if s.status != 401 || s.header.Get("Emitd-Tag") != "Unauthorized" || s.header.Get("Access-Control-Allow-Origin") != origin ||
				!strings.Contains(s.body, `"unauthenticated"`) || !strings.Contains(s.body, `"emitd.queue.v1.Refusal"`) {
				t.Errorf("%d %v %s", s.status, s.header, s.body)
			}
		}
		s := send(ctx, t, "GET", r.URL+"/v1/queues", "", "Origin", "https://evil.example.org")
		if s.problem(t, 401, queue.Unauthorized); s.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%v", s.header)
		}
		for _, path := range []string{"/metrics", "/"} { // not part of the API: no preflight
			if s := send(ctx, t, "OPTIONS", r.URL+path, "", "Origin", origin, "Access-Control-Request-Method", "GET"); s.status != 401 {
				t.Errorf("%s: %d %s", path, s.status, s.body)
			}
		}
		s = send(ctx, t, "GET", r.URL+"/v1/ws", "", "Origin", origin, "Authorization", "Bearer "+token)
		s.problem(t, 400, queue.BadRequest) // it passed the guard
		http.DefaultClient.CloseIdleConnections()
	})
	if err != nil {
		t.Error(err)
	}
}
