package hostile

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// attacks are the hostile clients. Most of them have the token, because the limits must also hold for
// authorized clients.
type attacks struct {
	n *server

	mu      sync.Mutex
	rounds  map[string]int
	answers map[string]map[string]int // counts by attack and answer

	bombs []bomb
}

// bomb is a compressed body that expands to a large one.
type bomb struct {
	path, kind, header string
	body               []byte
}

const enqueuePath = "/emitd.queue.v1.QueueService/Enqueue"

func newAttacks(n *server) *attacks {
	a := &attacks{n: n, rounds: map[string]int{}, answers: map[string]map[string]int{}}
	jobs := squeeze(bytes.Repeat([]byte("\x12\x00"), 16<<20-1))
	list := squeeze([]byte(`{"jobs":[` + strings.Repeat(`{},`, 10<<20) + `{}]}`))
	zeros := squeeze(make([]byte, 256<<20))
	head := []byte{1, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[1:], uint32(len(jobs)))
	a.bombs = []bomb{
		{enqueuePath, "application/proto", "Content-Encoding", jobs},
		{enqueuePath, "application/grpc-web+proto", "Grpc-Encoding", append(head, jobs...)},
		{enqueuePath, "application/json", "Content-Encoding", list},
		{"/v1/queues/default/jobs", "application/json", "Content-Encoding", list},
		{enqueuePath, "application/proto", "Content-Encoding", zeros},
		{"/v1/jobs", "application/json", "Content-Encoding", zeros},
	}
	return a
}

func squeeze(text []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(text) // into memory
	_ = z.Close()
	return b.Bytes()
}

// kinds returns the attacks by name; each is repeated until the drill ends.
func (a *attacks) kinds() map[string]func(ctx context.Context) {
	return map[string]func(ctx context.Context){
		"gzip bombs":            a.bomb,
		"unfinished frames":     a.frames,
		"readers of nothing":    a.unread,
		"slowloris":             a.slowloris,
		"half-open TLS":         a.halfOpen,
		"random bytes":          a.random,
		"big headers":           a.bigHeaders,
		"connections":           a.connections,
		"large bodies":          a.largeBodies,
		"crawling bodies":       a.crawl,
		"long polls":            a.longPolls,
		"wrong tokens":          a.wrongToken,
		"answers in a pipeline": a.pipeline,
		"shards":                a.shards,
		"queues without end":    a.queues,
	}
}

// between is the pause after each round, because the clients use the processor of the machine that they
// attack.
const between = 2 * time.Second

func (a *attacks) repeat(ctx context.Context, name string, attack func(ctx context.Context)) {
	for ctx.Err() == nil {
		a.mu.Lock()
		a.rounds[name]++
		a.mu.Unlock()
		attack(ctx)
		wait(ctx, between)
	}
}

// wait pauses for d, which is part of the attack.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (a *attacks) answer(attack, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answers[attack] == nil {
		a.answers[attack] = map[string]int{}
	}
	a.answers[attack][text]++
}

func (a *attacks) counts() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]int{}
	for name := range a.kinds() {
		out[name] = a.rounds[name]
	}
	return out
}

// String returns the attacks made and the answers.
func (a *attacks) String() string {
	var b strings.Builder
	counts := a.counts()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "hostile %-22s rounds %5d %v\n", name, counts[name], a.answers[name])
	}
	return b.String()
}

// plain connects without TLS.
func (a *attacks) plain(ctx context.Context) net.Conn {
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", a.n.address)
	if err != nil {
		return nil
	}
	return c
}

// dial connects with TLS; nil if that fails.
func (a *attacks) dial(ctx context.Context) net.Conn {
	c, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second}, Config: a.n.tls()}).DialContext(ctx, "tcp", a.n.address)
	if err != nil {
		return nil
	}
	return c
}

// each opens a number of connections at once, and calls do with each before it closes it.
func (a *attacks) each(ctx context.Context, times int, dial func(context.Context) net.Conn, do func(c net.Conn)) {
	var all sync.WaitGroup
	for range times {
		all.Go(func() {
			c := dial(ctx)
			if c == nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			defer c.Close()
			do(c)
		})
	}
	all.Wait()
}

// head returns the head of an HTTP request.
func head(method, path string, more ...string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: target\r\nAuthorization: Bearer " + token + "\r\n" + strings.Join(append(more, ""), "\r\n") + "\r\n"
}

func (a *attacks) http() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: a.n.tls(), DisableKeepAlives: true}, Timeout: 30 * time.Second}
}

// send makes a call and records its answer.
func (a *attacks) send(ctx context.Context, attack, path string, body io.Reader, headers ...string) {
	a.sendAs(ctx, attack, http.MethodPost, path, body, headers...)
}

