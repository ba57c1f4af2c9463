package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob/dir"
)

// bubble runs a story in virtual time.
func bubble(t *testing.T, story func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(listReadTimeout) }) // a read of the list of queues may have lost the calls that wait for it
		story(t)
	})
}

func TestSubmitClaimComplete(t *testing.T) {
	t.Parallel()
	_, n, r := serving(t, queue.Settings{})
	got := n.enqueue(jobsWithIDs(3)...)
	if got[0] != (queue.Receipt{ID: "j0", State: queue.Waiting}) {
		t.Fatalf("%+v", got)
	}
	c := n.claimOne("j0")
	if string(c.Payload) != "payload 0" || c.Job.State != queue.Active || c.Job.Deliveries != 1 || c.Job.Attempts != 0 || c.Token == "" {
		t.Fatalf("%+v", c)
	}
	wantOutcome(t, n.settle(queue.Extend, c), queue.Active, "")
	wantOutcome(t, n.settle(queue.Complete, c, func(x *queue.Settlement) { x.Result = []byte("42") }), queue.Completed, "")
	wantOutcome(t, n.settle(queue.Complete, c), queue.Completed, "") // repeated: true still
	wantOutcome(t, n.settle(queue.Fail, c), "", queue.StaleClaim)
	if i := n.get("j0"); i.State != queue.Completed || string(i.Result) != "42" {
		t.Fatalf("%+v", i)
	}
	if st := n.stats(); st.Waiting != 2 || st.Completed != 1 || st.Enqueued != 3 {
		t.Fatalf("%+v", st)
	}
	r.drain(t)
	_, err := n.Enqueue(n.w.ctx, queue.DefaultQueue, jobsWithIDs(1))
	wantRefusal(t, err, queue.QueueNotOwner)
}

func TestOnADirectory(t *testing.T) {
	t.Parallel()
	bucket, err := dir.Open(dir.Config{Path: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, bucket)
	w.prefix = "some/root"
	w.declare(queue.Settings{})
	a, b := w.node("a"), w.node("b")
	first := a.serve(queue.DefaultQueue, 0)
	a.enqueue(jobsWithIDs(50)...)
	for range 20 {
		wantOutcome(t, a.settle(queue.Complete, a.claim(queue.ClaimRequest{Worker: "w"})[0]), queue.Completed, "")
	}
	first.kill()
	b.serve(queue.DefaultQueue, 0)
	if st := b.stats(); st.Waiting != 30 || st.Completed != 20 {
		t.Fatalf("%+v", st)
	}
	if got := b.enqueue(jobsWithIDs(50)...); !got[0].Duplicate || !got[49].Duplicate {
		t.Fatalf("%+v", got)
	}
}

func TestPriorityThenOrder(t *testing.T) {
	t.Parallel()
	_, n, _ := serving(t, queue.Settings{})
	n.enqueue(queue.Job{ID: "a"}, queue.Job{ID: "low", Priority: -1}, queue.Job{ID: "b"}, queue.Job{ID: "high", Priority: 127}, queue.Job{ID: "c", Type: "x"})
	var got []string
	for _, c := range n.claim(queue.ClaimRequest{Max: 10}) {
		got = append(got, c.Job.ID)
	}
	if !slices.Equal(got, []string{"high", "a", "b", "c", "low"}) {
		t.Fatalf("%v", got)
	}
}

func TestTypes(t *testing.T) {
	t.Parallel()
	_, n, _ := serving(t, queue.Settings{})
	n.enqueue(queue.Job{ID: "a", Type: "mail"}, queue.Job{ID: "b", Type: "sms"}, queue.Job{ID: "c"})
	if c := n.claim(queue.ClaimRequest{Types: []string{"sms", "fax"}, Max: 9}); len(c) != 1 || c[0].Job.ID != "b" {
		t.Fatalf("%+v", c)
	}
	if c := n.claim(queue.ClaimRequest{Types: []string{"fax"}}); len(c) != 0 {
		t.Fatalf("%+v", c)
	}
}

func TestDelay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, n, _ := serving(t, queue.Settings{})
		got := n.enqueue(queue.Job{ID: "in", Delay: time.Minute}, queue.Job{ID: "at", RunAt: time.Now().Add(30 * time.Second)}, queue.Job{ID: "past", RunAt: time.Now().Add(-time.Hour)})
		if got[0].State != queue.Delayed || got[1].State != queue.Delayed || got[2].State != queue.Waiting {
			t.Fatalf("%+v", got)
		}
		n.claimOne("past")
		begun := time.Now()
		if c := n.claim(queue.ClaimRequest{Wait: queue.MaxWait}); len(c) != 1 || c[0].Job.ID != "at" || time.Since(begun) != 30*time.Second {
			t.Fatalf("%+v after %v", c, time.Since(begun))
		}
		if met := n.command(queue.Command{Act: queue.RunNow}); met != 1 {
			t.Fatalf("met %d", met)
		}
		n.claimOne("in")
	})
}

