package plaincall_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/plaincall"
)

// serve starts a server for h, with a Listener in front if plain is set. It returns the address.
func serve(t testing.TB, h http.Handler, plain bool) (string, *plaincall.Listener, *http.Server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	var front *plaincall.Listener
	if plain {
		front = plaincall.Listen(l, plaincall.Config{
			Handler: h, Path: func(path string) bool { return strings.HasPrefix(path, "/v1/") }, HeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		})
		go func() { _ = s.Serve(front) }()
	} else {
		go func() { _ = s.Serve(l) }()
	}
	t.Cleanup(func() {
		_ = s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = front.Shutdown(ctx)
	})
	return l.Addr().String(), front, s
}

// echo answers with all that it was asked, and in the header By with who asked it.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if fmt.Sprintf("%T", w) == "*plaincall.answer" {
		w.Header().Set("By", "plaincall")
	}
	w.Header().Set("Content-Type", "text/plain")
	if r.URL.Path == "/v1/nothing" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	fmt.Fprintf(w, "%s %s %s %s %q %q %d %v %v %q %v %v", r.Method, r.Host, r.URL, r.RequestURI, r.Proto, r.Header, r.ContentLength, r.TransferEncoding, r.Close, text, err, r.Trailer)
})

// exchange sends text over a new connection and returns the answers, without what differs by time, and who gave
// each of them. The sending side is closed afterwards.
func exchange(t testing.TB, address, text string) (answers string, by []string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		return err.Error(), nil
	}
	_ = c.(*net.TCPConn).CloseWrite()
	in := bufio.NewReader(c)
	var out strings.Builder
	for {
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			return out.String(), by
		}
		body, err := io.ReadAll(r.Body)
		by = append(by, r.Header.Get("By"))
		r.Header.Del("By")
		r.Header.Del("Date")
		fmt.Fprintf(&out, "%s %v %d %v %s %v\n", r.Status, r.Header, r.ContentLength, r.Close, body, err)
	}
}

const simple = "POST /v1/jobs HTTP/1.1\r\nHost: x:1\r\nContent-Type: a\r\ncontent-length: 2\r\n\r\n{}"