func (a *attacks) sendAs(ctx context.Context, attack, method, path string, body io.Reader, headers ...string) {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+a.n.address+path, body)
	if err != nil {
		return
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := a.http().Do(r)
	if err != nil {
		a.answer(attack, "no answer")
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	tag := resp.Header.Get("Emitd-Tag")
	a.answer(attack, strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", tag)))
}

func (a *attacks) bomb(ctx context.Context) {
	var all sync.WaitGroup
	for _, b := range a.bombs {
		all.Go(func() {
			a.send(ctx, "gzip bombs", b.path, bytes.NewReader(b.body), "Content-Type", b.kind, b.header, "gzip")
		})
	}
	all.Wait()
}

// frames sends twelve WebSocket frames of 31 MiB that it never completes.
func (a *attacks) frames(ctx context.Context) {
	a.each(ctx, 12, a.dial, func(c net.Conn) {
		_, _ = io.WriteString(c, head("GET", "/v1/ws", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="))
		begin := []byte{0x81, 0xff, 0, 0, 0, 0, 0x01, 0xf0, 0, 0, 0, 0, 0, 0} // text, the last frame, masked with zeros, 31 MiB long
		if _, err := c.Write(begin); err != nil {
			return
		}
		blanks := bytes.Repeat([]byte(" "), 1<<20)
		for range 30 {
			if _, err := c.Write(blanks); err != nil {
				a.answer("unfinished frames", "cut off")
				return
			}
		}
		a.answer("unfinished frames", "taken")
		_ = c.SetReadDeadline(time.Now().Add(15 * time.Second))
		_, _ = io.Copy(io.Discard, c)
	})
}

// unread requests a large job on twenty connections and does not read the answers.
func (a *attacks) unread(ctx context.Context) {
	a.each(ctx, 20, a.dial, func(c net.Conn) {
		_, _ = io.WriteString(c, head("GET", "/v1/queues/default/jobs/"+large))
		wait(ctx, 12*time.Second)
		a.answer("readers of nothing", "asked")
	})
}

// slowloris sends headers that never end.
func (a *attacks) slowloris(ctx context.Context) {
	a.each(ctx, 100, a.dial, func(c net.Conn) {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: target\r\n")
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := fmt.Fprintf(c, "X-%d: y\r\n", i); err != nil {
				a.answer("slowloris", "cut off")
				return
			}
			wait(ctx, time.Second)
		}
	})
}

// halfOpen starts TLS handshakes and does not continue them.
func (a *attacks) halfOpen(ctx context.Context) {
	a.each(ctx, 100, a.plain, func(c net.Conn) {
		_, _ = c.Write([]byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01})
		_ = c.SetReadDeadline(time.Now().Add(15 * time.Second))
		if _, err := io.Copy(io.Discard, c); err == nil {
			a.answer("half-open TLS", "closed")
		}
	})
}

// random sends random bytes, outside TLS and inside.
func (a *attacks) random(ctx context.Context) {
	for _, dial := range []func(context.Context) net.Conn{a.plain, a.dial} {
		a.each(ctx, 20, dial, func(c net.Conn) {
			text := make([]byte, 64<<10)
			_, _ = rand.Read(text)
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = c.Write(text)
			_, _ = io.Copy(io.Discard, c)
			a.answer("random bytes", "closed")
		})
	}
}

// bigHeaders sends heads of a megabyte.
func (a *attacks) bigHeaders(ctx context.Context) {
	a.each(ctx, 20, a.dial, func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, head("GET", "/", "X-Large: "+strings.Repeat("x", 1<<20)))
		answer := make([]byte, 12)
		_, _ = io.ReadFull(c, answer)
		a.answer("big headers", string(bytes.Trim(answer, "\x00")))
	})
}

// connections opens more connections than the listener allows, and sends nothing.
func (a *attacks) connections(ctx context.Context) {
	a.each(ctx, 1100, a.plain, func(c net.Conn) {
		_ = c.SetReadDeadline(time.Now().Add(4 * time.Second))
		_, _ = io.Copy(io.Discard, c)
	})
	wait(ctx, 5*time.Second)
}

// largeBodies submits many invalid jobs of the largest size at once; none of them is stored.
func (a *attacks) largeBodies(ctx context.Context) {
	body := `{"wrong":"` + strings.Repeat("x", 20<<20) + `"}`
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			a.send(ctx, "large bodies", "/v1/jobs", strings.NewReader(body), "Content-Type", "application/json")
		})
	}
	all.Wait()
}

// crawl sends bodies byte by byte.
func (a *attacks) crawl(ctx context.Context) {
	a.each(ctx, 30, a.dial, func(c net.Conn) {
		_, _ = io.WriteString(c, head("POST", "/v1/jobs", "Content-Type: application/json", "Content-Length: 30000000"))
		_, _ = io.WriteString(c, strings.Repeat(" ", 60<<10))
		for ctx.Err() == nil {
			if _, err := io.WriteString(c, " "); err != nil {
				a.answer("crawling bodies", "cut off")
				return
			}
			wait(ctx, time.Second)
		}
	})
}

// longPolls waits for jobs of many types that are never submitted, with many streams per connection.
func (a *attacks) longPolls(ctx context.Context) {
	types := make([]string, 900)
	for i := range types {
		types[i] = fmt.Sprintf("%q", strings.Repeat("t", 40)+fmt.Sprint(i))
	}
	body := `{"wait_ms":8000,"types":[` + strings.Join(types, ",") + `]}`
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: a.n.tls(), ForceAttemptHTTP2: true}, Timeout: 30 * time.Second}
	defer h.CloseIdleConnections()
	var all sync.WaitGroup
	for range 300 {
		all.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+a.n.address+"/v1/queues/default/claim", strings.NewReader(body))
			if err != nil {
				return
			}
			r.Header.Set("Authorization", "Bearer "+token)
			resp, err := h.Do(r)
			if err != nil {
				a.answer("long polls", "no answer")
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			a.answer("long polls", fmt.Sprint(resp.StatusCode))
		})
	}
	all.Wait()
}

// wrongToken guesses tokens.
func (a *attacks) wrongToken(ctx context.Context) {
	for i := range 20 {
		a.send(ctx, "wrong tokens", "/v1/jobs", strings.NewReader(`{"payload":1}`), "Authorization", fmt.Sprintf("Bearer guess-%016d", i))
	}
}

// pipeline sends many requests in one write and reads nothing.
func (a *attacks) pipeline(ctx context.Context) {
	a.each(ctx, 20, a.dial, func(c net.Conn) {
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, strings.Repeat(head("GET", "/v1/queues/default/jobs?payload=true&limit=1000"), 200))
		wait(ctx, 5*time.Second)
		a.answer("answers in a pipeline", "asked")
	})
}
