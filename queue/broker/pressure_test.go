package broker

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

func TestLargePayload(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	w := newWorld(t, bucket)
	w.declare(queue.Settings{})
	n := w.node("n1")
	r := n.serve(queue.DefaultQueue, 0)
	large := make([]byte, queue.InlinePayload+1)
	large[queue.InlinePayload] = 7
	n.enqueue(queue.Job{ID: "large", Payload: large})
	n.enqueue(queue.Job{ID: "large", Payload: large}) // its upload is an orphan
	blobs := func(want int) {
		deadline := time.Now().Add(20 * time.Second)
		for got := -1; got != want; n.stats() { // they are deleted in the background
			if got = strings.Count(strings.Join(bucket.Keys(), " "), "/blob/"); got != want && time.Now().After(deadline) {
				t.Fatalf("left: %v", bucket.Keys())
			}
		}
	}
	blobs(1)
	r.kill()
	n.serve(queue.DefaultQueue, 0)
	if _, p, err := n.Get(w.ctx, queue.DefaultQueue, "large"); err != nil || len(p) != len(large) {
		t.Fatalf("%d bytes, %v", len(p), err)
	}
	c := n.claimOne("large")
	if len(c.Payload) != len(large) || c.Payload[queue.InlinePayload] != 7 || c.Job.Size != len(large) {
		t.Fatalf("%d bytes", len(c.Payload))
	}
	wantOutcome(t, n.settle(queue.Complete, c), queue.Completed, "")
	blobs(0)
	_, err := n.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{Payload: make([]byte, queue.MaxPayload+1)}})
	wantRefusal(t, err, queue.PayloadTooLarge)
}

// TestPayloadsOfTheDeadAreSwept: the next takeover deletes the payloads that a crashed broker left,
// between writing a payload and its job's record, or between the job's end and the deletion.
// Payloads of live jobs stay, and so do those that are being uploaded.
func TestPayloadsOfTheDeadAreSwept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, bucket, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		large := make([]byte, queue.InlinePayload+1)
		a.enqueue(queue.Job{ID: "lives", Payload: large}, queue.Job{ID: "waits", Payload: large, Delay: time.Hour})
		s := a.shard(queue.DefaultQueue, 0)
		put := func(epoch int) string {
			key := fmt.Sprintf("%s%d-of-the-test-%d", s.payloads.prefix, epoch, len(bucket.Keys()))
			if _, err := bucket.Create(a.w.ctx, key, large); err != nil {
				t.Fatal(err)
			}
			return key
		}
		orphan, later, unrelated := put(1), put(2), s.payloads.prefix+"README"
		if _, err := bucket.Create(a.w.ctx, unrelated, large); err != nil {
			t.Fatal(err)
		}
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		time.Sleep(time.Minute)
		left := strings.Join(bucket.Keys(), " ")
		if strings.Contains(left, orphan) || !strings.Contains(left, later) || !strings.Contains(left, unrelated) {
			t.Errorf("left: %s", left)
		}
		for _, id := range []string{"lives", "waits"} {
			if _, p, err := b.Get(b.w.ctx, queue.DefaultQueue, id); err != nil || len(p) != len(large) {
				t.Errorf("%s: %d bytes, %v", id, len(p), err)
			}
		}
	})
}

// TestAClaimIsBounded: the payloads of one claim fit into one answer, over all shards; the other
// jobs are left for the next claim.
func TestAClaimIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.declare(queue.Settings{Shards: 2})
	n := w.node("n1")
	n.serve(queue.DefaultQueue, 0)
	n.serve(queue.DefaultQueue, 1)
	for i := range 6 { // two of them fit into one claim
		n.enqueue(queue.Job{ID: fmt.Sprint("large", i), Payload: make([]byte, 7<<20)})
	}
	n.enqueue(queue.Job{ID: "largest", Payload: make([]byte, queue.MaxPayload)}, queue.Job{ID: "least"})
	seen := map[string]bool{}
	for calls := 1; len(seen) < 8; calls++ {
		bytes := 0
		got := n.claim(queue.ClaimRequest{Max: queue.MaxCall, Wait: time.Duration(calls%2) * time.Millisecond})
		for _, c := range got {
			seen[c.Job.ID] = true
			bytes += len(c.Payload)
		}
		if bytes > queue.MaxPayload || len(got) == 0 || calls > 8 {
			t.Fatalf("claim %d: %d jobs, %d bytes", calls, len(got), bytes)
		}
	}
}

