package broker

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/storage/blob"
)

const latency = 20 * time.Millisecond

// slow returns a world with two nodes whose bucket has latency.
func slow(t *testing.T, set queue.Settings) (*world, *mem.Bucket, *node, *node) {
	t.Helper()
	bucket := mem.New(mem.Config{Latency: mem.Constant(latency)})
	w := newWorld(t, bucket)
	w.declare(set)
	return w, bucket, w.node("a"), w.node("b")
}

// TestCrashTakeover: everything that was acknowledged is there, and a known claim still holds.
func TestCrashTakeover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(10)...)
		done, held := a.claimOne("j0"), a.claimOne("j1")
		wantOutcome(t, a.settle(queue.Complete, done), queue.Completed, "")
		wantOutcome(t, a.settle(queue.Extend, held), queue.Active, "")
		a.enqueue(queue.Job{ID: "later", Delay: time.Hour})
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		if st := b.stats(); st.Waiting != 8 || st.Active != 1 || st.Delayed != 1 || st.Completed != 1 || st.Epoch != 2 {
			t.Fatalf("%+v", st)
		}
		if i := b.get("j1"); i.Attempts != 1 {
			t.Fatalf("the proof of start was lost: %+v", i)
		}
		if got := b.enqueue(queue.Job{ID: "j0"}, queue.Job{ID: "j5"}); !got[0].Duplicate || got[0].State != queue.Completed || !got[1].Duplicate {
			t.Fatalf("%+v", got)
		}
		wantOutcome(t, b.settle(queue.Complete, done), queue.Completed, "") // its answer may have been lost
		wantOutcome(t, b.settle(queue.Complete, held), queue.Completed, "")
		b.claimOne("j2")
	})
}

// TestFreshTimeout: at a takeover every known claim gets one visibility timeout.
func TestFreshTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(1)...)
		c := a.claimOne("j0")
		time.Sleep(25 * time.Second) // of 30
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		time.Sleep(25 * time.Second)
		wantOutcome(t, b.settle(queue.Extend, c), queue.Active, "")
		time.Sleep(31 * time.Second)
		wantOutcome(t, b.settle(queue.Extend, c), "", queue.StaleClaim)
	})
}

// TestAdoption: a claim whose record was lost with its broker is accepted, as long as no other worker
// got the job.
func TestAdoption(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(3)...)
		claims := a.claim(queue.ClaimRequest{Max: 2})
		r.kill() // within the second before the claims would have been written
		r = b.serve(queue.DefaultQueue, 0)
		if st := b.stats(); st.Waiting != 3 || st.Active != 0 {
			t.Fatalf("the claims were written: %+v", st)
		}
		wantOutcome(t, b.settle(queue.Extend, claims[0]), queue.Active, "")
		if i := b.get("j0"); i.Attempts != 1 || i.Deliveries != 1 {
			t.Fatalf("%+v", i)
		}
		again := b.claimOne("j1") // the other job was claimed again
		wantOutcome(t, b.settle(queue.Complete, claims[1]), "", queue.StaleClaim)
		wantOutcome(t, b.settle(queue.Complete, again), queue.Completed, "")
		wantOutcome(t, b.settle(queue.Complete, claims[1]), "", queue.StaleClaim)
		wantOutcome(t, b.settle(queue.Complete, claims[0]), queue.Completed, "")

		// Two brokers in a row lose their claims of one job: the later one wins.
		second := b.claimOne("j2")
		r.kill()
		r = a.serve(queue.DefaultQueue, 0)
		third := a.claimOne("j2")
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		wantOutcome(t, b.settle(queue.Extend, second), queue.Active, "")
		wantOutcome(t, b.settle(queue.Extend, third), queue.Active, "")
		wantOutcome(t, b.settle(queue.Extend, second), "", queue.StaleClaim)
		wantOutcome(t, b.settle(queue.Complete, third), queue.Completed, "")
	})
}

