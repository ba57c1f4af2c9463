package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

const (
	socketCalls = 64               // calls of one connection at a time; further ones wait unread
	socketWrite = 30 * time.Second // a client that reads slower is disconnected
	socketPing  = 30 * time.Second // time between pings
	socketPiece = 16 << 10         // bytes that must arrive within stallTimeout
	socketMaxID = 256              // bytes of a message's id, which is sent back
)

// message is a call over osqueue's WebSocket.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// response is the answer to a message.
type response struct {
	ID     json.RawMessage  `json:"id"`
	OK     bool             `json:"ok"`
	Result any              `json:"result,omitempty"`
	Error  *refusal.Problem `json:"error,omitempty"`
}

// socket serves osqueue's WebSocket protocol until either side ends it.
func (h *Handler) socket(c *call) error {
	if origin := c.r.Header.Get("Origin"); origin != "" && !h.sameOrigin(origin, c.r.Host) {
		return queue.Refuse(refusal.Forbidden, "the origin %.100q is not allowed", origin)
	}
	if !upgrade(c.r) {
		return queue.Refuse(queue.BadRequest, "a WebSocket is expected here").WithHint("GET with Upgrade: websocket")
	}
	conn, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // checked above
	if err != nil {
		return nil //nolint:nilerr // Accept has answered
	}
	conn.SetReadLimit(-1)                            // messages are counted as they arrive
	ctx, cancel := context.WithCancel(c.r.Context()) // it ends when the caller's token is revoked
	defer cancel()
	done, ok := h.sockets.add(cancel)
	if !ok {
		_ = conn.Close(websocket.StatusGoingAway, "the server stops")
		return nil
	}
	defer done()
	h.serveConn(ctx, conn)
	return nil
}

func upgrade(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.Header.Get("Upgrade") != "" && r.Header.Get("Sec-WebSocket-Key") != ""
}

func (h *Handler) sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host == host || slices.Contains(h.opts.Origins, origin)
}

// serveConn reads calls and answers each on a goroutine of its own, so that a waiting call delays no
// other. It returns when the connection and all its calls have ended.
func (h *Handler) serveConn(ctx context.Context, conn *websocket.Conn) {
	var calls sync.WaitGroup
	defer func() {
		calls.Wait()
		_ = conn.Close(websocket.StatusGoingAway, "") // usually closed already
	}()
	alive, cancel := context.WithCancel(ctx)
	defer cancel() // calls end with their connection
	calls.Go(func() { ping(alive, cancel, conn) })
	room := make(chan struct{}, socketCalls)
	for {
		room <- struct{}{}
		m, err := h.receive(alive, conn)
		if err != nil {
			return
		}
		calls.Go(func() {
			defer func() { <-room }()
			defer m.end()
			out := encode(h.dispatch(inflight.NewContext(alive, m.call), m))
			writing, stop := context.WithTimeout(context.WithoutCancel(alive), socketWrite)
			defer stop()
			if err := conn.Write(writing, websocket.MessageText, out); err != nil {
				cancel()
			}
		})
	}
}

// received is a message with its place in the limiter's budget; call is nil if there was no place.
type received struct {
	text []byte
	call *inflight.Call
}

func (m *received) end() {
	if m.call != nil {
		m.call.End()
	}
}

// ending is the deadline of a frame: its timer ends the connection.
type ending struct{ timer *time.Timer }

func (e ending) set(at time.Time) error {
	e.timer.Reset(time.Until(at))
	return nil
}

// receive reads the next message, within the limits of memory and speed. An error ends the
// connection, because after half a message the stream cannot be continued.
func (h *Handler) receive(ctx context.Context, conn *websocket.Conn) (m *received, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, src, err := conn.Reader(ctx)
	if err != nil {
		return nil, err
	}
	m = &received{}
	m.call, _ = h.limiter.budget.Begin()
	defer func() {
		if err != nil {
			m.end()
		}
	}()
	slow := time.AfterFunc(stallTimeout, cancel)
	defer slow.Stop()
	p := pace{on: ending{slow}}
	most := h.limiter.maxBody
	if m.call == nil {
		most = inflight.FreeBytes // enough for a refusal
	}
	var text bytes.Buffer
	for {
		p.setDeadline()
		text.Grow(bytes.MinRead)
		n, err := src.Read(text.AvailableBuffer()[:min(text.Available(), socketPiece)]) // returns when this much has arrived
		text.Write(text.AvailableBuffer()[:n])
		p.moved += int64(n)
		switch {
		case int64(text.Len()) > most && m.call != nil:
			_ = conn.Close(websocket.StatusMessageTooBig, errTooLarge(most).Message)
			return m, errTooLarge(most)
		case int64(text.Len()) > most || !m.call.Take(int64(n)):
			_ = conn.Close(websocket.StatusTryAgainLater, errTooManyBytes().Message)
			return m, errTooManyBytes()
		case err == io.EOF: //nolint:errorlint // a reader's own
			m.text = text.Bytes()
			return m, nil
		case err != nil:
			return m, err
		}
	}
}

