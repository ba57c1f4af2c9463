package host

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
)

// text collects what a host logs.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// TestTokensAreNowhere uses tokens and a session, good and bad ones, and looks for them in everything that a node says: log,
// metrics, history, settings, what it tells about its process, and refusals.
func TestTokensAreNowhere(t *testing.T) {
	t.Parallel()
	const bad = "emitd_planted-token-that-nobody-has"
	token, line := tokenOf(t, "planted", "admin", time.Time{})
	plain := "planted-token-as-it-is-sent"
	file := write(t, "tokens", line+plain+"\n")
	log := &text{}
	o := rig(t, func(c *config.Config, o *Options) {
		c.API.TokensFile, c.Objects.URL = file, "mem://"
		o.Handler = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	})
	var said strings.Builder
	err := started(t, o, func(ctx context.Context, r *Running) {
		secrets := []string{token, plain, bad}
		got := send(ctx, t, "POST", r.URL+"/api/v1/session", fmt.Sprintf(`{"token": %q}`, token), "Content-Type", "application/json")
		cookie, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
		if err != nil {
			t.Fatal(got.status, got.body, err)
		}
		secrets = append(secrets, cookie.Value)
		said.WriteString(got.body)
		for _, sent := range append(secrets, cookie.Value+"x") {
			for _, c := range [][3]string{
				{"GET", "/metrics", ""},
				{"GET", nodeapi.Debug, ""},
				{"GET", "/api/v1/settings", ""},
				{"GET", "/api/v1/status", ""},
				{"GET", "/api/v1/session", ""},
				{"GET", "/v1/queues", ""},
				{"GET", "/nowhere", ""},
				{"GET", "/api/v1/nowhere", ""},
				{"POST", "/v1/queues/q/pause", "{}"},
				{"POST", "/api/v1/commands", `{"kind": "node.cordon", "node": "nobody"}`},
				{"POST", "/api/v1/session", fmt.Sprintf(`{"token": %q}`, sent+"x")},
				{"POST", "/api/v1/session", fmt.Sprintf(`{"tokens": %q}`, sent)},
				{"GET", "/api/v1/events?limit=1000", ""},
			} {
				said.WriteString(send(ctx, t, c[0], r.URL+c[1], c[2], "Authorization", "Bearer "+sent, "Content-Type", "application/json").body)
			}
		}
		http.DefaultClient.CloseIdleConnections()
		for _, secret := range secrets {
			if strings.Contains(said.String(), secret) {
				t.Errorf("an answer has %q", secret)
			}
			if strings.Contains(log.String(), secret) {
				t.Errorf("the log has %q", secret)
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	if log.String() == "" || !strings.Contains(said.String(), "target_info") {
		t.Error("there is no log, or no metrics: this test looks in the wrong place")
	}
}
