package gcs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/oauth2"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
	"github.com/emitd/emitd/storage/blob/gcs"
)

const token = "ya29.very-secret"

type world struct {
	*gcs.Bucket
	fake   *fake
	net    *blobtest.Network
	config gcs.Config
	server *httptest.Server
}

func newWorld(t *testing.T, change ...func(*gcs.Config)) *world {
	t.Helper()
	w := &world{fake: &fake{objects: map[string]stored{}, token: token}, net: &blobtest.Network{}}
	w.server = httptest.NewServer(w.fake)
	t.Cleanup(w.server.Close)
	base := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(base.CloseIdleConnections)
	w.net.Base = base
	w.config = gcs.Config{
		Bucket: "bucket", Prefix: "some/where", Endpoint: w.server.URL,
		Client: &http.Client{Transport: w.net},
		Retry:  blob.RetryPolicy{Pause: time.Millisecond, AttemptTimeout: 20 * time.Second},
		Tokens: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: token}),
	}
	for _, c := range change {
		c(&w.config)
	}
	w.Bucket = w.open(t)
	return w
}

func (w *world) open(t *testing.T) *gcs.Bucket {
	t.Helper()
	b, err := gcs.Open(t.Context(), w.config)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	blobtest.Run(t, blobtest.Config{Divide: 2, Open: func(t *testing.T) func() blob.Bucket {
		w := newWorld(t)
		return func() blob.Bucket { return w.open(t) }
	}})
}

// TestFailuresOfOneWrite goes through the faults of a write's first attempt.
func TestFailuresOfOneWrite(t *testing.T) {
	t.Parallel()
	for failures, requests := range map[blobtest.Fault]string{
		blobtest.LostRequest:     "POST GET POST",
		blobtest.LostReply:       "POST GET",
		blobtest.InternalApplied: "POST GET",
		blobtest.Unavailable:     "POST GET POST",
		blobtest.TooMany:         "POST POST",
		blobtest.Conflict:        "POST GET POST",
		blobtest.Refused:         "POST GET POST",
		blobtest.Late:            "POST GET POST",
		blobtest.Torn:            "POST GET",
	} {
		t.Run(fmt.Sprint(failures), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.net.Next(http.MethodPost, failures)
			v, err := w.Create(t.Context(), "a", []byte("one"))
			if err != nil {
				t.Fatalf("create: %v", err)
			}
			if got := strings.Join(w.net.Requests(), " "); got != requests {
				t.Errorf("create sent %s, want %s", got, requests)
			}
			w.net.DeliverLate()
			w.net.Next(http.MethodPost, failures)
			if v, err = w.Replace(t.Context(), "a", []byte("two"), v); err != nil {
				t.Fatalf("replace: %v", err)
			}
			w.net.DeliverLate()
			o, err := w.Read(t.Context(), "a")
			if err != nil || string(o.Data) != "two" || o.Version != v {
				t.Fatalf("read: %v, %v; want two of version %s", o, err, v)
			}
		})
	}
}

// TestHole06GenerationOfTheSameAnswer: another process writes directly after each answer. A
// generation from a second request would be that process's, and the next replacement would
// overwrite its object.
func TestHole06GenerationOfTheSameAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	between := func() {
		o := w.fake.objects["some/where/a"]
		w.fake.generation++
		o.data, o.generation = append([]byte("other's after "), o.data...), w.fake.generation
		w.fake.objects["some/where/a"] = o
	}
	set := func(f func()) {
		w.fake.mu.Lock()
		defer w.fake.mu.Unlock()
		w.fake.between = f
	}
	set(between)
	created, err := w.Create(t.Context(), "a", []byte("mine"))
	if err != nil {
		t.Fatal(err)
	}
	read, err := w.Read(t.Context(), "a")
	if err != nil || string(read.Data) != "other's after mine" {
		t.Fatalf("got %v, %v", read, err)
	}
	set(nil)
	for _, v := range []blob.Version{created, read.Version} {
		if _, err := w.Replace(t.Context(), "a", []byte("mine again"), v); !errors.Is(err, blob.ErrChanged) {
			t.Errorf("replace of generation %s: got %v, want ErrChanged: the other's write is lost", v, err)
		}
	}
}

