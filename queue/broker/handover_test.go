package broker

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
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
	h.drain(now)
	h.prepare(now) // the assignment is drained too, after the queue was removed
	if h.due(now.Add(time.Hour), true) || !h.isDraining() {
		t.Errorf("it drains: %+v", h)
	}
	if h.closeDue(now, false) || !h.closeDue(now, true) || !h.closeDue(now.Add(drainAppendWait), false) {
		t.Error("the journal is closed too early or too late")
	}
	if wait, ok := h.untilDue(now); !ok || wait != drainAppendWait {
		t.Errorf("the journal is to be closed: %v, %t", wait, ok)
	}
	failed := errors.New("failed")
	h.close(func() error { return failed })
	if _, ok := h.untilDue(now); ok || h.closeDue(now, true) {
		t.Errorf("the journal is being closed: %+v", h)
	}
	if err := <-h.logClosed; !errors.Is(err, failed) {
		t.Error(err)
	}
	if h.end(); !h.isDraining() {
		t.Errorf("it has ended: %+v", h)
	}
}

// TestDrainOfAFullJournal: a claim was answered and is to be written within a second, and the journal takes nothing more when the
// drain begins. The successor knows the claim.
func TestDrainOfAFullJournal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, down := failing(t, mem.Config{}, isCreate)
		w.declare(queue.Settings{})
		a := w.node("a")
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(queue.Job{ID: "claimed"})
		down.Store(true)
		enqueue := func(id string, n int) {
			jobs := make([]queue.Job, n)
			for i := range jobs {
				jobs[i] = queue.Job{ID: fmt.Sprint(id, i), Payload: make([]byte, queue.InlinePayload)}
			}
			go func() { _, _ = a.Enqueue(w.ctx, queue.DefaultQueue, jobs) }()
			synctest.Wait()
		}
		s := a.shard(queue.DefaultQueue, 0)
		for left := 64<<20/queue.InlinePayload - 1; left > 0; left -= min(left, 8) {
			enqueue(fmt.Sprint("fill", left, "-"), min(left, 8))
		}
		if s.commits.blocked {
			t.Fatal("the journal is full already")
		}
		a.claimOne("claimed")
		enqueue("last", 1)
		if !s.commits.blocked {
			t.Fatal("the journal is not full")
		}
		r.a.BeginDrain()
		synctest.Wait()
		down.Store(false)
		<-r.done
		b := w.node("b")
		b.serve(queue.DefaultQueue, 0)
		if i := b.get("claimed"); i.State != queue.Active {
			t.Errorf("%+v", i)
		}
	})
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
