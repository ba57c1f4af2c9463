package api

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

func (h *Handler) directory() (Directory, error) {
	if h.opts.Queues == nil {
		return nil, queue.Refuse(refusal.Unsupported, "this server does not declare queues")
	}
	return authorizedDirectory{h.opts.Queues, h}, nil
}

func (h *Handler) queues(c *call) error {
	d, err := h.directory()
	if err != nil {
		return err
	}
	list, err := d.List(c.r.Context())
	if err != nil {
		return err
	}
	out := wire.QueuesResponse{Queues: make([]wire.Declaration, len(list))}
	for i, s := range list {
		out.Queues[i] = wire.DeclarationOf(s)
	}
	return c.json(out)
}

func (h *Handler) declared(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	if _, err := h.directory(); err != nil {
		return err
	}
	if err := h.authorize(c.r.Context(), RightRead, name); err != nil {
		return err
	}
	list, err := h.opts.Queues.List(c.r.Context())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(s queue.Settings) bool { return s.Name == name })
	if i < 0 {
		return queue.Refuse(queue.QueueNotFound, "there is no queue %q", name).WithHint("PUT /v1/queues/%s declares it", name)
	}
	return c.json(wire.DeclarationOf(list[i]))
}

// declare declares a queue. A field that the body omits gets the default, or, if base returns it,
// its current value.
func (h *Handler) declare(base func(inForce queue.Settings) wire.Declaration) endpoint {
	return func(c *call) error {
		name, err := c.queue()
		if err != nil {
			return err
		}
		d, err := h.directory()
		if err != nil {
			return err
		}
		text, err := c.body()
		if err != nil {
			return err
		}
		made, err := d.Amend(c.r.Context(), name, func(inForce queue.Settings) (queue.Settings, error) {
			next := base(inForce)
			retry := next.Retry
			if len(bytes.TrimSpace(text)) > 0 {
				if err := wire.Decode(text, &next); err != nil {
					return queue.Settings{}, err
				}
			}
			if next.Name != "" && next.Name != name {
				return queue.Settings{}, queue.Refuse(queue.BadRequest, "name: the path says %q, the body %.80q", name, next.Name)
			}
			next.Name, next.Retry = name, cmp.Or(next.Retry, retry) // null counts as omitted, as in other fields
			return next.Settings()
		})
		if err != nil {
			return err
		}
		return c.json(wire.DeclarationOf(made))
	}
}

// reshard begins to change the number of a queue's shards. It answers at once.
func (h *Handler) reshard(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	d, err := h.directory()
	if err != nil {
		return err
	}
	var req wire.ReshardRequest
	if err := c.decode(&req); err != nil {
		return err
	}
	set, err := d.Reshard(c.r.Context(), name, req.Shards)
	if err != nil {
		return err
	}
	return c.json(wire.DeclarationOf(set))
}

func (h *Handler) remove(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	d, err := h.directory()
	if err != nil {
		return err
	}
	if err := d.Remove(c.r.Context(), name); err != nil {
		return err
	}
	return c.nothing()
}
