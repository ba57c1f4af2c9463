package api_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"github.com/emitd/emitd/internal/queue/wire/osqueuev1"
	"github.com/emitd/emitd/internal/queue/wire/osqueuev1/osqueuev1connect"
	"github.com/emitd/emitd/internal/queue/wire/queuev1"
	"github.com/emitd/emitd/internal/queue/wire/queuev1/queuev1connect"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
)

// listen serves h on a port, with HTTP/2 without TLS.
func listen(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = api.Protocols()
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// h2c is a client that speaks HTTP/2 without TLS.
func h2c(t *testing.T) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: p}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// everyProtocol runs a test over Connect, gRPC and gRPC-Web, in protobuf and JSON.
func everyProtocol(t *testing.T, f func(t *testing.T, c *http.Client, o []connect.ClientOption)) {
	t.Helper()
	for name, p := range map[string]struct {
		http *http.Client
		o    []connect.ClientOption
	}{
		"connect":       {&http.Client{}, nil},
		"connect json":  {&http.Client{}, []connect.ClientOption{connect.WithProtoJSON()}},
		"connect http2": {h2c(t), nil},
		"grpc":          {h2c(t), []connect.ClientOption{connect.WithGRPC()}},
		"grpc-web":      {&http.Client{}, []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, p.http, p.o)
		})
	}
}

// wantCode fails unless err is of the code and names the tag in text, header and details.
func wantCode(t *testing.T, err error, code connect.Code, tag queue.Tag) {
	t.Helper()
	e, ok := errors.AsType[*connect.Error](err)
	if !ok || e.Code() != code {
		t.Errorf("%v, want %v", err, code)
		return
	}
	if got := e.Meta().Get("Emitd-Tag"); got != string(tag) || !strings.Contains(e.Message(), string(tag)) {
		t.Errorf("tag %q in %q, want %s", got, e.Message(), tag)
	}
	for _, d := range e.Details() {
		if v, err := d.Value(); err == nil {
			if r, ok := v.(*queuev1.Refusal); ok && r.GetTag() == string(tag) && r.GetHint() != "" {
				return
			}
		}
	}
	t.Errorf("no refusal in the details of %v", e)
}

