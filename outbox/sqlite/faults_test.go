package sqlite

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/webhook"
)

// receiver answers by the topic, which is the path of the request, in every way that is wrong.
type receiver struct {
	*httptest.Server
	ended   chan struct{}
	refused atomic.Int64 // handshakes that the other side gave up
	mu      sync.Mutex
	got     []string
}

// Write receives the server's log.
func (r *receiver) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("TLS handshake error")) {
		r.refused.Add(1)
	}
	return len(line), nil
}

func newReceiver(t *testing.T, start func(*httptest.Server)) *receiver {
	t.Helper()
	r := &receiver{ended: make(chan struct{})}
	r.Server = httptest.NewUnstartedServer(r)
	r.Config.ErrorLog = log.New(r, "", 0)
	start(r.Server)
	t.Cleanup(func() { close(r.ended); r.CloseClientConnections(); r.Close() })
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	switch topic := strings.TrimPrefix(req.URL.Path, "/"); topic {
	case "hangs":
		<-r.ended
	case "fails":
		http.Error(w, "out of order", http.StatusInternalServerError)
	case "refuses":
		http.Error(w, "unknown event", http.StatusUnprocessableEntity)
	case "closes":
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	case "garbage":
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n")
			_ = conn.Close()
		}
	default:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, string(body))
	}
}

// came returns the messages taken so far, in order.
func (r *receiver) came() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// causes returns the dead letters' causes by topic.
func (w *world) causes(t *testing.T) map[string]string {
	t.Helper()
	all, err := w.List(t.Context(), outbox.Filter{Subscription: "s", Kind: outbox.Dead})
	ok(t, err)
	out := map[string]string{}
	for _, e := range all {
		out[e.Topic] = e.Cause
	}
	return out
}

// TestBadReceiver tests a receiver that hangs, fails, refuses, hangs up or sends garbage for some
// messages. Each of these must end as a dead letter with its cause. The others must be delivered, in
// order, and nothing may be lost. Messages due in the far past are delivered too; those of the far future
// wait.
func TestBadReceiver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	r := newReceiver(t, (*httptest.Server).Start)
	hook, err := webhook.New(t.Context(), webhook.Config{URL: r.URL + "/{topic}", Timeout: 300 * time.Millisecond})
	ok(t, err)
	defer hook.Close()
	bad := map[string]string{
		"hangs": "did not answer within", "fails": "500 Internal Server Error: out of order", "refuses": "422 Unprocessable Entity: unknown event",
		"closes": "EOF", "garbage": "malformed",
	}
	var want []string
	for i := range 20 {
		for topic := range bad {
			if i%10 == 0 {
				w.publish(t, outbox.Message{Topic: topic, Key: topic, Payload: []byte("bad")})
			}
		}
		w.publish(t, text("k", fmt.Sprint("good ", i)))
		want = append(want, fmt.Sprint("good ", i))
	}
	past, future := text("k", "past"), text("k", "future")
	past.NotBefore, future.NotBefore = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	w.publish(t, past, future)
	want = append(want, "past")
	w.relay(t, outbox.Config{Sink: hook, Policy: outbox.Skip, Retry: outbox.Retry{Backoff: 5 * time.Millisecond, MaxAttempts: 3}})
	eventually(t, "the good ones are delivered", func() bool { return len(r.came()) >= len(want) })
	eventually(t, "the bad ones are dead", func() bool {
		s, err := w.Stats(t.Context(), "s")
		ok(t, err)
		return s[0].Dead == int64(2*len(bad)) && s[0].ParkedKeys == 0
	})
	if got := r.came(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	causes := w.causes(t)
	for topic, message := range bad {
		if !strings.Contains(causes[topic], message) {
			t.Errorf("%s died of %q, want %q", topic, causes[topic], message)
		}
	}
}

// TestReceiverHangsUp checks that a receiver that accepts connections and closes each of them, as a proxy does whose
// service is gone, counts as down: nothing is given up, and all come when it answers.
func TestReceiverHangsUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	var broken atomic.Bool
	var requests atomic.Int64
	broken.Store(true)
	good := newReceiver(t, (*httptest.Server).Start)
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, req *http.Request) {
		requests.Add(1)
		if broken.Load() {
			panic(http.ErrAbortHandler)
		}
		good.ServeHTTP(answer, req)
	}))
	defer server.Close()
	hook, err := webhook.New(t.Context(), webhook.Config{URL: server.URL})
	ok(t, err)
	defer hook.Close()
	const n = 40
	for i := range n {
		w.publish(t, text(fmt.Sprint("k", i), fmt.Sprint(i)))
	}
	w.relay(t, outbox.Config{Sink: hook, Parallel: 1, Policy: outbox.Skip, Retry: outbox.Retry{Backoff: time.Millisecond, MaxBackoff: time.Millisecond, MaxAttempts: 2}})
	eventually(t, "the sink is down", func() bool {
		s, err := w.Stats(t.Context(), "s")
		ok(t, err)
		return requests.Load() > 3*n && len(s) == 1 && len(s[0].Cursors) == 1 && strings.Contains(s[0].Cursors[0].Problem, "the receiver hung up")
	})
	s, err := w.Stats(t.Context(), "s")
	ok(t, err)
	if s[0].Dead > 0 || s[0].ParkedKeys > 0 || s[0].Pending != n {
		t.Errorf("while the receiver hangs up: %+v", s[0])
	}
	broken.Store(false)
	eventually(t, "all are delivered", func() bool { return len(good.came()) == n })
}

// TestExpiredCertificate checks that an expired certificate means that the sink is down, and no message
// fails. Once the certificate is valid, all come.
func TestExpiredCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	var now atomic.Pointer[tls.Certificate] // that the receiver presents
	old, young := selfSigned(t, -time.Hour), selfSigned(t, time.Hour)
	now.Store(&old)
	r := newReceiver(t, func(s *httptest.Server) {
		s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{Certificates: []tls.Certificate{*now.Load()}}, nil
		}}
		s.StartTLS()
	})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	var pems []byte
	for _, c := range []tls.Certificate{old, young} {
		pems = append(pems, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})...)
	}
	ok(t, os.WriteFile(ca, pems, 0o600))
	hook, err := webhook.New(t.Context(), webhook.Config{URL: r.URL, TLS: sink.TLS{CA: ca}})
	ok(t, err)
	defer hook.Close()
	for i := range 10 {
		w.publish(t, text(fmt.Sprint("k", i%3), fmt.Sprint(i)))
	}
	lines := &logged{}
	w.relay(t, outbox.Config{Sink: hook, Policy: outbox.Skip, Retry: outbox.Retry{MaxAttempts: 1}, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	eventually(t, "the sink is found to be down", func() bool { return r.refused.Load() > 2 })
	s, err := w.Stats(t.Context(), "s")
	ok(t, err)
	if s[0].Pending != 10 || s[0].ParkedKeys+s[0].Dead > 0 {
		t.Errorf("%+v, want all ten waiting in the log", s[0])
	}
	if text := lines.String(); !strings.Contains(text, "outbox sink is down") || !strings.Contains(text, "expired") {
		t.Errorf("logged %s", text)
	}
	now.Store(&young)
	eventually(t, "all come", func() bool { return len(r.came()) == 10 })
}

// logged collects the log.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// selfSigned makes a self-signed certificate for this machine.
func selfSigned(t *testing.T, valid time.Duration) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	until := time.Now().Add(valid)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(until.UnixNano()), Subject: pkix.Name{CommonName: fmt.Sprint("receiver until ", until)}, NotBefore: until.Add(-48 * time.Hour),
		NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	ok(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
