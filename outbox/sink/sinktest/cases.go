package sinktest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
)

func (s Suite) inOrder(t *testing.T, h *Harness) {
	rows := Rows(h.Topic, 200, 7)
	allTaken(t, h.deliver(t, t.Context(), rows))
	for id, n := range h.nothingIsLost(t, rows, make([]error, len(rows))) {
		if n != 1 {
			t.Errorf("%s arrived %d times", id, n)
		}
	}
}

func nothing(t *testing.T, h *Harness) {
	if errs := h.Sink.Deliver(t.Context(), Delivery(nil)); len(errs) != 0 {
		t.Errorf("no rows, but %v", errs)
	}
}

func (s Suite) repeated(t *testing.T, h *Harness) {
	rows := Rows(h.Topic, 20, 3)
	allTaken(t, h.deliver(t, t.Context(), rows))
	allTaken(t, h.deliver(t, t.Context(), rows))
	want := 2
	if s.Dedup {
		want = 1
	}
	counts := h.received(t, rows)
	for _, r := range rows {
		if n := counts[r.ID.String()]; n != want {
			t.Errorf("%s arrived %d times, want %d", r.ID, n, want)
		}
	}
}

// odd sends messages that outbox.Message.Validate allows and that are awkward for text and line-based
// protocols.
func odd(t *testing.T, h *Harness) {
	rows := Rows(h.Topic, 6, 0)
	rows[0].Payload = nil
	rows[1].Payload = []byte{0, 1, 2, 0xff, 0xfe, '\r', '\n'}
	rows[2].Headers = nil
	rows[2].Type = ""
	rows[3].Key = "schlüssel \"mit\" 100 % / ?#&=\\" + strings.Repeat("x", 100)
	rows[3].Shard = outbox.ShardOf(rows[3].Key)
	rows[4].Headers = map[string]string{"empty": "", "umlaut": "größe", "quote": `a"b\c`, "Content-Length": "1", "emitd-id": "forged", "host": "elsewhere"}
	rows[5].TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	rows[5].TraceState = "vendor=1"
	allTaken(t, h.deliver(t, t.Context(), rows))
	h.nothingIsLost(t, rows, make([]error, len(rows)))
}

func ended(t *testing.T, h *Harness) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rows := Rows(h.Topic, 20, 3)
	errs := h.deliver(t, ctx, rows)
	h.nothingIsLost(t, rows, errs)
	for i, err := range errs {
		if err != nil && errors.Is(err, outbox.ErrPermanent) {
			t.Errorf("row %d is given up because a context ended: %v", i, err)
		}
	}
}

// refused has one message in the middle of a key that the receiver will never take.
func (s Suite) refused(t *testing.T, h *Harness) {
	rows := Rows(h.Topic, 40, 4)
	bad := 12 // of key-0: 0, 4, 8, 12, …
	h.Fail(t, Refuse, ids(rows, bad))
	errs := h.deliver(t, t.Context(), rows)
	counts := h.nothingIsLost(t, rows, errs)
	if !errors.Is(errs[bad], outbox.ErrPermanent) {
		t.Errorf("the refused message: %v, want permanent", errs[bad])
	}
	blocked(t, rows, errs, counts, bad)
}

// manyRefused has a whole key and single rows refused. All other rows must be delivered.
func (s Suite) manyRefused(t *testing.T, h *Harness) {
	rows := Rows(h.Topic, 100, 10)
	var bad []int
	for i, r := range rows {
		if r.Key == "key-3" || i%20 == 9 {
			bad = append(bad, i)
		}
	}
	h.Fail(t, Refuse, ids(rows, bad...))
	errs := h.deliver(t, t.Context(), rows)
	counts := h.nothingIsLost(t, rows, errs)
	refused := map[string]bool{}
	for _, id := range ids(rows, bad...) {
		refused[id.String()] = true
	}
	first := true
	for i, err := range errs {
		switch id := rows[i].ID.String(); {
		case !refused[id]:
			if err != nil {
				t.Errorf("row %d of another key: %v", i, err)
			}
		case counts[id] > 0:
			t.Errorf("row %d was refused, and is there", i)
		case rows[i].Key != "" && !first:
			if !errors.Is(err, outbox.ErrSkipped) {
				t.Errorf("row %d behind a refused one: %v, want skipped", i, err)
			}
		default:
			if !errors.Is(err, outbox.ErrPermanent) {
				t.Errorf("refused row %d: %v, want permanent", i, err)
			}
			first = first && rows[i].Key == ""
		}
	}
}

