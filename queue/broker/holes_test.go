package broker

import (
	"context"
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
)

// The tests named TestHole, here and elsewhere, are named after weaknesses that were found, and
// reproduced, in another queue on object storage. Each fails if the broker has the same weakness.

// TestHole01CommitsDoNotRaceThemselves: with one broker and many callers, no write is refused, none
// is wasted, and no caller fails.
func TestHole01CommitsDoNotRaceThemselves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{Latency: mem.Constant(50 * time.Millisecond)})
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		before := bucket.Stats()
		var callers sync.WaitGroup
		begun := time.Now()
		for i := range 128 {
			callers.Go(func() {
				for j := range 10 {
					n.enqueue(queue.Job{ID: fmt.Sprint(i, "-", j)})
					c := n.claim(queue.ClaimRequest{Wait: queue.MaxWait})[0]
					wantOutcome(t, n.settle(queue.Complete, c), queue.Completed, "")
				}
			})
		}
		callers.Wait()
		after := bucket.Stats()
		if failed := after[mem.Create].Failed - before[mem.Create].Failed; failed != 0 {
			t.Errorf("%d writes were refused", failed)
		}
		if puts := after[mem.Create].Calls - before[mem.Create].Calls; puts > 600 {
			t.Errorf("%d writes for 1,280 jobs", puts)
		}
		if rate := 1280 / time.Since(begun).Seconds(); rate < 800 {
			t.Errorf("%.0f jobs a second", rate)
		}
		if st := n.stats(); st.Completed != 1280 || st.Waiting+st.Active != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestHole02NoSplitBrain: of two brokers one ends, and does not take the queue back.
func TestHole02NoSplitBrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		old := a.serve(queue.DefaultQueue, 0)
		b.serve(queue.DefaultQueue, 0)
		for i := range 20 {
			_, err := a.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: fmt.Sprint("a", i)}})
			if err == nil {
				t.Fatal("the old broker acknowledged a job")
			}
			b.enqueue(queue.Job{ID: fmt.Sprint("b", i)})
		}
		<-old.done
		if st := b.stats(); st.Waiting != 20 || st.Epoch != 2 {
			t.Fatalf("%+v", st)
		}
	})
}

// TestHole03AmbiguousWrite: a write whose answer is lost takes effect once, whatever is retried.
func TestHole03AmbiguousWrite(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, bucket, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		for i := range 100 {
			bucket.Inject(mem.Create, "", mem.Fault{Kind: mem.LostReply})
			a.enqueue(queue.Job{ID: fmt.Sprint(i)})
			bucket.Inject(mem.Create, "", mem.Fault{Kind: mem.LostReply}, mem.Fault{Kind: mem.LostRequest}, mem.Fault{Kind: mem.Conflict})
			wantOutcome(t, a.settle(queue.Complete, a.claimOne(fmt.Sprint(i))), queue.Completed, "")
		}
		a.enqueue(queue.Job{ID: "once"}, queue.Job{ID: "other"})
		bucket.Inject(mem.Create, "", mem.Fault{Kind: mem.LostReply}, mem.Fault{Kind: mem.Conflict})
		got := a.claim(queue.ClaimRequest{Worker: "w", Tokenless: true}) // durable
		if st := a.stats(); len(got) != 1 || st.Active != 1 || st.Waiting != 1 {
			t.Fatalf("one claim of a job: %+v, %+v", got, st)
		}
		for _, id := range []string{"once", "other"} {
			if id == "other" {
				got = a.claim(queue.ClaimRequest{Worker: "w", Tokenless: true})
			}
			wantOutcome(t, a.settle(queue.Complete, queue.Claimed{Job: got[0].Job}), queue.Completed, "")
		}
		if st := a.stats(); st.Enqueued != 102 || st.Completed != 102 {
			t.Fatalf("%+v", st)
		}
		r.kill()
		b.serve(queue.DefaultQueue, 0)
		if st := b.stats(); st.Enqueued != 102 || st.Completed != 102 || st.Waiting+st.Active+st.Dead != 0 {
			t.Fatalf("after a takeover: %+v", st)
		}
	})
}

