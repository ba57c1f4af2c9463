package host

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var quiet = slog.New(slog.DiscardHandler)

const token = "0123456789abcdef0123"

// teapot is the handler behind the guard.
var teapot = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })

func TestGuard(t *testing.T) {
	t.Parallel()
	g, err := newGuard(config.API{TokensFile: write(t, "tokens", "# readers\n\n"+token+"\n")}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	h := g.wrap(teapot, func(w http.ResponseWriter, _ *http.Request, e *queue.Error) {
		w.WriteHeader(refusal.HTTPStatus(e.Tag))
	})
	for _, c := range []struct {
		path, auth string
		want       int
	}{
		{"/metrics", "", 401},
		{"/metrics", "Bearer wrong", 401},
		{"/metrics", token, 401},
		{"/metrics", "Bearer ", 401},
		{"/metrics", "Bearer # readers", 401},
		{"/metrics", "Bearer " + token, 418},
		{"/", "", 401},
		{"/livez", "", 418},
		{"/readyz", "", 418},
		{"/leaderz", "", 418},
		{"/startupz", "", 418},
		{"/livez/", "", 401},
		{"//livez", "", 401},
		{"/v1/jobs", "", 401},
		{"/osqueue.v1.QueueService/ListJobs", "", 401},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://x"+c.path, nil)
		if c.auth != "" {
			r.Header.Set("Authorization", c.auth)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s with %q: %d, want %d", c.path, c.auth, w.Code, c.want)
		}
	}
}

func TestBadAccessFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		api  config.API
		want string
	}{
		{config.API{TokensFile: "/nowhere"}, "no such file"},
		{config.API{TokensFile: write(t, "t", "# nothing\n")}, "has no token"},
		{config.API{TokensFile: write(t, "t", "short\n")}, ":1: a token is at least 16"},
		{config.API{TokensFile: write(t, "t", "\n0123456789 0123456789\n")}, ":2: a line is one token"},
		{config.API{TLS: config.TLS{Cert: "/nowhere", Key: "/nowhere"}}, "api.tls.cert"},
		{config.API{TLS: config.TLS{Cert: write(t, "c", "x"), Key: write(t, "k", "x")}}, "api.tls.cert"},
	} {
		_, err := newGuard(c.api, quiet)
		if f := fault.Of(err); len(f) != 1 || f[0].Code != fault.AccessFile || !strings.Contains(f[0].What, c.want) {
			t.Errorf("%+v: %v", c.api, err)
		}
		if err != nil && strings.Contains(err.Error(), "0123456789") {
			t.Errorf("a token is shown: %v", err)
		}
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	first, err := listen(ctx, "127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = listen(ctx, first.Addr().String(), false)
	if f := fault.Of(err); len(f) != 1 || f[0].Code != fault.CannotListen {
		t.Errorf("a port in use: %v", err)
	}
	next, err := listen(ctx, first.Addr().String(), true)
	if err != nil {
		t.Fatalf("no next port: %v", err)
	}
	defer next.Close()
	if next.Addr().String() == first.Addr().String() {
		t.Error("one port twice")
	}
}

// rig returns the options of a host with a store in memory.
func rig(t *testing.T, change func(*config.Config, *Options)) Options {
	t.Helper()
	in := config.Input{
		File: write(t, "emitd.yaml", "profile: fast\nlisten: 127.0.0.1:0\ncoordinator: {settle_window: 0s}\n"), Dev: true, Serving: true,
		Hostname: func() (string, error) { return "host-1", nil },
	}
	cfg, err := config.Load(in)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Config: cfg, Version: "test", Handler: slog.DiscardHandler, Level: new(slog.LevelVar),
		Open: func(context.Context, *telemetry.Telemetry) (*backend.Store, error) { return backend.Memory(), nil },
	}
	if change != nil {
		change(&cfg.Config, &o)
	}
	return o
}

// started runs a host until see has returned.
func started(t *testing.T, o Options, see func(ctx context.Context, r *Running)) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	up := make(chan *Running, 1)
	o.Started = func(r *Running) { up <- r }
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	select {
	case r := <-up:
		see(ctx, r)
		cancel()
		return <-done
	case err := <-done:
		return err
	}
}

// active returns a daemon that reports the start of each run.
func active(entered chan<- struct{}) Daemon {
	return Daemon{Spec: daemon.Spec{ID: "test:wait"}, Agent: daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		entered <- struct{}{}
		select {
		case <-a.Draining():
		case <-ctx.Done():
		}
		return nil
	})}
}