func TestTTL(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, n, _ := serving(t, queue.Settings{TTL: time.Hour})
		n.enqueue(queue.Job{ID: "short", TTL: time.Minute}, queue.Job{ID: "queue's"})
		time.Sleep(61 * time.Second)
		if i := n.get("short"); i.State != queue.Dead || !strings.Contains(i.Cause, "time to live") {
			t.Fatalf("%+v", i)
		}
		n.claimOne("queue's")
		if st := n.stats(); st.Expired != 1 || st.Died != 0 || st.Dead != 1 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestLongPoll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{Latency: mem.Constant(20 * time.Millisecond)})
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		time.Sleep(time.Second) // it looks for unneeded payloads
		before := bucket.Requests()
		begun := time.Now()
		if c := n.claim(queue.ClaimRequest{Wait: 10 * time.Second}); len(c) != 0 || time.Since(begun) != 10*time.Second {
			t.Fatalf("%+v after %v", c, time.Since(begun))
		}
		if got := bucket.Requests(); got != before {
			t.Fatalf("an empty claim cost %d requests", got-before)
		}
		// Waiting callers are served in the order in which they came, each as soon as there
		// is a job.
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				if c := n.claim(queue.ClaimRequest{Wait: queue.MaxWait}); len(c) == 1 {
					order <- i
				}
			}()
			time.Sleep(time.Second) // the first one may read the list of queues
		}
		gone, cancel := context.WithCancel(w.ctx)
		failed := make(chan error)
		go func() {
			_, err := n.Claim(gone, queue.DefaultQueue, queue.ClaimRequest{Wait: queue.MaxWait})
			failed <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-failed; err == nil {
			t.Fatal("a caller who gave up has an answer")
		}
		for i := range 3 {
			n.enqueue(queue.Job{})
			if got := <-order; got != i {
				t.Fatalf("served %d, want %d", got, i)
			}
		}
		if st := n.stats(); st.Active != 3 || st.Waiting != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestRetries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, n, _ := serving(t, queue.Settings{})
		n.enqueue(queue.Job{ID: "a", Retry: queue.Retry{MaxAttempts: 3, Backoff: 10 * time.Second, Jitter: -1}}, queue.Job{ID: "b"})
		c := n.claimOne("a")
		wantOutcome(t, n.settle(queue.Fail, c, func(x *queue.Settlement) { x.Cause = "boom" }), queue.Delayed, "")
		if i := n.get("a"); i.Attempts != 1 || i.Cause != "boom" || time.Until(i.RunAt).Round(100*time.Millisecond) != 10*time.Second {
			t.Fatalf("%+v", i)
		}
		time.Sleep(10 * time.Second)
		c = n.claimOne("a") // it keeps its place before b
		wantOutcome(t, n.settle(queue.Fail, c, func(x *queue.Settlement) { d := time.Duration(0); x.RetryAfter = &d }), queue.Waiting, "")
		c = n.claimOne("a")
		wantOutcome(t, n.settle(queue.Fail, c, func(x *queue.Settlement) { x.Cause = strings.Repeat("é", queue.MaxCause) }), queue.Dead, "")
		if i := n.get("a"); i.State != queue.Dead || i.Attempts != 3 || len(i.Cause) != queue.MaxCause || i.EndedAt.IsZero() {
			t.Fatalf("%+v", i)
		}
		wantOutcome(t, n.settle(queue.Complete, c), "", queue.StaleClaim)
		c = n.claimOne("b")
		wantOutcome(t, n.settle(queue.Fail, c, func(x *queue.Settlement) { x.Dead = true }), queue.Dead, "")
		if p, err := n.List(n.w.ctx, queue.DefaultQueue, queue.Query{State: queue.Dead}); err != nil || len(p.Jobs) != 2 {
			t.Fatalf("%+v, %v", p, err)
		}
		if met := n.command(queue.Command{Act: queue.Redrive, IDs: []string{"a", "a", "nobody"}}); met != 1 {
			t.Fatalf("redriven %d", met)
		}
		if i := n.get("a"); i.State != queue.Waiting || i.Attempts != 0 || i.Cause != "" {
			t.Fatalf("%+v", i)
		}
		if met := n.command(queue.Command{Act: queue.Redrive}); met != 1 {
			t.Fatalf("redriven %d", met)
		}
	})
}

func TestBackOfTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, n, _ := serving(t, queue.Settings{Retry: queue.Retry{Back: true}})
		n.enqueue(jobsWithIDs(3)...)
		c := n.claimOne("j0")
		wantOutcome(t, n.settle(queue.Fail, c, func(x *queue.Settlement) { d := time.Duration(0); x.RetryAfter = &d }), queue.Waiting, "")
		n.claimOne("j1")
		time.Sleep(31 * time.Second) // j1's claim ends
		n.claimOne("j2")
		n.claimOne("j0")
		n.claimOne("j1")
	})
}

// TestClaimEnds: a claim that is not extended ends; that counts as an attempt, and the cause says
// so.
func TestClaimEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, n, _ := serving(t, queue.Settings{Visibility: 10 * time.Second})
		n.enqueue(queue.Job{ID: "a"})
		c := n.claimOne("a")
		for range 5 {
			time.Sleep(9 * time.Second)
			if o := n.settle(queue.Extend, c); o.For != 10*time.Second {
				t.Fatalf("%+v", o)
			}
		}
		if i := n.get("a"); i.Attempts != 1 {
			t.Fatalf("%+v", i)
		}
		time.Sleep(11 * time.Second)
		wantOutcome(t, n.settle(queue.Extend, c), "", queue.StaleClaim)
		wantOutcome(t, n.settle(queue.Complete, c), "", queue.StaleClaim)
		if i := n.get("a"); i.State != queue.Waiting || i.Attempts != 1 || i.Cause == "" {
			t.Fatalf("%+v", i)
		}
		n.claimOne("a")
		time.Sleep(11 * time.Second)
		n.claimOne("a")
		time.Sleep(11 * time.Second)
		if i := n.get("a"); i.State != queue.Dead || i.Attempts != 3 || !strings.Contains(i.Cause, "3 attempts") {
			t.Fatalf("%+v", i)
		}
	})
}

func TestRelease(t *testing.T) {
	t.Parallel()
	_, n, _ := serving(t, queue.Settings{})
	n.enqueue(queue.Job{ID: "a", Retry: queue.Retry{MaxAttempts: 1}}, queue.Job{ID: "b"})
	for range 2 {
		c := n.claimOne("a")
		wantOutcome(t, n.settle(queue.Release, c), queue.Waiting, "")
		wantOutcome(t, n.settle(queue.Release, c), "", queue.StaleClaim)
		if i := n.get("a"); i.Attempts != 0 {
			t.Fatalf("%+v", i)
		}
	}
	wantOutcome(t, n.settle(queue.Release, n.claimOne("a")), queue.Dead, "") // claimed three times for one attempt
	n.command(queue.Command{Act: queue.Redrive})
	c := n.claimOne("a")
	wantOutcome(t, n.settle(queue.Extend, c), queue.Active, "")
	wantOutcome(t, n.settle(queue.Release, c), queue.Dead, "")
	if i := n.get("a"); i.Attempts != 1 || !strings.Contains(i.Cause, "a heartbeat was sent") {
		t.Fatalf("%+v", i)
	}
}

