package api_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
)

func limiter(t *testing.T, l api.Limits) *api.Limiter {
	t.Helper()
	out, err := api.NewLimiter(l)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// limited serves a queue under limits.
func limited(t *testing.T, l api.Limits) *api.Handler {
	t.Helper()
	h, err := api.New(queuetest.New(), api.Options{Limiter: limiter(t, l)})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// grpcMessage returns a compressed message of a gRPC body.
func grpcMessage(packed string) string {
	head := []byte{1, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[1:], uint32(len(packed)))
	return string(head) + packed
}

const enqueuePath = "/emitd.queue.v1.QueueService/Enqueue"

// TestBodiesCountWhatTheyDecodeTo: a small body that decodes to a large one is refused with little
// memory: by its bytes and by its jobs. (Once, a body of 32 KB took 2.1 GB.) The test does not run
// in parallel with others, because it counts allocations.
func TestBodiesCountWhatTheyDecodeTo(t *testing.T) {
	const most = 1 << 20
	h := limited(t, api.Limits{MaxBody: most})
	jobs, many := strings.Repeat("\x12\x00", most/2-1), `{"jobs":[`+strings.Repeat(`{},`, most/3-8)+`{}]}`
	zeros := strings.Repeat("\x00", 64<<20)
	for name, c := range map[string]struct {
		path, kind, header, body string
		status                   int
		tag                      queue.Tag
	}{
		"jobs":               {enqueuePath, "application/proto", "", jobs, 400, queue.TooManyJobs},
		"compressed jobs":    {enqueuePath, "application/proto", "Content-Encoding", gzipped(t, jobs), 400, queue.TooManyJobs},
		"gRPC jobs":          {enqueuePath, "application/grpc-web+proto", "Grpc-Encoding", grpcMessage(gzipped(t, jobs)), 200, queue.TooManyJobs},
		"JSON jobs":          {"/v1/queues/q/jobs", "application/json", "", many, 400, queue.TooManyJobs},
		"compressed JSON":    {"/v1/queues/q/jobs", "application/json", "Content-Encoding", gzipped(t, many), 400, queue.TooManyJobs},
		"other case":         {"/v1/queues/q/jobs", "application/json", "", strings.Replace(many, "jobs", "jObs", 1), 400, queue.TooManyJobs},
		"escaped name":       {"/v1/queues/q/jobs", "application/json", "", strings.Replace(many, "jobs", `j\u006fbs`, 1), 400, queue.TooManyJobs},
		"protobuf as JSON":   {enqueuePath, "application/json", "", many, 400, queue.TooManyJobs},
		"settlements":        {"/v1/queues/q/settle", "application/json", "", strings.Replace(many, "jobs", "settlements", 1), 400, queue.TooManyJobs},
		"types":              {"/v1/queues/q/claim", "application/json", "", `{"types":[` + strings.Repeat(`"",`, most/4) + `""]}`, 400, queue.TooManyJobs},
		"types of osqueue":   {"/v1/jobs/claim", "application/json", "", `{"workerId":"w","types":[` + strings.Repeat(`"",`, most/4) + `""]}`, 400, queue.TooManyJobs},
		"ids":                {"/v1/queues/q/cancel", "application/json", "", `{"ids":[` + strings.Repeat(`"",`, most/4) + `""]}`, 400, queue.TooManyJobs},
		"zeros":              {enqueuePath, "application/proto", "Content-Encoding", gzipped(t, zeros), 400, queue.PayloadTooLarge},
		"gRPC zeros":         {enqueuePath, "application/grpc-web+proto", "Grpc-Encoding", grpcMessage(gzipped(t, zeros)), 200, queue.PayloadTooLarge},
		"JSON zeros":         {"/v1/jobs", "application/json", "Content-Encoding", gzipped(t, zeros), 413, queue.PayloadTooLarge},
		"no gzip":            {"/v1/jobs", "application/json", "Content-Encoding", "hello", 400, queue.BadRequest},
		"half of a gzip":     {"/v1/jobs", "application/json", "Content-Encoding", gzipped(t, `{"payload":1}`)[:20], 400, queue.BadRequest},
		"gRPC, no gzip":      {enqueuePath, "application/grpc-web+proto", "Grpc-Encoding", grpcMessage("hello"), 200, queue.BadRequest},
		"a compressed job":   {"/v1/jobs", "application/json", "Content-Encoding", gzipped(t, `{"payload":1}`), 200, ""},
		"a list as payload":  {"/v1/jobs", "application/json", "", `{"payload":[` + strings.Repeat("1,", 5000) + `1]}`, 200, ""},
		"a gRPC job":         {enqueuePath, "application/grpc-web+proto", "Grpc-Encoding", grpcMessage(gzipped(t, "\x12\x04\x0a\x02id")), 200, ""},
		"a plain gRPC job":   {enqueuePath, "application/grpc-web+proto", "Grpc-Encoding", "\x00\x00\x00\x00\x06\x12\x04\x0a\x02ie", 200, ""},
		"a Connect job":      {enqueuePath, "application/proto", "Content-Encoding", gzipped(t, "\x12\x04\x0a\x02if"), 200, ""},
		"1000 jobs":          {"/v1/queues/q/jobs", "application/json", "", `{"jobs":[` + strings.Repeat(`{},`, 999) + `{}]}`, 200, ""},
		"1000 protobuf jobs": {enqueuePath, "application/proto", "", strings.Repeat("\x12\x00", 1000), 200, ""},
	} {
		headers := []string{"Content-Type", c.kind}
		if c.header != "" {
			headers = append(headers, c.header, "gzip")
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a := send(h, "POST", c.path, c.body, headers...)
		runtime.ReadMemStats(&after)
		if a.status != c.status || c.tag != "" && !strings.Contains(a.body+a.header.Get("Emitd-Tag"), string(c.tag)) {
			t.Errorf("%s: %d %.300s %v, want %d %s", name, a.status, a.body, a.header, c.status, c.tag)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 24*most {
			t.Errorf("%s: %d bytes of body, %d of memory", name, len(c.body), took)
		}
	}
}

// TestFramesAreBounded: frames that never end are cut off when together they are too large. Small
// calls are answered meanwhile, and the memory is released.
func TestFramesAreBounded(t *testing.T) {
	t.Parallel()
	l := limiter(t, api.Limits{MaxBody: 1 << 20, MaxInFlight: 1 << 20})
	h, err := api.New(queuetest.New(), api.Options{Limiter: l})
	if err != nil {
		t.Fatal(err)
	}
	url := listen(t, h).URL
	unfinished := func() (*websocket.Conn, error) {
		c, err := socket(t, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.Writer(t.Context(), websocket.MessageText)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(bytes.Repeat([]byte(" "), 700<<10))
		return c, err
	}
	first, err := unfinished()
	if err != nil {
		t.Fatal(err)
	}
	defer first.CloseNow()
	eventually(t, "the first frame is held", func() bool { bytes, _ := l.InUse(); return bytes >= 600<<10 })
	second, err := unfinished()
	if err == nil {
		_, _, err = second.Read(t.Context())
	}
	if code := websocket.CloseStatus(err); code != websocket.StatusTryAgainLater && code != -1 { // -1: cut off in a write
		t.Errorf("the second frame ended with %v", err)
	}
	want(t, send(h, "POST", "/v1/jobs", `{"payload":1}`), 200, "")
	first.CloseNow()
	eventually(t, "everything was given back", func() bool { bytes, calls := l.InUse(); return bytes == 0 && calls == 0 })
}

// eventually waits for what other goroutines do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// TestCallsAreBounded: calls beyond MaxCalls are told to come back, on every transport.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	l := limiter(t, api.Limits{MaxCalls: 1})
	h, err := api.New(queuetest.New(), api.Options{Limiter: l})
	if err != nil {
		t.Fatal(err)
	}
	server := listen(t, h)
	c, err := socket(t, server.URL, nil) // is a call as long as it lasts
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	want(t, send(h, "GET", "/v1/stats", ""), 429, queue.QueueFull)
	if a := send(h, "POST", enqueuePath, "", "Content-Type", "application/proto"); a.header.Get("Emitd-Tag") != "QueueFull" {
		t.Errorf("rpc: %d %v %s", a.status, a.header, a.body)
	}
	if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"id":7,"method":"getStats"}`)); err != nil {
		t.Fatal(err)
	}
	_, text, err := c.Read(t.Context())
	if err != nil || !strings.Contains(string(text), "QueueFull") || !strings.Contains(string(text), `"id":7`) {
		t.Errorf("WebSocket: %s, %v", text, err)
	}
	c.CloseNow()
	eventually(t, "the call has ended", func() bool { _, calls := l.InUse(); return calls == 0 })
	want(t, send(h, "GET", "/v1/stats", ""), 200, "")
}

// TestSlowClientsAreCutOff: a body that stops or is very slow, and an answer that is not read or
// read by single bytes, hold memory for seconds and not for ever.
func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	body := `{"payload":"` + strings.Repeat("x", 8<<20)
	head := "POST /v1/jobs HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\n"
	for name, c := range map[string]struct {
		send  string
		then  func(t *testing.T, c net.Conn) // returns when the server has closed the connection
		least time.Duration
		most  time.Duration
	}{
		"a body that stops": {head + body[:1<<20], drain, 9 * time.Second, 15 * time.Second},
		"a body that crawls": {"", func(t *testing.T, c net.Conn) {
			t.Helper()
			go drain(t, c)
			if _, err := io.WriteString(c, head); err != nil {
				t.Error(err)
			}
			for i := 0; ; i++ {
				if _, err := io.WriteString(c, body[i:i+1]); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}, 29 * time.Second, 45 * time.Second},
		"an answer that nobody reads": {"GET /v1/queues/default/jobs/large HTTP/1.1\r\nHost: h\r\n\r\n", func(t *testing.T, c net.Conn) {
			t.Helper()
			time.Sleep(12 * time.Second)
			drain(t, c)
		}, 9 * time.Second, 15 * time.Second},
		"a small answer that nobody reads": {"GET /v1/stats HTTP/1.1\r\nHost: h\r\n\r\n", func(t *testing.T, c net.Conn) {
			t.Helper()
			time.Sleep(12 * time.Second)
			drain(t, c)
		}, 9 * time.Second, 15 * time.Second},
		"an answer that is read slowly": {"GET /v1/queues/default/jobs/large HTTP/1.1\r\nHost: h\r\n\r\n", func(t *testing.T, c net.Conn) {
			t.Helper()
			for b := make([]byte, 16<<10); ; time.Sleep(time.Second) {
				if _, err := c.Read(b); err != nil {
					return
				}
			}
		}, 29 * time.Second, 45 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := queuetest.New()
				if _, err := q.Enqueue(t.Context(), "default", []queue.Job{{ID: "large", Payload: make([]byte, 8<<20)}}); err != nil {
					t.Fatal(err)
				}
				l := limiter(t, api.Limits{})
				h, err := api.New(q, api.Options{Limiter: l, Logger: quiet})
				if err != nil {
					t.Fatal(err)
				}
				p := pipes{make(chan net.Conn), make(chan struct{})}
				s := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
				go func() { _ = s.Serve(p) }()
				defer s.Close()
				ours, theirs := net.Pipe()
				defer ours.Close()
				p.conns <- theirs
				began := time.Now()
				go func() { _, _ = io.WriteString(ours, c.send) }()
				c.then(t, ours)
				if took := time.Since(began); took < c.least || took > c.most {
					t.Errorf("it was cut off after %v, not %v to %v", took, c.least, c.most)
				}
				synctest.Wait()
				if bytes, calls := l.InUse(); bytes != 0 || calls != 0 {
					t.Errorf("%d bytes and %d calls are held", bytes, calls)
				}
			})
		})
	}
}

// TestPatientClientsAreNot: a long poll is answered even on a connection that had a body before,
// and later than the minimum speed of bodies would allow.
func TestPatientClientsAreNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, err := api.New(patient{}, api.Options{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		p := pipes{make(chan net.Conn), make(chan struct{})}
		s := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
		go func() { _ = s.Serve(p) }()
		defer s.Close()
		c := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			p.conns <- theirs
			return ours, nil
		}}}
		defer c.CloseIdleConnections()
		for range 3 {
			resp, err := c.Post("http://h/v1/queues/q/claim", "application/json", strings.NewReader(`{"wait_ms":60000}`))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("%d %s, %v", resp.StatusCode, text, err)
			}
		}
	})
}

