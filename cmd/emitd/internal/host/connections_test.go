package host

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/queue/api"
)

// TestConnectionsAreBounded checks that new connections replace idle ones, and are closed if all are
// busy.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	places := newConnections(l, places{connections: 2}, slog.New(slog.DiscardHandler))
	inside, leave, idle := make(chan struct{}), make(chan struct{}), make(chan struct{}, 16)
	note := func(c net.Conn, s http.ConnState) {
		places.note(c, s)
		if s == http.StateIdle {
			idle <- struct{}{}
		}
	}
	s := &http.Server{ConnState: note, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			inside <- struct{}{}
			<-leave
		}
		_, _ = io.WriteString(w, "ok")
	})}
	go func() { _ = s.Serve(places) }()
	defer s.Close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	closed := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, err := c.Read(make([]byte, 1))
		return err != nil
	}
	request := func(c net.Conn, path string) {
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path); err != nil {
			t.Error(err)
		}
	}
	answered := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	silent, busy := dial(), dial()
	request(busy, "/busy")
	<-inside
	third := dial() // replaces the idle one
	request(third, "/")
	if !closed(silent) || !answered(third) {
		t.Error("an idle connection kept its place")
	}
	<-idle           // a client can have its answer before the server has noted that the connection is idle
	fourth := dial() // replaces the third
	request(fourth, "/busy")
	<-inside
	if !closed(third) {
		t.Error("an idle connection kept its place")
	}
	if fifth := dial(); !closed(fifth) {
		t.Error("there was a place though all were busy")
	}
	close(leave)
	if !answered(busy) || !answered(fourth) {
		t.Error("a busy connection was closed")
	}
}

// TestNobodyKeepsOthersOut checks that an address whose busy connections fill the limit loses some to
// others, down to its share.
func TestNobodyKeepsOthersOut(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	places := newConnections(l, places{connections: 4}, slog.New(slog.DiscardHandler))
	from := func(ip string) (got bool) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		out := places.admit(server)
		if out == nil {
			server.Close()
			return false
		}
		places.note(out, http.StateHijacked) // a WebSocket
		return true
	}
	for i, c := range []struct {
		ip   string
		want bool
	}{
		{"127.0.0.2", true},
		{"127.0.0.2", true},
		{"127.0.0.2", true},
		{"127.0.0.2", true},
		{"127.0.0.2", false}, // it has all
		{"127.0.0.3", true},  // 3 and 1
		{"127.0.0.3", true},  // 2 and 2
		{"127.0.0.3", false},
		{"127.0.0.2", false},
		{"127.0.0.4", true}, // 2, 1 and 1
		{"127.0.0.4", false},
	} {
		if got := from(c.ip); got != c.want {
			t.Errorf("connection %d, from %s: let in: %v", i, c.ip, got)
		}
	}
	if len(places.open) != 4 {
		t.Errorf("%d places are taken", len(places.open))
	}
}

// TestCallLimits checks that the limits follow from the process's memory, unless they are configured.
func TestCallLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		api      config.API
		memory   int64
		places   places
		inFlight int64
	}{
		{config.API{}, 0, places{10_000, 0}, 256 << 20},
		{config.API{}, 256 << 20, places{1024, 64 << 10}, 32 << 20},
		{config.API{}, 16 << 20, places{64, 64 << 10}, 4 << 20},
		{config.API{}, 64 << 30, places{10_000, 1_717_986}, 256 << 20},
		{config.API{MaxConnections: 7, MaxInFlight: 8 << 20}, 256 << 20, places{7, 4 << 20}, 8 << 20},
	} {
		got, l := callLimits(c.api, c.memory)
		if got != c.places || l.MaxInFlight != c.inFlight || l.MaxCalls != got.connections {
			t.Errorf("%+v with %d bytes: %+v, %+v", c.api, c.memory, got, l)
		}
	}
}

// TestProbesAreAnsweredByABusyNode checks that a node with as many calls as it may answer is still live.
func TestProbesAreAnsweredByABusyNode(t *testing.T) {
	t.Parallel()
	limiter, err := api.NewLimiter(api.Limits{MaxCalls: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{limiter: limiter}
	if h.guard, err = newGuard(config.API{}, quiet); err != nil {
		t.Fatal(err)
	}
	inside, leave, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	limited := h.withLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			close(inside)
			<-leave
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	get := func(path string) int {
		w := httptest.NewRecorder()
		limited.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	go func() { defer close(ended); get("/busy") }()
	<-inside
	for path, want := range map[string]int{"/livez": 418, "/readyz": 418, "/metrics": 429, "/": 429} {
		if got := get(path); got != want {
			t.Errorf("%s of a busy node: %d, want %d", path, got, want)
		}
	}
	close(leave)
	<-ended
	if got := get("/metrics"); got != 418 {
		t.Errorf("afterwards: %d", got)
	}
}
