package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// certificate makes a self-signed certificate, and a file by which it is trusted.
func certificate(t *testing.T, until time.Time) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "receiver"}, NotBefore: until.Add(-48 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// TestCertificates checks that a certificate that is not trusted means that the sink is down; no message
// fails.
func TestCertificates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		until   time.Duration
		tls     func(ca string) sink.TLS
		message string // text of the error; "": delivered
	}{
		{"good", time.Hour, func(ca string) sink.TLS { return sink.TLS{CA: ca} }, ""},
		{"expired", -time.Hour, func(ca string) sink.TLS { return sink.TLS{CA: ca} }, "expired"},
		{"unknown", time.Hour, func(string) sink.TLS { return sink.TLS{} }, "certificate"},
		{"other name", time.Hour, func(ca string) sink.TLS { return sink.TLS{CA: ca, ServerName: "elsewhere.example"} }, "elsewhere.example"},
		{"trusted blindly", -time.Hour, func(string) sink.TLS { return sink.TLS{Insecure: true} }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pair, ca := certificate(t, time.Now().Add(c.until))
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()
			err := deliver(t, open(t, Config{URL: server.URL, TLS: c.tls(ca)}), sinktest.Rows("t", 1, 1)[0])
			switch {
			case c.message == "" && err != nil:
				t.Error(err)
			case c.message != "" && (!errors.Is(err, outbox.ErrSinkDown) || !strings.Contains(err.Error(), c.message)):
				t.Errorf("%v, want that the sink is down with %s", err, c.message)
			}
		})
	}
}

func TestNoTLSThere(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	err := deliver(t, open(t, Config{URL: strings.Replace(server.URL, "http:", "https:", 1)}), sinktest.Rows("t", 1, 1)[0])
	if !errors.Is(err, outbox.ErrSinkDown) {
		t.Errorf("%v, want that the sink is down", err)
	}
}

// TestLostConnectionsAreNoticed: a connection of HTTP/2 that the network has lost is tested, and closed.
func TestLostConnectionsAreNoticed(t *testing.T) {
	t.Parallel()
	s, err := New(t.Context(), Config{URL: "https://127.0.0.1/in"})
	if err != nil {
		t.Fatal(err)
	}
	if c := s.transport.HTTP2; c == nil || c.SendPingTimeout <= 0 || c.PingTimeout <= 0 {
		t.Errorf("%+v", c)
	}
}