// TestConnectOsqueue sends osqueue's messages over every protocol.
func TestConnectOsqueue(t *testing.T) {
	t.Parallel()
	everyProtocol(t, func(t *testing.T, hc *http.Client, o []connect.ClientOption) {
		h, _ := newAPI(t, api.Options{})
		c := osqueuev1connect.NewQueueServiceClient(hc, listen(t, h).URL, o...)
		ctx := t.Context()
		three := int32(3)
		sub, err := c.SubmitJob(ctx, connect.NewRequest(&osqueuev1.SubmitJobRequest{Payload: []byte(`{"a":1}`), MaxAttempts: &three, Type: "t"}))
		if err != nil || sub.Msg.GetJobId() != "job-1" {
			t.Fatalf("%v %v", sub, err)
		}
		none, err := c.ClaimJob(ctx, connect.NewRequest(&osqueuev1.ClaimJobRequest{WorkerId: "w", Types: []string{"other"}}))
		if err != nil || none.Msg.JobId != nil || none.Msg.Payload != nil {
			t.Fatalf("%v %v", none, err)
		}
		cl, err := c.ClaimJob(ctx, connect.NewRequest(&osqueuev1.ClaimJobRequest{WorkerId: "w", Types: []string{"t"}}))
		if err != nil || cl.Msg.GetJobId() != "job-1" || string(cl.Msg.GetPayload()) != `{"a":1}` || cl.Msg.GetType() != "t" {
			t.Fatalf("%v %v", cl, err)
		}
		if _, err := c.Heartbeat(ctx, connect.NewRequest(&osqueuev1.HeartbeatRequest{JobId: "job-1", WorkerId: "w"})); err != nil {
			t.Error(err)
		}
		st, err := c.GetStats(ctx, connect.NewRequest(&osqueuev1.GetStatsRequest{}))
		if err != nil || st.Msg.GetTotal() != 1 || st.Msg.GetInProgress() != 1 || st.Msg.GetBrokerAddress() == "" {
			t.Errorf("%v %v", st, err)
		}
		ls, err := c.ListJobs(ctx, connect.NewRequest(&osqueuev1.ListJobsRequest{}))
		if err != nil || len(ls.Msg.GetJobs()) != 1 {
			t.Fatalf("%v %v", ls, err)
		}
		if j := ls.Msg.GetJobs()[0]; j.GetStatus() != "in_progress" || j.GetWorkerId() != "w" || j.GetMaxAttempts() != 3 ||
			j.GetHeartbeat() < j.GetCreatedAt() || string(j.GetPayload()) != `{"a":1}` {
			t.Errorf("%v", j)
		}
		if _, err := c.CompleteJob(ctx, connect.NewRequest(&osqueuev1.CompleteJobRequest{JobId: "job-1", WorkerId: "w"})); err != nil {
			t.Error(err)
		}

		_, err = c.CompleteJob(ctx, connect.NewRequest(&osqueuev1.CompleteJobRequest{JobId: "job-1", WorkerId: "other"}))
		wantCode(t, err, connect.CodeAborted, queue.StaleClaim)
		_, err = c.Heartbeat(ctx, connect.NewRequest(&osqueuev1.HeartbeatRequest{JobId: "job-1", WorkerId: "w"}))
		wantCode(t, err, connect.CodeAborted, queue.StaleClaim)
		_, err = c.Heartbeat(ctx, connect.NewRequest(&osqueuev1.HeartbeatRequest{JobId: "none", WorkerId: "w"}))
		wantCode(t, err, connect.CodeNotFound, queue.JobNotFound)
		_, err = c.ClaimJob(ctx, connect.NewRequest(&osqueuev1.ClaimJobRequest{}))
		wantCode(t, err, connect.CodeInvalidArgument, queue.BadRequest)
		minus := int32(-5)
		_, err = c.SubmitJob(ctx, connect.NewRequest(&osqueuev1.SubmitJobRequest{Payload: []byte(`1`), MaxAttempts: &minus}))
		wantCode(t, err, connect.CodeInvalidArgument, queue.BadRequest)
		_, err = c.SubmitJob(ctx, connect.NewRequest(&osqueuev1.SubmitJobRequest{Payload: []byte(`{`)}))
		wantCode(t, err, connect.CodeInvalidArgument, queue.BadRequest)
		_, err = c.SubmitJob(ctx, connect.NewRequest(&osqueuev1.SubmitJobRequest{}))
		wantCode(t, err, connect.CodeInvalidArgument, queue.BadRequest)
	})
}

// TestConnectBatches sends the own service's messages over every protocol.
func TestConnectBatches(t *testing.T) {
	t.Parallel()
	everyProtocol(t, func(t *testing.T, hc *http.Client, o []connect.ClientOption) {
		h, _ := newAPI(t, api.Options{})
		c := queuev1connect.NewQueueServiceClient(hc, listen(t, h).URL, o...)
		ctx := t.Context()
		jobs := []*queuev1.Job{{Id: "a", Payload: []byte{0, 255}}, {Id: "b", Priority: -128}}
		en, err := c.Enqueue(ctx, connect.NewRequest(&queuev1.EnqueueRequest{Queue: "q", Jobs: jobs}))
		if err != nil || len(en.Msg.GetJobs()) != 2 || en.Msg.GetJobs()[0].GetState() != queuev1.State_STATE_WAITING {
			t.Fatalf("%v %v", en, err)
		}
		cl, err := c.Claim(ctx, connect.NewRequest(&queuev1.ClaimRequest{Queue: "q", Max: 5}))
		if err != nil || len(cl.Msg.GetJobs()) != 2 || string(cl.Msg.GetJobs()[0].GetPayload()) != "\x00\xff" {
			t.Fatalf("%v %v", cl, err)
		}
		se, err := c.Settle(ctx, connect.NewRequest(&queuev1.SettleRequest{Queue: "q", Settlements: []*queuev1.Settlement{
			{Verb: queuev1.Verb_VERB_COMPLETE, Id: "a", Token: cl.Msg.GetJobs()[0].GetToken()},
			{Verb: queuev1.Verb_VERB_COMPLETE, Id: "b", Token: "forged"},
		}}))
		if err != nil || se.Msg.GetOutcomes()[0].GetError() != nil || se.Msg.GetOutcomes()[1].GetError().GetTag() != string(queue.StaleClaim) {
			t.Fatalf("%v %v", se, err)
		}
		_, err = c.Enqueue(ctx, connect.NewRequest(&queuev1.EnqueueRequest{Queue: "No!", Jobs: jobs}))
		wantCode(t, err, connect.CodeInvalidArgument, queue.BadRequest)
		_, err = c.Enqueue(ctx, connect.NewRequest(&queuev1.EnqueueRequest{Jobs: make([]*queuev1.Job, 1001)}))
		wantCode(t, err, connect.CodeInvalidArgument, queue.TooManyJobs)
		_, err = c.Claim(ctx, connect.NewRequest(&queuev1.ClaimRequest{Max: -1}))
		wantCode(t, err, connect.CodeInvalidArgument, queue.BadRequest)
		_, err = c.Settle(ctx, connect.NewRequest(&queuev1.SettleRequest{Settlements: []*queuev1.Settlement{{Verb: 99, Id: "a", Token: "t"}}}))
		wantCode(t, err, connect.CodeInvalidArgument, queue.BadRequest)
	})
}

