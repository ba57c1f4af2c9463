package webhook

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

const (
	secretA = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secretB = "whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0"
)

// endpoint is a receiver of webhooks.
type endpoint struct {
	server *httptest.Server
	mu     sync.Mutex
	taken  []sinktest.Taken
	faults map[string]sinktest.Fault
	last   *http.Request
	body   []byte
}

func newEndpoint(t *testing.T) *endpoint {
	e := &endpoint{}
	e.server = httptest.NewServer(e)
	t.Cleanup(func() { e.server.CloseClientConnections(); e.server.Close() })
	return e
}

// events parses a request as a consumer does.
func events(r *http.Request, body []byte) ([]sinktest.Taken, error) {
	type event struct {
		ID  string `json:"id"`
		Key string `json:"partitionkey"`
	}
	var list []event
	switch content := r.Header.Get("Content-Type"); {
	case strings.HasPrefix(content, "application/cloudevents-batch+json"):
		if err := json.Unmarshal(body, &list); err != nil {
			return nil, err
		}
	case strings.HasPrefix(content, "application/cloudevents+json"):
		list = make([]event, 1)
		if err := json.Unmarshal(body, &list[0]); err != nil {
			return nil, err
		}
	default:
		key, err := url.PathUnescape(r.Header.Get("Ce-Partitionkey"))
		if err != nil {
			return nil, err
		}
		list = []event{{r.Header.Get("Ce-Id"), key}}
	}
	var out []sinktest.Taken
	for _, e := range list {
		out = append(out, sinktest.Taken{ID: e.ID, Key: e.Key})
	}
	return out, nil
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	got, err := events(r, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last, e.body = r, body
	for _, m := range got {
		switch e.faults[m.ID] {
		case sinktest.Refuse:
			http.Error(w, "no such tenant; you said "+r.Header.Get("Authorization"), http.StatusUnprocessableEntity)
			return
		case sinktest.Falter:
			http.Error(w, "database is away", http.StatusInternalServerError)
			return
		case sinktest.Hang:
			e.mu.Unlock()
			<-r.Context().Done()
			e.mu.Lock()
			return
		}
	}
	e.taken = append(e.taken, got...)
	w.WriteHeader(http.StatusAccepted)
}

func (e *endpoint) fail(_ *testing.T, f sinktest.Fault, ids []uuid.UUID) {
	if f == sinktest.Down {
		e.server.Close()
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = map[string]sinktest.Fault{}
	for _, id := range ids {
		e.faults[id.String()] = f
	}
}

func (e *endpoint) received(*testing.T) []sinktest.Taken {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.taken)
}

func open(t *testing.T, cfg Config) *Sink {
	t.Helper()
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSuite(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Binary, Structured, Batch} {
		for _, path := range []string{"/hook", "/hook/{topic}"} {
			t.Run(string(mode)+" "+path[1:], func(t *testing.T) {
				t.Parallel()
				sinktest.Suite{Atomic: mode == Batch, New: func(t *testing.T) *sinktest.Harness {
					e := newEndpoint(t)
					s := open(t, Config{
						URL: e.server.URL + path, Mode: mode, BatchRows: 10, Secrets: []sink.Secret{secretA},
						Headers: map[string]sink.Secret{"Authorization": "Bearer hunter2"},
					})
					return &sinktest.Harness{Sink: s, Received: e.received, Fail: e.fail, Secrets: []string{"hunter2", secretA}}
				}}.Run(t)
			})
		}
	}
}

// deliver sends one message and returns its error.
func deliver(t *testing.T, s *Sink, row outbox.Row) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sinktest.Bound)
	defer cancel()
	return sinktest.Spread(s.Deliver(ctx, sinktest.Delivery([]outbox.Row{row})), 1)[0]
}