func TestRun(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 10)
	o := rig(t, func(_ *config.Config, o *Options) {
		o.Nodes, o.Extra = []string{"a", "b"}, []Daemon{active(entered)}
	})
	err := started(t, o, func(ctx context.Context, r *Running) {
		select {
		case <-entered:
		case <-ctx.Done():
			t.Fatal("the daemon does not run")
		}
		if len(r.Nodes) != 2 || len(r.Daemons) != 2 || !strings.HasPrefix(r.URL, "http://127.0.0.1:") {
			t.Errorf("%d nodes, daemons %v at %s", len(r.Nodes), r.Daemons, r.URL)
		}
		for path, want := range map[string]string{
			"/livez?verbose": "a loop: ok", "/readyz?verbose": "b store: ok", "/leaderz": "ok",
			"/metrics": `emitd_coordinator_leader{`, "/": "cluster default",
		} {
			if body := request(ctx, t, http.DefaultClient, r.URL+path); !strings.Contains(body, want) {
				t.Errorf("%s says %.300s, want %s", path, body, want)
			}
		}
		http.DefaultClient.CloseIdleConnections()
	})
	if err != nil {
		t.Errorf("a clean stop: %v", err)
	}
}

func request(ctx context.Context, t *testing.T, c *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestNothingIsLeftWhenItCannotStart checks that every step that fails undoes the earlier ones: goleak
// finds no goroutines, and the listener's port is free again.
func TestNothingIsLeftWhenItCannotStart(t *testing.T) {
	t.Parallel()
	for try := 1; ; try++ {
		err := startBroken(t)
		if err == nil {
			break
		}
		if try == 5 { // another process may take the port, but not every time
			t.Fatal(err)
		}
	}
	o := rig(t, func(_ *config.Config, o *Options) {
		o.Extra = []Daemon{active(nil), active(nil)}
	})
	if f := fault.Of(Run(context.Background(), o)); len(f) != 1 || f[0].Code != fault.BadDaemon {
		t.Errorf("one daemon twice: %v", f)
	}
}

// startBroken starts a host whose store does not open, and returns any unexpected error.
func startBroken(t *testing.T) error {
	broken := errors.New("no store today")
	var port string
	o := rig(t, func(c *config.Config, o *Options) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port = l.Addr().String()
		l.Close()
		c.Listen = port
		o.Open = func(context.Context, *telemetry.Telemetry) (*backend.Store, error) { return nil, broken }
	})
	if err := Run(context.Background(), o); !errors.Is(err, broken) {
		return fmt.Errorf("it ended with %w", err)
	}
	l, err := net.Listen("tcp", port)
	if err != nil {
		return fmt.Errorf("the port is still taken: %w", err)
	}
	return l.Close()
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	o := rig(t, func(c *config.Config, _ *Options) { c.API.TLS = config.TLS{Cert: cert, Key: key} })
	err := started(t, o, func(ctx context.Context, r *Running) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
		defer client.CloseIdleConnections()
		if body := request(ctx, t, client, r.URL+"/livez"); body != "ok\n" || !strings.HasPrefix(r.URL, "https://") {
			t.Errorf("%s says %q", r.URL, body)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(chain)
	return write(t, "cert.pem", string(chain)), write(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))), pool
}

// TestReload checks that only the log level and the tokens change, and that a wrong configuration changes
// nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	file := write(t, "tokens", token+"\n")
	o := rig(t, func(c *config.Config, _ *Options) { c.API.TokensFile = file })
	g, err := newGuard(o.Config.API, quiet)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Options: o, guard: g, log: slog.New(slog.DiscardHandler)}
	fresh := *o.Config
	fresh.Telemetry.Log.Level, fresh.Listen = "debug", "127.0.0.1:1"
	const second = "fedcba9876543210fedc"
	if err := os.WriteFile(file, []byte(second+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.reload(func() (*config.Loaded, error) { return &fresh, nil })
	if o.Level.Level() != slog.LevelDebug || g.grants.Load().token(token) != nil || g.grants.Load().token(second) == nil {
		t.Errorf("level %v, old token %v, new token %v", o.Level.Level(), g.grants.Load().token(token) != nil, g.grants.Load().token(second) != nil)
	}
	o.Level.Set(slog.LevelInfo)
	if err := os.WriteFile(file, []byte("half of a line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.reload(func() (*config.Loaded, error) { return &fresh, nil })
	h.reload(func() (*config.Loaded, error) { return nil, fault.New(fault.BadValue, "x") })
	if o.Level.Level() != slog.LevelInfo || g.grants.Load().token(second) == nil {
		t.Error("a wrong configuration changed something")
	}
}

// TestSystemd listens in place of systemd. It is not parallel, because it sets the environment.
func TestSystemd(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // no systemd there
	}
	dir, err := os.MkdirTemp("", "emitd") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	addr := &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", addr.Name)
	t.Setenv("WATCHDOG_USEC", "30000000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	seen := map[string]bool{}
	hear := func(wants ...string) {
		buf := make([]byte, 4096)
		for _, want := range wants {
			for !has(seen, want) {
				if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
					t.Fatal(err)
				}
				n, err := conn.Read(buf)
				if err != nil {
					t.Fatalf("nothing like %q: %v, heard %v", want, err, seen)
				}
				seen[string(buf[:n])] = true
			}
		}
	}
	err = started(t, rig(t, nil), func(context.Context, *Running) { hear("READY=1", "WATCHDOG=1", "STATUS=leader term 1") })
	if err != nil {
		t.Error(err)
	}
	hear("STOPPING=1")
}

func has(seen map[string]bool, prefix string) bool {
	for s := range seen {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}
