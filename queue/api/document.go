package api

import _ "embed"

// document describes the JSON API and osqueue's paths in OpenAPI 3.1. A test makes it from the routes, their bodies and
// the comments of these: go test ./queue/api -run TestDocument -update.
//
//go:embed openapi.json
var document []byte

// describe answers with the document.
func (h *Handler) describe(c *call) error {
	if _, err := c.parameters(); err != nil {
		return err
	}
	if err := h.authorize(c.r.Context(), RightRead, ""); err != nil {
		return err
	}
	return c.reply(document)
}