// TestHole03RetriedSubmit: a caller with an unknown outcome repeats the call with the same ID or
// key.
func TestHole03RetriedSubmit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		result := make(chan error)
		jobs := []queue.Job{{ID: "a"}, {Key: "k"}}
		go func() {
			_, err := a.Enqueue(w.ctx, queue.DefaultQueue, jobs)
			result <- err
		}()
		time.Sleep(latency * 3 / 4) // it is durable, and the answer has not arrived yet
		r.kill()
		wantRefusal(t, <-result, queue.UnknownOutcome)
		b.serve(queue.DefaultQueue, 0)
		if got := b.enqueue(jobs...); !got[0].Duplicate || !got[1].Duplicate {
			t.Fatalf("%+v", got)
		}
		if st := b.stats(); st.Waiting != 2 {
			t.Fatalf("%+v", st)
		}
	})
}

// TestHole04JobsDoNotVanish: claims without any work use up no attempts, and a dead job is kept
// with its cause.
func TestHole04JobsDoNotVanish(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, n, r := serving(t, queue.Settings{})
		n.enqueue(queue.Job{ID: "a"})
		for range 8 {
			c := n.claimOne("a")
			if c.Job.Attempts != 0 {
				t.Fatalf("%+v", c)
			}
			wantOutcome(t, n.settle(queue.Release, c), queue.Waiting, "")
		}
		n.claimOne("a")
		time.Sleep(31 * time.Second)
		i := n.get("a")
		if i.State != queue.Dead || i.Cause == "" || n.stats().Dead != 1 || n.stats().Completed != 0 {
			t.Fatalf("%+v", i)
		}
		r.kill()
		n.serve(queue.DefaultQueue, 0)
		if i = n.get("a"); i.State != queue.Dead || i.Cause == "" {
			t.Fatalf("%+v", i)
		}
	})
}

// TestHole05EveryCallEnds: calls end with a store that does not answer, and with one that refuses
// everything.
func TestHole05EveryCallEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, fault := range []mem.Fault{{Kind: mem.Unavailable}, {Kind: mem.LostRequest, Hang: true}, {Kind: mem.Denied}} {
			var down atomic.Bool
			bucket := mem.New(mem.Config{Faults: func(mem.Call) mem.Fault {
				if down.Load() {
					return fault
				}
				return mem.Fault{}
			}})
			w := newWorld(t, bucket)
			w.declare(queue.Settings{})
			n := w.node("n1")
			r := n.serve(queue.DefaultQueue, 0)
			n.enqueue(jobsWithIDs(2)...)
			c := n.claimOne("j0")
			down.Store(true)
			ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
			_, err := n.Enqueue(ctx, queue.DefaultQueue, []queue.Job{{ID: "x"}})
			if tag := queue.TagOf(err); tag != queue.UnknownOutcome && tag != queue.QueueNotOwner {
				t.Errorf("%v: enqueue: %v", fault.Kind, err)
			}
			_, err = n.Settle(ctx, queue.DefaultQueue, []queue.Settlement{{Verb: queue.Complete, ID: "j0", Token: c.Token}})
			if tag := queue.TagOf(err); tag != queue.UnknownOutcome && tag != queue.QueueNotOwner && tag != queue.Unavailable {
				t.Errorf("%v: settle: %v", fault.Kind, err)
			}
			cancel()
			claimed := make(chan error, 1)
			go func() { // a claim that waits for the store, not for jobs
				ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
				defer cancel()
				_, err := n.Claim(ctx, queue.DefaultQueue, queue.ClaimRequest{Worker: "w", Tokenless: true, Wait: time.Minute})
				claimed <- err
			}()
			select {
			case err := <-claimed:
				if tag := queue.TagOf(err); tag != queue.UnknownOutcome && tag != queue.QueueNotOwner && tag != queue.Unavailable {
					t.Errorf("%v: claim: %v", fault.Kind, err)
				}
			case <-time.After(time.Minute):
				t.Errorf("%v: a claim does not end", fault.Kind)
			}
			rest := make(chan error)
			go func() {
				_, err := n.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: "y"}})
				rest <- err
			}()
			synctest.Wait()
			r.kill()
			if err := <-rest; err == nil {
				t.Errorf("%v: acknowledged by nobody", fault.Kind)
			}
		}
	})
}

