package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/queue/queuetest"
)

// serve runs the API over q, behind the handler before.
func serve(t *testing.T, q queue.Service, before func(http.Handler) http.Handler) *httptest.Server {
	t.Helper()
	h, err := api.New(q, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var handler http.Handler = h
	if before != nil {
		handler = before(h)
	}
	return serveHandler(t, handler)
}

func serveHandler(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = api.Protocols()
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, c client.Config) *client.Client {
	t.Helper()
	c.Backoff, c.MaxBackoff = time.Millisecond, 10*time.Millisecond
	out, err := client.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Close)
	return out
}

// bothWays runs a test with protobuf and with JSON batches.
func bothWays(t *testing.T, f func(t *testing.T, json bool)) {
	t.Helper()
	for _, json := range []bool{false, true} {
		t.Run(fmt.Sprintf("json=%v", json), func(t *testing.T) {
			t.Parallel()
			f(t, json)
		})
	}
}

// TestClientIsAService: a caller sees through the client what it would see at the broker itself.
func TestClientIsAService(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, json bool) {
		near := queuetest.New()
		far := dial(t, client.Config{Addresses: []string{serve(t, queuetest.New(), nil).URL}, JSON: json})
		a, b := story(t, near), story(t, far)
		for i := range a {
			if i < len(b) && a[i] != b[i] {
				t.Errorf("step %d:\nnear %s\n far %s", i, a[i], b[i])
			}
		}
		if len(a) != len(b) {
			t.Errorf("%d steps near, %d far", len(a), len(b))
		}
	})
}

// story calls everything that a service can do and returns the results without times.
func story(t *testing.T, s queue.Service) []string {
	t.Helper()
	ctx := t.Context()
	var out []string
	saw := func(v any, err error) {
		if e, ok := errors.AsType[*queue.Error](err); ok {
			err = fmt.Errorf("%s|%s|%s", e.Tag, e.Message, e.Hint)
		}
		out = append(out, fmt.Sprintf("%s %v", show(reflect.ValueOf(v)), err))
	}
	after := 90 * time.Second
	saw(s.Enqueue(ctx, "q", []queue.Job{
		{ID: "a", Type: "t", Group: "g", Payload: []byte(`{ "x": 1 }`), Priority: -5, TTL: time.Hour, Retry: queue.Retry{MaxAttempts: 2, Backoff: time.Second}},
		{ID: "b", Type: "t", Payload: []byte{0xff, 0}},
		{Key: "k", Delay: time.Hour},
		{ID: "a"},
	}))
	saw(s.Enqueue(ctx, "q", []queue.Job{{ID: "r", RunAt: time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC)}}))
	claims, err := s.Claim(ctx, "q", queue.ClaimRequest{Worker: "w", Types: []string{"t"}, Max: 5, Visibility: time.Minute, RequestID: "1"})
	saw(claims, err)
	saw(s.Claim(ctx, "q", queue.ClaimRequest{Worker: "w", Types: []string{"t"}, Max: 5, Visibility: time.Minute, RequestID: "1"}))
	saw(s.Claim(ctx, "q", queue.ClaimRequest{Types: []string{"t"}, Wait: time.Millisecond}))
	saw(s.Settle(ctx, "q", []queue.Settlement{
		{Verb: queue.Extend, ID: "b", Token: "token-1", Visibility: 2 * time.Minute},
		{Verb: queue.Complete, ID: "b", Token: "forged"},
		{Verb: queue.Complete, ID: "b", Token: "token-1", Result: []byte(`[1, 2]`)},
		{Verb: queue.Fail, ID: "a", Token: "token-2", Cause: "no luck", RetryAfter: &after},
		{Verb: queue.Release, ID: "none", Token: "x"},
	}))
	for _, id := range []string{"a", "b", "none"} {
		info, payload, err := s.Get(ctx, "q", id)
		saw([]any{info, string(payload)}, err)
	}
	saw(s.List(ctx, "q", queue.Query{Limit: 2, Payload: true}))
	saw(s.List(ctx, "q", queue.Query{State: queue.Delayed, Type: "t", Cursor: "b"}))
	saw(s.Do(ctx, "q", queue.Command{Act: queue.RunNow, IDs: []string{"a"}}))
	saw(s.Do(ctx, "q", queue.Command{Act: queue.Pause}))
	saw(s.Do(ctx, "q", queue.Command{Act: queue.Purge, State: queue.Delayed}))
	saw(s.Stats(ctx, "q"))
	return out
}

