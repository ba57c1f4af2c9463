package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// TestEvent: an event says who, from where, what, before and after, and how it ended; it never becomes large.
func TestEvent(t *testing.T) {
	t.Parallel()
	c := Change{
		Kind: "queue.purge", Subject: "mail", By: By{"alice", "operate", "10.0.0.7", false}, Args: map[string]any{"state": "dead"},
		Before: map[string]int{"dead": 3}, After: map[string]int{"dead": 0}, Count: 3,
	}
	e := c.Event()
	const want = `{"actor":"alice","role":"operate","address":"10.0.0.7","queue":"mail","args":{"state":"dead"},"before":{"dead":3},"after":{"dead":0},"count":3,"result":"done"}`
	if string(e.Detail) != want || e.Kind != "queue.purge" || e.Reason != "mail by alice: 3" {
		t.Errorf("%s %s %s", e.Kind, e.Reason, e.Detail)
	}
	c.Kind, c.Err, c.Args = "outbox.retry", errors.New("no answer"), slices.Repeat([]string{"job"}, 5000)
	e = c.Event()
	if !json.Valid(e.Detail) || len(e.Detail) > mostDetail || !strings.Contains(string(e.Detail), `"subscription":"mail"`) || !strings.Contains(string(e.Detail), "failed: no answer") {
		t.Errorf("%d bytes: %s", len(e.Detail), e.Detail)
	}
}

// away is a store that records nothing.
type away struct{ storage.Store }

func (away) Record(context.Context, daemon.Event) error { return storage.ErrUnavailable }

// TestStoreAway: what the store did not take is in the log as a whole.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	Record(t.Context(), away{}, slog.New(slog.NewJSONHandler(&text, nil)), Change{Kind: "queue.pause", Subject: "mail", By: By{Actor: "alice"}})
	if !strings.Contains(text.String(), `could not be stored`) || !strings.Contains(text.String(), `\"actor\":\"alice\"`) {
		t.Error(text.String())
	}
}