// TestAdoptionEnds: a token does not undo the end of a claim that is in the log.
func TestAdoptionEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, a, b := slow(t, queue.Settings{Visibility: 5 * time.Second})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(2)...)
		c := a.claimOne("j0")
		time.Sleep(8 * time.Second) // the claim has ended, and its end is in the log
		failed := a.claimOne("j0")
		wantOutcome(t, a.settle(queue.Fail, failed), queue.Delayed, "")
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		wantOutcome(t, b.settle(queue.Complete, c), "", queue.StaleClaim)
		wantOutcome(t, b.settle(queue.Complete, failed), "", queue.StaleClaim)
	})
}

// TestCleanHandover: nothing is lost, not even claims, and the successor starts at once.
func TestCleanHandover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(100)...)
		claims := a.claim(queue.ClaimRequest{Max: 50})
		var waiting sync.WaitGroup
		waiting.Go(func() {
			_, err := a.Claim(w.ctx, queue.DefaultQueue, queue.ClaimRequest{Types: []string{"none"}, Wait: queue.MaxWait})
			wantRefusal(t, err, queue.QueueNotOwner)
		})
		synctest.Wait()
		results := make(chan error, 20)
		for i := range 20 {
			waiting.Go(func() {
				_, err := a.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: fmt.Sprint("new", i)}})
				results <- err
			})
		}
		synctest.Wait() // they are in flight
		begun := time.Now()
		r.drain(t)
		waiting.Wait()
		for range 20 {
			if err := <-results; err != nil {
				t.Fatalf("what was under way was not flushed: %v", err)
			}
		}
		b.serve(queue.DefaultQueue, 0)
		if took := time.Since(begun); took > 8*latency+100*time.Millisecond {
			t.Errorf("the handover took %v", took)
		}
		if st := b.stats(); st.Waiting != 70 || st.Active != 50 {
			t.Fatalf("%+v", st)
		}
		for _, c := range claims {
			wantOutcome(t, b.settle(queue.Complete, c), queue.Completed, "")
		}
	})
}

// TestDeposedBrokerAcknowledgesNothing: from the takeover on, the old broker acknowledges nothing,
// whatever the call.
func TestDeposedBrokerAcknowledgesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		old := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(4)...)
		c := a.claimOne("j0")
		poll := make(chan error)
		go func() {
			_, err := a.Claim(w.ctx, queue.DefaultQueue, queue.ClaimRequest{Types: []string{"none"}, Wait: queue.MaxWait})
			poll <- err
		}()
		b.serve(queue.DefaultQueue, 0) // a does not know
		_, err := a.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: "lost?"}})
		wantRefusal(t, err, queue.UnknownOutcome)
		wantRefusal(t, <-poll, queue.QueueNotOwner)
		<-old.done
		if !errors.Is(old.err, journal.ErrFenced) {
			t.Fatalf("the run ended with %v", old.err)
		}
		_, err = a.Settle(w.ctx, queue.DefaultQueue, []queue.Settlement{{Verb: queue.Complete, ID: "j0", Token: c.Token}})
		wantRefusal(t, err, queue.QueueNotOwner)
		wantOutcome(t, b.settle(queue.Complete, c), queue.Completed, "")
	})
}

// TestHole12NoTrustNoAnswer: a broker whose assignment has expired gives neither a positive nor a
// negative answer, also to those who wait already.
func TestHole12NoTrustNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, mem.New(mem.Config{}))
		w.declare(queue.Settings{})
		n := w.node("n1")
		until := time.Now().Add(30 * time.Second)
		n.trust = func() time.Duration { return time.Until(until) }
		n.serve(queue.DefaultQueue, 0)
		n.enqueue(jobsWithIDs(1)...)
		c := n.claimOne("j0")
		n.enqueue(queue.Job{ID: "later", Type: "later", Delay: 31 * time.Second}) // due when the assignment has expired
		polled := make(chan error, 1)
		go func() {
			_, err := n.Claim(w.ctx, queue.DefaultQueue, queue.ClaimRequest{Types: []string{"later"}, Wait: time.Minute})
			polled <- err
		}()
		time.Sleep(31 * time.Second)
		wantRefusal(t, <-polled, queue.QueueNotOwner)
		_, err := n.Settle(w.ctx, queue.DefaultQueue, []queue.Settlement{{Verb: queue.Extend, ID: "j0", Token: c.Token}})
		wantRefusal(t, err, queue.QueueNotOwner)
		_, _, err = n.Get(w.ctx, queue.DefaultQueue, "nobody")
		wantRefusal(t, err, queue.QueueNotOwner)
		_, err = n.Claim(w.ctx, queue.DefaultQueue, queue.ClaimRequest{})
		wantRefusal(t, err, queue.QueueNotOwner)
	})
}