// TestNoAnswerAtAll: the caller's time ends, and the error does not claim to know the outcome.
func TestNoAnswerAtAll(t *testing.T) {
	t.Parallel()
	blobtest.NoAnswer(t, http.MethodPost, map[blobtest.Fault]bool{
		blobtest.LostReply: false, blobtest.Late: false, blobtest.HangApplied: false, blobtest.Internal: false,
		blobtest.TooMany: true, blobtest.Conflict: true,
	}, func(t *testing.T) (*blobtest.Network, blob.Bucket) {
		w := newWorld(t)
		return w.net, w
	})
}

// TestStorm: of hundreds of writes with unknown outcome, none happens twice and none is lost.
func TestStorm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	calm := w.config
	calm.Client = &http.Client{Transport: w.net.Base}
	steady, err := gcs.Open(t.Context(), calm)
	if err != nil {
		t.Fatal(err)
	}
	blobtest.StressWithFaults(t, w.net, steady, func() blob.Bucket { return w.open(t) })
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]error{
		http.StatusForbidden: blob.ErrDenied, http.StatusUnauthorized: blob.ErrDenied,
		http.StatusBadRequest: blob.ErrUnavailable, http.StatusNotImplemented: blob.ErrUnfit,
	} {
		w := newWorld(t)
		w.fake.refuse = status
		_, create := w.Create(t.Context(), "a", []byte("one"))
		_, read := w.Read(t.Context(), "a")
		_, list := w.List(t.Context(), "", "", 0)
		for _, err := range []error{create, read, list, w.Delete(t.Context(), "a")} {
			if !errors.Is(err, want) || !blob.NotApplied(err) || strings.Contains(err.Error(), token) {
				t.Errorf("status %d: got %v, want a certain %v without the token", status, err, want)
			}
		}
	}
}

func TestNoBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *gcs.Config) { c.Bucket = "other" })
	_, create := w.Create(t.Context(), "a", []byte("one"))
	_, read := w.Read(t.Context(), "a")
	_, list := w.List(t.Context(), "", "", 0)
	for _, err := range []error{create, read, list} {
		if !errors.Is(err, blob.ErrNoBucket) || !blob.NotApplied(err) {
			t.Errorf("got %v, want a certain ErrNoBucket", err)
		}
	}
}

// brokenTokens is a token server that answers with a status.
type brokenTokens int

func (b brokenTokens) Token() (*oauth2.Token, error) {
	return nil, &oauth2.RetrieveError{Response: &http.Response{StatusCode: int(b)}, Body: []byte(token)}
}

func TestTokenIsRefused(t *testing.T) {
	t.Parallel()
	for status, want := range map[brokenTokens]error{
		http.StatusBadRequest: blob.ErrDenied, http.StatusForbidden: blob.ErrDenied,
		http.StatusTooManyRequests: blob.ErrUnavailable, http.StatusServiceUnavailable: blob.ErrUnavailable,
	} {
		w := newWorld(t, func(c *gcs.Config) {
			c.Tokens, c.Retry.Limit, c.Client = status, 20*time.Millisecond, &http.Client{Transport: &http.Transport{}}
		})
		_, err := w.Create(t.Context(), "a", nil)
		if !errors.Is(err, want) || !blob.NotApplied(err) || strings.Contains(err.Error(), token) {
			t.Errorf("status %d: got %v, want a certain %v without the token server's body", status, err, want)
		}
	}
}