// TestConnectBadBodies: a body that cannot be decoded is a 4xx, as JSON with a code, and a refusal
// like any other, with tag, message, hint and details.
func TestConnectBadBodies(t *testing.T) {
	t.Parallel()
	h := limited(t, api.Limits{MaxBody: 1000})
	const path = "/osqueue.v1.QueueService/SubmitJob"
	for _, c := range []struct{ kind, body, contains string }{
		{"application/json", ``, "unexpected token"},
		{"application/json", `{`, "unexpected EOF"},
		{"application/json", `{"payload":`, "unexpected EOF"},
		{"application/json", `{"payload":"MQ==","unknown":1}`, `unknown field \"unknown\"`},
		{"application/json", `{"maxAttempts":"x"}`, "maxAttempts"},
		{"application/json", `[]`, "unexpected token"},
		{"application/json", `{"` + strings.Repeat("x", 900) + `":1}`, "unknown field"},
		{"application/proto", "\xff\xff\xff", "cannot parse"},
		{"text/plain", "hello", ""},
		{"application/json", `{"payload":"` + strings.Repeat("A", 4000) + `"}`, ""},
		{"application/proto", strings.Repeat("A", 4000), ""},
	} {
		a := send(h, "POST", path, c.body, "Content-Type", c.kind, "Connect-Protocol-Version", "1")
		if a.status < 400 || a.status > 499 {
			t.Errorf("%s %.40q: %d %s", c.kind, c.body, a.status, a.body)
		}
		if c.contains == "" {
			continue // refused by the protocol
		}
		e := detail(t, a.body)
		if a.status != 400 || a.header.Get("Emitd-Tag") != "BadRequest" || e.GetTag() != "BadRequest" || e.GetHint() == "" ||
			!strings.Contains(a.body, c.contains) || len(e.GetMessage()) > 400 {
			t.Errorf("%s %.40q: %d %v %s: %v", c.kind, c.body, a.status, a.header, a.body, e)
		}
	}
	a := send(h, "POST", path, "\x00\x00\x00\x00\x03\xff\xff\xff", "Content-Type", "application/grpc-web+proto")
	if all := a.body + fmt.Sprint(a.header); !strings.Contains(all, "BadRequest") || !strings.Contains(strings.ToLower(all), "grpc-status-details-bin") {
		t.Errorf("gRPC-Web: %q", all)
	}
	if a := send(h, "POST", path, "\x0a\x011\xfa\x01\x01x", "Content-Type", "application/proto"); a.status != 200 {
		t.Errorf("a field of newer clients: %d %s", a.status, a.body)
	}
	// A stale claim is also HTTP status 409, not only a code.
	a = send(h, "POST", "/osqueue.v1.QueueService/CompleteJob", `{"jobId":"job-1","workerId":"w"}`, "Content-Type", "application/json")
	if a.status != 409 || a.header.Get("Emitd-Tag") != "StaleClaim" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
}

