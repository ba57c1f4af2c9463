package broker

import (
	"errors"
	"testing"
	"time"

	"github.com/emitd/emitd/queue/internal/journal"
)

// TestHandOverSteps: a drain begins when no checkpoint is being stored, or when the wait for one is
// over; from then on nothing brings the shard back.
func TestHandOverSteps(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var h handOver
	if _, ok := h.untilDue(now); ok || h.due(now, true) || h.isDraining() {
		t.Fatalf("a shard that is served: %+v", h)
	}
	h.prepare(now.Add(time.Second))
	if wait, ok := h.untilDue(now); !ok || wait != time.Second || h.isDraining() {
		t.Errorf("it is prepared: %v, %t", wait, ok)
	}
	if h.due(now, false) || !h.due(now, true) || !h.due(now.Add(time.Second), false) {
		t.Error("the drain begins too early or too late")
	}
	if wait, _ := h.untilDue(now.Add(time.Minute)); wait != 0 {
		t.Errorf("it is overdue: %v", wait)
	}
	failed := errors.New("failed")
	h.drain(func() error { return failed })
	h.prepare(now) // the assignment is drained too, after the queue was removed
	if h.due(now.Add(time.Hour), true) || !h.isDraining() {
		t.Errorf("it drains: %+v", h)
	}
	if err := <-h.logClosed; !errors.Is(err, failed) {
		t.Error(err)
	}
	if h.end(); !h.isDraining() {
		t.Errorf("it has ended: %+v", h)
	}
}

// TestReplayIsLong: a checkpoint before a drain is for what a successor would notice.
func TestReplayIsLong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		log   journal.Stats
		state int64
		long  bool
	}{
		{journal.Stats{Slots: drainReplaySlots, Bytes: drainReplayBytes}, 0, false},
		{journal.Stats{Slots: drainReplaySlots + 1}, 0, true},
		{journal.Stats{Bytes: drainReplayBytes + 1}, 0, true},
		{journal.Stats{Bytes: drainReplayBytes + 1}, 1 << 30, false},
	} {
		if long := replayIsLong(c.log, c.state); long != c.long {
			t.Errorf("%+v with a state of %d bytes: %t", c.log, c.state, long)
		}
	}
}
