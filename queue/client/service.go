package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/batch"
	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/internal/queue/wire/queuev1"
	"github.com/emitd/emitd/queue"
)

const (
	plain    = "application/json"
	protobuf = "application/proto"
)

// NewID returns an ID for a job or a claim: 16 characters with 80 random bits. It is short because
// the broker keeps it in memory as long as the job waits and the deduplication window lasts.
func NewID() string { return strings.ToLower(rand.Text()[:16]) }

// Enqueue implements [queue.Producer]. Jobs without an ID or key get an ID, in a copy.
func (c *Client) Enqueue(ctx context.Context, name string, jobs []queue.Job) ([]queue.Receipt, error) {
	if err := limits.Call(name, len(jobs)); err != nil {
		return nil, err
	}
	named := make([]queue.Job, len(jobs))
	for i, j := range jobs {
		if err := limits.Job(&j); err != nil {
			return nil, err
		}
		if j.ID == "" && j.Key == "" && !c.cfg.NoRetry {
			j.ID = NewID()
		}
		named[i] = j
	}
	var out []queue.Receipt
	r := request{queue: name, repeatable: true}
	if c.cfg.JSON {
		r.post("/jobs", wire.AppendEnqueue(nil, named), func(b []byte) error {
			var v wire.EnqueueResponse
			err := json.Unmarshal(b, &v)
			for _, j := range v.Jobs {
				out = append(out, queue.Receipt(j))
			}
			return err
		})
	} else if err := r.rpc("Enqueue", batch.EnqueueRequest(name, named), func(b []byte) error {
		var v queuev1.EnqueueResponse
		err := proto.Unmarshal(b, &v)
		out = batch.Receipts(&v)
		return err
	}); err != nil {
		return nil, err
	}
	r.count(len(jobs), func() int { return len(out) })
	return done(&out, c.call(ctx, r))
}

// Claim implements [queue.Consumer]. A claim without a request ID gets one.
func (c *Client) Claim(ctx context.Context, name string, req queue.ClaimRequest) ([]queue.Claimed, error) {
	if err := limits.Queue(name); err != nil {
		return nil, err
	}
	if err := limits.Claim(&req); err != nil {
		return nil, err
	}
	if req.RequestID == "" && !c.cfg.NoRetry {
		req.RequestID = NewID()
	}
	var out []queue.Claimed
	r, err := c.claim(name, req, &out)
	if err != nil {
		return nil, err
	}
	r.before = func() (request, error) { return c.claim(name, wire.ClaimedBefore(req), &out) }
	r.found = func() bool { return len(out) > 0 }
	return done(&out, c.call(ctx, r))
}

// claim returns the request of a claim.
func (c *Client) claim(name string, req queue.ClaimRequest, out *[]queue.Claimed) (request, error) {
	r := request{queue: name, repeatable: true, wait: req.Wait}
	if !c.cfg.JSON {
		err := r.rpc("Claim", batch.ClaimRequest(name, req), func(b []byte) error {
			var v queuev1.ClaimResponse
			err := proto.Unmarshal(b, &v)
			*out = batch.Claims(name, req.Worker, &v)
			return err
		})
		return r, err
	}
	body, err := json.Marshal(wire.ClaimOf(req))
	if err != nil {
		return r, fmt.Errorf("encode claim: %w", err)
	}
	r.post("/claim", body, func(b []byte) error {
		var v wire.ClaimResponse
		err := json.Unmarshal(b, &v)
		*out = nil
		for i := range v.Jobs {
			*out = append(*out, v.Jobs[i].Claimed())
		}
		return err
	})
	return r, nil
}