// calls are what callers may send, and how many of the answers are given by this package.
var calls = []struct {
	name, text string
	plain      int
}{
	{"simple", simple, 1},
	{"two at once", simple + simple, 2},
	{"no body", "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 1},
	{"no content", "POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 1},
	{"keep-alive", "POST /v1/x HTTP/1.1\r\nHost: [::1]:8080\r\nConnection: Keep-Alive\r\nuser-agent:  curl/8 (x; y) \r\nContent-Length: 1\r\n\r\nx", 1},
	{"a job in the path", "POST /v1/jobs/job-1_2.3~4:5/complete HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", 1},
	{"other path", strings.Replace(simple, "/v1/", "/v2/", 1), 0},
	{"plain, then a list", simple + "GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n" + simple, 1},
	{"query", strings.Replace(simple, "jobs", "jobs?a=b", 1), 0},
	{"escape", strings.Replace(simple, "jobs", "a%2Fb", 1), 0},
	{"dots", strings.Replace(simple, "jobs", "a/../b", 1), 0},
	{"two slashes", strings.Replace(simple, "jobs", "a//b", 1), 0},
	{"HTTP/1.0", strings.Replace(simple, "1.1", "1.0", 1), 0},
	{"no host", "POST /v1/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 0},
	{"two hosts", strings.Replace(simple, "Host: x:1", "Host: a\r\nHost: b", 1), 0},
	{"odd host", strings.Replace(simple, "x:1", "x y", 1), 0},
	{"two lengths", strings.Replace(simple, "Content-Type: a", "Content-Length: 1", 1), 0},
	{"length twice", strings.Replace(simple, "Content-Type: a", "Content-Length: 2", 1), 0},
	{"length with a sign", strings.Replace(simple, ": 2", ": +2", 1), 0},
	{"length with a zero", strings.Replace(simple, ": 2", ": 02", 1), 0},
	{"negative length", strings.Replace(simple, ": 2", ": -2", 1), 0},
	{"no length", "POST /v1/x HTTP/1.1\r\nHost: x\r\n\r\n", 0},
	{"chunked", "POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 0},
	{"chunked and a length", strings.Replace(simple, "Content-Type: a", "Transfer-Encoding: chunked", 1) + "\r\n0\r\n\r\n", 0},
	{"upgrade", strings.Replace(simple, "Content-Type: a", "Connection: Upgrade\r\nUpgrade: websocket", 1), 0},
	{"close", strings.Replace(simple, "Content-Type: a", "Connection: close", 1) + simple, 0},
	{"expect", strings.Replace(simple, "Content-Type: a", "Expect: 100-continue", 1), 0},
	{"folded", strings.Replace(simple, "Content-Type: a", "Content-Type: a\r\n b", 1), 0},
	{"no colon", strings.Replace(simple, "Content-Type: a", "Content-Type", 1), 0},
	{"space before the colon", strings.Replace(simple, "Content-Type:", "Content-Type :", 1), 0},
	{"control character", strings.Replace(simple, ": a", ": a\x01", 1), 0},
	{"bare line feeds", strings.ReplaceAll(simple, "\r\n", "\n"), 0},
	{"repeated header", strings.Replace(simple, "Content-Type: a", "A: 1\r\nA: 2", 1), 0},
	{"other bytes", strings.Replace(simple, "Content-Type: a", "Content-Type: é", 1), 0},
	{"cut head", simple[:30], 0},
	{"cut body", simple[:len(simple)-1], 0},
	{"plain, then cut", simple + simple[:len(simple)-1], 1},
	{"many headers", strings.Replace(simple, "Content-Type: a", strings.Repeat("A: b\r\n", 40)+"B: c", 1), 0},
	{"long head", strings.Replace(simple, ": a", ": "+strings.Repeat("a", 5000), 1), 0},
	{"long body", "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n" + strings.Repeat("x", 9999), 0},
	{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0},
	{"line breaks behind a body", simple + "\r\n" + simple + "\n\n", 2},
	{"many line breaks behind a body", simple + "\r\n\r\n\n" + simple, 1},
	{"empty lines first", "\r\n\r\n" + simple, 0},
	{"nothing", "", 0},
	{"garbage", "\x16\x03\x01\x02", 0},
}

// TestSameAnswers: whatever a caller sends, the answers are those of net/http alone; and the calls that shall be
// answered here are.
func TestSameAnswers(t *testing.T) {
	t.Parallel()
	with, _, _ := serve(t, echo, true)
	without, _, _ := serve(t, echo, false)
	for _, c := range calls {
		got, by := exchange(t, with, c.text)
		want, _ := exchange(t, without, c.text)
		if got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, want)
		}
		plain := 0
		for _, who := range by {
			if who == "plaincall" {
				plain++
			}
		}
		if plain != c.plain {
			t.Errorf("%s: %d of %d calls are answered here, want %d", c.name, plain, len(by), c.plain)
		}
	}
}

// served returns the answers that exchange returns, without a last refusal: whether net/http refuses the rest of a
// connection that has ended, or says nothing, depends on the moment at which it sees the end.
func served(t testing.TB, address, text string) string {
	t.Helper()
	answers, _ := exchange(t, address, text)
	before, _, _ := strings.Cut(answers, "400 Bad Request")
	return before
}

// TestMutatedCalls is TestSameAnswers for calls of which some bytes were changed, lost, repeated or taken from another.
func TestMutatedCalls(t *testing.T) {
	t.Parallel()
	with, _, _ := serve(t, echo, true)
	without, _, _ := serve(t, echo, false)
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 0))
		text := []byte(calls[random.IntN(len(calls))].text + simple)
		for range 1 + random.IntN(4) {
			at := random.IntN(len(text))
			to := min(len(text), at+random.IntN(8))
			switch random.IntN(4) {
			case 0:
				text[at] = byte(random.IntN(256))
			case 1:
				text = slices.Delete(text, at, to)
			case 2:
				text = slices.Insert(text, at, text[at:to]...)
			default:
				text = slices.Insert(text, at, []byte([]string{"\r\n", "\n", " ", ":", "0", "chunked", "Transfer-Encoding: chunked\r\n", "\t"}[random.IntN(8)])...)
			}
			if len(text) == 0 {
				break
			}
		}
		got, want := served(t, with, string(text)), served(t, without, string(text))
		if got != want {
			t.Errorf("seed %d: %q: got\n%s\nwant\n%s", seed, text, got, want)
		}
	}
}