// show prints a value without what differs between runs or encodings.
func show(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return "nil"
		}
		return show(v.Elem())
	case reflect.Slice:
		if b, ok := v.Interface().([]byte); ok {
			return fmt.Sprintf("%q", b)
		}
		var parts []string
		for i := range v.Len() {
			parts = append(parts, show(v.Index(i)))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case reflect.Struct:
		if at, ok := v.Interface().(time.Time); ok {
			return fmt.Sprint(!at.IsZero())
		}
		var parts []string
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "OldestAge" && f.Name != "RetryAfter" {
				parts = append(parts, f.Name+":"+show(v.Field(i)))
			}
		}
		return "{" + strings.Join(parts, " ") + "}"
	default:
		if d, ok := v.Interface().(time.Duration); ok {
			return d.Round(time.Second).String()
		}
		return fmt.Sprint(v.Interface())
	}
}

// TestHole09RediscoversAfterFailover: when the broker's node dies, the client finds the next one,
// by address or by locator, and no call fails.
func TestHole09RediscoversAfterFailover(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, json bool) {
		q := queuetest.New()
		first, second := serve(t, q, nil), serve(t, q, nil)
		byAddress := dial(t, client.Config{Addresses: []string{first.URL, second.URL}, JSON: json})
		where := &locator{addr: first.Listener.Addr().String(), generation: 1}
		byLocator := dial(t, client.Config{Locator: where, JSON: json})
		enqueue(t, byAddress, "a1")
		enqueue(t, byLocator, "l1")
		first.CloseClientConnections()
		first.Close()
		where.move(second.Listener.Addr().String(), 2)
		enqueue(t, byAddress, "a2")
		enqueue(t, byLocator, "l2")
		if _, _, err := byLocator.Get(t.Context(), "q", "a2"); err != nil {
			t.Error(err)
		}
	})
}

// TestStaleLocatorFallsBack: while the locator still names the dead node, any other node is used.
func TestStaleLocatorFallsBack(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	dead, alive := serve(t, q, nil), serve(t, q, nil)
	where := &locator{addr: dead.Listener.Addr().String(), generation: 1}
	c := dial(t, client.Config{Locator: where, Addresses: []string{alive.URL}})
	dead.Close()
	enqueue(t, c, "a")
}

// TestHolderIsBelieved: after a 503 that names the holder, the holder is called at once.
func TestHolderIsBelieved(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	holder := serve(t, q, nil)
	away := serve(t, moved{holder.Listener.Addr().String()}, nil)
	c := dial(t, client.Config{Addresses: []string{away.URL}})
	enqueue(t, c, "a")
	if q.Calls("Enqueue") != 1 {
		t.Error("the holder was not asked")
	}
}

type moved struct{ holder string }

func (m moved) refuse() error {
	e := queue.Refuse(queue.QueueNotOwner, "the broker has moved")
	e.Holder = m.holder
	return e
}

func (m moved) Enqueue(context.Context, string, []queue.Job) ([]queue.Receipt, error) {
	return nil, m.refuse()
}

func (m moved) Claim(context.Context, string, queue.ClaimRequest) ([]queue.Claimed, error) {
	return nil, m.refuse()
}

func (m moved) Settle(context.Context, string, []queue.Settlement) ([]queue.Outcome, error) {
	return nil, m.refuse()
}

func (m moved) Get(context.Context, string, string) (*queue.Info, []byte, error) {
	return nil, nil, m.refuse()
}

func (m moved) List(context.Context, string, queue.Query) (*queue.Page, error) {
	return nil, m.refuse()
}
func (m moved) Stats(context.Context, string) (*queue.Stats, error)    { return nil, m.refuse() }
func (m moved) Do(context.Context, string, queue.Command) (int, error) { return 0, m.refuse() }

// locator names one broker.
type locator struct {
	mu         sync.Mutex
	addr       string
	generation int64
	err        error
}

func (l *locator) Broker(context.Context, string, int) (string, int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr, l.generation, l.err
}

func (l *locator) move(addr string, generation int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addr, l.generation, l.err = addr, generation, nil
}

func enqueue(t *testing.T, s queue.Service, id string) {
	t.Helper()
	r, err := s.Enqueue(t.Context(), "q", []queue.Job{{ID: id}})
	if err != nil || len(r) != 1 || r[0].ID != id {
		t.Fatalf("enqueue %s: %v %v", id, r, err)
	}
}