// detail returns the refusal in the details of an error of Connect.
func detail(t *testing.T, body string) *queuev1.Refusal {
	t.Helper()
	var e struct {
		Details []struct{ Type, Value string }
	}
	out := &queuev1.Refusal{}
	if err := json.Unmarshal([]byte(body), &e); err != nil || len(e.Details) != 1 || e.Details[0].Type != "emitd.queue.v1.Refusal" {
		t.Fatalf("no refusal in %s: %v", body, err)
	}
	raw, err := base64.RawStdEncoding.DecodeString(e.Details[0].Value)
	if err == nil {
		err = proto.Unmarshal(raw, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// socket opens a WebSocket.
func socket(t testing.TB, url string, h http.Header) (*websocket.Conn, error) {
	t.Helper()
	c, resp, err := websocket.Dial(t.Context(), strings.Replace(url, "http", "ws", 1)+"/v1/ws", &websocket.DialOptions{HTTPHeader: h})
	if err != nil {
		if resp == nil {
			return nil, err
		}
		body, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("%d %s: %w", resp.StatusCode, body, err)
	}
	t.Cleanup(func() { c.CloseNow() })
	return c, nil
}

// roundTrip sends a text and returns the answer.
func roundTrip(t *testing.T, c *websocket.Conn, text string) string {
	t.Helper()
	if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
	_, out, err := c.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestWebSocketOsqueue compares osqueue's messages and the answers that its client reads, byte by
// byte.
func TestWebSocketOsqueue(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	c, err := socket(t, listen(t, h).URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ send, answer string }{
		{`{"id":"1","method":"submitJob","params":{"type":"t","payload":{"a":"<b>"},"maxAttempts":2}}`, `{"id":"1","ok":true,"result":{"jobId":"job-1"}}`},
		{`{"id":"2","method":"claimJob","params":{"workerId":"w","types":["no"]}}`, `{"id":"2","ok":true,"result":{}}`},
		{`{"id":"3","method":"claimJob","params":{"workerId":"w","types":["t"]}}`, `{"id":"3","ok":true,"result":{"jobId":"job-1","payload":{"a":"<b>"},"type":"t"}}`},
		{`{"id":4,"method":"heartbeat","params":{"jobId":"job-1","workerId":"w"}}`, `{"id":4,"ok":true,"result":{}}`},
		{`{"id":"5","method":"getStats","params":{}}`, `{"id":"5","ok":true,"result":{"total":1,"unclaimed":0,"inProgress":1,"completedTotal":0,"brokerAddress":"127.0.0.1:7070"}}`},
		{`{"id":"6","method":"completeJob","params":{"jobId":"job-1","workerId":"w"}}`, `{"id":"6","ok":true,"result":{}}`},
		{`{"id":"7","method":"listJobs"}`, `{"id":"7","ok":true,"result":{"total":0,"unclaimed":0,"inProgress":0,"completedTotal":1,"brokerAddress":"127.0.0.1:7070","jobs":[],"truncated":false}}`},
	} {
		if got := roundTrip(t, c, s.send); got != s.answer {
			t.Errorf("%s:\n got %s\nwant %s", s.send, got, s.answer)
		}
	}
	for _, s := range []struct {
		send, id string
		status   int
		tag      queue.Tag
	}{
		{`{"id":"a","method":"completeJob","params":{"jobId":"job-1","workerId":"x"}}`, `"a"`, 409, queue.StaleClaim},
		{`{"id":"b","method":"heartbeat","params":{"jobId":"job-1","workerId":"w"}}`, `"b"`, 409, queue.StaleClaim},
		{`{"id":"c","method":"heartbeat","params":{"jobId":"job-1"}}`, `"c"`, 400, queue.BadRequest},
		{`{"id":"d","method":"submitJob","params":{}}`, `"d"`, 400, queue.BadRequest},
		{`{"id":"e","method":"submitJob","params":{"payload":1,"maxAttempts":-5}}`, `"e"`, 400, queue.BadRequest},
		{`{"id":"f","method":"submitJob","params":[]}`, `"f"`, 400, queue.BadRequest},
		{`{"id":"g","method":"claimJob","params":{"workerId":"w","types":"t"}}`, `"g"`, 400, queue.BadRequest},
		{`{"id":"h","method":"explode"}`, `"h"`, 400, queue.BadRequest},
		{`{"id":null}`, `null`, 400, queue.BadRequest},
		{`no json`, `null`, 400, queue.BadRequest},
		{`{"id":"` + strings.Repeat("i", 300) + `","method":"getStats"}`, `null`, 400, queue.BadRequest},
	} {
		var got struct {
			ID    json.RawMessage `json:"id"`
			OK    bool            `json:"ok"`
			Error struct {
				Tag     queue.Tag `json:"_tag"`
				Message string    `json:"message"`
				Status  int       `json:"status"`
			} `json:"error"`
		}
		text := roundTrip(t, c, s.send)
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.OK || string(got.ID) != s.id ||
			got.Error.Tag != s.tag || got.Error.Status != s.status || got.Error.Message == "" {
			t.Errorf("%.80s: %s %v", s.send, text, err)
		}
	}
}

// TestWebSocketOrigins: a page of another origin gets no WebSocket.
func TestWebSocketOrigins(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{Origins: []string{"https://good.example.org"}})
	url := listen(t, h).URL
	if _, err := socket(t, url, http.Header{"Origin": {"https://evil.example.org"}}); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("%v", err)
	}
	for _, origin := range []string{"https://good.example.org", url} {
		if _, err := socket(t, url, http.Header{"Origin": {origin}}); err != nil {
			t.Errorf("%s: %v", origin, err)
		}
	}
}

// TestWebSocketEndsWithTheServer: Shutdown closes the WebSockets and accepts no new ones.
func TestWebSocketEndsWithTheServer(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	url := listen(t, h).URL
	c, err := socket(t, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, c, `{"id":1,"method":"getStats"}`)
	go func() { // the client's side of the closing handshake
		for {
			if _, _, err := c.Read(context.Background()); err != nil {
				return
			}
		}
	}()
	if err := h.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c, err := socket(t, url, nil); err == nil {
		if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusGoingAway {
			t.Errorf("%v", err)
		}
	}
}

// nodes is the locator of forwarders: where the brokers are.
type nodes struct {
	addr string
	err  error
}

func (n *nodes) Broker(context.Context, string, int) (string, int64, error) { return n.addr, 7, n.err }

// node runs an API over a forwarder, and records the headers of incoming calls.
func node(t *testing.T, local queue.Service, where *nodes) (*httptest.Server, *atomic.Pointer[http.Header]) {
	t.Helper()
	seen := new(atomic.Pointer[http.Header])
	var h http.Handler
	s := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { seen.Store(&r.Header); h.ServeHTTP(w, r) }))
	f, err := api.NewForwarder(api.ForwarderConfig{Locator: where, Self: s.Listener.Addr().String(), Local: local})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if h, err = api.New(f, api.Options{}); err != nil {
		t.Fatal(err)
	}
	return s, seen
}