// FuzzSameAnswers is TestSameAnswers for any bytes.
func FuzzSameAnswers(f *testing.F) {
	for _, c := range calls {
		f.Add([]byte(c.text))
	}
	with, _, _ := serve(f, echo, true)
	without, _, _ := serve(f, echo, false)
	f.Fuzz(func(t *testing.T, text []byte) {
		got, want := served(t, with, string(text)), served(t, without, string(text))
		if got != want {
			t.Errorf("%q: got\n%s\nwant\n%s", text, got, want)
		}
	})
}

// TestAnswers compares answers of all sizes and kinds with those of net/http.
func TestAnswers(t *testing.T) {
	t.Parallel()
	handlers := map[string]http.HandlerFunc{
		"nothing": func(http.ResponseWriter, *http.Request) {},
		"status":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"two statuses": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			w.WriteHeader(http.StatusOK)
		},
		"no type":           func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"line break":        func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("A", "b\r\nC: d") },
		"header twice":      func(w http.ResponseWriter, _ *http.Request) { w.Header()["A"] = []string{"1", "2"} },
		"a date of its own": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Date", "today") },
		"body of no body": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				panic(err)
			}
		},
		"large, declared": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "300000")
			for range 30 {
				_, _ = w.Write(bytes.Repeat([]byte("x"), 10_000))
			}
		},
		"too short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "300000")
			_, _ = w.Write(bytes.Repeat([]byte("x"), 200_000))
		},
		"close": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") },
	}
	for name, h := range handlers {
		with, _, _ := serve(t, h, true)
		without, _, _ := serve(t, h, false)
		got, _ := exchange(t, with, simple+simple)
		want, _ := exchange(t, without, simple+simple)
		if got != want {
			t.Errorf("%s: got\n%.2000s\nwant\n%.2000s", name, got, want)
		}
	}
	// A large answer of unknown length ends with its connection instead of being chunked.
	at, _, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 200_000))
	}), true)
	if got, _ := exchange(t, at, simple+simple); strings.Count(got, "x") < 200_000 || strings.Count(got, "200 OK") != 1 {
		t.Errorf("got %.300s", got)
	}
}

// TestCallsAreIndependent: a call has the headers that it was sent with, whatever handlers did to those of others.
func TestCallsAreIndependent(t *testing.T) {
	t.Parallel()
	at, _, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%v %s", r.Header, text)
		for k := range r.Header {
			r.Header[k][0] = "changed by a handler"
		}
		r.Header.Set("Added", "by a handler")
	}), true)
	got, _ := exchange(t, at, simple+simple+strings.Replace(simple, ": a", ": b", 1))
	lines := strings.Split(got, "\n")
	if len(lines) != 4 || lines[0] != lines[1] || strings.Contains(got, "handler") || !strings.Contains(lines[2], "Content-Type:[b]") {
		t.Error(got)
	}
}

// pipes is a listener whose connections are pipes in memory, for synctest.
type pipes struct {
	net.Listener
	conns chan net.Conn
}

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p.conns)
	return nil
}

// dial returns a connection to the listener.
func (p pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- far
	return near
}

// listenPipes puts a Listener in front of pipes.
func listenPipes(h http.Handler) (pipes, *plaincall.Listener) {
	p := pipes{conns: make(chan net.Conn)}
	return p, plaincall.Listen(p, plaincall.Config{
		Handler: h, Path: func(string) bool { return true }, HeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
	})
}

// TestCallerGone: the context of a call ends when its caller goes away.
func TestCallerGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		p, front := listenPipes(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			close(ended)
		}))
		defer front.Close()
		c := p.dial()
		_, _ = io.WriteString(c, simple)
		synctest.Wait()
		_ = c.Close()
		<-ended
	})
}

// TestContextEndsWithTheCall: what a handler has tied to its call's context ends with the call, although the connection
// goes on.
func TestContextEndsWithTheCall(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 2)
	at, _, _ := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { ended <- struct{}{} })
	}), true)
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for range 2 {
		_, _ = io.WriteString(c, simple)
		if _, err := http.ReadResponse(in, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("the context goes on")
		}
	}
}