// lossy lets the server carry out a call and then breaks the connection before the answer, as often
// as times says.
func lossy(times *atomic.Int32) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if times.Add(-1) < 0 {
				h.ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		})
	}
}

// TestLostAnswersDuplicateNothing: the server carries out a call and the answer is lost. The
// repeated call changes nothing and gets what the first would have got.
func TestLostAnswersDuplicateNothing(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, json bool) {
		q := queuetest.New()
		var lose atomic.Int32
		c := dial(t, client.Config{Addresses: []string{serve(t, q, lossy(&lose)).URL}, JSON: json})
		ctx := t.Context()

		lose.Store(3)
		receipts, err := c.Enqueue(ctx, "q", []queue.Job{{Type: "x"}, {Key: "k"}})
		if err != nil || !receipts[0].Duplicate || len(receipts[0].ID) != 16 {
			t.Fatalf("%+v %v", receipts, err)
		}
		if s, _ := q.Stats(ctx, "q"); s.Enqueued != 2 || q.Calls("Enqueue") != 4 {
			t.Errorf("%d jobs of %d calls", s.Enqueued, q.Calls("Enqueue"))
		}

		lose.Store(2)
		claims, err := c.Claim(ctx, "q", queue.ClaimRequest{Worker: "w", Max: 1})
		if err != nil || len(claims) != 1 {
			t.Fatalf("%+v %v", claims, err)
		}
		if s, _ := q.Stats(ctx, "q"); s.Active != 1 || s.Waiting != 1 {
			t.Errorf("claims leaked: %+v", s)
		}

		lose.Store(2)
		o, err := c.Settle(ctx, "q", []queue.Settlement{{Verb: queue.Complete, ID: claims[0].Job.ID, Token: claims[0].Token}})
		if err != nil || o[0].Err != nil || o[0].State != queue.Completed {
			t.Fatalf("%+v %v", o, err)
		}
		if s, _ := q.Stats(ctx, "q"); s.Completed != 1 {
			t.Errorf("completed %d", s.Completed)
		}
	})
}

// twoNodes is where a queue's two shards are: here and on another node.
type twoNodes struct{ other string }

func (n twoNodes) Broker(_ context.Context, _ string, shard int) (string, int64, error) {
	return []string{"here:1", n.other}[shard], 1, nil
}

func (twoNodes) Shards(context.Context, string) (int, error)  { return 2, nil }
func (twoNodes) ShardOfJob(*queue.Job, int) int               { return 0 }
func (twoNodes) ShardOfSettlement(*queue.Settlement, int) int { return 0 }

// TestRepeatedClaimOnTwoNodes: the answer to a claim is lost, and both nodes of the queue have more jobs when it is repeated.
// It gets the job that the first call has claimed, whichever node is called first.
func TestRepeatedClaimOnTwoNodes(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, json bool) {
		for i := range 8 {
			here, there := queuetest.New(), queuetest.New()
			enqueue(t, []queue.Service{here, there}[i%2], "old")
			where := twoNodes{serve(t, there, nil).Listener.Addr().String()}
			f, err := api.NewForwarder(api.ForwarderConfig{Locator: where, Sharding: where, Self: "here:1", Local: here})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			var lost atomic.Bool
			front := serve(t, f, func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if lost.Swap(true) {
						h.ServeHTTP(w, r)
						return
					}
					h.ServeHTTP(httptest.NewRecorder(), r)
					enqueue(t, here, "new")
					enqueue(t, there, "new")
					panic(http.ErrAbortHandler)
				})
			})
			c := dial(t, client.Config{Addresses: []string{front.URL}, JSON: json})
			got, err := c.Claim(t.Context(), "q", queue.ClaimRequest{Worker: "w", RequestID: fmt.Sprint("r", i)})
			if err != nil || len(got) != 1 || got[0].Job.ID != "old" {
				t.Errorf("call %d: %+v, %v", i, got, err)
			}
			again, err := c.Claim(t.Context(), "q", queue.ClaimRequest{Worker: "w"})
			if err != nil || len(again) != 1 || again[0].Job.ID != "new" {
				t.Errorf("the next call: %+v, %v", again, err)
			}
		}
	})
}

