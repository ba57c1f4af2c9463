package cli

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// benchWait is how long a claim waits for a job. Each client submits before it claims, so there is one
// soon, unless another program claims them, too.
const benchWait = time.Second

// ownCalls makes the calls of emitd's own API.
type ownCalls struct {
	service queue.Service
	queue   string
}

var _ benchCalls = ownCalls{}

func (c ownCalls) reach(ctx context.Context) error {
	_, err := c.service.Stats(ctx, c.queue)
	return err
}

func (c ownCalls) submit(ctx context.Context, jobs []queue.Job) error {
	_, err := c.service.Enqueue(ctx, c.queue, jobs)
	return err
}

func (c ownCalls) claim(ctx context.Context, worker string, most int) ([]queue.Claimed, error) {
	return c.service.Claim(ctx, c.queue, queue.ClaimRequest{Worker: worker, Types: []string{benchType}, Max: most, Wait: benchWait})
}

func (c ownCalls) complete(ctx context.Context, worker string, claims []queue.Claimed) error {
	what := make([]queue.Settlement, len(claims))
	for i := range claims {
		what[i] = queue.Settlement{Verb: queue.Complete, ID: claims[i].Job.ID, Token: claims[i].Token, Worker: worker}
	}
	outcomes, err := c.service.Settle(ctx, c.queue, what)
	for i := range outcomes {
		if outcomes[i].Err != nil {
			return outcomes[i].Err
		}
	}
	return err
}

func (c ownCalls) writes(ctx context.Context) (n, epoch int64, ok bool) {
	s, err := c.service.Stats(ctx, c.queue)
	if err != nil {
		return 0, 0, false
	}
	return s.Writes, s.Epoch, true
}

// osqueueCalls makes the calls of osqueue's REST API, to emitd or to an osqueue broker. A call has one job.
//
// It has an HTTP client of its own. The one of net/http hands each call over between three goroutines, which costs about
// as much processor as the server's answer; the benchmark would measure itself.
type osqueueCalls struct {
	ownCalls // for writes
	address  string
	tls      *tls.Config // nil: plain HTTP
	prefix   string      // of each path, for emitd below a path
	head     string      // of each call, behind the path
	free     chan *benchConnection
}

// benchConnection is a connection for one call at a time.
type benchConnection struct {
	net.Conn
	in  *bufio.Reader
	out []byte
}

// newOsqueueCalls makes the calls to the first of the addresses.
func newOsqueueCalls(cfg client.Config, stats queue.Service, clients int) osqueueCalls {
	scheme, address, ok := strings.Cut(strings.TrimSuffix(cfg.Addresses[0], "/"), "://")
	if !ok {
		address = scheme
	}
	address, prefix, below := strings.Cut(address, "/")
	c := osqueueCalls{ownCalls: ownCalls{stats, queue.DefaultQueue}, address: address, free: make(chan *benchConnection, clients)}
	if u, err := url.Parse("/" + prefix); below && err == nil { // package client has refused what does not parse
		c.prefix = u.EscapedPath()
	}
	port := "80"
	if scheme == "https" || !ok && cfg.TLS != nil {
		port = "443"
		if c.tls = cfg.TLS.Clone(); c.tls == nil {
			c.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		c.tls.NextProtos = []string{"http/1.1"}
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		c.address = net.JoinHostPort(address, port)
	}
	c.head = " HTTP/1.1\r\nHost: " + address + "\r\nContent-Type: application/json\r\n"
	if cfg.Token != "" {
		c.head += "Authorization: Bearer " + cfg.Token + "\r\n"
	}
	return c
}

func (c osqueueCalls) reach(ctx context.Context) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return fault.New(fault.QueueDown, "no answer from %s: %w", c.address, err)
	}
	_ = conn.Close() // it ends with ctx
	return nil
}

// connect returns a connection that no call uses.
func (c osqueueCalls) connect(ctx context.Context) (*benchConnection, error) {
	select {
	case conn := <-c.free:
		return conn, nil
	default:
	}
	var conn net.Conn
	var err error
	if c.tls != nil {
		conn, err = (&tls.Dialer{Config: c.tls}).DialContext(ctx, "tcp", c.address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
	}
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends a call that waits
	return &benchConnection{Conn: conn, in: bufio.NewReader(conn)}, nil
}

// post makes a call and decodes its answer into out, unless that is nil.
func (c osqueueCalls) post(ctx context.Context, path string, body, out any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	conn.out = append(append(append(append(conn.out[:0], "POST "...), c.prefix...), path...), c.head...)
	conn.out = fmt.Appendf(conn.out, "Content-Length: %d\r\n\r\n%s", len(text), text)
	status, answer, again, err := conn.call()
	if again {
		c.free <- conn // has room: there are as many connections as clients
	} else {
		_ = conn.Close()
	}
	switch {
	case err != nil:
		return err
	case status >= http.StatusMultipleChoices:
		return fmt.Errorf("%s: %d %s: %.200s", path, status, http.StatusText(status), answer)
	case out == nil:
		return nil
	}
	return json.Unmarshal(answer, out)
}

// call sends the call in conn.out and reads its answer. It returns whether the connection can have another one.
func (conn *benchConnection) call() (status int, answer []byte, again bool, err error) {
	if _, err := conn.Write(conn.out); err != nil {
		return 0, nil, false, err
	}
	resp, err := http.ReadResponse(conn.in, nil)
	if err != nil {
		return 0, nil, false, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err == nil && !resp.Close, err
}

func (c osqueueCalls) submit(ctx context.Context, jobs []queue.Job) error {
	payload, err := json.Marshal(string(jobs[0].Payload))
	if err != nil {
		return err
	}
	return c.post(ctx, "/v1/jobs", wire.OsqueueSubmit{Payload: payload, Type: jobs[0].Type}, nil)
}

func (c osqueueCalls) claim(ctx context.Context, worker string, _ int) ([]queue.Claimed, error) {
	for until := time.Now().Add(benchWait); ; {
		var out wire.OsqueueClaimed
		err := c.post(ctx, "/v1/jobs/claim", wire.OsqueueClaim{WorkerID: worker, Types: []string{benchType}}, &out)
		if err != nil {
			return nil, err
		}
		if out.JobID != "" {
			return []queue.Claimed{{Job: queue.Info{ID: out.JobID}}}, nil
		}
		if time.Now().After(until) || backoff.Sleep(ctx, time.Millisecond) != nil {
			return nil, ctx.Err()
		}
	}
}

func (c osqueueCalls) complete(ctx context.Context, worker string, claims []queue.Claimed) error {
	return c.post(ctx, "/v1/jobs/"+url.PathEscape(claims[0].Job.ID)+"/complete", wire.OsqueueWorker{WorkerID: worker}, nil)
}