// TestWatchedCall: a call that lasts for long is answered, and so is one that was sent meanwhile.
func TestWatchedCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p, front := listenPipes(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-release
			echo(w, r)
		}))
		defer front.Close()
		c := p.dial()
		defer c.Close()
		in := bufio.NewReader(c)
		for range 3 {
			_, _ = io.WriteString(c, simple)
			time.Sleep(90 * time.Second) // longer than an idle connection is kept
			_, _ = io.WriteString(c, simple)
			for range 2 {
				release <- struct{}{}
				r, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != http.StatusOK || r.Header.Get("By") != "plaincall" {
					t.Fatal(r.Status, r.Header, err)
				}
			}
			time.Sleep(50 * time.Second)
		}
	})
}

// TestIdle: a connection is closed that sends nothing for as long as the configuration says.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, front := listenPipes(echo)
		defer front.Close()
		c := p.dial()
		begun := time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || time.Since(begun) != 5*time.Second {
			t.Error(err, time.Since(begun))
		}
		c = p.dial()
		for range 5 {
			time.Sleep(4 * time.Second)
			_, _ = io.WriteString(c, simple)
			if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != http.StatusOK {
				t.Fatal(err)
			}
			begun = time.Now()
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || time.Since(begun) < 59*time.Second || time.Since(begun) > time.Minute {
			t.Error(err, time.Since(begun))
		}
	})
}

// TestShutdown: idle connections are closed; a call is answered, as the last of its connection.
func TestShutdown(t *testing.T) {
	t.Parallel()
	called, release := make(chan struct{}, 1), make(chan struct{})
	at, front, s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called <- struct{}{}
		<-release
		echo(w, r)
	}), true)
	idle, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	answers := make(chan string)
	go func() {
		got, _ := exchange(t, at, simple)
		answers <- got
	}()
	<-called
	ended := make(chan error, 2)
	go func() { ended <- s.Shutdown(t.Context()) }()
	go func() { ended <- front.Shutdown(t.Context()) }()
	if n, err := idle.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d %v", n, err)
	}
	close(release)
	if got := <-answers; !strings.Contains(got, "200 OK") || !strings.Contains(got, " true POST") {
		t.Error(got)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestPanic: a handler that panics costs its connection, and nothing else.
func TestPanic(t *testing.T) {
	t.Parallel()
	at, _, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/panic" {
			panic("on purpose")
		}
		echo(w, r)
	}), true)
	if got, _ := exchange(t, at, strings.Replace(simple, "jobs", "panic", 1)+simple); got != "" {
		t.Error(got)
	}
	if got, _ := exchange(t, at, simple); !strings.Contains(got, "200 OK") {
		t.Error(got)
	}
}

// TestDeafCaller: an answer ends by the deadline that its handler has set.
func TestDeafCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan error, 1)
		p, front := listenPipes(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Error(err)
			}
			w.Header().Set("Content-Length", "1000000")
			_, err := w.Write(make([]byte, 1_000_000))
			failed <- err
		}))
		defer front.Close()
		c := p.dial()
		defer c.Close()
		_, _ = io.WriteString(c, simple)
		begun := time.Now()
		var timeout net.Error
		if err := <-failed; !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(begun) > 11*time.Second {
			t.Error(err, time.Since(begun))
		}
	})
}

// TestStates: a connection is reported as net/http reports it.
func TestStates(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	states := make(chan http.ConnState, 20)
	front := plaincall.Listen(l, plaincall.Config{
		Handler: echo, Path: func(string) bool { return true }, HeaderTimeout: time.Minute, IdleTimeout: time.Minute,
		State: func(_ net.Conn, s http.ConnState) { states <- s },
	})
	defer front.Close()
	_, _ = exchange(t, l.Addr().String(), simple+simple)
	var got []http.ConnState
	for len(got) == 0 || got[len(got)-1] != http.StateClosed {
		got = append(got, <-states)
	}
	want := []http.ConnState{http.StateNew, http.StateActive, http.StateIdle, http.StateActive, http.StateIdle, http.StateClosed}
	if !reflect.DeepEqual(got, want) {
		t.Error(got)
	}
}