// TestUnsafeActsAreNotRepeated: a call whose second execution would have a further effect ends as
// UnknownOutcome.
func TestUnsafeActsAreNotRepeated(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	var lose atomic.Int32
	c := dial(t, client.Config{Addresses: []string{serve(t, q, lossy(&lose)).URL}})
	lose.Store(1)
	_, err := c.Do(t.Context(), "q", queue.Command{Act: queue.Purge})
	if queue.TagOf(err) != queue.UnknownOutcome || q.Calls("Do") != 1 {
		t.Errorf("%v after %d calls", err, q.Calls("Do"))
	}
	lose.Store(1)
	if _, err := c.Do(t.Context(), "q", queue.Command{Act: queue.Pause}); err != nil || q.Calls("Do") != 3 {
		t.Errorf("%v after %d calls", err, q.Calls("Do"))
	}
}

// TestOnceMeansOnce: a forwarder's client repeats nothing and generates no IDs.
func TestOnceMeansOnce(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	var lose atomic.Int32
	c := dial(t, client.Config{Addresses: []string{serve(t, q, lossy(&lose)).URL}, NoRetry: true})
	lose.Store(1)
	_, err := c.Enqueue(t.Context(), "q", []queue.Job{{}})
	if queue.TagOf(err) != queue.UnknownOutcome || q.Calls("Enqueue") != 1 {
		t.Errorf("%v after %d calls", err, q.Calls("Enqueue"))
	}
	if r, err := c.Enqueue(t.Context(), "q", []queue.Job{{}}); err != nil || r[0].ID != "job-2" {
		t.Errorf("%v %v", r, err)
	}
}

// TestEndsWithTheContext: without a server a call ends when its context does, and says that it had
// no effect.
func TestEndsWithTheContext(t *testing.T) {
	t.Parallel()
	const addr = "127.0.0.1:1" // no test listens at this address
	c := dial(t, client.Config{Addresses: []string{addr}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Enqueue(ctx, "q", []queue.Job{{}})
	if queue.TagOf(err) != queue.Unavailable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	hangs := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	c = dial(t, client.Config{Addresses: []string{addr}, Transport: hangs})
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err = c.Enqueue(ctx, "q", []queue.Job{{}}); queue.TagOf(err) != queue.Unavailable {
		t.Errorf("nothing was sent, but: %v", err)
	}
	nobody := dial(t, client.Config{Locator: &locator{err: errors.New("no leader")}, RetryFor: 30 * time.Millisecond})
	if _, err = nobody.Stats(t.Context(), "q"); queue.TagOf(err) != queue.Unavailable || !strings.Contains(err.Error(), "no leader") {
		t.Errorf("%v", err)
	}
}

// TestUnknownQueueEndsTheCall: if the locator knows that there is no such queue, the call ends.
func TestUnknownQueueEndsTheCall(t *testing.T) {
	t.Parallel()
	c := dial(t, client.Config{Locator: &locator{err: queue.Refuse(queue.QueueNotFound, "there is no queue q")}, RetryFor: -1})
	if _, err := c.Stats(t.Context(), "q"); queue.TagOf(err) != queue.QueueNotFound {
		t.Error(err)
	}
}

// TestHungServerIsLeft: a server that accepts a call and never answers is left after the timeout.
func TestHungServerIsLeft(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	ended := make(chan struct{})
	hung := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ended }))
	t.Cleanup(hung.Close)
	t.Cleanup(func() { close(ended) })
	c := dial(t, client.Config{Addresses: []string{hung.URL, serve(t, q, nil).URL}, Timeout: 50 * time.Millisecond})
	enqueue(t, c, "a")
}

