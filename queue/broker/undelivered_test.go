package broker

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// blobWorld returns a queue with a payload that is an object of its own, and a switch for the
// outcome of reads of such objects.
func blobWorld(t *testing.T, set queue.Settings) (*world, *node, *run, *atomic.Pointer[mem.Fault]) {
	t.Helper()
	fault := &atomic.Pointer[mem.Fault]{}
	w := newWorld(t, mem.New(mem.Config{Latency: mem.Constant(20 * time.Millisecond), Faults: func(c mem.Call) mem.Fault {
		if f := fault.Load(); f != nil && c.Op == mem.Read && strings.Contains(c.Key, "/blob/") {
			return *f
		}
		return mem.Fault{}
	}}))
	w.declare(set)
	n := w.node("n1")
	return w, n, n.serve(queue.DefaultQueue, 0), fault
}

func large() []byte { return bytes.Repeat([]byte("x"), queue.InlinePayload+1) }

// TestHole04UnreadablePayload: while payload objects cannot be read, their jobs lose no attempts
// and the other jobs are handed out. Afterwards all of them are; a broker that takes over behaves
// the same.
func TestHole04UnreadablePayload(t *testing.T) {
	for name, req := range map[string]queue.ClaimRequest{"soft": {}, "durable": {}, "tokenless": {Tokenless: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				set := queue.Settings{}
				if name == "durable" {
					set.Claims = queue.DurableClaims
				}
				w, n, r, fault := blobWorld(t, set)
				n.enqueue(queue.Job{ID: "large", Payload: large()})
				fault.Store(&mem.Fault{Kind: mem.Unavailable})
				req.Worker, req.Max = "w", 3
				begun, refused := time.Now(), 0
				for i := 0; time.Since(begun) < 2*time.Minute; i++ {
					small := string(rune('a' + i%26))
					n.enqueue(queue.Job{Key: time.Now().String(), Payload: []byte(small)})
					got := n.claim(req)
					if len(got) != 1 || string(got[0].Payload) != small {
						t.Fatalf("handed out %+v", got)
					}
					wantOutcome(t, n.settle(queue.Complete, got[0]), queue.Completed, "")
					if _, err := n.Claim(w.ctx, queue.DefaultQueue, req); err != nil {
						wantRefusal(t, err, queue.Unavailable)
						refused++
					}
					time.Sleep(time.Second)
				}
				if refused > 4 {
					t.Errorf("the job was handed to %d calls in vain: it does not back off", refused)
				}
				i, err := n.info("large")
				if err != nil || i.State != queue.Delayed || i.Attempts != 0 || !strings.Contains(i.Cause, "could not be read") {
					t.Fatalf("%+v, %v", i, err)
				}
				r.kill()
				n.serve(queue.DefaultQueue, 0)
				fault.Store(nil)
				req.Wait = queue.MaxWait
				got := n.claim(req)
				if len(got) != 1 || got[0].Job.Attempts != 0 || !bytes.Equal(got[0].Payload, large()) {
					t.Fatalf("handed out %d jobs", len(got))
				}
				wantOutcome(t, n.settle(queue.Complete, got[0]), queue.Completed, "")
			})
		})
	}
}

// info returns a job from the list, which needs no payload.
func (n *node) info(id string) (*queue.Info, error) {
	page, err := n.List(n.w.ctx, queue.DefaultQueue, queue.Query{})
	if err != nil {
		return nil, err
	}
	for _, i := range page.Jobs {
		if i.ID == id {
			return &i, nil
		}
	}
	return nil, queue.Refuse(queue.JobNotFound, "%s", id)
}

// TestHole04LostPayload: a job whose payload object is missing is dead with that cause, and can be
// inspected; the others of its batch are handed out.
func TestHole04LostPayload(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, n, r, _ := blobWorld(t, queue.Settings{})
		n.enqueue(queue.Job{ID: "lost", Payload: large()}, queue.Job{ID: "small"})
		for _, key := range w.bucket.(*mem.Bucket).Keys() {
			if strings.Contains(key, "/blob/") {
				if err := w.bucket.Delete(w.ctx, key); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := n.claim(queue.ClaimRequest{Worker: "w", Max: 3}); len(got) != 1 || got[0].Job.ID != "small" {
			t.Fatalf("handed out %+v", got)
		}
		time.Sleep(time.Second)
		for range 2 {
			if i := n.get("lost"); i.State != queue.Dead || i.Attempts != 0 || !strings.Contains(i.Cause, "is missing") || i.Size != len(large()) {
				t.Fatalf("%+v", i)
			}
			r.kill()
			r = n.serve(queue.DefaultQueue, 0)
		}
		if met := n.command(queue.Command{Act: queue.Redrive}); met != 1 {
			t.Fatalf("redriven: %d", met)
		}
		if got := n.claim(queue.ClaimRequest{Worker: "w", Max: 3, Types: []string{""}}); len(got) != 0 {
			t.Fatalf("handed out %+v", got)
		}
	})
}

