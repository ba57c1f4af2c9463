package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// osqueueVisibility is the visibility timeout of osqueue clients' claims: they send a heartbeat
// every five seconds and support no other value.
const osqueueVisibility = 30 * time.Second

// osqueue's rare bodies; package wire has the frequent ones. Names and forms are those of its published
// clients.
type (
	statsBody struct {
		Total          int64  `json:"total"`
		Unclaimed      int64  `json:"unclaimed"`
		InProgress     int64  `json:"inProgress"`
		CompletedTotal int64  `json:"completedTotal"`
		BrokerAddress  string `json:"brokerAddress"`
	}
	jobBody struct {
		ID          string          `json:"id"`
		Status      string          `json:"status"`
		Payload     json.RawMessage `json:"payload"`
		Type        string          `json:"type,omitempty"`
		WorkerID    string          `json:"workerId,omitempty"`
		CreatedAt   int64           `json:"createdAt"`
		Attempts    int             `json:"attempts"`
		MaxAttempts int             `json:"maxAttempts"`
		Heartbeat   int64           `json:"heartbeat"`
	}
	listBody struct {
		statsBody
		Jobs      []jobBody `json:"jobs"`
		Truncated bool      `json:"truncated"`
	}
	stateBody struct {
		Broker          *string   `json:"broker"`
		BrokerHeartbeat int64     `json:"brokerHeartbeat"`
		Jobs            []jobBody `json:"jobs"`
		CompletedTotal  int64     `json:"completedTotal"`
		Truncated       bool      `json:"truncated"`
	}
)

// osqueue mounts osqueue's REST paths and its WebSocket.
func (h *Handler) osqueue() {
	h.handle("POST /v1/jobs", h.submitREST)
	h.handle("GET /v1/jobs", h.listREST)
	h.handle("POST /v1/jobs/claim", h.claimREST)
	h.handle("POST /v1/jobs/{id}/heartbeat", h.settleREST(queue.Extend))
	h.handle("POST /v1/jobs/{id}/complete", h.settleREST(queue.Complete))
	h.handle("GET /v1/stats", func(c *call) error { return answer(c)(h.osqueueStats(c.r.Context())) })
	h.handle("GET /v1/throttle-stats", h.throttleREST)
	h.handle("GET /state", h.stateREST)
	h.handle("GET /healthz", h.healthREST)
	h.handle("GET /v1/ws", h.socket)
}

// answer returns a function that answers with a body, or returns the error.
func answer(c *call) func(v any, err error) error {
	return func(v any, err error) error {
		if err != nil {
			return err
		}
		return c.json(v)
	}
}

func (h *Handler) submitREST(c *call) error {
	var body wire.OsqueueSubmit
	if err := c.decode(&body); err != nil {
		return err
	}
	out, err := h.submit(c.r.Context(), body, c.r.Header.Get("Idempotency-Key"))
	if err != nil {
		return err
	}
	return c.append(out.Append)
}

func (h *Handler) claimREST(c *call) error {
	var body wire.OsqueueClaim
	if err := c.decode(&body); err != nil {
		return err
	}
	out, err := h.claimOne(c.r.Context(), body)
	if err != nil {
		return err
	}
	return c.append(out.Append)
}

func (h *Handler) settleREST(v queue.Verb) endpoint {
	return func(c *call) error {
		id, err := c.id()
		if err != nil {
			return err
		}
		var body wire.OsqueueWorker
		if err := c.decode(&body); err != nil {
			return err
		}
		if err := h.settleWorker(c.r.Context(), v, id, body.WorkerID); err != nil {
			return err
		}
		return c.nothing()
	}
}

func (h *Handler) listREST(c *call) error {
	if _, err := c.parameters(); err != nil {
		return err
	}
	return answer(c)(h.osqueueList(c.r.Context()))
}

func (h *Handler) stateREST(c *call) error {
	list, err := h.osqueueList(c.r.Context())
	if err != nil {
		return err
	}
	out := stateBody{Jobs: list.Jobs, CompletedTotal: list.CompletedTotal, Truncated: list.Truncated}
	if list.BrokerAddress != "" { // there is no other sign of life than this answer
		out.Broker, out.BrokerHeartbeat = &list.BrokerAddress, time.Now().UnixMilli()
	}
	return c.json(out)
}

func (h *Handler) throttleREST(c *call) error {
	if err := h.authorize(c.r.Context(), RightRead, ""); err != nil {
		return err
	}
	var s ThrottleStats
	if h.opts.ThrottleStats != nil {
		s = h.opts.ThrottleStats()
	}
	return c.json(s)
}

// healthREST reports whether the queue works, and not only that the server listens.
func (h *Handler) healthREST(c *call) error {
	check := h.opts.Healthy
	if check == nil {
		check = func(ctx context.Context) error {
			_, err := h.direct.Stats(ctx, queue.DefaultQueue) // probes have no token
			return err
		}
	}
	c.w.Header().Set("Cache-Control", "no-store")
	if err := check(c.r.Context()); err != nil {
		e := h.refusal(c.r.Context(), err)
		if refusal.HTTPStatus(e.Tag) != http.StatusServiceUnavailable {
			e = queue.Refuse(queue.Unavailable, "%s", e.Error())
		}
		return e
	}
	return c.json(map[string]string{"status": "ok"})
}