func TestGenerationsAndStores(t *testing.T) {
	t.Parallel()
	w, a, _ := serving(t, queue.Settings{})
	b := w.node("b")
	r := b.beginAt(queue.DefaultQueue, 0, w.gen) // the generation of the current run
	<-r.done
	if r.err == nil || r.held < w.gen {
		t.Fatalf("%v, reported %d", r.err, r.held)
	}
	a.enqueue(jobsWithIDs(1)...)
	b.cfg.StoreID = "another"
	r = b.begin(queue.DefaultQueue, 0)
	<-r.done
	if !errors.Is(r.err, journal.ErrOtherStore) || !strings.Contains(r.err.Error(), "emitd queue adopt default") {
		t.Fatalf("%v", r.err)
	}
	if taken, err := b.Adopt(w.ctx, queue.DefaultQueue); taken != 1 || err != nil {
		t.Fatal(taken, err)
	}
	b.serve(queue.DefaultQueue, 0)
	if st := b.stats(); st.Waiting != 1 {
		t.Fatalf("%+v", st)
	}
}

// TestAdoptLeavesOurs: Adopt does not take a shard of this cluster from its broker, and a second
// Adopt takes what an interrupted one has left.
func TestAdoptLeavesOurs(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	w := newWorld(t, mem.New(mem.Config{Faults: func(c mem.Call) mem.Fault {
		if down.Load() && strings.Contains(c.Key, "/default/1/1/") {
			return mem.Fault{Kind: mem.Denied}
		}
		return mem.Fault{}
	}}))
	w.declare(queue.Settings{Shards: 2})
	old := w.node("old")
	for shard := range 2 {
		old.serve(queue.DefaultQueue, shard).drain(t)
	}
	ours, guardOfTest := w.node("ours"), w.node("hand")
	ours.cfg.StoreID, guardOfTest.cfg.StoreID = "another", "another"
	down.Store(true)
	if taken, err := guardOfTest.Adopt(w.ctx, queue.DefaultQueue); taken != 1 || !errors.Is(err, blob.ErrDenied) {
		t.Fatal(taken, err)
	}
	down.Store(false)
	r := ours.serve(queue.DefaultQueue, 0)
	for n, want := range []int{1, 0} {
		guardOfTest.cfg.Owner = fmt.Sprint("hand", n)
		if taken, err := guardOfTest.Adopt(w.ctx, queue.DefaultQueue); taken != want || err != nil {
			t.Fatal(taken, err)
		}
	}
	ours.serve(queue.DefaultQueue, 1)
	ours.enqueue(jobsWithIDs(20)...)
	if st := ours.stats(); st.Waiting != 20 {
		t.Fatalf("%+v", st)
	}
	r.drain(t)
	_, err := guardOfTest.Adopt(w.ctx, "nowhere")
	wantRefusal(t, err, queue.QueueNotFound)
}

// TestForgedTokens: only the exact token is accepted.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	_, n, _ := serving(t, queue.Settings{})
	n.enqueue(jobsWithIDs(2)...)
	c, other := n.claimOne("j0"), n.claimOne("j1")
	for i := range c.Token {
		bad := []byte(c.Token)
		bad[i] ^= 1
		wantOutcome(t, n.settle(queue.Complete, queue.Claimed{Job: queue.Info{ID: "j0"}, Token: string(bad)}), "", queue.StaleClaim)
	}
	for _, text := range []string{other.Token, "x", c.Token + "A", c.Token[:20], strings.Repeat("A", 300)} {
		wantOutcome(t, n.settle(queue.Complete, queue.Claimed{Job: queue.Info{ID: "j0"}, Token: text}), "", queue.StaleClaim)
	}
	wantOutcome(t, n.settle(queue.Complete, queue.Claimed{Job: queue.Info{ID: "nobody"}, Token: c.Token}), "", queue.StaleClaim)
	wantOutcome(t, n.settle(queue.Complete, queue.Claimed{Job: queue.Info{ID: "j0"}}), "", queue.StaleClaim) // by the worker's name
	wantOutcome(t, n.settle(queue.Complete, c), queue.Completed, "")
}