// TestHole06TwoWritersLoseNothing: brokers that take over from each other again and again, each
// believing to be the owner, lose nothing that any of them acknowledged.
func TestHole06TwoWritersLoseNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		nodes := []*node{a, b}
		acked := map[string]bool{}
		for i := range 30 {
			n := nodes[i%2]
			n.serve(queue.DefaultQueue, 0)
			for j := range 5 {
				id := fmt.Sprint(i, "-", j)
				n.enqueue(queue.Job{ID: id})
				acked[id] = true
			}
			// The previous broker still tries.
			if _, err := nodes[(i+1)%2].Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: fmt.Sprint("lost", i)}}); err == nil {
				t.Fatal("a deposed broker acknowledged a job")
			}
		}
		last := nodes[1]
		for id := range acked {
			if i := last.get(id); i.State != queue.Waiting {
				t.Fatalf("%+v", i)
			}
		}
	})
}

// TestHole07TheSameAddress: identity does not depend on an address. If two machines have the same
// address, the newer assignment wins and the older run ends.
func TestHole07TheSameAddress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		a.cfg.Address, b.cfg.Address = "0.0.0.0:8080", "0.0.0.0:8080"
		old := a.serve(queue.DefaultQueue, 0)
		b.serve(queue.DefaultQueue, 0)
		b.enqueue(jobsWithIDs(1)...)
		if _, err := a.Enqueue(w.ctx, queue.DefaultQueue, jobsWithIDs(2)); err == nil {
			t.Fatal("two brokers serve")
		}
		<-old.done
	})
}

// TestHole08StaleClaims: a worker that lost its claim is refused, even if the same worker has
// claimed the job again.
func TestHole08StaleClaims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, n, _ := serving(t, queue.Settings{})
		n.enqueue(jobsWithIDs(1)...)
		first := n.claimOne("j0")
		time.Sleep(31 * time.Second)
		second := n.claimOne("j0") // the same worker
		for _, v := range []queue.Verb{queue.Extend, queue.Complete, queue.Fail, queue.Release} {
			wantOutcome(t, n.settle(v, first), "", queue.StaleClaim)
		}
		wantOutcome(t, n.settle(queue.Complete, second), queue.Completed, "")
	})
}

// TestHole09TheHolderIsNamed: a node that does not serve the queue names the node that does.
func TestHole09TheHolderIsNamed(t *testing.T) {
	t.Parallel()
	w, _, _ := serving(t, queue.Settings{})
	other := w.node("other")
	other.cfg.Holder = func(string, int) string { return "n1:7070" }
	_, err := other.Enqueue(w.ctx, queue.DefaultQueue, jobsWithIDs(1))
	wantRefusal(t, err, queue.QueueNotOwner)
	if e, _ := errors.AsType[*queue.Error](err); e.Holder != "n1:7070" || e.RetryAfter <= 0 {
		t.Fatalf("%+v", e)
	}
	_, err = other.Enqueue(w.ctx, "nowhere", jobsWithIDs(1))
	wantRefusal(t, err, queue.QueueNotFound)
}

// TestHole10IdleCostsNothing: an idle broker makes no request, and neither does an empty claim, a
// heartbeat or a refused call. MinGap limits the others.
func TestHole10IdleCostsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{})
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		n := w.node("n1")
		n.cfg.MinGap = time.Second
		n.serve(queue.DefaultQueue, 0)
		n.enqueue(jobsWithIDs(1)...)
		c := n.claimOne("j0")
		n.settle(queue.Extend, c)
		time.Sleep(5 * time.Second) // the claim is written
		writes := func() int64 {
			s := bucket.Stats()
			return s[mem.Create].Calls + s[mem.Replace].Calls + s[mem.Write].Calls + s[mem.Delete].Calls
		}
		before := writes()
		for range 100 {
			n.claim(queue.ClaimRequest{Wait: time.Second})
			wantOutcome(t, n.settle(queue.Extend, c), queue.Active, "")
			wantOutcome(t, n.settle(queue.Complete, queue.Claimed{Job: queue.Info{ID: "nobody"}, Token: c.Token}), "", queue.StaleClaim)
			n.stats()
		}
		time.Sleep(time.Hour)
		if got := writes() - before; got > 3 { // the end of the claim, and a mark for each of the two
			t.Errorf("%d writes", got)
		}
		before = writes()
		var callers sync.WaitGroup
		for i := range 50 {
			callers.Go(func() {
				for j := range 20 {
					n.enqueue(queue.Job{ID: fmt.Sprint("x", i, "-", j)})
				}
			})
		}
		begun := time.Now()
		callers.Wait()
		if got, most := writes()-before, int64(time.Since(begun)/time.Second)+2; got > most {
			t.Errorf("%d writes in %v", got, time.Since(begun))
		}
	})
}