// TestMoreThanTheJournalTakes: a call with more bytes than may be in flight is written in several
// batches.
func TestMoreThanTheJournalTakes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		jobs := jobsWithIDs(300)
		for i := range jobs {
			jobs[i].Payload = make([]byte, queue.InlinePayload)
		}
		if got := a.enqueue(jobs...); len(got) != 300 || got[299].ID != "j299" || got[299].Duplicate {
			t.Fatalf("%d receipts", len(got))
		}
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		if st := b.stats(); st.Waiting != 300 || st.PayloadBytes != b.recentBytes {
			t.Fatalf("%+v", st)
		}
	})
}

// TestAStoreThatIsDown: the amount of data that waits for the store is bounded. Beyond it, callers
// are told to come later, and everything continues when the store does.
func TestAStoreThatIsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, down := failing(t, mem.Config{}, isCreate)
		w.declare(queue.Settings{})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		n.enqueue(queue.Job{ID: "before"})
		down.Store(true)
		var callers sync.WaitGroup
		var full, acked atomic.Int64
		for i := range 40 {
			callers.Go(func() {
				jobs := make([]queue.Job, 10)
				for j := range jobs {
					jobs[j] = queue.Job{ID: fmt.Sprint(i, "-", j), Payload: make([]byte, queue.InlinePayload)}
				}
				switch _, err := n.Enqueue(w.ctx, queue.DefaultQueue, jobs); {
				case err == nil:
					acked.Add(1)
				case queue.TagOf(err) == queue.QueueFull:
					full.Add(1)
				default:
					t.Errorf("%v", err)
				}
			})
		}
		time.Sleep(10 * time.Second)
		s := n.shard(queue.DefaultQueue, 0)
		synctest.Wait()
		if s.commits.unapplied.bytes > 100<<20 || full.Load() == 0 || acked.Load() != 0 {
			t.Errorf("%d bytes are under way, %d calls were refused, %d acknowledged", s.commits.unapplied.bytes, full.Load(), acked.Load())
		}
		down.Store(false)
		callers.Wait()
		if st := n.stats(); st.Waiting != acked.Load()*10+1 || full.Load()+acked.Load() != 40 {
			t.Errorf("%+v, %d acknowledged, %d refused", st, acked.Load(), full.Load())
		}
	})
}

// TestGivingUpKeepsThePayload: a caller that gives up does not know the outcome; if the job exists,
// its payload does too.
func TestGivingUpKeepsThePayload(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, _ := slow(t, queue.Settings{})
		a.serve(queue.DefaultQueue, 0)
		ctx, cancel := context.WithTimeout(w.ctx, latency*3/2) // uploaded, not committed
		defer cancel()
		_, err := a.Enqueue(ctx, queue.DefaultQueue, []queue.Job{{ID: "large", Payload: make([]byte, 2*queue.InlinePayload)}})
		wantRefusal(t, err, queue.UnknownOutcome)
		time.Sleep(time.Second)
		if c := a.claimOne("large"); len(c.Payload) != 2*queue.InlinePayload {
			t.Fatalf("%d bytes", len(c.Payload))
		}
	})
}

// TestSettlingMuchAtOnce: the results of one call may be larger than a segment. The broker stores them in several.
func TestSettlingMuchAtOnce(t *testing.T) {
	t.Parallel()
	const jobs = 600
	w, n, _ := serving(t, queue.Settings{})
	n.enqueue(jobsWithIDs(jobs)...)
	result := bytes.Repeat([]byte("r"), queue.MaxResult)
	var settlements []queue.Settlement
	for _, c := range n.claim(queue.ClaimRequest{Max: jobs}) {
		settlements = append(settlements, queue.Settlement{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token, Result: result})
	}
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	outcomes, err := n.Settle(ctx, queue.DefaultQueue, settlements)
	if err != nil || len(outcomes) != jobs {
		t.Fatalf("%d outcomes, %v", len(outcomes), err)
	}
	for _, out := range outcomes {
		wantOutcome(t, out, queue.Completed, "")
	}
}
