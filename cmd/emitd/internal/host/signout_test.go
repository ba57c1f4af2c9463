package host

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
	"github.com/emitd/emitd/internal/access"
)

// TestSignOut: a session that is signed out at one node is refused by that node and by another one, and its stream ends. A
// second session of the same token goes on.
func TestSignOut(t *testing.T) {
	t.Parallel()
	file := write(t, "tokens", token+"\n")
	store := backend.Memory()
	one := func(c *config.Config, o *Options) {
		c.API.TokensFile = file
		o.Open = func(context.Context, *telemetry.Telemetry) (*backend.Store, error) {
			return store, nil
		}
	}
	err := started(t, rig(t, one), func(ctx context.Context, a *Running) {
		err := started(t, rig(t, one), func(_ context.Context, b *Running) {
			signIn := func() string {
				got := send(ctx, t, "POST", a.URL+"/api/v1/session", `{"token": "`+token+`"}`, "Content-Type", "application/json", "Origin", a.URL)
				cookie, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
				if err != nil {
					t.Fatal(got.status, got.body, err)
				}
				return cookie.Name + "=" + cookie.Value
			}
			first := signIn()
			second := cookieName + "=" + access.NewSession(token, time.Now().Add(time.Hour))
			for { // both nodes are known
				if got := send(ctx, t, "GET", a.URL+"/api/v1/nodes", "", "Cookie", first); strings.Count(got.body, `"state":"live"`) == 2 {
					break
				}
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL+"/api/v1/stream", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Cookie", first)
			stream, err := http.DefaultClient.Do(req)
			if err != nil || stream.StatusCode != http.StatusOK {
				t.Fatal(stream, err)
			}
			defer stream.Body.Close()
			if got := send(ctx, t, "DELETE", a.URL+"/api/v1/session", "", "Cookie", first, "Origin", a.URL); got.status != http.StatusOK {
				t.Errorf("%d %s", got.status, got.body)
			}
			said := ""
			for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
				said += lines.Text()
			}
			if !strings.Contains(said, "signed out") {
				t.Errorf("the stream at the other node ended with %s", said)
			}
			for _, url := range []string{a.URL, b.URL} {
				if got := send(ctx, t, "GET", url+"/api/v1/nodes", "", "Cookie", first); got.status != http.StatusUnauthorized {
					t.Errorf("%s accepts the session: %d", url, got.status)
				}
				if got := send(ctx, t, "GET", url+"/api/v1/nodes", "", "Cookie", second); got.status != http.StatusOK {
					t.Errorf("%s refuses another session: %d %s", url, got.status, got.body)
				}
			}
			http.DefaultClient.CloseIdleConnections()
		})
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSignOutsAreBounded: however many sessions are signed out, the memory of them is bounded, and the one that would be
// valid for longest is kept.
func TestSignOutsAreBounded(t *testing.T) {
	t.Parallel()
	var s signOuts
	far := time.Now().Add(time.Hour)
	s.end("longest", far.Add(time.Hour))
	s.ended[keyOf("over")] = time.Now().Add(-time.Second)
	for i := range mostSignOuts {
		s.ended[sessionKey{1, byte(i), byte(i >> 8)}] = far
	}
	s.end("next", far)
	if len(s.ended) > mostSignOuts+1 || !s.over("longest") || !s.over("next") || s.over("over") {
		t.Errorf("%d sessions, %v %v %v", len(s.ended), s.over("longest"), s.over("next"), s.over("over"))
	}
}