func TestBinaryEvent(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	s := open(t, Config{URL: e.server.URL + "/in/{topic}?v=1"})
	row := sinktest.Rows("orders/new", 1, 1)[0]
	row.Key = `50 % "off" ü`
	row.TraceParent, row.TraceState = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "v=1"
	row.Headers["Ce-Id"], row.Headers["webhook-id"], row.Headers["Host"] = "forged", "forged", "forged"
	if err := deliver(t, s, row); err != nil {
		t.Fatal(err)
	}
	if e.last.RequestURI != "/in/orders%2Fnew?v=1" {
		t.Errorf("path %s", e.last.RequestURI)
	}
	if string(e.body) != `{"n":0}` {
		t.Errorf("body %s", e.body)
	}
	for name, want := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": row.ID.String(), "Ce-Source": "emitd/billing", "Ce-Type": "order.placed",
		"Ce-Time": "2026-11-20T09:00:00Z", "Ce-Subject": "orders/new", "Ce-Partitionkey": "50%20%25%20%22off%22%20%C3%BC",
		"Content-Type": "application/json", "Traceparent": row.TraceParent, "Tracestate": "v=1", "Ce-Traceparent": row.TraceParent,
		"Tenant": "acme", "Emitd-Generation": "7", "Emitd-Subscription": "billing", "Emitd-Shard": fmt.Sprint(row.Shard),
		"Webhook-Id": "", "Webhook-Signature": "", "Idempotency-Key": "",
	} {
		if got := e.last.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestStructuredEvent(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: "http://localhost", Source: "/shop"})
	for _, c := range []struct {
		name, content, member string
		payload               []byte
		want                  any
	}{
		{"json", "application/json", "data", []byte(`{"a": [1]}`), map[string]any{"a": []any{1.0}}},
		{"json by suffix", "application/vnd.x+json", "data", []byte(`7`), 7.0},
		{"text", "text/plain; charset=utf-8", "data", []byte("a\"b\n"), "a\"b\n"},
		{"no json", "application/json", "data_base64", []byte(`{`), "ew=="},
		{"not UTF-8 in json", "application/json", "data_base64", []byte("\"\xff\""), "Iv8i"},
		{"bytes", "image/png", "data_base64", []byte{0xff}, "/w=="},
		{"nothing", "image/png", "data", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			row := sinktest.Rows("orders", 1, 1)[0]
			row.Payload, row.Type, row.Headers = c.payload, "", map[string]string{"content-type": c.content, "tenant": "a\"b"}
			var got map[string]any
			if err := json.Unmarshal(s.event(sinktest.Delivery(nil), row).structured(), &got); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{
				"specversion": "1.0", "id": row.ID.String(), "source": "/shop", "type": "emitd.message", "time": "2026-11-20T09:00:00Z",
				"subject": "orders", "partitionkey": "key-0", "datacontenttype": c.content,
			}
			if c.want != nil {
				want[c.member] = c.want
			}
			var headers map[string]string
			if err := json.Unmarshal([]byte(got["emitdheaders"].(string)), &headers); err != nil || headers["tenant"] != "a\"b" {
				t.Errorf("emitdheaders: %v, %v", got["emitdheaders"], err)
			}
			delete(got, "emitdheaders")
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

func TestContentTypeIsGuessed(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: "http://localhost"})
	for payload, want := range map[string]string{`{"a":1}`: "application/json", "plain": "application/octet-stream", "": "application/octet-stream"} {
		if got := s.event(outbox.Delivery{}, outbox.Row{Message: outbox.Message{Payload: []byte(payload)}}).content; got != want {
			t.Errorf("%q: %s, want %s", payload, got, want)
		}
	}
}