// ping closes a connection whose client does not answer.
func ping(ctx context.Context, cancel context.CancelFunc, conn *websocket.Conn) {
	tick := time.NewTicker(socketPing)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		probe, stop := context.WithTimeout(ctx, socketPing)
		err := conn.Ping(probe)
		stop()
		if err != nil {
			cancel()
			return
		}
	}
}

// dispatch answers one message. A panic ends only the call and not the process, as for calls over
// HTTP.
func (h *Handler) dispatch(ctx context.Context, in *received) (out response) {
	var m message
	defer func() {
		if why := recover(); why != nil {
			h.log.ErrorContext(ctx, "queue call", "panic", why, "stack", string(debug.Stack()))
			out = h.refusalResponse(ctx, m.ID, queue.Refuse(refusal.Internal, "an error on the server's side; see its log"))
		}
	}()
	if err := wire.Decode(in.text, &m); err != nil {
		return h.refusalResponse(ctx, nil, err)
	}
	if len(m.ID) > socketMaxID {
		return h.refusalResponse(ctx, nil, queue.Refuse(queue.BadRequest, "id: %d bytes, at most %d", len(m.ID), socketMaxID))
	}
	if in.call == nil {
		return h.refusalResponse(ctx, m.ID, errTooManyCalls())
	}
	result, err := h.socketCall(ctx, m)
	if err != nil {
		return h.refusalResponse(ctx, m.ID, err)
	}
	return response{ID: null(m.ID), OK: true, Result: result}
}

func (h *Handler) refusalResponse(ctx context.Context, id json.RawMessage, err error) response {
	return response{ID: null(id), Error: refusal.ProblemOf(h.refusal(ctx, err))}
}

func null(id json.RawMessage) json.RawMessage {
	if id == nil {
		return json.RawMessage("null")
	}
	return id
}

// settleParams are the parameters that REST has in the path.
type settleParams struct {
	JobID    string `json:"jobId"`
	WorkerID string `json:"workerId"`
}

func (h *Handler) socketCall(ctx context.Context, m message) (any, error) {
	switch m.Method {
	case "submitJob":
		var p wire.OsqueueSubmit
		if err := params(m, &p); err != nil {
			return nil, err
		}
		return h.submit(ctx, p, "")
	case "claimJob":
		var p wire.OsqueueClaim
		if err := params(m, &p); err != nil {
			return nil, err
		}
		return h.claimOne(ctx, p)
	case "heartbeat", "completeJob":
		var p settleParams
		if err := params(m, &p); err != nil {
			return nil, err
		}
		verb := queue.Complete
		if m.Method == "heartbeat" {
			verb = queue.Extend
		}
		return struct{}{}, h.settleWorker(ctx, verb, p.JobID, p.WorkerID)
	case "getStats":
		if err := params(m, &struct{}{}); err != nil {
			return nil, err
		}
		return h.osqueueStats(ctx)
	case "listJobs":
		if err := params(m, &struct{}{}); err != nil {
			return nil, err
		}
		return h.osqueueList(ctx)
	}
	return nil, queue.Refuse(queue.BadRequest, "method is %.40q, want one of submitJob, claimJob, heartbeat, completeJob, getStats, listJobs", m.Method)
}

func params(m message, v any) error {
	if len(m.Params) == 0 {
		return wire.Decode([]byte("{}"), v)
	}
	return wire.Decode(m.Params, v)
}

// sockets are the open WebSockets, which the shutdown of an http.Server does not include.
type sockets struct {
	mu     sync.Mutex
	closed bool
	last   int
	cancel map[int]context.CancelFunc
	open   sync.WaitGroup
}

// add registers a connection; false means that the server stops. The returned function removes it.
func (s *sockets) add(cancel context.CancelFunc) (func(), bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false
	}
	if s.cancel == nil {
		s.cancel = map[int]context.CancelFunc{}
	}
	s.last++
	id := s.last
	s.cancel[id] = cancel
	s.open.Add(1)
	return func() {
		s.mu.Lock()
		delete(s.cancel, id)
		s.mu.Unlock()
		s.open.Done()
	}, true
}

// closeAll closes all connections and accepts no more.
func (s *sockets) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, cancel := range s.cancel {
		cancel()
	}
}

// Shutdown closes the WebSockets and waits for their end until ctx ends. Call it together with the
// server's own Shutdown, which does not include them.
func (h *Handler) Shutdown(ctx context.Context) error {
	h.sockets.closeAll()
	ended := make(chan struct{})
	go func() { h.sockets.open.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("websockets still open"), ctx.Err())
	}
}