func (s Suite) faltered(t *testing.T, h *Harness) {
	rows := Rows(h.Topic, 40, 4)
	bad := 12
	h.Fail(t, Falter, ids(rows, bad))
	errs := h.deliver(t, t.Context(), rows)
	counts := h.nothingIsLost(t, rows, errs)
	if errs[bad] == nil || errors.Is(errs[bad], outbox.ErrPermanent) {
		t.Errorf("the message: %v, want an error worth another attempt", errs[bad])
	}
	if !s.Atomic {
		blocked(t, rows, errs, counts, bad)
	}
}

// resumed delivers again what was not delivered, as a relay does.
func (s Suite) resumed(t *testing.T, h *Harness) {
	rows := Rows(h.Topic, 40, 4)
	h.Fail(t, Falter, ids(rows, 4, 17, 33))
	errs := h.deliver(t, t.Context(), rows)
	h.nothingIsLost(t, rows, errs)
	h.Fail(t, Falter, nil)
	var rest []outbox.Row
	for i, err := range errs {
		if err != nil {
			rest = append(rest, rows[i])
		}
	}
	if len(rest) == 0 {
		t.Fatal("nothing failed: the receiver does not have the fault")
	}
	allTaken(t, h.deliver(t, t.Context(), rest))
	h.nothingIsLost(t, rows, make([]error, len(rows)))
}

// hung has one message that the receiver never answers, until the delivery's context ends.
func (s Suite) hung(t *testing.T, h *Harness) {
	rows := Rows(h.Topic, 40, 4)
	bad := 12
	h.Fail(t, Hang, ids(rows, bad))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	errs := h.deliver(t, ctx, rows)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if errs[bad] == nil {
		t.Error("a message that the receiver never confirmed counts as delivered")
	}
	if errors.Is(errs[bad], outbox.ErrPermanent) {
		t.Errorf("a message is given up because of a hanging receiver: %v", errs[bad])
	}
	for i := bad + 1; i < len(rows); i++ {
		if rows[i].Key == rows[bad].Key && errs[i] == nil {
			t.Errorf("row %d of the same key counts as delivered", i)
		}
	}
	h.Fail(t, Hang, nil)
	h.received(t, rows)
}

func down(t *testing.T, h *Harness) {
	h.Fail(t, Down, nil)
	rows := Rows(h.Topic, 40, 4)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for i, err := range h.deliver(t, ctx, rows) {
		if !errors.Is(err, outbox.ErrSinkDown) {
			t.Fatalf("row %d: %v, want that the sink is down", i, err)
		}
	}
}

// blocked checks that one failed row holds up its key and nothing else.
func blocked(t *testing.T, rows []outbox.Row, errs []error, counts map[string]int, bad int) {
	t.Helper()
	for i, err := range errs {
		same := rows[i].Key == rows[bad].Key
		switch {
		case i == bad:
			if counts[rows[i].ID.String()] > 0 {
				t.Error("the failed message is at the receiver")
			}
		case same && i > bad:
			if !errors.Is(err, outbox.ErrSkipped) {
				t.Errorf("row %d behind the failed one: %v, want skipped", i, err)
			}
			if counts[rows[i].ID.String()] > 0 {
				t.Errorf("row %d was published although an earlier one of its key was not taken", i)
			}
		case err != nil:
			t.Errorf("row %d of another key: %v", i, err)
		}
	}
}

func ids(rows []outbox.Row, places ...int) []uuid.UUID {
	out := make([]uuid.UUID, len(places))
	for n, i := range places {
		out[n] = rows[i].ID
	}
	return out
}