// TestHole12ClocksOfNodes: queue time never goes back. A step of one node's clock, back or forward,
// ends no claim. Durability does not depend on it.
func TestHole12ClocksOfNodes(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, _, a, b := slow(t, queue.Settings{})
				r := a.serve(queue.DefaultQueue, 0)
				a.enqueue(queue.Job{ID: "later", Delay: 2 * time.Hour}, queue.Job{ID: "now"})
				c := a.claimOne("now")
				time.Sleep(2 * time.Second)
				r.kill()
				w.clock = func() time.Time { return time.Now().Add(step) } // the other node's clock
				b.serve(queue.DefaultQueue, 0)
				b.enqueue(queue.Job{ID: "new", Priority: -1})
				if i, j := b.get("new"), b.get("now"); i.CreatedAt.Before(j.CreatedAt) {
					t.Fatalf("time went back: %v, then %v", j.CreatedAt, i.CreatedAt)
				}
				if i := b.get("now"); i.State != queue.Active || i.Attempts != 0 {
					t.Fatalf("a job that is worked on: %+v", i)
				}
				wantOutcome(t, b.settle(queue.Extend, c), queue.Active, "")
				wantOutcome(t, b.settle(queue.Complete, c), queue.Completed, "")
			})
		})
	}
}

// TestHole13TheBacklogCostsNothing: the bytes written per job do not depend on how many jobs wait.
func TestHole13TheBacklogCostsNothing(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	w := newWorld(t, bucket)
	w.declare(queue.Settings{})
	n := w.node("n1")
	n.serve(queue.DefaultQueue, 0)
	cycle := func() int64 {
		before := bucket.Stats()[mem.Create].BytesIn
		for i := range 50 {
			n.enqueue(queue.Job{Priority: 1, ID: fmt.Sprint("one", before, "-", i)})
			wantOutcome(t, n.settle(queue.Complete, n.claim(queue.ClaimRequest{})[0]), queue.Completed, "")
		}
		return (bucket.Stats()[mem.Create].BytesIn - before) / 50
	}
	empty := cycle()
	for i := range 20 {
		jobs := make([]queue.Job, queue.MaxCall)
		for j := range jobs {
			jobs[j] = queue.Job{ID: fmt.Sprint(i, "-", j), Payload: make([]byte, 100)}
		}
		n.enqueue(jobs...)
	}
	if full := cycle(); full > empty+empty/2+20 {
		t.Errorf("%d bytes a job with 20,000 waiting, %d with none", full, empty)
	}
}

// TestHole15Shutdown: a broker that is stopped writes what it has and closes the journal, and its
// successor waits for no timeout.
func TestHole15Shutdown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		results := make(chan error, 50)
		for i := range 50 {
			go func() {
				_, err := a.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: fmt.Sprint(i)}})
				results <- err
			}()
		}
		synctest.Wait()
		begun := time.Now()
		r.drain(t)
		b.serve(queue.DefaultQueue, 0)
		if took := time.Since(begun); took > 8*latency+100*time.Millisecond {
			t.Errorf("took %v", took)
		}
		for range 50 {
			if err := <-results; err != nil {
				t.Errorf("not flushed: %v", err)
			}
		}
		if st := b.stats(); st.Waiting != 50 {
			t.Errorf("%+v", st)
		}
	})
}

