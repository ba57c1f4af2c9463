package s3_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
	"github.com/emitd/emitd/storage/blob/s3"
)

const secret = "very-secret-key"

type world struct {
	*s3.Bucket
	fake   *fake
	net    *blobtest.Network
	config s3.Config
	server *httptest.Server
}

func newWorld(t *testing.T, change ...func(*s3.Config)) *world {
	t.Helper()
	w := &world{fake: &fake{objects: map[string]stored{}}, net: &blobtest.Network{}}
	w.server = httptest.NewServer(w.fake)
	t.Cleanup(w.server.Close)
	base := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(base.CloseIdleConnections)
	w.net.Base = base
	w.config = s3.Config{
		Bucket: "bucket", Prefix: "some/where", Endpoint: w.server.URL, PathStyle: true, Region: "eu-test-1",
		Client: &http.Client{Transport: w.net},
		Retry:  blob.RetryPolicy{Pause: time.Millisecond, AttemptTimeout: 20 * time.Second},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDTEST", SecretAccessKey: secret}, nil
		}),
	}
	for _, c := range change {
		c(&w.config)
	}
	w.Bucket = w.open(t)
	return w
}

func (w *world) open(t *testing.T) *s3.Bucket {
	t.Helper()
	b, err := s3.Open(t.Context(), w.config)
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
		blobtest.LostRequest:     "PUT HEAD PUT",
		blobtest.LostReply:       "PUT HEAD HEAD",
		blobtest.Internal:        "PUT HEAD PUT",
		blobtest.InternalApplied: "PUT HEAD HEAD",
		blobtest.Unavailable:     "PUT HEAD PUT",
		blobtest.TooMany:         "PUT PUT",
		blobtest.Conflict:        "PUT HEAD PUT",
		blobtest.Refused:         "PUT HEAD PUT",
		blobtest.SentTwice:       "PUT HEAD HEAD",
		blobtest.Late:            "PUT HEAD PUT",
	} {
		t.Run(fmt.Sprint(failures), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.net.Next(http.MethodPut, failures)
			v, err := w.Create(t.Context(), "a", []byte("one"))
			if err != nil {
				t.Fatalf("create: %v", err)
			}
			if got := strings.Join(w.net.Requests(), " "); got != requests {
				t.Errorf("create sent %s, want %s", got, requests)
			}
			w.net.DeliverLate()
			w.net.Next(http.MethodPut, failures)
			w.net.Requests()
			if v, err = w.Replace(t.Context(), "a", []byte("two"), v); err != nil {
				t.Fatalf("replace: %v", err)
			}
			if got := strings.Join(w.net.Requests(), " "); got != requests {
				t.Errorf("replace sent %s, want %s", got, requests)
			}
			w.net.DeliverLate()
			o, err := w.Read(t.Context(), "a")
			if err != nil || string(o.Data) != "two" || o.Version != v {
				t.Fatalf("read: %v, %v; want two of version %s", o, err, v)
			}
		})
	}
}

// TestNoAnswerAtAll: the caller's time ends, and the error does not claim to know the outcome.
func TestNoAnswerAtAll(t *testing.T) {
	t.Parallel()
	blobtest.NoAnswer(t, http.MethodPut, map[blobtest.Fault]bool{
		blobtest.LostRequest: false, blobtest.LostReply: false, blobtest.Late: false, blobtest.Hang: false, blobtest.HangApplied: false,
		blobtest.Internal: false, blobtest.Unavailable: false, blobtest.TooMany: true, blobtest.Conflict: true,
	}, func(t *testing.T) (*blobtest.Network, blob.Bucket) {
		w := newWorld(t)
		return w.net, w
	})
}

// TestSomebodyElseWasFirst: after an unknown outcome, another writer's object does not count as the
// caller's own, and the error does not claim that the caller's write never happened.
func TestSomebodyElseWasFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.open(t)
	var once sync.Once
	w.net.Script(func(r *http.Request) blobtest.Fault {
		failures := blobtest.None
		if r.Method == http.MethodPut {
			once.Do(func() { failures = blobtest.LostReply })
			return failures
		}
		// The object is replaced before the first read.
		w.fake.mu.Lock()
		defer w.fake.mu.Unlock()
		w.fake.objects["some/where/a"] = stored{data: []byte("other"), etag: `"x"`, meta: "other"}
		return blobtest.None
	})
	_, err := w.Create(t.Context(), "a", []byte("mine"))
	if !errors.Is(err, blob.ErrExists) || !errors.Is(err, blob.ErrUnknownOutcome) || blob.NotApplied(err) {
		t.Fatalf("got %v, want ErrExists of unknown outcome", err)
	}
	w.net.Script(nil)
	if o, err := other.Read(t.Context(), "a"); err != nil || string(o.Data) != "other" {
		t.Fatalf("read %v, %v", o, err)
	}
}