// TestTokenAndRefusals: the token is sent, and refusals of the server are returned with their tags.
func TestTokenAndRefusals(t *testing.T) {
	t.Parallel()
	guard := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer s3cret" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	url := serve(t, queuetest.New(), guard).URL
	enqueue(t, dial(t, client.Config{Addresses: []string{url}, Token: "s3cret"}), "a")
	outsider := dial(t, client.Config{Addresses: []string{url}, Token: "wrong-token"})
	_, err := outsider.Enqueue(t.Context(), "q", []queue.Job{{}})
	if queue.TagOf(err) != queue.Unauthorized || strings.Contains(fmt.Sprint(err), "wrong-token") {
		t.Errorf("%v", err)
	}
	for _, bad := range []client.Config{{}, {Addresses: []string{"ftp://x"}}, {Addresses: []string{"http://u:p@x"}}, {Addresses: []string{":"}}} {
		if _, err := client.New(bad); err == nil || strings.Contains(err.Error(), "u:p@") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// serveTLS runs the API over q with TLS, and returns what trusts its certificate.
func serveTLS(t *testing.T, q queue.Service) (*httptest.Server, *x509.CertPool) {
	t.Helper()
	h, err := api.New(q, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = api.Protocols()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s, roots
}

// TestTokenStaysWithTLS: a client that calls a node with https calls the nodes that this one or the locator names with https
// as well. The token must not be readable on the way.
func TestTokenStaysWithTLS(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	holder, roots := serveTLS(t, q)
	var read atomic.Int32
	open := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { read.Add(1) }))
	t.Cleanup(open.Close)
	addr := holder.Listener.Addr().String()
	for name, c := range map[string]struct {
		holder string
		where  client.Locator
		found  bool
	}{
		"the holder":                  {addr, nil, true},
		"a holder without TLS":        {open.Listener.Addr().String(), nil, false},
		"a holder that says http":     {open.URL, nil, false},
		"the locator":                 {"", &locator{addr: addr}, true},
		"a broker without TLS":        {"", &locator{addr: open.Listener.Addr().String()}, false},
		"a locator that says http":    {"", &locator{addr: open.URL}, false},
		"a locator that knows nobody": {addr, &locator{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			away, _ := serveTLS(t, moved{c.holder})
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
			t.Cleanup(transport.CloseIdleConnections)
			out := dial(t, client.Config{Addresses: []string{away.URL}, Locator: c.where, Transport: transport, Token: "s3cret", RetryFor: time.Second})
			_, err := out.Enqueue(t.Context(), "q", []queue.Job{{}})
			if (err == nil) != c.found || read.Load() != 0 {
				t.Errorf("%v; the token was readable %d times", err, read.Load())
			}
		})
	}
}

// TestTLS: with a TLS configuration, addresses without a scheme use https, and unknown certificates
// are rejected.
func TestTLS(t *testing.T) {
	t.Parallel()
	s, roots := serveTLS(t, queuetest.New())
	addr := s.Listener.Addr().String()
	enqueue(t, dial(t, client.Config{Addresses: []string{addr}, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}), "a")
	outsider := dial(t, client.Config{Addresses: []string{addr}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}, NoRetry: true})
	if _, err := outsider.Enqueue(t.Context(), "q", []queue.Job{{}}); queue.TagOf(err) != queue.Unavailable || !strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}
}

// TestRedirectsAreNotFollowed: the token is not sent to the host that a redirect names.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(other.Close)
	url := serve(t, queuetest.New(), func(http.Handler) http.Handler {
		return http.RedirectHandler(other.URL, http.StatusTemporaryRedirect)
	}).URL
	c := dial(t, client.Config{Addresses: []string{url}, Token: "s3cret"})
	if _, err := c.Stats(t.Context(), "q"); err == nil || reached.Load() != 0 {
		t.Errorf("%v, %d calls elsewhere", err, reached.Load())
	}
}

// TestBadCallsStayHere: a call that exceeds the limits makes no request.
func TestBadCallsStayHere(t *testing.T) {
	t.Parallel()
	c := dial(t, client.Config{Addresses: []string{"192.0.2.1:1"}, RetryFor: -1})
	ctx := t.Context()
	many := make([]queue.Job, queue.MaxCall+1)
	for i, c := range []struct {
		call func() error
		tag  queue.Tag
	}{
		{func() error { _, err := c.Enqueue(ctx, "Q!", many[:1]); return err }, queue.BadRequest},
		{func() error { _, err := c.Enqueue(ctx, "q", many); return err }, queue.TooManyJobs},
		{func() error { _, err := c.Enqueue(ctx, "q", nil); return err }, queue.BadRequest},
		{func() error { _, err := c.Enqueue(ctx, "q", []queue.Job{{Priority: 999}}); return err }, queue.BadRequest},
		{func() error { _, err := c.Enqueue(ctx, "q", []queue.Job{{ID: "\xff"}}); return err }, queue.BadRequest},
		{func() error { _, err := c.Claim(ctx, "q", queue.ClaimRequest{Wait: time.Hour}); return err }, queue.BadRequest},
		{func() error { _, err := c.Settle(ctx, "q", []queue.Settlement{{Verb: "nack"}}); return err }, queue.BadRequest},
		{func() error { _, _, err := c.Get(ctx, "q", ""); return err }, queue.BadRequest},
		{func() error { _, err := c.Do(ctx, "q", queue.Command{Act: "explode"}); return err }, queue.BadRequest},
	} {
		if err := c.call(); queue.TagOf(err) != c.tag {
			t.Errorf("%d: %v, want %s", i, err, c.tag)
		}
	}
}