// TestSignature checks the example of the Standard Webhooks specification, and rotation of secrets.
func TestSignature(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: "http://localhost", Secrets: []sink.Secret{secretA, secretB}})
	s.now = func() time.Time { return time.Unix(1614265330, 0) }
	h := http.Header{}
	body := `{"test": 2432232314}`
	s.sign(h, "msg_p5jXN8AQM9LWM0D4loKWxJek", []byte(body))
	first, second, two := strings.Cut(h.Get("Webhook-Signature"), " ")
	if first != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("signature %s", first)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secretB, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330." + body))
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); !two || second != want {
		t.Errorf("second signature %s, want %s", second, want)
	}
	if h.Get("Webhook-Timestamp") != "1614265330" || h.Get("Webhook-Id") != "msg_p5jXN8AQM9LWM0D4loKWxJek" {
		t.Errorf("%v", h)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code  int
		after string
		query string
		kind  error // nil: another attempt
		wait  time.Duration
	}{
		{code: 400, kind: outbox.ErrPermanent},
		{code: 401, kind: outbox.ErrSinkDown},
		{code: 401, query: "&topic={topic}"},
		{code: 403, kind: outbox.ErrPermanent},
		{code: 404, kind: outbox.ErrPermanent},
		{code: 407, kind: outbox.ErrSinkDown},
		{code: 407, query: "&topic={topic}", kind: outbox.ErrSinkDown},
		{code: 408},
		{code: 409, kind: outbox.ErrPermanent},
		{code: 410, after: "60", kind: outbox.ErrPermanent},
		{code: 413, kind: outbox.ErrPermanent},
		{code: 422, kind: outbox.ErrPermanent},
		{code: 425},
		{code: 429, after: "17", wait: 17 * time.Second},
		{code: 429, after: "soon"},
		{code: 429, after: "-5"},
		{code: 500},
		{code: 503, after: "Fri, 20 Nov 2026 09:01:00 GMT", wait: time.Minute},
		{code: 503, after: "99999999", wait: maxRetryAfter},
		{code: 504, kind: outbox.ErrSinkDown},
		{code: 599},
		{code: 302},
	} {
		t.Run(fmt.Sprint(c.code, c.after, c.query), func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
				w.Header().Set("Location", "https://elsewhere.example/?token=hunter2")
				w.WriteHeader(c.code)
				fmt.Fprint(w, "the cause\x00 is\n", strings.Repeat("x", 10_000))
			}))
			defer server.Close()
			s := open(t, Config{URL: server.URL + "/?key=hunter2" + c.query, DownOn: []int{504}})
			s.now = func() time.Time { return time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC) }
			err := deliver(t, s, sinktest.Rows("t", 1, 1)[0])
			for _, kind := range []error{outbox.ErrPermanent, outbox.ErrSinkDown} {
				if errors.Is(err, kind) != errors.Is(c.kind, kind) {
					t.Errorf("%v: want kind %v", err, c.kind)
				}
			}
			retry, _ := errors.AsType[*outbox.RetryAfterError](err)
			if (retry != nil) != (c.wait > 0) || retry != nil && retry.After != c.wait {
				t.Errorf("%v: want to wait %v", err, c.wait)
			}
			text := err.Error()
			if !strings.Contains(text, fmt.Sprint(c.code)) || c.code != 302 && !strings.Contains(text, "the cause is xxx") {
				t.Errorf("the cause is missing: %s", text)
			}
			if strings.Contains(text, "hunter2") || len(text) > 500 {
				t.Errorf("%d bytes: %s", len(text), text)
			}
		})
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	for _, c := range []struct {
		name  string
		code  int
		to    string
		taken bool
	}{
		{"same host, method kept", 308, "/hook", true},
		{"same host, method lost", 303, "/hook", false},
		{"another host", 307, e.server.URL + "/hook", false},
		{"round and round", 307, "/", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var own *endpoint
			mux := http.NewServeMux()
			mux.HandleFunc("/hook", func(w http.ResponseWriter, r *http.Request) { own.ServeHTTP(w, r) })
			mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, c.to, c.code) })
			server := httptest.NewServer(mux)
			defer server.Close()
			own = &endpoint{}
			err := deliver(t, open(t, Config{URL: server.URL}), sinktest.Rows("t", 1, 1)[0])
			if (err == nil) != c.taken || c.taken != (len(own.received(t)) == 1) {
				t.Errorf("%v, %d received", err, len(own.received(t)))
			}
			if errors.Is(err, outbox.ErrPermanent) {
				t.Errorf("a message is given up over a redirect: %v", err)
			}
		})
	}
	if n := len(e.received(t)); n != 0 {
		t.Errorf("%d messages went to another host", n)
	}
}

// TestGarbage checks a peer that does not speak HTTP, or hangs up: the message may be the cause.
func TestGarbage(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"garbage": "SSH-2.0-OpenSSH_9.2\r\n", "hang-up": "", "cut head": "HTTP/1.1 200 OK\r\nContent-Le",
		"endless head": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						_, _ = http.ReadRequest(bufio.NewReader(conn))
						_, _ = io.WriteString(conn, answer)
						_ = conn.Close()
					}()
				}
			}()
			err = deliver(t, open(t, Config{URL: "http://" + l.Addr().String()}), sinktest.Rows("t", 1, 1)[0])
			if err == nil || errors.Is(err, outbox.ErrPermanent) || errors.Is(err, outbox.ErrSinkDown) {
				t.Errorf("%v, want an error worth another attempt", err)
			}
		})
	}
}

// TestEndlessBody checks an answer whose body never ends: the status is enough.
func TestEndlessBody(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	if err := deliver(t, open(t, Config{URL: server.URL}), sinktest.Rows("t", 1, 1)[0]); err != nil {
		t.Error(err)
	}
}

func TestTimeoutNamesTheReceiver(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	row := sinktest.Rows("t", 1, 1)[0]
	e.fail(t, sinktest.Hang, []uuid.UUID{row.ID})
	err := deliver(t, open(t, Config{URL: e.server.URL, Timeout: 50 * time.Millisecond}), row)
	if err == nil || !strings.Contains(err.Error(), "the receiver did not answer within 50ms") || errors.Is(err, outbox.ErrSinkDown) {
		t.Error(err)
	}
}

