// Package sinktest is the conformance suite of sinks: it tests the promises of package sink against a
// receiver that can be made to fail.
//
// EMITD_TEST_STORM is the number of messages of each storm of failures; default 3,000.
//
// A sink's test makes a [Harness], which is a fresh receiver with a sink in front of it, and calls [Suite.Run].
// Faults that the receiver cannot produce are listed in [Suite.Unsupported], with the reason in a comment.
// The rest of the suite always runs.
package sinktest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
)

// Bound limits every wait for something that must happen.
const Bound = 30 * time.Second

// Fault is a failure that a receiver can be made to produce.
type Fault string

// The faults.
const (
	Refuse Fault = "refuse" // refuses the named messages for good
	Falter Fault = "falter" // answers the named messages with a transient error
	Hang   Fault = "hang"   // does not answer the named messages
	Down   Fault = "down"   // nothing listens any more
)

// Taken is a message that the receiver has taken.
type Taken struct{ ID, Key string }

// Harness is a sink with its receiver.
type Harness struct {
	Sink  outbox.Sink
	Topic string // where messages go; default "orders"
	// Received returns what the receiver has taken, in its order, or per key if it has no total order.
	Received func(t *testing.T) []Taken
	// Fail makes the receiver produce a fault from now on. Refuse, Falter and Hang apply only to the given
	// messages. A nil list of messages ends the faults that can be ended.
	Fail func(t *testing.T, f Fault, messages []uuid.UUID)
	// Secrets must not appear in any error.
	Secrets []string
}

// Suite configures the tests.
type Suite struct {
	New func(t *testing.T) *Harness
	// Unsupported lists the faults that this receiver cannot produce.
	Unsupported []Fault
	// Dedup says that the receiver itself drops repeated IDs.
	Dedup bool
	// Atomic says that the rows of a call are taken together, so that a row with a transient error makes
	// others fail with it.
	Atomic bool
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		name  string
		fault Fault
		test  func(t *testing.T, h *Harness)
	}{
		{"everything is delivered, keys in order", "", s.inOrder},
		{"nothing to deliver", "", nothing},
		{"a repetition has the same ids", "", s.repeated},
		{"odd messages arrive", "", odd},
		{"a context that has ended", "", ended},
		{"a refused message blocks its key alone", Refuse, s.refused},
		{"many refused messages", Refuse, s.manyRefused},
		{"an error that may pass blocks its key alone", Falter, s.faltered},
		{"a key goes on where it failed", Falter, s.resumed},
		{"a receiver that hangs", Hang, s.hung},
		{"failures in the middle of keys", Falter, func(t *testing.T, h *Harness) { s.storm(t, h, Falter) }},
		{"refusals in the middle of keys", Refuse, func(t *testing.T, h *Harness) { s.storm(t, h, Refuse) }},
		{"nobody listens", Down, down},
	} {
		if slices.Contains(s.Unsupported, c.fault) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, s.harness(t))
		})
	}
}

func (s Suite) harness(t *testing.T) *Harness {
	h := s.New(t)
	if h.Topic == "" {
		h.Topic = "orders"
	}
	return h
}

// Rows returns n rows for a topic, spread over keys. Every tenth has no key if keys is positive.
func Rows(topic string, n, keys int) []outbox.Row {
	rows := make([]outbox.Row, n)
	for i := range rows {
		key := ""
		if keys > 0 && i%10 != 9 {
			key = fmt.Sprintf("key-%d", i%keys)
		}
		rows[i] = outbox.Row{
			Message: outbox.Message{
				ID: uuid.Must(uuid.NewV7()), Key: key, Topic: topic, Type: "order.placed",
				Payload: fmt.Appendf(nil, `{"n":%d}`, i),
				Headers: map[string]string{"tenant": "acme", "content-type": "application/json"},
			},
			Seq: int64(i + 1), Attempt: 1, CreatedAt: time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC),
		}
		rows[i].Shard = outbox.ShardOf(key)
	}
	return rows
}

// Delivery returns a delivery of rows by a relay of the subscription "billing".
func Delivery(rows []outbox.Row) outbox.Delivery {
	return outbox.Delivery{Subscription: "billing", Epoch: 7, Range: "0-63", Rows: rows}
}

// deliver calls the sink within the bound and checks what holds for any result.
func (h *Harness) deliver(t *testing.T, ctx context.Context, rows []outbox.Row) []error { //nolint:revive // t first, as tests read
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	errs := make(chan []error, 1)
	go func() { errs <- h.Sink.Deliver(ctx, Delivery(rows)) }()
	select {
	case got := <-errs:
		h.checkResult(t, rows, got)
		return Spread(got, len(rows))
	case <-time.After(Bound + 5*time.Second):
		t.Fatal("Deliver does not return although its context has ended")
		return nil
	}
}

// checkResult checks that a result is well-formed and contains no secrets.
func (h *Harness) checkResult(t *testing.T, rows []outbox.Row, errs []error) {
	t.Helper()
	if n := len(errs); n != 0 && n != 1 && n != len(rows) {
		t.Fatalf("%d errors for %d rows", n, len(rows))
	}
	for _, err := range errs {
		for _, secret := range h.Secrets {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("an error shows a secret: %v", err)
			}
		}
	}
	failed := map[string]bool{}
	for i, err := range Spread(errs, len(rows)) {
		if key := rows[i].Key; key != "" && err == nil && failed[key] {
			t.Errorf("row %d of key %s counts as delivered although an earlier one of the key does not", i, key)
		} else if err != nil {
			failed[key] = true
		}
	}
}

// Spread expands the result of Deliver to one error per row.
func Spread(errs []error, n int) []error {
	out := make([]error, n)
	for i := range out {
		switch {
		case len(errs) == 1:
			out[i] = errs[0]
		case len(errs) > 0:
			out[i] = errs[i]
		}
	}
	return out
}

// received asks the receiver for its messages. It checks that those of each key, without repetitions, are
// the first rows of the key in order.
func (h *Harness) received(t *testing.T, rows []outbox.Row) map[string]int {
	t.Helper()
	counts := map[string]int{}
	place := map[string]int{}
	next := map[string]int{}
	for _, r := range rows {
		place[r.ID.String()] = next[r.Key]
		next[r.Key]++
	}
	seen := map[string]int{}
	for _, m := range h.Received(t) {
		counts[m.ID]++
		p, known := place[m.ID]
		switch {
		case !known:
			t.Errorf("the receiver has %s, which was not sent", m.ID)
		case m.Key == "" || counts[m.ID] > 1:
		case p != seen[m.Key]:
			t.Errorf("key %s: number %d came when number %d was due", m.Key, p, seen[m.Key])
		}
		if counts[m.ID] == 1 {
			seen[m.Key]++
		}
	}
	return counts
}

// nothingIsLost checks that the receiver has every row that was reported as delivered.
func (h *Harness) nothingIsLost(t *testing.T, rows []outbox.Row, errs []error) map[string]int {
	t.Helper()
	counts := h.received(t, rows)
	for i, err := range errs {
		if err == nil && counts[rows[i].ID.String()] == 0 {
			t.Errorf("row %d counts as delivered, but the receiver does not have it", i)
		}
	}
	return counts
}

func allTaken(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
	}
}