// TestForwarding: any node answers, on every transport, by calling the broker's node once.
func TestForwarding(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	where := &nodes{}
	broker, seen := node(t, q, where)
	where.addr = broker.Listener.Addr().String()
	other, _ := node(t, nil, where)

	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, other.URL+"/v1/jobs", strings.NewReader(`{"payload":1,"type":"t"}`))
	r.Header.Set("Authorization", "Bearer of-the-caller")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(body) != `{"jobId":"job-1"}` {
		t.Fatalf("%s", body)
	}
	if got := *seen.Load(); got.Get("Emitd-Forwarded") != "7" || got.Get("Authorization") != "Bearer of-the-caller" {
		t.Errorf("%v", got)
	}

	c, err := socket(t, other.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := roundTrip(t, c, `{"id":1,"method":"claimJob","params":{"workerId":"w"}}`); !strings.Contains(got, `"job-1"`) {
		t.Error(got)
	}
	rpc := osqueuev1connect.NewQueueServiceClient(h2c(t), other.URL, connect.WithGRPC())
	_, err = rpc.CompleteJob(t.Context(), connect.NewRequest(&osqueuev1.CompleteJobRequest{JobId: "job-1", WorkerId: "x"}))
	wantCode(t, err, connect.CodeAborted, queue.StaleClaim)
	if _, err = rpc.CompleteJob(t.Context(), connect.NewRequest(&osqueuev1.CompleteJobRequest{JobId: "job-1", WorkerId: "w"})); err != nil {
		t.Error(err)
	}
}