// TestTokenless: claims of clients that do not support tokens are durable, and only their worker
// can settle them.
func TestTokenless(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(2)...)
		begun := time.Now()
		c := a.claim(queue.ClaimRequest{Worker: "w", Tokenless: true, RequestID: "call"})[0]
		if time.Since(begun) < latency || c.Token != "" {
			t.Fatalf("%+v after %v", c, time.Since(begun))
		}
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		wantOutcome(t, b.settle(queue.Extend, c, func(x *queue.Settlement) { x.Worker = "other" }), "", queue.StaleClaim)
		wantOutcome(t, b.settle(queue.Extend, c), queue.Active, "")
		if again := b.claim(queue.ClaimRequest{Worker: "w", Tokenless: true, RequestID: "call"}); len(again) != 1 || again[0].Job.ID != "j0" {
			t.Fatalf("%+v", again)
		}
		wantOutcome(t, b.settle(queue.Complete, c), queue.Completed, "")
		wantOutcome(t, b.settle(queue.Complete, c), queue.Completed, "")
		wantOutcome(t, b.settle(queue.Complete, c, func(x *queue.Settlement) { x.Worker = "other" }), "", queue.StaleClaim)
		wantOutcome(t, b.settle(queue.Complete, c, func(x *queue.Settlement) { x.ID = "nobody" }), "", queue.JobNotFound)
	})
}

// TestDurableClaims: there is one holder per attempt, even across a crash.
func TestDurableClaims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, a, b := slow(t, queue.Settings{Claims: queue.DurableClaims})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(2)...)
		c := a.claimOne("j0")
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		b.claimOne("j1")
		if got := b.claim(queue.ClaimRequest{}); len(got) != 0 {
			t.Fatalf("a claimed job was handed out again: %+v", got)
		}
		wantOutcome(t, b.settle(queue.Complete, c), queue.Completed, "")
	})
}

// TestHole04RepeatedClaimCall: a claim call that is repeated returns the same claims.
func TestHole04RepeatedClaimCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, mode := range []string{queue.SoftClaims, queue.DurableClaims} {
			_, _, a, b := slow(t, queue.Settings{Claims: mode})
			r := a.serve(queue.DefaultQueue, 0)
			a.enqueue(jobsWithIDs(6)...)
			req := queue.ClaimRequest{Worker: "w", Max: 2, RequestID: "call"}
			var calls sync.WaitGroup
			for range 5 { // all at once
				calls.Go(func() {
					if got := a.claim(req); len(got) != 2 || got[0].Job.ID != "j0" || got[1].Job.ID != "j1" {
						t.Errorf("%s: claimed %+v", mode, got)
					}
				})
			}
			calls.Wait()
			time.Sleep(2 * time.Second)
			r.drain(t)
			b.serve(queue.DefaultQueue, 0)
			got := b.claim(req)
			if len(got) != 2 || got[0].Job.ID != "j0" || got[0].Job.Deliveries != 1 {
				t.Fatalf("%s: after a takeover %+v", mode, got)
			}
			wantOutcome(t, b.settle(queue.Complete, got[0]), queue.Completed, "")
			if got = b.claim(req); len(got) != 1 || got[0].Job.ID != "j1" {
				t.Errorf("%s: after one has ended %+v", mode, got)
			}
		}
	})
}

// TestPoisonJob: a job that crashes worker and broker together is dead in the end, after at most
// one additional attempt per crash.
func TestPoisonJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, a, _ := slow(t, queue.Settings{Visibility: time.Second})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(queue.Job{ID: "poison", Retry: queue.Retry{MaxAttempts: 3}})
		runs := 0
		for ; runs < 20; runs++ {
			got := a.claim(queue.ClaimRequest{Wait: 5 * time.Second})
			if len(got) == 0 {
				break
			}
			time.Sleep(1100 * time.Millisecond) // it runs for a while, and its claim is written meanwhile
			r.kill()
			r = a.serve(queue.DefaultQueue, 0)
		}
		if i := a.get("poison"); i.State != queue.Dead || runs > 4 {
			t.Fatalf("%+v after %d runs", i, runs)
		}
	})
}