// TestStreamsMayBeIdle: an answer that is sent piece by piece may be idle between two pieces for longer than the minimum
// speed would allow. A client that stops reading is cut off all the same.
func TestStreamsMayBeIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Duration, 2)
		h := limiter(t, api.Limits{}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			began := time.Now()
			for range 5 {
				time.Sleep(time.Minute)
				_, err := io.WriteString(w, "data: x\n\n")
				if err := errors.Join(err, http.NewResponseController(w).Flush()); err != nil {
					break
				}
			}
			ended <- time.Since(began)
		}), nil)
		p := pipes{make(chan net.Conn), make(chan struct{})}
		s := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
		go func() { _ = s.Serve(p) }()
		defer s.Close()
		open := func() net.Conn {
			ours, theirs := net.Pipe()
			p.conns <- theirs
			if _, err := io.WriteString(ours, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			return ours
		}
		c := open()
		defer c.Close()
		text, err := io.ReadAll(c)
		if n := bytes.Count(text, []byte("data: x")); err != nil || n != 5 || <-ended != 5*time.Minute {
			t.Errorf("%d of 5 pieces: %v", n, err)
		}
		stuck := open()
		defer stuck.Close()
		if _, err := io.ReadFull(stuck, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if took := <-ended; took > 2*time.Minute {
			t.Errorf("a client that reads nothing is cut off after %v", took)
		}
	})
}