// Settle implements [queue.Consumer].
func (c *Client) Settle(ctx context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	if err := limits.Call(name, len(what)); err != nil {
		return nil, err
	}
	for i := range what {
		if err := limits.Settlement(&what[i]); err != nil {
			return nil, err
		}
	}
	var out []queue.Outcome
	r := request{queue: name, repeatable: true}
	if c.cfg.JSON {
		r.post("/settle", wire.AppendSettle(nil, what), func(b []byte) error {
			var v wire.SettleResponse
			err := json.Unmarshal(b, &v)
			for i := range v.Outcomes {
				out = append(out, v.Outcomes[i].Outcome())
			}
			return err
		})
	} else if err := r.rpc("Settle", batch.SettleRequest(name, what), func(b []byte) error {
		var v queuev1.SettleResponse
		err := proto.Unmarshal(b, &v)
		out = batch.Outcomes(&v)
		return err
	}); err != nil {
		return nil, err
	}
	r.count(len(what), func() int { return len(out) })
	return done(&out, c.call(ctx, r))
}

// Get implements [queue.Operator].
func (c *Client) Get(ctx context.Context, name, id string) (*queue.Info, []byte, error) {
	if err := limits.Queue(name); err != nil {
		return nil, nil, err
	}
	if err := limits.ID(id); err != nil {
		return nil, nil, err
	}
	var v wire.JobView
	if err := c.call(ctx, get(name, "/jobs/"+url.PathEscape(id), &v)); err != nil {
		return nil, nil, err
	}
	info := v.Info.Info()
	return &info, v.Bytes(), nil
}

// List implements [queue.Operator].
func (c *Client) List(ctx context.Context, name string, q queue.Query) (*queue.Page, error) {
	if err := limits.Queue(name); err != nil {
		return nil, err
	}
	values := url.Values{}
	for k, v := range map[string]string{"state": string(q.State), "type": q.Type, "cursor": q.Cursor} {
		if v != "" {
			values.Set(k, v)
		}
	}
	if q.Limit != 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Payload {
		values.Set("payload", "true")
	}
	path := "/jobs"
	if len(values) > 0 {
		path += "?" + values.Encode()
	}
	var v wire.ListResponse
	if err := c.call(ctx, get(name, path, &v)); err != nil {
		return nil, err
	}
	page := &queue.Page{Cursor: v.Cursor}
	for i := range v.Jobs {
		page.Jobs = append(page.Jobs, v.Jobs[i].Info.Info())
		if q.Payload {
			page.Payloads = append(page.Payloads, v.Jobs[i].Bytes())
		}
	}
	return page, nil
}

// Stats implements [queue.Operator].
func (c *Client) Stats(ctx context.Context, name string) (*queue.Stats, error) {
	if err := limits.Queue(name); err != nil {
		return nil, err
	}
	var v wire.Stats
	if err := c.call(ctx, get(name, "/stats", &v)); err != nil {
		return nil, err
	}
	return v.Stats(), nil
}

// Healthy reports whether the queue "default" works, as /healthz says. It needs no token.
func (c *Client) Healthy(ctx context.Context) error {
	return c.call(ctx, request{
		queue: queue.DefaultQueue, method: http.MethodGet, path: "/healthz", repeatable: true,
		read: func([]byte) error { return nil },
	})
}

// Do implements [queue.Operator].
func (c *Client) Do(ctx context.Context, name string, cmd queue.Command) (int, error) {
	if err := limits.Queue(name); err != nil {
		return 0, err
	}
	if err := limits.Command(&cmd); err != nil {
		return 0, err
	}
	body, err := json.Marshal(wire.ActRequest{IDs: cmd.IDs, State: cmd.State, Type: cmd.Type})
	if err != nil {
		return 0, fmt.Errorf("encode command: %w", err)
	}
	var v wire.ActResponse
	r := request{queue: name, repeatable: len(cmd.IDs) > 0 || cmd.Act == queue.Pause || cmd.Act == queue.Resume}
	r.post("/"+string(cmd.Act), body, func(b []byte) error { return json.Unmarshal(b, &v) })
	err = c.call(ctx, r)
	return v.Count, err
}