// submit, claimOne, settleWorker, osqueueStats and osqueueList are shared by osqueue's three
// transports.
func (h *Handler) submit(ctx context.Context, b wire.OsqueueSubmit, key string) (wire.OsqueueReceipt, error) {
	if b.Payload == nil {
		return wire.OsqueueReceipt{}, queue.Refuse(queue.BadRequest, "payload is missing").WithHint("any JSON value, null too")
	}
	j := queue.Job{Key: key, Type: b.Type, Payload: b.Payload}
	if b.MaxAttempts != nil {
		if *b.MaxAttempts < 1 {
			return wire.OsqueueReceipt{}, queue.Refuse(queue.BadRequest, "maxAttempts: %d is less than 1", *b.MaxAttempts)
		}
		j.Retry.MaxAttempts = *b.MaxAttempts
	}
	if err := limits.Job(&j); err != nil {
		return wire.OsqueueReceipt{}, err
	}
	receipts, err := h.svc.Enqueue(ctx, queue.DefaultQueue, []queue.Job{j})
	if err != nil {
		return wire.OsqueueReceipt{}, err
	}
	return wire.OsqueueReceipt{JobID: receipts[0].ID}, nil
}

// claimOne claims without a token: the claim is durable, and the worker's name identifies the
// holder.
func (h *Handler) claimOne(ctx context.Context, b wire.OsqueueClaim) (wire.OsqueueClaimed, error) {
	if b.WorkerID == "" {
		return wire.OsqueueClaimed{}, queue.Refuse(queue.BadRequest, "workerId is missing")
	}
	req := queue.ClaimRequest{Worker: b.WorkerID, Types: b.Types, Max: 1, Visibility: osqueueVisibility, Tokenless: true}
	if err := limits.Claim(&req); err != nil {
		return wire.OsqueueClaimed{}, err
	}
	claims, err := h.svc.Claim(ctx, queue.DefaultQueue, req)
	if err != nil || len(claims) == 0 {
		return wire.OsqueueClaimed{}, err
	}
	return wire.OsqueueClaimed{JobID: claims[0].Job.ID, Payload: jsonOf(claims[0].Payload), Type: claims[0].Job.Type}, nil
}

func (h *Handler) settleWorker(ctx context.Context, v queue.Verb, id, worker string) error {
	if worker == "" {
		return queue.Refuse(queue.BadRequest, "workerId is missing")
	}
	s := queue.Settlement{Verb: v, ID: id, Worker: worker}
	if err := limits.Settlement(&s); err != nil {
		return err
	}
	_, err := h.single(ctx, queue.DefaultQueue, s)
	return err
}

// single settles one claim. A refusal is returned as the error.
func (h *Handler) single(ctx context.Context, name string, s queue.Settlement) (queue.Outcome, error) {
	outcomes, err := h.svc.Settle(ctx, name, []queue.Settlement{s})
	if err != nil {
		return queue.Outcome{}, err
	}
	if e := outcomes[0].Err; e != nil {
		return queue.Outcome{}, e
	}
	return outcomes[0], nil
}

func (h *Handler) osqueueStats(ctx context.Context) (statsBody, error) {
	s, err := h.svc.Stats(ctx, queue.DefaultQueue)
	if err != nil {
		return statsBody{}, err
	}
	unclaimed := s.Waiting + s.Delayed
	return statsBody{
		Total: unclaimed + s.Active, Unclaimed: unclaimed, InProgress: s.Active,
		CompletedTotal: s.Completed, BrokerAddress: s.Broker,
	}, nil
}

// osqueueList lists the oldest jobs that have not ended; osqueue has no state for the others.
func (h *Handler) osqueueList(ctx context.Context) (listBody, error) {
	stats, err := h.osqueueStats(ctx)
	if err != nil {
		return listBody{}, err
	}
	out := listBody{statsBody: stats, Jobs: []jobBody{}}
	for _, state := range []queue.State{queue.Active, queue.Waiting, queue.Delayed} {
		page, err := h.svc.List(ctx, queue.DefaultQueue, queue.Query{State: state, Limit: queue.MaxPage, Payload: true})
		if err != nil {
			return listBody{}, err
		}
		h.trim(page)
		out.Truncated = out.Truncated || page.Cursor != ""
		for i := range page.Jobs {
			var payload []byte
			if i < len(page.Payloads) {
				payload = page.Payloads[i]
			}
			// A payload that is an object of its own, or had no room, is left out.
			out.Truncated = out.Truncated || len(payload) == 0 && page.Jobs[i].Size > 0
			out.Jobs = append(out.Jobs, jobOf(&page.Jobs[i], payload))
		}
	}
	// Within a millisecond, generated IDs are in the order of submission.
	slices.SortFunc(out.Jobs, func(a, b jobBody) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	if len(out.Jobs) > queue.MaxPage {
		out.Jobs, out.Truncated = out.Jobs[:queue.MaxPage], true
	}
	return out, nil
}

func jobOf(i *queue.Info, payload []byte) jobBody {
	b := jobBody{
		ID: i.ID, Status: "unclaimed", Payload: jsonOf(payload), Type: i.Type, CreatedAt: i.CreatedAt.UnixMilli(),
		Attempts: i.Attempts, MaxAttempts: i.MaxAttempts,
	}
	if i.State == queue.Active {
		b.Status, b.WorkerID = "in_progress", i.Worker
		b.Heartbeat = i.Until.Add(-osqueueVisibility).UnixMilli() // exact for claims by osqueue's clients
	}
	return b
}

// jsonOf returns a payload as JSON: unchanged if it is JSON, otherwise as a base64 string. JSON that is not UTF-8 is none:
// the client of a WebSocket would have to end the connection.
func jsonOf(p []byte) json.RawMessage {
	switch {
	case len(p) == 0:
		return json.RawMessage("null")
	case utf8.Valid(p) && json.Valid(p):
		return p
	default:
		return json.RawMessage(strconv.Quote(base64.StdEncoding.EncodeToString(p)))
	}
}

// int32Of clamps a count to osqueue's 32-bit fields.
func int32Of(n int64) int32 {
	return int32(min(max(n, math.MinInt32), math.MaxInt32)) // just clamped
}
