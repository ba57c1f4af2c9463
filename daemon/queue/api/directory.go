package api

import (
	"slices"

	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/daemon/queue/api/operate"
	"github.com/emitd/emitd/daemon/queue/api/refusal"
)

func (h *Handler) directory() (Directory, error) {
	if h.opts.Queues == nil {
		return nil, queue.Refuse(refusal.Unsupported, "this server does not declare queues")
	}
	return h.opts.Queues, nil
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
	out := operate.QueuesResponse{Queues: make([]operate.Declaration, len(list))}
	for i, s := range list {
		out.Queues[i] = operate.DeclarationOf(s)
	}
	return c.json(out)
}

func (h *Handler) declared(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	d, err := h.directory()
	if err != nil {
		return err
	}
	list, err := d.List(c.r.Context())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(s queue.Settings) bool { return s.Name == name })
	if i < 0 {
		return queue.Refuse(queue.QueueNotFound, "there is no queue %q", name).WithHint("PUT /v1/queues/%s declares it", name)
	}
	return c.json(operate.DeclarationOf(list[i]))
}

func (h *Handler) declare(c *call) error {
	name, err := c.queue()
	if err != nil {
		return err
	}
	d, err := h.directory()
	if err != nil {
		return err
	}
	var body operate.Declaration
	if err := c.decodeAny(&body); err != nil {
		return err
	}
	if body.Name != "" && body.Name != name {
		return queue.Refuse(queue.BadRequest, "name: the path says %q, the body %.80q", name, body.Name)
	}
	body.Name = name
	settings, err := body.Settings()
	if err != nil {
		return err
	}
	made, err := d.Declare(c.r.Context(), settings)
	if err != nil {
		return err
	}
	return c.json(operate.DeclarationOf(made))
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