func TestPauseAndResume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, n, r := serving(t, queue.Settings{})
		n.enqueue(jobsWithIDs(2)...)
		c := n.claimOne("j0")
		n.command(queue.Command{Act: queue.Pause})
		if got := n.claim(queue.ClaimRequest{}); len(got) != 0 || !n.stats().Paused {
			t.Fatalf("%+v", got)
		}
		wantOutcome(t, n.settle(queue.Complete, c), queue.Completed, "") // an active job may finish
		r.drain(t)
		n.serve(queue.DefaultQueue, 0)
		if !n.stats().Paused {
			t.Fatal("the pause was forgotten")
		}
		served := make(chan []queue.Claimed)
		go func() { served <- n.claim(queue.ClaimRequest{Wait: queue.MaxWait}) }()
		synctest.Wait()
		n.command(queue.Command{Act: queue.Resume})
		if got := <-served; len(got) != 1 {
			t.Fatalf("%+v", got)
		}
	})
}

func TestCancelAndPurge(t *testing.T) {
	t.Parallel()
	_, n, _ := serving(t, queue.Settings{})
	n.enqueue(queue.Job{ID: "active"}, queue.Job{ID: "waiting"}, queue.Job{ID: "delayed", Delay: time.Hour}, queue.Job{ID: "typed", Type: "x"})
	c := n.claimOne("active")
	if met := n.command(queue.Command{Act: queue.Cancel, IDs: []string{"active", "waiting", "nobody"}}); met != 2 {
		t.Fatalf("cancelled %d", met)
	}
	wantOutcome(t, n.settle(queue.Complete, c), "", queue.StaleClaim)
	if i := n.get("active"); i.State != queue.Cancelled {
		t.Fatalf("%+v", i)
	}
	if got := n.enqueue(queue.Job{ID: "waiting"}); !got[0].Duplicate || got[0].State != queue.Cancelled {
		t.Fatalf("%+v", got)
	}
	if met := n.command(queue.Command{Act: queue.Purge, Type: "x"}); met != 1 {
		t.Fatalf("purged %d", met)
	}
	n.enqueue(jobsWithIDs(1000)...)
	for i := range 200 {
		n.enqueue(queue.Job{ID: fmt.Sprint("more", i)})
	}
	if met := n.command(queue.Command{Act: queue.Purge, State: queue.Waiting}); met != 1200 {
		t.Fatalf("purged %d", met)
	}
	n.enqueue(queue.Job{ID: "held"})
	n.claimOne("held")
	if met := n.command(queue.Command{Act: queue.Purge}); met != 1 { // the delayed one, not the active one
		t.Fatalf("purged %d", met)
	}
	if met := n.command(queue.Command{Act: queue.Purge, State: queue.Active}); met != 1 {
		t.Fatalf("purged %d", met)
	}
	if st := n.stats(); st.Waiting+st.Delayed+st.Active+st.Dead != 0 || st.Cancelled != 2 {
		t.Fatalf("%+v", st)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.declare(queue.Settings{Shards: 3})
	n := w.node("n1")
	for i := range 3 {
		n.serve(queue.DefaultQueue, i)
	}
	n.enqueue(jobsWithIDs(700)...)
	n.enqueue(queue.Job{ID: "t", Type: "x"})
	seen := map[string]bool{}
	pages := 0
	for q := (queue.Query{Limit: 90, Payload: true}); ; pages++ {
		p, err := n.List(w.ctx, queue.DefaultQueue, q)
		if err != nil || len(p.Payloads) != len(p.Jobs) {
			t.Fatal(err)
		}
		for i, j := range p.Jobs {
			if seen[j.ID] || j.ID != "t" && string(p.Payloads[i]) != "payload "+j.ID[1:] {
				t.Fatalf("%s again, or with the payload %q", j.ID, p.Payloads[i])
			}
			seen[j.ID] = true
		}
		if q.Cursor = p.Cursor; q.Cursor == "" {
			break
		}
	}
	if len(seen) != 701 || pages < 7 {
		t.Fatalf("%d jobs on %d pages", len(seen), pages)
	}
	if p, err := n.List(w.ctx, queue.DefaultQueue, queue.Query{Type: "x"}); err != nil || len(p.Jobs) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	if st := n.stats(); st.Shards != 3 || st.Waiting != 701 {
		t.Fatalf("%+v", st)
	}
}

// TestShards: an ID is found on whichever shard it is; claims come from all shards; groups stay
// together.
func TestShards(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.declare(queue.Settings{Shards: 4})
		n := w.node("n1")
		for i := range 3 {
			n.serve(queue.DefaultQueue, i)
		}
		var elsewhere queue.Job
		for i := 0; elsewhere.ID == ""; i++ {
			if id := fmt.Sprint("e", i); shardOf(id, 4) == 3 {
				elsewhere.ID = id
			}
		}
		_, err := n.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{elsewhere})
		wantRefusal(t, err, queue.QueueNotOwner)
		n.serve(queue.DefaultQueue, 3)
		n.enqueue(jobsWithIDs(40)...)
		for i := range 10 {
			n.enqueue(queue.Job{ID: fmt.Sprint("g", i), Group: "g"})
		}
		n.get("g3")
		claims := n.claim(queue.ClaimRequest{Max: 50, RequestID: "call"})
		if len(claims) != 50 {
			t.Fatalf("claimed %d", len(claims))
		}
		for _, wait := range []time.Duration{0, time.Minute} {
			if again := n.claim(queue.ClaimRequest{Max: 50, RequestID: "call", Wait: wait}); len(again) != 50 {
				t.Fatalf("again %d", len(again))
			}
		}
		var all []queue.Settlement
		for _, c := range claims {
			if tok, _, _, ok := parseToken(c.Token, new([maxToken]byte)); !ok || c.Job.Group == "g" && tok.shard != shardOf("g", 4) {
				t.Fatalf("%s of the group is on shard %d", c.Job.ID, tok.shard)
			}
			all = append(all, queue.Settlement{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token})
		}
		out, err := n.Settle(w.ctx, queue.DefaultQueue, all)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range out {
			wantOutcome(t, o, queue.Completed, "")
		}
		waiting := make(chan []queue.Claimed)
		go func() {
			waiting <- n.claim(queue.ClaimRequest{Wait: queue.MaxWait, Worker: "tokenless", Tokenless: true})
		}()
		synctest.Wait()
		n.enqueue(queue.Job{ID: "late", Group: "some group"})
		c := (<-waiting)[0]
		wantOutcome(t, n.settle(queue.Complete, c, func(x *queue.Settlement) { x.Worker = "tokenless" }), queue.Completed, "")
	})
}