// TestReceiverThatRepeatsCredentials: what a receiver says about a request is the cause that people see, without the
// credentials that it was sent.
func TestReceiverThatRepeatsCredentials(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		http.Error(w, fmt.Sprintf("not for %s %s %s %s %s", name, password, r.Header.Get("Authorization"), r.Header.Get("X-Key"), r.Header.Get("X-Login")), http.StatusNotFound)
	}))
	defer server.Close()
	for login, want := range map[string]string{
		"someone:hunt%20er2": "not for someone *** Basic *** ",
		"hunter2":            "not for *** Basic *** ", // the name is a token
	} {
		err := deliver(t, open(t, Config{
			URL:     strings.Replace(server.URL, "http://", "http://"+login+"@", 1),
			Headers: map[string]sink.Secret{"X-Key": "key of hunter2", "X-Login": "Bearer hunter2"},
		}), sinktest.Rows("t", 1, 1)[0])
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunt") {
			t.Errorf("%v, want … %s", err, want)
		}
	}
}

// TestReceiverThatRepeatsTheURL: many receivers know their callers by a token in path or query. What they say about it is
// hidden, too.
func TestReceiverThatRepeatsTheURL(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		segments := strings.Split(r.URL.Path, "/")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, "no %s or %s, not in v1, nor %s; %s", r.URL.Path, r.RequestURI, segments[len(segments)-1], r.URL.Query().Get("code"))
	}))
	defer server.Close()
	for path, want := range map[string]string{
		"/v1/hunter2hunter2":                  "no *** or ***, not in v1, nor ***; ",
		"/v1/hunt%20er2hunter2":               "no *** or ***, not in v1, nor ***; ",
		"/v1?code=hunter2hunter2&v=1":         "no /v1 or /v1?***, not in v1, nor v1; ***",
		"/v1?code=hunt%2Ber2+hunter2":         "no /v1 or /v1?***, not in v1, nor v1; ***",
		"/v1/hunter2hunter2/{topic}?v=1":      "no ***orders or ***orders?v=1, not in v1, nor orders; ",
		"/v1/{topic}-hunter2hunter2":          "no /v1/orders*** or /v1/orders***, not in v1, nor orders***; ",
		"/v1?code={topic}-hunter2hunter2&v=1": "no /v1 or /v1?code=orders***, not in v1, nor v1; orders***",
		"/hunter2hunter2hunter2/hunter2":      "no *** or ***, not in v1, nor hunter2; ",
	} {
		err := deliver(t, open(t, Config{URL: server.URL + path}), sinktest.Rows("orders", 1, 1)[0])
		if err == nil || !strings.HasSuffix(err.Error(), ": "+want) && !strings.HasSuffix(err.Error(), ": "+strings.TrimSpace(want)) {
			t.Errorf("%s: %v, want … %s", path, err, want)
		}
	}
}

// TestCauseNamesTheHost checks that a cause names the host of the receiver even if a part of its path has the same name.
func TestCauseNamesTheHost(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "unknown")
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	err := deliver(t, open(t, Config{URL: server.URL + "/127.0.0.1/hooks"}), sinktest.Rows("orders", 1, 1)[0])
	if err == nil || !strings.HasSuffix(err.Error(), host+" answered 404 Not Found: unknown") {
		t.Errorf("%v, want … %s answered 404 Not Found: unknown", err, host)
	}
}

func TestNewReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{
		"must begin with http://":   {URL: "ftp://u:hunter2@x"},
		"url must":                  {},
		"url does not parse":        {URL: "http://[::1"},
		"mode is \"xml\"":           {URL: "http://x", Mode: "xml"},
		"secrets[0] is not":         {URL: "http://x", Secrets: []sink.Secret{"whsec_hunter2!"}},
		"24 to 64 bytes":            {URL: "http://x", Secrets: []sink.Secret{"aHVudGVyMg=="}},
		"down_on: 200":              {URL: "http://x", DownOn: []int{200}},
		"must not be negative":      {URL: "http://x", Timeout: -1},
		"read tls.ca":               {URL: "https://x", TLS: sink.TLS{CA: "/does/not/exist"}},
		"read tls.cert and tls.key": {URL: "https://x", TLS: sink.TLS{Cert: "/does/not/exist"}},
	} {
		_, err := New(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want …%s…", err, want)
		}
	}
}
