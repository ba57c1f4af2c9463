package pgstories

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/cli"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/pgtest"
)

// TestServeWaitsForPostgres checks that a starting node waits for a server that is down, and names the
// server. Once the server is up, the node joins. A refused password ends a node at once, and so does a
// server that is down if store.wait is false. A stop while the node waits is clean.
func TestServeWaitsForPostgres(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := server.Stop(pgtest.Fast); err != nil {
		t.Fatal(err)
	}
	store := server.URL("postgres") // it keeps its port
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	if n := serve(ctx, store, "--store.wait=false"); <-n.code != fault.ExitUnreachable || !n.logged("error E5101: .*connection refused") {
		t.Errorf("without waiting: %s", n)
	}
	stopped, stop := context.WithCancel(ctx)
	n := serve(stopped, store)
	n.until(ctx, t, "this node waits for it")
	stop()
	if code := <-n.code; code != fault.ExitOK {
		t.Errorf("stopped while it waited: exit %d, %s", code, n)
	}

	running, stop := context.WithCancel(ctx)
	defer stop()
	n = serve(running, store)
	address := n.until(ctx, t, `"msg":"the cluster store cannot be reached; this node waits for it","code":"E5101".*"address":"([^"]+)"`)
	for path, want := range map[string]string{"/livez": "200 ok", "/readyz": "503 .*E5101: .*connection refused"} {
		if got := get(ctx, t, "http://"+address+path); !regexp.MustCompile("(?s)^" + want).MatchString(got) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	for !strings.HasPrefix(get(ctx, t, "http://"+address+"/readyz"), "200") {
		select {
		case code := <-n.code:
			t.Fatalf("exit %d: %s", code, n)
		case <-time.After(50 * time.Millisecond):
		}
	}
	stop()
	if code := <-n.code; code != fault.ExitOK || !n.logged("the cluster store answers") || n.logged("hunter2") {
		t.Errorf("exit %d: %s", code, n)
	}
	if n := serve(ctx, pgtest.WithUser(store, "nobody_at_all", "hunter2hunter2")); <-n.code != fault.ExitFailed || !n.logged("error E5106") || n.logged("this node waits for it") {
		t.Errorf("a role that does not exist: %s", n)
	}
	http.DefaultClient.CloseIdleConnections()
}

// node is the program, run within the test.
type node struct {
	code chan int
	mu   sync.Mutex
	text strings.Builder
}

func serve(ctx context.Context, store string, flags ...string) *node {
	n := &node{code: make(chan int, 1)}
	args := append([]string{"serve", "--store", store, "--listen", "127.0.0.1:0", "--profile", "fast", "--node-name", "a"}, flags...)
	go func() { n.code <- cli.Main(ctx, args, cli.Streams{In: strings.NewReader(""), Out: io.Discard, Err: n}) }()
	return n
}

// Write implements io.Writer.
func (n *node) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

// String returns the output so far.
func (n *node) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

func (n *node) logged(pattern string) bool {
	return regexp.MustCompile(pattern).MatchString(n.String())
}

// until waits until the output matches, and returns the last group of the pattern.
func (n *node) until(ctx context.Context, t *testing.T, pattern string) string {
	t.Helper()
	for {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(n.String()); m != nil {
			return m[len(m)-1]
		}
		select {
		case code := <-n.code:
			t.Fatalf("exit %d: %s", code, n)
		case <-ctx.Done():
			t.Fatalf("not said: %s: %s", pattern, n)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// get returns status and body of an answer.
func get(ctx context.Context, t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Status[:3] + " " + string(body)
}