func TestBackPressure(t *testing.T) {
	t.Parallel()
	_, n, _ := serving(t, queue.Settings{MaxJobs: 10})
	n.enqueue(jobsWithIDs(10)...)
	_, err := n.Enqueue(n.w.ctx, queue.DefaultQueue, []queue.Job{{ID: "more"}})
	wantRefusal(t, err, queue.QueueFull)
	wantOutcome(t, n.settle(queue.Complete, n.claimOne("j0")), queue.Completed, "")
	n.enqueue(queue.Job{ID: "more"})
}

// TestSettingsChange: a running shard adopts new settings, and those that its state depends on
// survive the broker.
func TestSettingsChange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, n, r := serving(t, queue.Settings{})
		if _, err := n.Registry().Declare(w.ctx, queue.Settings{Name: queue.DefaultQueue, MaxJobs: 1, DedupWindow: time.Minute, Visibility: time.Hour}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_, err := n.Enqueue(w.ctx, queue.DefaultQueue, jobsWithIDs(2))
		wantRefusal(t, err, queue.QueueFull)
		n.enqueue(queue.Job{ID: "a"})
		c := n.claimOne("a")
		if c.For != time.Hour {
			t.Fatalf("%+v", c)
		}
		wantOutcome(t, n.settle(queue.Complete, c), queue.Completed, "")
		time.Sleep(61 * time.Second)
		if got := n.enqueue(queue.Job{ID: "a"}); got[0].Duplicate {
			t.Fatal("the old window holds")
		}
		wantOutcome(t, n.settle(queue.Complete, n.claimOne("a")), queue.Completed, "")
		r.kill()
		n.serve(queue.DefaultQueue, 0)
		time.Sleep(59 * time.Second)
		if got := n.enqueue(queue.Job{ID: "a"}); !got[0].Duplicate {
			t.Fatalf("%+v", got)
		}
		time.Sleep(time.Second)
		if got := n.enqueue(queue.Job{ID: "a"}); got[0].Duplicate {
			t.Fatalf("%+v", got)
		}
	})
}