// TestHole04NobodyThere: if a caller gives up while payloads are read, none of its jobs counts an
// attempt, whether or not its own payload could be read.
func TestHole04NobodyThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, n, _, fault := blobWorld(t, queue.Settings{})
		n.enqueue(queue.Job{ID: "large", Payload: large()}, queue.Job{ID: "small", Retry: queue.Retry{MaxAttempts: 20}})
		fault.Store(&mem.Fault{Kind: mem.LostRequest, Hang: true})
		for range 20 {
			ctx, cancel := context.WithTimeout(w.ctx, time.Second)
			if got, err := n.Claim(ctx, queue.DefaultQueue, queue.ClaimRequest{Worker: "w", Max: 3, Wait: queue.MaxWait}); len(got) != 1 && err == nil {
				t.Fatalf("%+v, %v", got, err)
			} else if err == nil { // the large job waits for its next attempt
				wantOutcome(t, n.settle(queue.Release, got[0]), queue.Waiting, "")
			}
			cancel()
		}
		fault.Store(nil)
		time.Sleep(unreadableMaxWait)
		for _, id := range []string{"large", "small"} {
			if c := n.claimOne(id); c.Job.Attempts != 0 {
				t.Fatalf("%+v", c.Job)
			}
		}
	})
}

// TestHole04RepeatedWhilePayloadsAreRead: a call is repeated while the payloads of its claims are read. When the broker notices that
// the first caller has gone, the jobs stay claimed: the second caller may have them.
func TestHole04RepeatedWhilePayloadsAreRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, n, _, fault := blobWorld(t, queue.Settings{})
		n.enqueue(queue.Job{ID: "large", Payload: large()})
		fault.Store(&mem.Fault{Kind: mem.LostRequest, Hang: true})
		req := queue.ClaimRequest{Worker: "w", RequestID: "call"}
		ctx, cancel := context.WithCancel(w.ctx)
		failed := make(chan error)
		go func() {
			_, err := n.Claim(ctx, queue.DefaultQueue, req)
			failed <- err
		}()
		time.Sleep(time.Second)
		fault.Store(nil)
		got := n.claim(req)
		if len(got) != 1 || !bytes.Equal(got[0].Payload, large()) {
			t.Fatalf("the repeated call got %+v", got)
		}
		cancel()
		wantRefusal(t, <-failed, queue.UnknownOutcome)
		time.Sleep(time.Second)
		wantOutcome(t, n.settle(queue.Complete, got[0]), queue.Completed, "")
	})
}

// TestHole04SlowPayload: a read that does not end leaves half of the visibility timeout to the
// other jobs.
func TestHole04SlowPayload(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, n, _, fault := blobWorld(t, queue.Settings{})
		n.enqueue(queue.Job{ID: "large", Payload: large()}, queue.Job{ID: "small"})
		fault.Store(&mem.Fault{Kind: mem.LostRequest, Hang: true})
		begun := time.Now()
		if got := n.claim(queue.ClaimRequest{Worker: "w", Max: 3}); len(got) != 1 || got[0].Job.ID != "small" || time.Since(begun) > 16*time.Second {
			t.Fatalf("%+v after %v", got, time.Since(begun))
		}
	})
}

// TestHole04GoneBeforeTheAnswer: if the caller has gone before its claims were durable, the jobs
// wait again as soon as they are, and lose no attempt. Claims of a call that can be repeated are
// kept for the repetition.
func TestHole04GoneBeforeTheAnswer(t *testing.T) {
	for name, req := range map[string]queue.ClaimRequest{
		"durable": {}, "waiting": {Wait: queue.MaxWait}, "tokenless": {Tokenless: true}, "repeatable": {RequestID: "r", Wait: queue.MaxWait},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, _, n, _ := slow(t, queue.Settings{Claims: queue.DurableClaims})
				n.serve(queue.DefaultQueue, 0)
				n.enqueue(queue.Job{ID: "a", Retry: queue.Retry{MaxAttempts: 1}})
				req.Worker = "w"
				for range 10 {
					ctx, cancel := context.WithTimeout(w.ctx, latency/2)
					begun := time.Now()
					_, err := n.Claim(ctx, queue.DefaultQueue, req)
					wantRefusal(t, err, queue.UnknownOutcome)
					if took := time.Since(begun); took != latency/2 {
						t.Fatalf("it took %v", took)
					}
					cancel()
					time.Sleep(3 * latency)
					if req.RequestID != "" {
						break
					}
				}
				req.Wait = 0
				begun := time.Now()
				got := n.claim(req)
				if len(got) != 1 || got[0].Job.Attempts != 0 || time.Since(begun) > 2*latency {
					t.Fatalf("%+v after %v", got, time.Since(begun))
				}
				wantOutcome(t, n.settle(queue.Complete, got[0]), queue.Completed, "")
			})
		})
	}
}