// TestForwardingIsOneHop: two nodes that each take the other for the broker do not forward a call
// back and forth.
func TestForwardingIsOneHop(t *testing.T) {
	t.Parallel()
	toB, toA := &nodes{}, &nodes{}
	a, _ := node(t, nil, toB)
	b, _ := node(t, nil, toA)
	toB.addr, toA.addr = b.Listener.Addr().String(), a.Listener.Addr().String()
	resp, err := http.Post(a.URL+"/v1/jobs", "application/json", strings.NewReader(`{"payload":1}`)) // a test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), `"QueueUnavailable"`) || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if !strings.Contains(string(body), toA.addr) {
		t.Errorf("the holder is not named: %s", body)
	}
}

// TestForwardingWithoutABroker: without a broker the answer is 503, whatever the reason.
func TestForwardingWithoutABroker(t *testing.T) {
	t.Parallel()
	for _, where := range []*nodes{{}, {err: errors.New("no leader")}, {addr: "127.0.0.1:1"}} {
		f, err := api.NewForwarder(api.ForwarderConfig{Locator: where, Self: "me:1"})
		if err != nil {
			t.Fatal(err)
		}
		h, err := api.New(f, api.Options{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, send(h, "POST", "/v1/jobs", `{"payload":1}`), 503, queue.Unavailable)
		want(t, send(h, "POST", "/v1/jobs", `{"payload":1}`, "Emitd-Forwarded", "7"), 503, queue.Unavailable)
		f.Close()
	}
	gone, err := api.NewForwarder(api.ForwarderConfig{Locator: &nodes{err: queue.Refuse(queue.QueueNotFound, "no such queue")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Stats(t.Context(), "q"); queue.TagOf(err) != queue.QueueNotFound {
		t.Error(err)
	}
	// A broker that was replaced meanwhile counts as none.
	moved := queue.Refuse(queue.QueueNotOwner, "deposed")
	f, err := api.NewForwarder(api.ForwarderConfig{Locator: &nodes{addr: "next:1"}, Self: "me:1", Local: broken{err: moved}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := api.New(f, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := send(h, "POST", "/v1/jobs", `{"payload":1}`, "Emitd-Forwarded", "7")
	want(t, a, 503, queue.Unavailable)
	if a.field(t, "holder") != "next:1" {
		t.Error(a.body)
	}
}

// counting counts calls and breaks each connection.
type counting struct{ calls atomic.Int32 }

func (c *counting) ServeHTTP(http.ResponseWriter, *http.Request) {
	c.calls.Add(1)
	panic(http.ErrAbortHandler)
}

// TestForwardingRepeatsNothing: if the answer to a write without a key is lost, the caller must
// decide what to do.
func TestForwardingRepeatsNothing(t *testing.T) {
	t.Parallel()
	broker := &counting{}
	where := &nodes{addr: listen(t, broker).Listener.Addr().String()}
	other, _ := node(t, nil, where)
	resp, err := http.Post(other.URL+"/v1/jobs", "application/json", strings.NewReader(`{"payload":1}`)) // a test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "UnknownOutcome") || broker.calls.Load() != 1 {
		t.Errorf("%d calls: %d %s", broker.calls.Load(), resp.StatusCode, body)
	}
}

// TestLongPoll: a waiting claim is answered when a job comes, and empty when none does.
func TestLongPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, q := newAPI(t, api.Options{})
		begin := time.Now()
		if a := send(h, "POST", "/v1/queues/q/claim", `{"wait_ms":20000}`); a.body != `{"jobs":[]}` || time.Since(begin) != 20*time.Second {
			t.Errorf("%s after %v", a.body, time.Since(begin))
		}
		time.AfterFunc(5*time.Second, func() {
			if _, err := q.Enqueue(context.Background(), "q", []queue.Job{{ID: "late"}}); err != nil {
				t.Error(err)
			}
		})
		begin = time.Now()
		if a := send(h, "POST", "/v1/queues/q/claim", `{"wait_ms":20000}`); !strings.Contains(a.body, "late") || time.Since(begin) != 5*time.Second {
			t.Errorf("%s after %v", a.body, time.Since(begin))
		}
	})
}
