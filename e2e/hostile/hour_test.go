package hostile

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

func TestMain(m *testing.M) {
	code := m.Run()
	drill.Cleanup()
	if err := drill.WriteMeasurements(filepath.Join("..", "..", "docs", "measurements.md"), "hostile drill"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	memory = 256 << 20
	token  = "honest-and-hostile-clients-have-it"
	large  = "large" // the large job that clients request and do not read
)

// duration returns the length of the drill: EMITD_TEST_HOSTILE, such as 1h; otherwise it is short.
func duration(t *testing.T) time.Duration {
	text := os.Getenv("EMITD_TEST_HOSTILE")
	if text == "" {
		return map[bool]time.Duration{false: 20 * time.Second, true: 5 * time.Minute}[drill.Full()]
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDrillHostileHour attacks a node of 256 MiB in every way. The node must survive, and honest clients
// must be served meanwhile. With EMITD_TEST_HOSTILE=1h it takes an hour. EMITD_TEST_BINARY names a
// program to use instead of a fresh build.
func TestDrillHostileHour(t *testing.T) {
	n := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { n.watch(ctx) })
	n.ready(ctx)
	n.prepare(ctx)
	h := newHonest(n)
	attacks := newAttacks(n)
	end := time.After(duration(t))
	hostile, peace := context.WithCancel(ctx)
	for name, attack := range attacks.kinds() {
		all.Go(func() { attacks.repeat(hostile, name, attack) })
	}
	submitting, enough := context.WithCancel(ctx)
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() { h.submit(submitting, ctx, i) })
		all.Go(func() { h.work(ctx, i) })
	}
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	for running := true; running; {
		select {
		case <-minute.C:
			n.report(h, attacks)
		case <-end:
			running = false
		}
	}
	enough()
	work.Wait()
	h.drained(ctx, t)
	peace()
	n.report(h, attacks)
	n.check(h, attacks)
	cancel()
	all.Wait()
}

// server is the node under the limit. It is restarted if it ends, which must not happen.
type server struct {
	t       *testing.T
	limit   *confined
	address string
	roots   *x509.CertPool
	args    []string
	dir     string

	mu       sync.Mutex
	proc     *testproc.Process
	out      *os.File
	restarts atomic.Int64
	resident atomic.Int64
}

func start(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	n := &server{t: t, limit: confine(t, memory), roots: x509.NewCertPool(), dir: dir}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.address = l.Addr().String()
	l.Close()
	n.certificate()
	n.write("tokens", token+"\n")
	binary := os.Getenv("EMITD_TEST_BINARY")
	if binary == "" {
		binary = drill.Binary(t)
	}
	n.args = []string{
		binary, "serve", "--store", "sqlite://" + filepath.Join(dir, "emitd.db"), "--objects", "file://" + filepath.Join(dir, "objects"),
		"--listen", n.address, "--profile", "fast", "--node-name", "target", "--telemetry.log.format", "json",
		"--api.tls.cert", filepath.Join(dir, "cert.pem"), "--api.tls.key", filepath.Join(dir, "key.pem"), "--api.tokens-file", filepath.Join(dir, "tokens"),
	}
	if n.out, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	n.launch()
	t.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		_ = n.proc.Cmd.Process.Kill()
		<-n.proc.Done
		n.out.Close()
		if t.Failed() {
			text, _ := os.ReadFile(n.out.Name())
			t.Logf("log of the node, its end:\n%s", text[max(0, len(text)-8000):])
		}
	})
	return n
}

func (n *server) write(name, text string) {
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// certificate makes the server's certificate, which is self-signed.
func (n *server) certificate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		n.t.Fatal(err)
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "target"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		n.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		n.t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	n.roots.AppendCertsFromPEM(cert)
	n.write("cert.pem", string(cert))
	n.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

func (n *server) launch() {
	cmd := n.limit.command(n.args[0], n.args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.dir, n.out, n.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	proc, err := testproc.Start(cmd)
	if err != nil {
		n.t.Error(err)
		return
	}
	n.mu.Lock()
	n.proc = proc
	n.mu.Unlock()
}

// watch restarts the node if it ends, and records its memory.
func (n *server) watch(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		n.mu.Lock()
		proc := n.proc
		n.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-proc.Done:
			n.t.Logf("the node ended: %v", proc.Err())
			n.restarts.Add(1)
			n.launch()
		case <-tick.C:
			n.resident.Store(max(n.resident.Load(), resident(proc.Cmd.Process.Pid)))
		}
	}
}

func (n *server) tls() *tls.Config {
	return &tls.Config{RootCAs: n.roots, MinVersion: tls.VersionTLS12}
}

// client returns a client that retries its calls, as real ones do. The errors of its attempts are
// recorded.
func (n *server) client(note func(string)) *client.Client {
	transport := &http.Transport{TLSClientConfig: n.tls(), ForceAttemptHTTP2: false, MaxIdleConnsPerHost: 4}
	c, err := client.New(client.Config{
		Addresses: []string{"https://" + n.address}, Token: token, Timeout: 20 * time.Second,
		Transport: noting{transport, note},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// noting records the error of each attempt.
type noting struct {
	http.RoundTripper
	note func(string)
}

func (r noting) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.RoundTripper.RoundTrip(req)
	switch {
	case err != nil && req.Context().Err() == nil:
		text := err.Error()
		r.note(text[max(0, strings.LastIndex(text, ": ")):])
	case err == nil && resp.StatusCode >= 400:
		r.note(resp.Status)
	}
	return resp, err
}

func (n *server) ready(ctx context.Context) {
	q := n.client(func(string) {})
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if _, err := q.Stats(ctx, queue.DefaultQueue); err != nil {
		n.t.Fatal(err)
	}
}

// prepare submits the large job that the attack unread requests.
func (n *server) prepare(ctx context.Context) {
	q := n.client(func(string) {})
	payload := bytes.Repeat([]byte("x"), 15<<20)
	if _, err := q.Enqueue(ctx, queue.DefaultQueue, []queue.Job{{ID: large, Type: "hostile", Payload: payload}}); err != nil {
		n.t.Fatal(err)
	}
}

// tell logs the results so far.
func (n *server) report(h *honest, a *attacks) {
	peak, kills := n.limit.used()
	n.t.Logf("restarts %d, killed by the kernel %d, resident at most %d MiB, cgroup at most %d MiB (page cache included)\n%s%s",
		n.restarts.Load(), kills, n.resident.Load()>>20, peak>>20, h, a)
}

func (n *server) check(h *honest, a *attacks) {
	what := fmt.Sprintf("256 MiB, hostile clients for %v", duration(n.t))
	drill.Never(n.t, what+", restarts", int(n.restarts.Load()))
	drill.Never(n.t, what+", honest calls that failed after their repetitions", h.failures())
	drill.Amount(n.t, what+", resident at most", float64(n.resident.Load()>>20), "MiB", 0) // with pages of the binary
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(h.took)) {
		drill.Measure(n.t, what+", honest "+kind, drill.Bound{Other: "reported"}, h.took[kind])
	}
	for name, count := range a.counts() {
		if count == 0 {
			n.t.Errorf("the attack %q was never carried out", name)
		}
	}
}
