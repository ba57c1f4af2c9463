package sinktest

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
)

// stormPage is how many rows of a storm are delivered in one call, as by a relay.
const stormPage = 500

// stormRows returns how many messages a storm has.
func stormRows(t *testing.T) int {
	t.Helper()
	text := os.Getenv("EMITD_TEST_STORM")
	if text == "" {
		return 3000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("EMITD_TEST_STORM is %q, want a number of messages", text)
	}
	return n
}

// storm delivers pages of a few busy keys while the receiver does not take some messages in the middle of them.
// What was not taken is delivered again, at first with the same faults and then without. Whatever a sink has in
// flight behind a failed message, the first deliveries of a key are in order and complete.
func (s Suite) storm(t *testing.T, h *Harness, fault Fault) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	rows := Rows(h.Topic, stormRows(t), 2)
	failures := 0
	for page := range slices.Chunk(rows, stormPage) {
		var bad []uuid.UUID
		for _, i := range dice.Perm(len(page))[:min(1+dice.IntN(4), len(page))] {
			bad = append(bad, page[i].ID)
		}
		rest := page
		for try := 0; len(rest) > 0; try++ {
			if try == 20 {
				t.Fatalf("%d rows are not delivered although nothing fails any more", len(rest))
			}
			h.Fail(t, fault, nil)
			if try < 2 {
				h.Fail(t, fault, bad)
			}
			errs := h.deliver(t, t.Context(), rest)
			var left []outbox.Row
			for i, err := range errs {
				if err != nil {
					left = append(left, rest[i])
				}
			}
			failures += len(left)
			rest = left
		}
	}
	if failures == 0 {
		t.Error("nothing failed: the receiver does not have the fault")
	}
	again := 0
	for id, n := range h.nothingIsLost(t, rows, make([]error, len(rows))) {
		if again += n - 1; n > 1 && s.Dedup {
			t.Errorf("%s arrived %d times", id, n)
		}
	}
	t.Logf("%d messages, %d of them repeated, after %d failures", len(rows), again, failures)
}
