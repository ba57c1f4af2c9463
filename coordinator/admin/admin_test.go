package admin_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/memory"
)

var _ admin.Source = (*coordinator.Coordinator)(nil)

type source struct {
	live, started, ready error
	lost                 error // nil: the node leads
	degraded             error
}

func (s source) Live() map[string]error    { return map[string]error{"loop": s.live} }
func (s source) Started() map[string]error { return map[string]error{"heartbeat": s.started} }
func (s source) Ready(context.Context) map[string]error {
	return map[string]error{"store": s.ready, "stopping": nil}
}

func (s source) Degraded() map[string]error {
	if s.degraded == nil {
		return nil
	}
	return map[string]error{"units": s.degraded}
}

func (s source) Leadership() (node.Term, context.Context, bool) {
	if s.lost == nil {
		return node.Term{Number: 1, Ordinal: 1}, context.Background(), true
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(s.lost)
	return node.Term{}, ctx, false
}

// Each endpoint depends on its own checks and on no others.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	bad := errors.New("it is broken")
	for _, tc := range []struct {
		name   string
		source source
		path   string
		status int
		body   string
	}{
		{"live", source{started: bad, ready: bad, lost: bad}, "/livez", 200, "ok\n"},
		{"not live", source{live: bad}, "/livez", 503, "[-] loop: it is broken\n"},
		{"started", source{live: bad, ready: bad, lost: bad}, "/startupz", 200, "ok\n"},
		{"not started", source{started: bad}, "/startupz", 503, "[-] heartbeat: it is broken\n"},
		{"ready without leading", source{live: bad, lost: bad}, "/readyz", 200, "ok\n"},
		{"not ready", source{ready: bad}, "/readyz", 503, "[-] store: it is broken\n"},
		{"leader", source{live: bad, ready: bad, started: bad}, "/leaderz", 200, "ok\n"},
		{"not leader", source{lost: bad}, "/leaderz", 503, "[-] leader: it is broken\n"},
		{"verbose", source{}, "/readyz?verbose", 200, "[+] stopping: ok\n[+] store: ok\nok\n"},
		{"verbose and bad", source{ready: bad}, "/readyz?verbose=1", 503, "[+] stopping: ok\n[-] store: it is broken\n"},
		{"degraded is ready", source{degraded: bad}, "/readyz", 200, "ok\n"},
		{"degraded and verbose", source{degraded: bad}, "/readyz?verbose", 200, "[!] units: it is broken\n[+] stopping: ok\n[+] store: ok\nok\n"},
		{"degraded and bad", source{degraded: bad, ready: bad}, "/readyz?verbose", 503, "[!] units: it is broken\n[+] stopping: ok\n[-] store: it is broken\n"},
		{"degraded is alive", source{degraded: bad}, "/livez?verbose", 200, "[+] loop: ok\nok\n"},
		{"unknown", source{}, "/healthy", 404, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			status, body, header := get(t, admin.Handler(tc.source, nil), tc.path)
			if status != tc.status || (tc.body != "" && body != tc.body) {
				t.Errorf("%d %q, want %d %q", status, body, tc.status, tc.body)
			}
			if tc.body != "" && header.Get("Cache-Control") != "no-store" {
				t.Error("a proxy may cache it")
			}
		})
	}
}

// Metrics come from the given handler. Methods other than GET and HEAD are refused. Any prefix
// works.
func TestMetricsMethodsAndPrefix(t *testing.T) {
	t.Parallel()
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "emitd_up 1\n") })
	h := http.StripPrefix("/ops", admin.Handler(source{}, metrics))
	if status, body, _ := get(t, h, "/ops/metrics"); status != 200 || body != "emitd_up 1\n" {
		t.Errorf("%d %q", status, body)
	}
	if status, _, _ := get(t, admin.Handler(source{}, nil), "/metrics"); status != 404 {
		t.Errorf("metrics without a handler: %d", status)
	}
	for method, want := range map[string]int{"POST": 405, "DELETE": 405, "HEAD": 200} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/ops/livez", nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", method, w.Code, want)
		}
	}
}

// A real coordinator before its start is alive, and fails all other checks.
func TestCoordinatorAsSource(t *testing.T) {
	t.Parallel()
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h := admin.Handler(c, nil)
	for path, want := range map[string]int{"/livez": 200, "/startupz": 503, "/readyz": 503, "/leaderz": 503} {
		if status, body, _ := get(t, h, path); status != want {
			t.Errorf("%s: %d %q, want %d", path, status, body, want)
		}
	}
	if _, body, _ := get(t, h, "/leaderz"); !strings.Contains(body, "does not lead") {
		t.Errorf("leaderz says %q", body)
	}
}

func get(t *testing.T, h http.Handler, path string) (int, string, http.Header) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String(), w.Header()
}

// TestConsoleIsBesideTheAPI: below any prefix, the page is beside the API, and what it loads is there.
func TestConsoleIsBesideTheAPI(t *testing.T) {
	t.Parallel()
	api, err := admin.New(admin.Config{Store: memory.Open(memory.Config{})})
	if err != nil {
		t.Fatal(err)
	}
	prefixed := http.StripPrefix("/o ps", api)
	for path, want := range map[string]string{
		"/o%20ps/": "text/html; charset=utf-8", "/o%20ps/console/console.js": "text/javascript; charset=utf-8",
		"/o%20ps/api/v1/nodes": "application/json", "/o%20ps/none": "application/problem+json",
	} {
		w := httptest.NewRecorder()
		prefixed.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if got := w.Header().Get("Content-Type"); got != want {
			t.Errorf("%s is answered with %d, %s, want %s", path, w.Code, got, want)
		}
	}
}