// TestCheckpointUnderLoad: the state of a broker that writes a checkpoint while it serves is
// restored from that checkpoint alone.
func TestCheckpointUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, bucket, a, b := slow(t, queue.Settings{})
		written := 0
		a.checkpointDue = func(l *journal.Log, _ int64) bool { return l.Stats().Slots > 20 }
		r := a.serve(queue.DefaultQueue, 0)
		var mu sync.Mutex
		alive := map[string]bool{}
		var callers sync.WaitGroup
		for n := range 20 {
			callers.Go(func() {
				for i := range 50 {
					id := fmt.Sprint(n, "-", i)
					a.enqueue(queue.Job{ID: id, Payload: make([]byte, 3000), Delay: time.Duration(i%2) * time.Hour})
					mu.Lock()
					alive[id] = true
					mu.Unlock()
					if c := a.claim(queue.ClaimRequest{}); i%3 == 0 && len(c) == 1 {
						wantOutcome(t, a.settle(queue.Complete, c[0]), queue.Completed, "")
						mu.Lock()
						delete(alive, c[0].Job.ID)
						mu.Unlock()
					}
				}
			})
		}
		callers.Wait()
		for _, key := range bucket.Keys() {
			if strings.Contains(key, "/ckpt/") {
				written++
			}
		}
		if written == 0 {
			t.Fatal("no checkpoint was written")
		}
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		if st := b.stats(); st.Waiting+st.Delayed+st.Active != int64(len(alive)) || st.Enqueued != 1000 || st.Completed != 1000-int64(len(alive)) {
			t.Fatalf("%+v, want %d", st, len(alive))
		}
		for id := range alive {
			if _, payload, err := b.Get(w.ctx, queue.DefaultQueue, id); err != nil || len(payload) != 3000 {
				t.Fatalf("%s: %d bytes, %v", id, len(payload), err)
			}
		}
	})
}

// TestPartingCheckpoint: a draining broker with a long log first writes a checkpoint, and serves
// meanwhile; so its successor has little to read.
func TestPartingCheckpoint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, bucket, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		for i := range drainReplaySlots + 10 {
			a.enqueue(queue.Job{ID: fmt.Sprint("j", i)})
		}
		r.a.BeginDrain()
		synctest.Wait()
		a.enqueue(queue.Job{ID: "late"}) // one latency; the checkpoint takes two
		<-r.done
		if r.err != nil {
			t.Fatal(r.err)
		}
		before := bucket.Stats()[mem.Read].Calls
		begun := time.Now()
		b.serve(queue.DefaultQueue, 0)
		if n := bucket.Stats()[mem.Read].Calls - before; n > 10 {
			t.Errorf("%d reads", n)
		}
		if took := time.Since(begun); took > 4*latency {
			t.Errorf("the successor needs %v", took)
		}
		if st := b.stats(); st.Waiting != drainReplaySlots+11 {
			t.Errorf("%+v", st)
		}
	})
}

// TestPartingHasAnEnd: a store that accepts no checkpoint does not delay a drain for long.
func TestPartingHasAnEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, stuck := failing(t, mem.Config{Latency: mem.Constant(latency)}, func(c mem.Call) bool {
			return c.Op == mem.Create && strings.Contains(c.Key, "/ckpt/")
		})
		w.declare(queue.Settings{})
		a := w.node("a")
		r := a.serve(queue.DefaultQueue, 0)
		for i := range drainReplaySlots + 10 {
			a.enqueue(queue.Job{ID: fmt.Sprint("j", i)})
		}
		stuck.Store(true)
		begun := time.Now()
		r.a.BeginDrain()
		if <-r.done; r.err != nil || time.Since(begun) > drainCheckpointWait+time.Second {
			t.Errorf("the drain ended after %v: %v", time.Since(begun), r.err)
		}
	})
}

