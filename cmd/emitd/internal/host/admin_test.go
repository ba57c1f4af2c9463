package host

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/storage"
)

// TestAdmin checks that the listener serves the admin API behind its tokens, and that its refusals have the form of the
// API. A stream neither outlives its token nor holds up the end of the process.
func TestAdmin(t *testing.T) {
	t.Parallel()
	file := write(t, "tokens", token+"\n")
	o := rig(t, func(c *config.Config, _ *Options) { c.API.TokensFile = file })
	var stream *http.Response
	err := started(t, o, func(ctx context.Context, r *Running) {
		auth := []string{"Authorization", "Bearer " + token}
		for _, c := range []struct {
			path   string
			header []string
			status int
			code   fault.Code
		}{
			{"/api/v1/overview", nil, 401, fault.NotAllowed},
			{"/api/v1/overview", auth, 200, ""},
			{"/api/v1/nodes/nobody", auth, 404, fault.NoNode},
			{"/api/v2/overview", auth, 404, fault.BadCall},
		} {
			got := send(ctx, t, "GET", r.URL+c.path, "", c.header...)
			var p fault.Problem
			if err := json.Unmarshal([]byte(got.body), &p); err != nil || got.status != c.status || p.Code != c.code {
				t.Errorf("%s: %d %s, want %d %s: %v", c.path, got.status, got.body, c.status, c.code, err)
			}
		}
		req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, r.URL+"/api/v1/stream?after=0", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		if stream, err = http.DefaultClient.Do(req); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(stream.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(line, "event: event") {
				return
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, stream.Body); err != nil {
		t.Errorf("the stream was cut off: %v", err)
	}
	stream.Body.Close()
	http.DefaultClient.CloseIdleConnections()
}

// TestExplained checks that an error of the store keeps its kind and loses the secrets.
func TestExplained(t *testing.T) {
	t.Parallel()
	f := explained(errors.Join(storage.ErrUnavailable, errors.New("connect as hunter2")), []string{"hunter2"})
	if f.Code != fault.Unreachable || !errors.Is(f, storage.ErrUnavailable) || strings.Contains(f.What, "hunter2") {
		t.Errorf("%#v", f)
	}
}

// TestAdminOfAGroup checks what the API says about a node of a group that moves no units: which daemon relays a
// subscription, and that a plan moves none either.
func TestAdminOfAGroup(t *testing.T) {
	t.Parallel()
	o, _ := outboxRig(t, func(http.ResponseWriter, *http.Request) {}, nil)
	o.Config.Node.Group, o.Config.Coordinator.MaxMovesPerRound = "shop", 0
	err := started(t, o, func(ctx context.Context, r *Running) {
		var answer struct{ Relay string }
		eventually(ctx, t, "the relay has registered its subscription", func() bool {
			got := send(ctx, t, "GET", r.URL+"/api/v1/outbox/hooks", "")
			return got.status == 200 && json.Unmarshal([]byte(got.body), &answer) == nil
		})
		if got := send(ctx, t, "GET", r.URL+"/api/v1/daemons/"+url.PathEscape(answer.Relay), ""); got.status != 200 || answer.Relay != "emit:outbox/hooks@shop" {
			t.Errorf("the relay is %q: %d %s", answer.Relay, got.status, got.body)
		}
	})
	if err != nil {
		t.Error(err)
	}
	if h := (&host{Options: o}); h.maxMoves() >= 0 {
		t.Errorf("%d moves per round", h.maxMoves())
	}
}