// patient answers claims after ten minutes.
type patient struct{ hung }

func (patient) Claim(ctx context.Context, _ string, _ queue.ClaimRequest) ([]queue.Claimed, error) {
	select {
	case <-time.After(10 * time.Minute):
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func drain(t *testing.T, c net.Conn) {
	t.Helper()
	_, _ = io.Copy(io.Discard, c)
}

// pipes is a listener of connections without a network.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, errors.New("closed")
	}
}

func (p pipes) Close() error {
	close(p.closed)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestStreamsMayBeIdleOverHTTP2 does the same over HTTP/2, where a deadline ends a stream also while nothing is written to
// it.
func TestStreamsMayBeIdleOverHTTP2(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := limiter(t, api.Limits{}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for range 5 {
				_, err := io.WriteString(w, "data: x\n\n")
				if err := errors.Join(err, http.NewResponseController(w).Flush()); err != nil {
					return
				}
				select {
				case <-time.After(20 * time.Second): // longer than a stalled write may take
				case <-r.Context().Done():
					return
				}
			}
		}), nil)
		p := pipes{make(chan net.Conn), make(chan struct{})}
		s := &http.Server{Handler: h, ReadHeaderTimeout: time.Second, Protocols: new(http.Protocols)}
		s.Protocols.SetUnencryptedHTTP2(true)
		go func() { _ = s.Serve(p) }()
		defer s.Close()
		transport := &http.Transport{Protocols: s.Protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			p.conns <- theirs
			return ours, nil
		}}
		defer transport.CloseIdleConnections()
		answer, err := (&http.Client{Transport: transport}).Get("http://h/")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if n := bytes.Count(text, []byte("data: x")); err != nil || n != 5 || answer.ProtoMajor != 2 {
			t.Errorf("%s: %d of 5 pieces: %v", answer.Proto, n, err)
		}
	})
}
