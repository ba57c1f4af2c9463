package api

import (
	"strconv"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/queue"
)

// own mounts the project's own JSON API.
func (h *Handler) own() {
	const q = "/v1/queues/{queue}"
	h.handle("GET /v1/openapi.json", h.describe)
	h.handle("GET /v1/queues", h.queues)
	h.handle("GET "+q, h.declared)
	h.handle("PUT "+q, h.declare(func(queue.Settings) wire.Declaration { return wire.Declaration{} }))
	h.handle("PATCH "+q, h.declare(wire.DeclarationOf))
	h.handle("DELETE "+q, h.remove)
	h.handle("PUT "+q+"/reshard", h.reshard)

	h.handle("POST "+q+"/jobs", h.enqueue)
	h.handle("GET "+q+"/jobs", h.list)
	h.handle("GET "+q+"/jobs/{id}", h.get)
	h.handle("POST "+q+"/claim", h.claim)
	h.handle("POST "+q+"/settle", h.settle)
	for _, v := range []queue.Verb{queue.Extend, queue.Complete, queue.Fail, queue.Release} {
		h.handle("POST "+q+"/jobs/{id}/"+string(v), h.settleOne(v))
	}

	for _, a := range []queue.Act{queue.Cancel, queue.Redrive, queue.RunNow, queue.Purge, queue.Pause, queue.Resume} {
		h.handle("POST "+q+"/"+string(a), h.act(a))
	}
	for _, a := range []queue.Act{queue.Cancel, queue.Redrive, queue.RunNow} {
		h.handle("POST "+q+"/jobs/{id}/"+string(a), h.actOne(a))
	}
	h.handle("DELETE "+q+"/jobs/{id}", h.actOne(queue.Cancel))
	h.handle("GET "+q+"/dead", h.dead)
	h.handle("POST "+q+"/dead/redrive", h.act(queue.Redrive))
	h.handle("GET "+q+"/stats", h.stats)
}

func (h *Handler) enqueue(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	var req wire.EnqueueRequest
	if err := c.decode(&req); err != nil {
		return err
	}
	jobs, err := req.List()
	if err != nil {
		return err
	}
	receipts, err := h.svc.Enqueue(c.r.Context(), name, jobs)
	if err != nil {
		return err
	}
	return c.append(func(b []byte) []byte { return wire.AppendReceipts(b, receipts) })
}

func (h *Handler) claim(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	var body wire.ClaimRequest
	if err := c.decodeAny(&body); err != nil {
		return err
	}
	req, err := body.Request()
	if err != nil {
		return err
	}
	claims, err := h.svc.Claim(c.r.Context(), name, req)
	if err != nil {
		return err
	}
	return c.append(func(b []byte) []byte { return wire.AppendClaims(b, claims) })
}

func (h *Handler) settle(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	var req wire.SettleRequest
	if err := c.decode(&req); err != nil {
		return err
	}
	what, err := req.List()
	if err != nil {
		return err
	}
	outcomes, err := h.svc.Settle(c.r.Context(), name, what)
	if err != nil {
		return err
	}
	return c.append(func(b []byte) []byte { return wire.AppendOutcomes(b, outcomes) })
}

// settleOne is settle for one claim. Verb and ID are in the path, and a refusal is the answer of
// the call.
func (h *Handler) settleOne(v queue.Verb) endpoint {
	return func(c *call) error {
		name, err := c.queue()
		if err != nil {
			return err
		}
		id, err := c.id()
		if err != nil {
			return err
		}
		var body wire.Settlement
		if err := c.decode(&body); err != nil {
			return err
		}
		if body.Verb != "" || body.ID != "" {
			return queue.Refuse(queue.BadRequest, "verb and id stand in the path")
		}
		body.Verb, body.ID = v, id
		s, err := body.Settlement()
		if err != nil {
			return err
		}
		o, err := h.single(c.r.Context(), name, s)
		if err != nil {
			return err
		}
		return c.append(func(b []byte) []byte { return wire.AppendOutcome(b, &o) })
	}
}

func (h *Handler) get(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	id, err := c.id()
	if err != nil {
		return err
	}
	info, payload, err := h.svc.Get(c.r.Context(), name, id)
	if err != nil {
		return err
	}
	return c.append(func(b []byte) []byte { return wire.AppendJob(b, info, payload) })
}

func (h *Handler) list(c *call) error {
	p, err := c.parameters("state", "type", "cursor", "limit", "payload")
	if err != nil {
		return err
	}
	if err := limits.State(queue.State(p["state"])); err != nil {
		return err
	}
	return h.page(c, p, queue.State(p["state"]))
}

func (h *Handler) dead(c *call) error {
	p, err := c.parameters("type", "cursor", "limit", "payload")
	if err != nil {
		return err
	}
	return h.page(c, p, queue.Dead)
}

func (h *Handler) page(c *call, p map[string]string, state queue.State) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	q := queue.Query{State: state, Type: p["type"], Cursor: p["cursor"]}
	if v, ok := p["limit"]; ok {
		if q.Limit, err = strconv.Atoi(v); err != nil || q.Limit < 1 || q.Limit > queue.MaxPage {
			return queue.Refuse(queue.BadRequest, "limit: %.20q is not within 1 and %d", v, queue.MaxPage)
		}
	}
	if v, ok := p["payload"]; ok {
		if q.Payload, err = strconv.ParseBool(v); err != nil {
			return queue.Refuse(queue.BadRequest, "payload: %.20q is neither true nor false", v)
		}
	}
	page, err := h.svc.List(c.r.Context(), name, q)
	if err != nil {
		return err
	}
	h.trim(page)
	return c.append(func(b []byte) []byte { return wire.AppendPage(b, page) })
}

// trim removes payloads from a page after MaxBody bytes of them, so that the size of an answer is
// bounded.
func (h *Handler) trim(p *queue.Page) {
	room := h.limiter.maxBody
	for i, payload := range p.Payloads {
		if room -= int64(len(payload)); room < 0 {
			p.Payloads[i] = nil
		}
	}
}

func (h *Handler) act(a queue.Act) endpoint {
	return func(c *call) error {
		var body wire.ActRequest
		if err := c.decodeAny(&body); err != nil {
			return err
		}
		return h.do(c, queue.Command{Act: a, IDs: body.IDs, State: body.State, Type: body.Type})
	}
}

func (h *Handler) actOne(a queue.Act) endpoint {
	return func(c *call) error {
		id, err := c.id()
		if err != nil {
			return err
		}
		var body struct{}
		if err := c.decodeAny(&body); err != nil {
			return err
		}
		return h.do(c, queue.Command{Act: a, IDs: []string{id}})
	}
}

func (h *Handler) do(c *call, cmd queue.Command) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	if err := limits.Command(&cmd); err != nil {
		return err
	}
	n, err := h.svc.Do(c.r.Context(), name, cmd)
	if err != nil {
		return err
	}
	return c.json(wire.ActResponse{Count: n})
}

func (h *Handler) stats(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	s, err := h.svc.Stats(c.r.Context(), name)
	if err != nil {
		return err
	}
	return c.json(wire.StatsOf(s))
}