// Queues returns the settings of the declared queues.
func (c *Client) Queues(ctx context.Context) ([]queue.Settings, error) {
	var v wire.QueuesResponse
	err := c.call(ctx, request{
		queue: queue.DefaultQueue, method: http.MethodGet, path: "/v1/queues", repeatable: true,
		read: func(b []byte) error { return json.Unmarshal(b, &v) },
	})
	if err != nil {
		return nil, err
	}
	list := make([]queue.Settings, len(v.Queues))
	for i := range v.Queues {
		if list[i], err = v.Queues[i].Settings(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Declare creates a queue, or changes its settings; zero fields take the default.
func (c *Client) Declare(ctx context.Context, s queue.Settings) error {
	_, err := c.declare(ctx, http.MethodPut, s.Name, "", wire.DeclarationOf(s))
	return err
}

// Amend creates a queue, or changes those settings that fields contains, and returns all of them.
// The other settings keep their values, whatever other programs declare at the same time. The keys
// are those of the HTTP API, such as visibility_ms; a zero value means the default.
func (c *Client) Amend(ctx context.Context, name string, fields map[string]any) (queue.Settings, error) {
	return c.declare(ctx, http.MethodPatch, name, "", fields)
}

func (c *Client) declare(ctx context.Context, method, name, path string, what any) (queue.Settings, error) {
	if err := limits.Queue(name); err != nil {
		return queue.Settings{}, err
	}
	body, err := json.Marshal(what)
	if err != nil {
		return queue.Settings{}, fmt.Errorf("encode declaration: %w", err)
	}
	var made wire.Declaration
	r := request{queue: name, repeatable: true}
	r.post(path, body, func(b []byte) error { return json.Unmarshal(b, &made) })
	r.method = method
	if err := c.call(ctx, r); err != nil {
		return queue.Settings{}, err
	}
	return made.Settings()
}

// Reshard begins to change the number of a queue's shards, and returns its settings at once: Settings.Resharding
// says how far the change is. Jobs keep their order within each group. Nothing happens if the queue has this many
// shards already.
func (c *Client) Reshard(ctx context.Context, name string, shards int) (queue.Settings, error) {
	return c.declare(ctx, http.MethodPut, name, "/reshard", wire.ReshardRequest{Shards: shards})
}

// Remove removes a queue and its jobs. If an answer is lost, the repeated call may find that there
// is no such queue.
func (c *Client) Remove(ctx context.Context, name string) error {
	if err := limits.Queue(name); err != nil {
		return err
	}
	return c.call(ctx, request{
		queue: name, method: http.MethodDelete, path: "/v1/queues/" + name, repeatable: true,
		read: func([]byte) error { return nil },
	})
}

// get returns a call that decodes a JSON answer.
func get(name, path string, v any) request {
	return request{
		queue: name, method: http.MethodGet, path: "/v1/queues/" + name + path, repeatable: true,
		read: func(b []byte) error { return json.Unmarshal(b, v) },
	}
}

// post makes r a call of the JSON API.
func (r *request) post(path string, body []byte, read func([]byte) error) {
	r.method, r.path, r.kind, r.body, r.read = http.MethodPost, "/v1/queues/"+r.queue+path, plain, body, read
}

// rpc makes r a call of the protobuf service, in Connect's unary form.
func (r *request) rpc(method string, m proto.Message, read func([]byte) error) error {
	body, err := proto.Marshal(m)
	if err != nil { // a name is not UTF-8
		return queue.Refuse(queue.BadRequest, "encode %s: %w", method, err)
	}
	r.method, r.path, r.kind, r.body, r.read = http.MethodPost, "/emitd.queue.v1.QueueService/"+method, protobuf, body, read
	return nil
}

// count makes r refuse an answer without exactly one entry per element of the call.
func (r *request) count(want int, got func() int) {
	read := r.read
	r.read = func(b []byte) error {
		if err := read(b); err != nil {
			return err
		}
		if n := got(); n != want {
			return fmt.Errorf("%d entries in answer to %d", n, want)
		}
		return nil
	}
}

// done discards what a failed call may have partly decoded.
func done[T any](out *[]T, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return *out, nil
}