// TestSameCallTwice: several settlements of one job in one call are carried out in order.
func TestSameCallTwice(t *testing.T) {
	t.Parallel()
	_, n, _ := serving(t, queue.Settings{})
	if got := n.enqueue(queue.Job{ID: "a"}, queue.Job{ID: "a"}, queue.Job{Key: "k"}, queue.Job{Key: "k"}); got[0].Duplicate || !got[1].Duplicate || got[2].ID != got[3].ID || !got[3].Duplicate {
		t.Fatalf("%+v", got)
	}
	c := n.claimOne("a")
	x := queue.Settlement{ID: "a", Token: c.Token}
	var all []queue.Settlement
	for _, v := range []queue.Verb{queue.Extend, queue.Complete, queue.Complete, queue.Fail} {
		x.Verb = v
		all = append(all, x)
	}
	out, err := n.Settle(n.w.ctx, queue.DefaultQueue, all)
	if err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, out[0], queue.Active, "")
	wantOutcome(t, out[1], queue.Completed, "")
	wantOutcome(t, out[2], queue.Completed, "")
	wantOutcome(t, out[3], "", queue.StaleClaim)
}

// TestAWiderWindowLosesNothing: jobs that were accepted under earlier settings are there after a
// replay under the current ones, also those that were decided while the settings changed.
func TestAWiderWindowLosesNothing(t *testing.T) {
	for _, early := range []time.Duration{0, 22, 26, 30, 34, 38, 42, 60} {
		t.Run(early.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) { widen(t, early*time.Millisecond) })
		})
	}
}

// widen changes the window this long before the moment at which an ID would be forgotten.
func widen(t *testing.T, early time.Duration) {
	w, _, a, b := slow(t, queue.Settings{DedupWindow: time.Minute})
	r := a.serve(queue.DefaultQueue, 0)
	a.enqueue(queue.Job{ID: "a"})
	wantOutcome(t, a.settle(queue.Complete, a.claimOne("a")), queue.Completed, "")
	time.Sleep(time.Until(a.get("a").EndedAt.Add(time.Minute)) - early)
	var callers sync.WaitGroup
	callers.Go(func() {
		if _, err := a.Registry().Declare(w.ctx, queue.Settings{Name: queue.DefaultQueue, DedupWindow: time.Hour}); err != nil {
			t.Error(err)
		}
	})
	var fresh atomic.Int64
	for i := range 100 {
		callers.Go(func() {
			time.Sleep(time.Duration(i) * 2 * time.Millisecond)
			if !a.enqueue(queue.Job{ID: "a"})[0].Duplicate {
				fresh.Add(1)
			}
		})
	}
	callers.Wait()
	r.kill()
	b.serve(queue.DefaultQueue, 0)
	if st := b.stats(); st.Waiting != fresh.Load() || fresh.Load() > 1 {
		t.Fatalf("%d were accepted, %+v", fresh.Load(), st)
	}
}