// TestStorm: of hundreds of writes with unknown outcome, none happens twice and none is lost.
func TestStorm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	calm := w.config
	calm.Client = &http.Client{Transport: w.net.Base}
	steady, err := s3.Open(t.Context(), calm)
	if err != nil {
		t.Fatal(err)
	}
	blobtest.StressWithFaults(t, w.net, steady, func() blob.Bucket { return w.open(t) })
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		code   string
		want   error
	}{
		{http.StatusForbidden, "AccessDenied", blob.ErrDenied},
		{http.StatusForbidden, "SignatureDoesNotMatch", blob.ErrDenied},
		{http.StatusForbidden, "InvalidAccessKeyId", blob.ErrDenied},
		{http.StatusBadRequest, "ExpiredToken", blob.ErrDenied},
		{http.StatusNotFound, "NoSuchBucket", blob.ErrNoBucket},
		{http.StatusNotImplemented, "NotImplemented", blob.ErrUnfit},
		{http.StatusBadRequest, "InvalidArgument", blob.ErrUnavailable},
		{http.StatusMovedPermanently, "PermanentRedirect", blob.ErrUnavailable},
	} {
		t.Run(c.code, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.fake.refuse, w.fake.code = c.status, c.code
			_, create := w.Create(t.Context(), "a", []byte("one"))
			_, replace := w.Replace(t.Context(), "a", []byte("one"), "v")
			_, write := w.Write(t.Context(), "a", []byte("one"))
			_, read := w.Read(t.Context(), "a")
			_, list := w.List(t.Context(), "", "", 0)
			for _, err := range []error{create, replace, write, read, list, w.Delete(t.Context(), "a")} {
				if !errors.Is(err, c.want) || !blob.NotApplied(err) {
					t.Errorf("got %v, want a certain %v", err, c.want)
				}
				if err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "Signature=")) {
					t.Errorf("the error shows a secret: %v", err)
				}
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *s3.Config) { c.Client = &http.Client{Transport: &http.Transport{}} })
	w.server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := w.Create(ctx, "a", []byte("one"))
	if !errors.Is(err, blob.ErrUnavailable) || !blob.NotApplied(err) {
		t.Fatalf("got %v, want a certain ErrUnavailable", err)
	}
}

// TestStuckDial: the caller's time ends before the connection is made, so nothing was sent.
func TestStuckDial(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *s3.Config) {
		c.Client = &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := w.Create(ctx, "a", []byte("one"))
	if !errors.Is(err, blob.ErrUnavailable) || !blob.NotApplied(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a certain ErrUnavailable", err)
	}
}

func TestNoCredentials(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *s3.Config) {
		c.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{}, errors.New("no role")
		})
	})
	if _, err := w.Create(t.Context(), "a", nil); !errors.Is(err, blob.ErrDenied) || !blob.NotApplied(err) {
		t.Fatalf("got %v, want a certain ErrDenied", err)
	}
}

func TestTornReadIsReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.Create(t.Context(), "a", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	w.net.Next(http.MethodGet, blobtest.Torn, blobtest.Unavailable, blobtest.LostReply)
	if o, err := w.Read(t.Context(), "a"); err != nil || string(o.Data) != "0123456789" {
		t.Fatalf("got %v, %v", o, err)
	}
}

func TestProbeRefusesIgnoredConditions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.bad = true
	err := blob.Probe(t.Context(), w)
	if !errors.Is(err, blob.ErrUnfit) || !strings.Contains(err.Error(), "If-None-Match") {
		t.Fatalf("got %v, want ErrContractViolated that names the condition", err)
	}
	if len(w.fake.objects) != 0 {
		t.Errorf("the probe left %d objects", len(w.fake.objects))
	}
}

func TestEncryptionIsRequested(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *s3.Config) { c.SSE, c.KMSKey = "aws:kms", "key-1" })
	if _, err := w.Create(t.Context(), "a", []byte("one")); err != nil {
		t.Fatal(err)
	}
	h := w.fake.last
	if h.Get("X-Amz-Server-Side-Encryption") != "aws:kms" || h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != "key-1" {
		t.Errorf("got headers %v", h)
	}
	for name := range h {
		if name = strings.ToLower(name); strings.Contains(name, "trailer") || strings.Contains(name, "checksum") {
			t.Errorf("%s: a checksum of the newer kind, which other stores refuse", name)
		}
	}
}

func TestListSkipsKeysOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 5 {
		w.fake.objects[fmt.Sprintf("some/where/dir/.hidden%d/", i)] = stored{etag: `"x"`}
	}
	w.fake.objects["some/where/dir/z"] = stored{etag: `"x"`}
	w.fake.objects["some/other/z"] = stored{etag: `"x"`}
	page, err := w.List(t.Context(), "dir/", "", 2)
	if err != nil || len(page.Entries) != 1 || page.Entries[0].Key != "dir/z" || page.More {
		t.Fatalf("got %+v, %v", page, err)
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	got, err := s3.ParseURL("s3://bucket/a/b/?region=eu-1&endpoint=http://localhost:9000&path_style=true&sse=aws:kms&kms_key=k")
	if err != nil {
		t.Fatal(err)
	}
	want := s3.Config{Bucket: "bucket", Prefix: "a/b", Region: "eu-1", Endpoint: "http://localhost:9000", PathStyle: true, SSE: "aws:kms", KMSKey: "k"}
	if got.Bucket != want.Bucket || got.Prefix != want.Prefix || got.Region != want.Region || got.Endpoint != want.Endpoint ||
		got.PathStyle != want.PathStyle || got.SSE != want.SSE || got.KMSKey != want.KMSKey {
		t.Errorf("got %+v, want %+v", got, want)
	}
	bad := []string{
		"s3://", "gs://b", "s3://b?reigon=eu", "s3://b?path_style=perhaps", "s3://b?endpoint=localhost", "s3://b?sse=rot13",
		"s3://b?kms_key=k", "s3://key:hunter2@b/", "s3://b?endpoint=http://key:hunter2@h", "s3://b/a//b", "s3://b?endpoint=http://h?x=hunter2",
	}
	for _, raw := range bad {
		if _, err := s3.ParseURL(raw); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v", raw, err)
		}
	}
}
