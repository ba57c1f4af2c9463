package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

const other = "another-token-of-the-file"

// TestRevokedTokenEndsWhatItStarted checks that a WebSocket and a long poll end when their token is
// removed from the file, and that those of other tokens continue.
func TestRevokedTokenEndsWhatItStarted(t *testing.T) {
	t.Parallel()
	file := write(t, "tokens", token+"\n"+other+"\n")
	reload := make(chan func() (*config.Loaded, error))
	o := rig(t, func(c *config.Config, o *Options) { c.API.TokensFile, o.Reload = file, reload })
	err := started(t, o, func(ctx context.Context, r *Running) {
		open := func(token string) *websocket.Conn {
			c, resp, err := websocket.Dial(ctx, "ws://"+r.Address+"/v1/ws", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
			if err != nil {
				t.Error(resp, err)
				return nil
			}
			return c
		}
		revoked, kept := open(token), open(other)
		if revoked == nil || kept == nil {
			return
		}
		defer revoked.CloseNow()
		defer kept.CloseNow()
		if err := os.WriteFile(file, []byte(other+"\n"), 0o600); err != nil {
			t.Error(err)
		}
		reload <- func() (*config.Loaded, error) { return o.Config, nil }
		if _, _, err := revoked.Read(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("the WebSocket of the revoked token lives: %v", err)
		}
		if err := kept.Write(ctx, websocket.MessageText, []byte(`{"id":1,"method":"nothing"}`)); err != nil {
			t.Error(err)
		}
		if _, text, err := kept.Read(ctx); err != nil || !strings.Contains(string(text), `"id":1`) {
			t.Errorf("the WebSocket of the other token: %s, %v", text, err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRevokedTokenEndsCalls checks that a long call ends with its token and says why.
func TestRevokedTokenEndsCalls(t *testing.T) {
	t.Parallel()
	file := write(t, "tokens", token+"\n")
	g, err := newGuard(config.API{TokensFile: file}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	inside, cause := make(chan struct{}), make(chan error, 1)
	h := g.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(inside)
		<-r.Context().Done()
		cause <- context.Cause(r.Context())
	}), nil)
	r := httptest.NewRequest(http.MethodGet, "/v1/queues/q/claim", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	go h.ServeHTTP(httptest.NewRecorder(), r)
	<-inside
	if err := os.WriteFile(file, []byte(other+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.load(); err != nil {
		t.Fatal(err)
	}
	if err := <-cause; queue.TagOf(err) != queue.Unauthorized || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("the call ended with %v", err)
	}
}

// TestChangedFilesAreRead checks that tokens and certificates take effect when their files change,
// without a signal, and that a wrong file changes nothing.
func TestChangedFilesAreRead(t *testing.T) {
	t.Parallel()
	cert, key, first := certificate(t)
	newCert, newKey, second := certificate(t)
	file := write(t, "tokens", token+"\n")
	g, err := newGuard(config.API{TokensFile: file, TLS: config.TLS{Cert: cert, Key: key}}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{guard: g, log: quiet}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); h.watchFiles(done, time.Millisecond) }()
	defer func() { close(done); <-ended }()
	s := httptest.NewUnstartedServer(teapot)
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return g.id.Load().server, nil }}
	s.StartTLS()
	defer s.Close()
	believes := func(roots *x509.CertPool) bool {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
		resp, err := c.Get(s.URL)
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	}
	if !believes(first) || believes(second) {
		t.Fatal("the certificate is not the first")
	}
	swap(t, cert, "half of a fi")
	for from, to := range map[string]string{newKey: key, newCert: cert} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		swap(t, to, string(text))
	}
	swap(t, file, other+"\n")
	deadline := time.Now().Add(30 * time.Second)
	for !believes(second) || believes(first) || g.grants.Load().token(other) == nil || g.grants.Load().token(token) != nil {
		if time.Now().After(deadline) {
			t.Fatal("the new certificate and token are not in force")
		}
		runtime.Gosched()
	}
}

// swap replaces a file atomically.
func swap(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// watched runs watchFiles for a guard in a bubble, and calls check with a function that lets the next check of the
// files pass.
func watched(t *testing.T, g *guard, check func(next func())) {
	t.Helper()
	h, done := &host{guard: g, log: quiet}, make(chan struct{})
	go h.watchFiles(done, accessInterval)
	defer close(done)
	synctest.Wait()
	check(func() {
		time.Sleep(accessInterval + emptyFor)
		synctest.Wait()
	})
}

// TestFilesThatChangedBeforeTheNodesRan checks that a token is revoked that was removed from its file after the start
// of the process, and before it watched the file: it may have waited for its store.
func TestFilesThatChangedBeforeTheNodesRan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := write(t, "tokens", token+"\n")
		g, err := newGuard(config.API{TokensFile: file}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		swap(t, file, other+"\n")
		watched(t, g, func(func()) {
			if l := g.grants.Load(); l.token(token) != nil || l.token(other) == nil {
				t.Error("the tokens of the start are in use")
			}
		})
	})
}

// TestLastTokenIsRevoked checks that a file that has lost its last entry revokes it, and that a later entry is valid.
func TestLastTokenIsRevoked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := write(t, "tokens", token+"\n")
		g, err := newGuard(config.API{TokensFile: file}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		last := g.grants.Load().token(token)
		watched(t, g, func(next func()) {
			swap(t, file, "# nobody\n")
			next()
			if l := g.grants.Load(); l == nil || l.token(token) != nil || last.valid.Err() == nil {
				t.Error("the revoked token is valid")
			}
			swap(t, file, other+"\n")
			next()
			if l := g.grants.Load(); l.token(token) != nil || l.token(other) == nil {
				t.Error("the new token is not valid")
			}
		})
	})
}