// TestHole16BadInput: invalid input is refused as the caller's mistake and has no effect.
func TestHole16BadInput(t *testing.T) {
	t.Parallel()
	w, n, _ := serving(t, queue.Settings{})
	long := strings.Repeat("x", 65)
	for name, job := range map[string]queue.Job{
		"negative attempts": {Retry: queue.Retry{MaxAttempts: -5}}, "many attempts": {Retry: queue.Retry{MaxAttempts: 1 << 20}}, "long id": {ID: long},
		"control": {ID: "a\n"}, "not text": {ID: "\xff"}, "long key": {Key: long}, "id and key": {ID: "a", Key: "b"}, "long type": {Type: long},
		"long group": {Group: long}, "priority": {Priority: 128}, "priority low": {Priority: -129}, "delay": {Delay: -1},
		"delay and run-at": {Delay: 1, RunAt: time.Now()}, "date": {RunAt: time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC)}, "ttl": {TTL: -1},
		"backoff": {Retry: queue.Retry{Backoff: -1}}, "factor": {Retry: queue.Retry{Factor: 0.5}}, "jitter": {Retry: queue.Retry{Jitter: 2}},
	} {
		if _, err := n.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: "good"}, job}); queue.TagOf(err) != queue.BadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := n.Enqueue(w.ctx, queue.DefaultQueue, make([]queue.Job, queue.MaxCall+1))
	wantRefusal(t, err, queue.TooManyJobs)
	for _, name := range []string{"", "A", "a/b", "-a", "a.", long, "../x"} {
		_, err := n.Enqueue(w.ctx, name, nil)
		wantRefusal(t, err, queue.BadRequest)
	}
	for name, req := range map[string]queue.ClaimRequest{
		"worker": {Worker: long}, "tokenless": {Tokenless: true}, "wait": {Wait: -1}, "long wait": {Wait: time.Hour}, "visibility": {Visibility: -1},
		"type": {Types: []string{long}}, "request": {RequestID: long},
	} {
		if _, err := n.Claim(w.ctx, queue.DefaultQueue, req); queue.TagOf(err) != queue.BadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = n.Claim(w.ctx, queue.DefaultQueue, queue.ClaimRequest{Max: queue.MaxCall + 1})
	wantRefusal(t, err, queue.TooManyJobs)
	later := -time.Second
	for name, x := range map[string]queue.Settlement{
		"verb": {ID: "a", Verb: "eat", Token: "t"}, "no id": {Verb: queue.Complete, Token: "t"}, "no proof": {ID: "a", Verb: queue.Complete},
		"retry": {ID: "a", Verb: queue.Fail, Token: "t", RetryAfter: &later}, "visibility": {ID: "a", Verb: queue.Extend, Token: "t", Visibility: -1},
	} {
		out, err := n.Settle(w.ctx, queue.DefaultQueue, []queue.Settlement{x})
		if err != nil || out[0].Err == nil || out[0].Err.Tag != queue.BadRequest {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
	}
	for name, q := range map[string]queue.Query{"cursor": {Cursor: "x"}, "cursor of no shard": {Cursor: cursorOf(1, 1)}, "limit": {Limit: -1}, "page": {Limit: queue.MaxPage + 1}, "state": {State: queue.Completed}} {
		if _, err := n.List(w.ctx, queue.DefaultQueue, q); queue.TagOf(err) != queue.BadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, cmd := range map[string]queue.Command{"act": {Act: "x"}, "state": {Act: queue.Purge, State: queue.Completed}, "ids": {Act: queue.Purge, IDs: []string{"a"}}, "id": {Act: queue.Cancel, IDs: []string{""}}} {
		if _, err := n.Do(w.ctx, queue.DefaultQueue, cmd); queue.TagOf(err) != queue.BadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, _, err = n.Get(w.ctx, queue.DefaultQueue, "nobody")
	wantRefusal(t, err, queue.JobNotFound)
	if st := n.stats(); st.Enqueued != 0 {
		t.Errorf("something was kept: %+v", st)
	}
}

// TestHole17ElectionsDoNotRace: of brokers that start at the same moment exactly one serves.
func TestHole17ElectionsDoNotRace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, mem.New(mem.Config{Latency: mem.Constant(latency)}))
		w.declare(queue.Settings{})
		var runs []*run
		var nodes []*node
		for i := range 6 {
			n := w.node(fmt.Sprint("n", i))
			nodes = append(nodes, n)
			runs = append(runs, n.begin(queue.DefaultQueue, 0))
		}
		time.Sleep(5 * time.Second)
		acked := 0
		for i, n := range nodes {
			if _, err := n.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: fmt.Sprint("from", i)}}); err == nil {
				acked++
			} else {
				<-runs[i].done
			}
		}
		if acked != 1 {
			t.Errorf("%d brokers serve", acked)
		}
	})
}