// TestTokensOutliveOpen: a bucket that was opened within a time limit gets new tokens after it.
func TestTokensOutliveOpen(t *testing.T) { // not parallel: it sets an environment variable
	w := newWorld(t)
	var fetched atomic.Int64
	tokens := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		out.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(out, `{"access_token": %q, "token_type": "Bearer", "expires_in": 1}`, token) // so each request needs a new one
	}))
	t.Cleanup(tokens.Close)
	file := filepath.Join(t.TempDir(), "credentials.json")
	content := fmt.Sprintf(`{"type": "authorized_user", "client_id": "id", "client_secret": "s", "refresh_token": "r", "token_uri": %q}`, tokens.URL)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	w.config.Endpoint, w.config.Tokens, w.config.Client = "", nil, &http.Client{Transport: divert{w.server.Listener.Addr().String()}}
	ctx, cancel := context.WithCancel(t.Context())
	b, err := gcs.Open(ctx, w.config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(ctx, "a", []byte("one")); err != nil {
		t.Fatal(err)
	}
	cancel()
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := b.Create(ctx, "b", []byte("two")); err != nil || fetched.Load() < 2 {
		t.Fatalf("after the context of Open has ended: got %v with %d tokens, want success with 2", err, fetched.Load())
	}
}

// divert is a transport that sends every request to one address.
type divert struct{ host string }

func (d divert) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", d.host
	return http.DefaultTransport.RoundTrip(r)
}

// hangingTokens is a token server that does not answer before it is released.
type hangingTokens struct {
	requests atomic.Int64
	released chan struct{}
}

func (h *hangingTokens) Token() (*oauth2.Token, error) {
	h.requests.Add(1)
	<-h.released
	return &oauth2.Token{AccessToken: token}, nil
}

// TestTokenServerHangs: calls end with their contexts, and do not pile up.
func TestTokenServerHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens := &hangingTokens{released: make(chan struct{})}
		defer close(tokens.released)
		b, err := gcs.Open(t.Context(), gcs.Config{Bucket: "bucket", Endpoint: "http://localhost:1", Tokens: tokens, Client: &http.Client{Transport: &http.Transport{}}})
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			begun := time.Now()
			_, err := b.Create(ctx, "a", []byte("one"))
			cancel()
			if took := time.Since(begun); took != time.Second || !errors.Is(err, context.DeadlineExceeded) || !blob.NotApplied(err) || !strings.Contains(err.Error(), "token") {
				t.Fatalf("got %v after %v, want a certain failure after 1s that names the token", err, took)
			}
		}
		if n := tokens.requests.Load(); n != 1 {
			t.Errorf("%d requests for a token are under way, want 1", n)
		}
	})
}

func TestReadWithoutGenerationIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.Create(t.Context(), "a", []byte("one")); err != nil {
		t.Fatal(err)
	}
	w.fake.mute = true
	if _, err := w.Read(t.Context(), "a"); !errors.Is(err, blob.ErrUnfit) {
		t.Fatalf("got %v, want ErrContractViolated", err)
	}
}

func TestProbeRefusesIgnoredConditions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.bad = true
	if err := blob.Probe(t.Context(), w); !errors.Is(err, blob.ErrUnfit) {
		t.Fatalf("got %v, want ErrContractViolated", err)
	}
	if len(w.fake.objects) != 0 {
		t.Errorf("the probe left %d objects", len(w.fake.objects))
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ raw, emulator, prefix, endpoint string }{
		{"gs://bucket", "", "", ""},
		{"gs://bucket/a/b/", "", "a/b", ""},
		{"gs://bucket", "localhost:4443", "", "http://localhost:4443"},
		{"gs://bucket", "https://localhost:4443", "", "https://localhost:4443"},
		{"gs://bucket/a?endpoint=http://h:1", "localhost:4443", "a", "http://h:1"},
	} {
		got, err := gcs.ParseURL(c.raw, c.emulator)
		if err != nil || got.Bucket != "bucket" || got.Prefix != c.prefix || got.Endpoint != c.endpoint {
			t.Errorf("%s with %q: got %+v, %v", c.raw, c.emulator, got, err)
		}
	}
	for _, raw := range []string{"gs://", "s3://b", "gs://b?x=1", "gs://b?endpoint=h", "gs://u:hunter2@b", "gs://b?endpoint=http://u:hunter2@h", "gs://b/a//b"} {
		if _, err := gcs.ParseURL(raw, ""); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v", raw, err)
		}
	}
}
