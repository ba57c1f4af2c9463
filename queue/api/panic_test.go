package api_test

import (
	"context"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// panicking is a service that panics.
type panicking struct{ hung }

func (panicking) Stats(context.Context, string) (*queue.Stats, error) { panic("a mistake") }

// TestPanicOverWebSocket: a panic ends the call and releases its memory, and affects neither the
// process nor the connection.
func TestPanicOverWebSocket(t *testing.T) {
	t.Parallel()
	l := limiter(t, api.Limits{})
	h, err := api.New(panicking{}, api.Options{Limiter: l, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	c, err := socket(t, listen(t, h).URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for range 2 {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"id":7,"method":"getStats"}`)); err != nil {
			t.Fatal(err)
		}
		_, text, err := c.Read(t.Context())
		if err != nil || !strings.Contains(string(text), `"id":7`) || !strings.Contains(string(text), "Internal") || strings.Contains(string(text), "a mistake\"") {
			t.Errorf("%s, %v", text, err)
		}
	}
	c.CloseNow()
	eventually(t, "everything was given back", func() bool { bytes, calls := l.InUse(); return bytes == 0 && calls == 0 })
}