// TestClaimsSurviveAHandover: even the latest claims survive a hand-over.
func TestClaimsSurviveAHandover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(2)...)
		c := a.claimOne("j0")
		r.drain(t)
		b.serve(queue.DefaultQueue, 0)
		if st := b.stats(); st.Active != 1 {
			t.Fatalf("%+v", st)
		}
		b.claimOne("j1")
		wantOutcome(t, b.settle(queue.Complete, c), queue.Completed, "")
	})
}

// TestNothingIsOvertaken: an answer that writes nothing comes after everything that was decided
// before it is durable.
func TestNothingIsOvertaken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		a.serve(queue.DefaultQueue, 0)
		a.enqueue(queue.Job{ID: "old"}, queue.Job{ID: "done"})
		c := a.claim(queue.ClaimRequest{Max: 2})[1]
		wantOutcome(t, a.settle(queue.Complete, c), queue.Completed, "")
		begun := time.Now()
		a.enqueue(queue.Job{ID: "old"}) // nothing is in flight, except perhaps a claim's record
		if took := time.Since(begun); took != 0 {
			t.Errorf("took %v", took)
		}
		go a.enqueue(queue.Job{ID: "new"})
		synctest.Wait()
		begun = time.Now()
		a.enqueue(queue.Job{ID: "old"})
		if took := time.Since(begun); took < latency {
			t.Errorf("a duplicate overtook: %v", took)
		}
		go a.enqueue(queue.Job{ID: "newer"})
		synctest.Wait()
		begun = time.Now()
		wantOutcome(t, a.settle(queue.Complete, c), queue.Completed, "")
		if took := time.Since(begun); took < latency {
			t.Errorf("a repeated complete overtook: %v", took)
		}
		// A broker that was replaced meanwhile does not give the answer.
		b.serve(queue.DefaultQueue, 0)
		go a.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: "lost"}})
		synctest.Wait()
		_, err := a.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: "old"}})
		if err == nil {
			t.Error("a deposed broker answered")
		}
	})
}

// TestNothingPilesUp: what callers leave behind is forgotten.
func TestNothingPilesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, _ := slow(t, queue.Settings{})
		a.serve(queue.DefaultQueue, 0)
		var callers sync.WaitGroup
		for range 200 {
			callers.Go(func() { a.claim(queue.ClaimRequest{Wait: time.Second}) })
			callers.Go(func() {
				_, err := a.Claim(w.ctx, queue.DefaultQueue, queue.ClaimRequest{Types: []string{"x"}, Wait: 2 * time.Second, Tokenless: true, Worker: "w", RequestID: "call"})
				if err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		a.stats()
		synctest.Wait()
		if n := len(a.shard(queue.DefaultQueue, 0).claims.waiting); n != 0 {
			t.Errorf("%d polls of nobody", n)
		}
		a.enqueue(jobsWithIDs(100)...)
		for range 100 {
			wantOutcome(t, a.settle(queue.Complete, a.claim(queue.ClaimRequest{})[0]), queue.Completed, "")
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		s := a.shard(queue.DefaultQueue, 0)
		if n := len(s.claims.waiting) + len(s.commits.inFlight) + len(s.claims.requests) + len(s.retries) + s.commits.unapplied.jobs + int(s.commits.unapplied.bytes) + s.commits.size(); n != 0 {
			t.Errorf("left: %d polls, %d works, %d requests, %+v, %d bytes", len(s.claims.waiting), len(s.commits.inFlight), len(s.claims.requests), s.commits.unapplied, s.commits.size())
		}
	})
}

// TestRetriesAreLoggedNowAndThen: of many retries, one in ten seconds is logged, with the number of the others.
func TestRetriesAreLoggedNowAndThen(t *testing.T) {
	t.Parallel()
	var l retryLog
	now := time.Now()
	if others, due := l.add(now); !due || others != 0 {
		t.Errorf("the first retry: %v, %d others", due, others)
	}
	for range 5 {
		now = now.Add(retryLogEvery / 6)
		if _, due := l.add(now); due {
			t.Error("a retry is logged soon after another")
		}
	}
	if others, due := l.add(now.Add(retryLogEvery)); !due || others != 5 {
		t.Errorf("after a while: %v, %d others", due, others)
	}
}