// TestFileThatIsBeingRewritten checks that nothing is revoked because the file is empty for a moment.
func TestFileThatIsBeingRewritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := write(t, "tokens", token+"\n")
		g, err := newGuard(config.API{TokensFile: file}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		kept := g.grants.Load().token(token)
		watched(t, g, func(next func()) {
			write := func(text string) {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("")
			time.Sleep(accessInterval)
			synctest.Wait()
			write(token + "\n" + other + "\n")
			next()
			if l := g.grants.Load(); l.token(token) != kept || l.token(other) == nil || kept.valid.Err() != nil {
				t.Error("the token was revoked, although the file has it")
			}
		})
	})
}

// TestFilesAreReadUntilTheyAreLoaded checks that changed files are tried again, although they do not change any more:
// what failed may have been the read.
func TestFilesAreReadUntilTheyAreLoaded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := write(t, "tokens", token+"\n")
		g, err := newGuard(config.API{TokensFile: file}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		watched(t, g, func(next func()) {
			changed := time.Now()
			for _, text := range []string{"x" + strings.Repeat(" ", len(other)-1), other} { // of one size and one time
				if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(file, changed, changed); err != nil {
					t.Fatal(err)
				}
				next()
			}
			if l := g.grants.Load(); l.token(token) != nil || l.token(other) == nil {
				t.Error("the former tokens are in use")
			}
		})
	})
}

// TestClientCertificates checks that with api.tls.client_ca callers need a certificate and probes do not,
// and that the node's own calls have one.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	cert, key, _ := certificate(t)
	g, err := newGuard(config.API{TLS: config.TLS{Cert: cert, Key: key, CA: cert, ClientCA: cert}}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(g.wrap(teapot, func(w http.ResponseWriter, _ *http.Request, e *queue.Error) { w.WriteHeader(refusal.HTTPStatus(e.Tag)) }))
	s.TLS = g.id.Load().server
	s.StartTLS()
	defer s.Close()
	without := g.peers().Clone()
	without.Certificates = nil
	for _, c := range []struct {
		tls  *tls.Config
		path string
		want int
	}{
		{g.peers(), "/metrics", 418},
		{g.peers(), "/livez", 418},
		{without, "/livez", 418},
		{without, "/healthz", 418},
		{without, "/metrics", 401},
		{without, "/v1/jobs", 401},
	} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: c.tls, DisableKeepAlives: true}}
		resp, err := client.Get(s.URL + c.path)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s with %d certificates: %d, want %d", c.path, len(c.tls.Certificates), resp.StatusCode, c.want)
		}
	}
	own, _, _ := certificate(t)
	for _, bad := range []config.TLS{{CA: "/nowhere"}, {CA: write(t, "ca", "x")}, {Cert: cert, Key: key, ClientCA: "/nowhere"}, {CA: own, ClientCert: "/nowhere", ClientKey: key}} {
		if _, err := newGuard(config.API{TLS: bad}, quiet); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// TestReadableTokensAreReported checks that a token file that everyone can read gives a warning.
func TestReadableTokensAreReported(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("there are no modes")
	}
	file := write(t, "tokens", token+"\n")
	if note := TokensReadable(file); note != "" {
		t.Error(note)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if note := TokensReadable(file); !strings.Contains(note, file) || !strings.Contains(note, "0644") {
		t.Errorf("%q", note)
	}
	if note := TokensReadable("/nowhere"); note != "" {
		t.Error(note)
	}
}
