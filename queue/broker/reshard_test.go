package broker

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// untilResharded waits until a change of the number of shards has ended. It is for bubbles.
func (w *world) untilResharded(shards int) queue.Settings {
	w.t.Helper()
	r := NewRegistry(w.bucket, w.prefix)
	for range 600 {
		set, err := r.get(w.ctx, queue.DefaultQueue, 0)
		if err == nil && set.Shards == shards && set.Resharding.Stage == "" {
			return *set
		}
		time.Sleep(reshardPoll)
	}
	w.t.Fatalf("the queue has no %d shards", shards)
	return queue.Settings{}
}

// reshard changes the number of shards, with a unit for each shard on the node.
func (n *node) reshard(shards int) {
	n.w.t.Helper()
	set, err := n.Registry().Reshard(n.w.ctx, queue.DefaultQueue, shards)
	if err != nil {
		n.w.t.Fatal(err)
	}
	for unit := set.Shards; unit < shards; unit++ {
		n.begin(queue.DefaultQueue, unit)
	}
	n.w.untilResharded(shards)
	for unit := range shards {
		if n.shard(queue.DefaultQueue, unit) == nil {
			n.w.t.Errorf("shard %d of %d is not served", unit, shards)
		}
		n.noneRejected(queue.DefaultQueue, unit)
	}
}

// resharded is a queue with jobs in every state, and what is known about them.
type resharded struct {
	*node
	payloads map[string][]byte
	claimed  []queue.Claimed // with tokens of the first shards
}

func (r *resharded) submit(jobs ...queue.Job) {
	for i := range jobs {
		if jobs[i].Payload == nil {
			jobs[i].Payload = fmt.Append(nil, "payload of ", jobs[i].ID)
		}
		r.payloads[jobs[i].ID] = jobs[i].Payload
	}
	r.enqueue(jobs...)
}

// fill submits jobs in every state.
func (r *resharded) fill() {
	t := r.w.t
	for round := range 20 {
		for group := range 10 {
			r.submit(queue.Job{ID: fmt.Sprintf("g%d-%02d", group, round), Group: fmt.Sprint("group", group), Type: "grouped"})
		}
	}
	r.submit(
		queue.Job{ID: "large", Payload: bytes.Repeat([]byte("large"), 100_000), Type: "odd"},
		queue.Job{ID: "medium", Payload: bytes.Repeat([]byte("medium"), 500), Type: "odd"},
		queue.Job{ID: "medium-2", Payload: bytes.Repeat([]byte("medium-2"), 500), Type: "odd", Group: "odd"},
		queue.Job{ID: "delayed", Delay: time.Hour, Type: "odd"},
		queue.Job{ID: "a rather long ID, of more than sixteen bytes", Type: "odd", Priority: 3},
	)
	for n := range 6 {
		r.submit(queue.Job{ID: fmt.Sprint("claimed", n), Type: "claimed", Group: fmt.Sprint(n)})
		r.submit(queue.Job{ID: fmt.Sprint("done", n), Type: "done", Group: fmt.Sprint(n)})
		r.submit(queue.Job{ID: fmt.Sprint("dead", n), Type: "dead"})
	}
	for len(r.claimed) < 6 {
		r.claimed = append(r.claimed, r.claim(queue.ClaimRequest{Worker: "w", Types: []string{"claimed"}, Visibility: 2 * time.Hour})...)
	}
	for range 6 {
		c := r.claim(queue.ClaimRequest{Worker: "w", Types: []string{"done"}})[0]
		wantOutcome(t, r.settle(queue.Complete, c, func(x *queue.Settlement) { x.Result = []byte("result of " + c.Job.ID) }), queue.Completed, "")
		c = r.claim(queue.ClaimRequest{Worker: "w", Types: []string{"dead"}})[0]
		wantOutcome(t, r.settle(queue.Fail, c, func(x *queue.Settlement) { x.Dead, x.Cause = true, "cause of "+c.Job.ID }), queue.Dead, "")
	}
}

// check checks that everything is there.
func (r *resharded) check() {
	t := r.w.t
	t.Helper()
	st := r.stats()
	if st.Waiting != 200+4 || st.Delayed != 1 || st.Active != 6 || st.Dead != 6 || st.Enqueued != 223 || st.Completed != 6 || st.Died != 6 {
		t.Errorf("counts %+v", st)
	}
	for id, payload := range r.payloads {
		info, got, err := r.Get(r.w.ctx, queue.DefaultQueue, id)
		switch {
		case err != nil:
			t.Errorf("job %s: %v", id, err)
		case info.State == queue.Completed && string(info.Result) != "result of "+id:
			t.Errorf("job %s: result %q", id, info.Result)
		case info.State == queue.Dead && info.Cause != "cause of "+id:
			t.Errorf("job %s: cause %q", id, info.Cause)
		case info.State != queue.Completed && !bytes.Equal(got, payload):
			t.Errorf("job %s: payload of %d bytes, want %d", id, len(got), len(payload))
		}
	}
	for n := range 6 {
		for _, j := range []queue.Job{{ID: fmt.Sprint("done", n), Group: fmt.Sprint(n)}, {ID: fmt.Sprint("claimed", n), Group: fmt.Sprint(n)}, {ID: fmt.Sprint("dead", n)}} {
			if got := r.enqueue(j); !got[0].Duplicate {
				t.Errorf("job %s can be submitted again: %+v", j.ID, got)
			}
		}
	}
}

// workOff claims all waiting jobs and completes them. It checks the order of each group.
func (r *resharded) workOff() {
	t := r.w.t
	t.Helper()
	last, met := map[string]string{}, 0
	for {
		got := r.claim(queue.ClaimRequest{Worker: "w", Max: 7})
		if len(got) == 0 {
			break
		}
		for _, c := range got {
			if c.Job.Type == "grouped" {
				if last[c.Job.Group] >= c.Job.ID {
					t.Errorf("%s comes after %s", c.Job.ID, last[c.Job.Group])
				}
				last[c.Job.Group] = c.Job.ID
			}
			if !bytes.Equal(c.Payload, r.payloads[c.Job.ID]) {
				t.Errorf("job %s: payload of %d bytes, want %d", c.Job.ID, len(c.Payload), len(r.payloads[c.Job.ID]))
			}
			wantOutcome(t, r.settle(queue.Complete, c), queue.Completed, "")
			met++
		}
	}
	if met != 204 || len(last) != 10 {
		t.Errorf("%d jobs of %d groups", met, len(last))
	}
}

// TestReshard: nothing is lost, nothing comes twice, and what belongs to a job comes with it, also when brokers
// are killed. Tokens of the first shards are good in the third.
func TestReshard(t *testing.T) {
	t.Parallel()
	for _, recent := range []int64{0, 32 << 20} { // payloads are read from segments, or are in memory
		t.Run(fmt.Sprint(recent), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, mem.New(mem.Config{}))
				w.declare(queue.Settings{Shards: 2})
				r := resharded{node: w.node("n1"), payloads: map[string][]byte{}}
				r.recentBytes = recent
				r.serve(queue.DefaultQueue, 0)
				r.serve(queue.DefaultQueue, 1)
				r.fill()
				r.check()
				r.reshard(8)
				r.check()
				r.wantRefusedForTwoShards()
				r.reshard(3)
				r.check()
				for i := range r.runs {
					r.runs[i].kill()
				}
				next := w.node("n2")
				r.node = next
				for unit := range 3 {
					next.serve(queue.DefaultQueue, unit)
				}
				r.check()
				for _, c := range r.claimed {
					wantOutcome(t, r.settle(queue.Extend, c), queue.Active, "")
					forged := c
					forged.Token = forge(c.Token)
					if out := r.settle(queue.Complete, forged); out.Err == nil {
						t.Errorf("a forged token of a former shard completes %s", c.Job.ID)
					}
					wantOutcome(t, r.settle(queue.Complete, c), queue.Completed, "")
					wantOutcome(t, r.settle(queue.Complete, c), queue.Completed, "")
					wantOutcome(t, r.settle(queue.Fail, c), "", queue.StaleClaim)
				}
				r.workOff()
				w.wantNoFormerObjects()
			})
		})
	}
}

// wantRefusedForTwoShards: a node that still believes that there are two shards gets no answer about a part.
func (r *resharded) wantRefusedForTwoShards() {
	ctx := queue.OnShards(r.w.ctx, []int{0, 1}, 2)
	_, err := r.Stats(ctx, queue.DefaultQueue)
	wantRefusal(r.w.t, err, queue.QueueNotOwner)
	_, err = r.Enqueue(ctx, queue.DefaultQueue, []queue.Job{{ID: "split for two"}})
	wantRefusal(r.w.t, err, queue.QueueNotOwner)
	page, err := r.List(r.w.ctx, queue.DefaultQueue, queue.Query{Limit: 5})
	if err != nil || page.Cursor == "" {
		r.w.t.Fatalf("%+v, %v", page, err)
	}
	_, err = r.List(r.w.ctx, queue.DefaultQueue, queue.Query{Cursor: page.Cursor[2:]}) // a cursor of the first shards
	wantRefusal(r.w.t, err, queue.BadRequest)
}

// TestCallForFormerShards: a call that has read the former number of shards gets no shard of the present ones. It
// could be one that does not have the job's group.
func TestCallForFormerShards(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, mem.New(mem.Config{}))
		w.declare(queue.Settings{Shards: 2})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		n.serve(queue.DefaultQueue, 1)
		former, err := n.beginCall(w.ctx, queue.DefaultQueue)
		if err != nil {
			t.Fatal(err)
		}
		n.reshard(3)
		for index := range former.Shards {
			_, err := n.serving(w.ctx, former, index)
			wantRefusal(t, err, queue.QueueNotOwner)
		}
		present, err := n.beginCall(w.ctx, queue.DefaultQueue)
		if err != nil || present.Shards != 3 {
			t.Fatalf("%+v, %v", present, err)
		}
		for index := range present.Shards {
			if _, err := n.serving(w.ctx, present, index); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestReshardWaitsForBrokers: a queue is served as before until the brokers of all its shards follow the change.
// Until then it can be cancelled.
func TestReshardWaitsForBrokers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, mem.New(mem.Config{}))
		w.declare(queue.Settings{Shards: 2})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0) // shard 1 has no broker, or one that does not know what resharding is
		if _, err := n.Registry().Reshard(w.ctx, queue.DefaultQueue, 1); err != nil {
			t.Fatal(err)
		}
		ids := map[int]string{}
		for i := 0; len(ids) < 2; i++ {
			ids[shardOf(fmt.Sprint(i), 2)] = fmt.Sprint(i)
		}
		for range 20 {
			time.Sleep(time.Minute / 2)
			set, err := n.Registry().get(w.ctx, queue.DefaultQueue, 0)
			if err != nil || set.Resharding.Stage != queue.Preparing {
				t.Fatalf("%+v, %v", set, err)
			}
			n.enqueue(queue.Job{ID: ids[0]})
		}
		if _, err := n.Registry().Reshard(w.ctx, queue.DefaultQueue, 2); err != nil {
			t.Fatal(err)
		}
		n.serve(queue.DefaultQueue, 1)
		time.Sleep(time.Minute)
		n.enqueue(queue.Job{ID: ids[0]}, queue.Job{ID: ids[1]})
		n.reshard(1)
		if st := n.stats(); st.Waiting != 2 || st.Shards != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// TestSealedShardIsNotServed: a broker that knows nothing of the change, and cannot read the list of queues,
// does not serve a former shard.
func TestSealedShardIsNotServed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, cut := failing(t, mem.Config{}, func(c mem.Call) bool { return c.Key == "v1/queues" })
		w.declare(queue.Settings{})
		n, late := w.node("n1"), w.node("n2")
		n.serve(queue.DefaultQueue, 0)
		n.enqueue(jobsWithIDs(3)...)
		if _, err := late.Registry().List(w.ctx); err != nil {
			t.Fatal(err)
		}
		n.reshard(2)
		cut.Store(true)
		r := late.begin(queue.DefaultQueue, 0)
		select {
		case <-r.done:
		case <-time.After(time.Minute):
		}
		if late.shard(queue.DefaultQueue, 0) != nil {
			t.Error("the sealed shard is served")
		}
		cut.Store(false)
		if st := n.stats(); st.Waiting != 3 || st.Shards != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// TestInterruptedImport: an import that has ended early begins again, and nothing comes twice.
func TestInterruptedImport(t *testing.T) {
	for name, meanwhile := range map[string]func(n *node){"": func(*node) {}, "repaired": repairImport} {
		t.Run(name, func(t *testing.T) { interruptedImport(t, meanwhile) })
	}
}

// repairImport loses a segment of an import, and repairs the shard: the import begins again.
func repairImport(n *node) {
	prefix := shardPrefix("", n.w.settings(), 0) + "/log/"
	keys := slices.DeleteFunc(n.w.bucket.(*mem.Bucket).Keys(), func(key string) bool { return !strings.HasPrefix(key, prefix) })
	if err := n.w.bucket.Delete(n.w.ctx, keys[len(keys)/2]); err != nil {
		n.w.t.Fatal(err)
	}
	if done, err := n.Repair(n.w.ctx, queue.DefaultQueue, RepairOptions{Shard: -1}); err != nil || len(done) != 1 {
		n.w.t.Fatalf("%+v, %v", done, err)
	}
}

func interruptedImport(t *testing.T, meanwhile func(n *node)) {
	bubble(t, func(t *testing.T) {
		w, cut := failing(t, mem.Config{}, func(c mem.Call) bool {
			return c.Op == mem.Read && strings.HasSuffix(c.Key, "/0/000001") // the second object of the jobs
		})
		cut.Store(true)
		w.declare(queue.Settings{Shards: 2})
		n := w.node("n1")
		n.importBatch, n.exportObject = 1000, 50_000
		n.serve(queue.DefaultQueue, 0)
		n.serve(queue.DefaultQueue, 1)
		for i := range 300 {
			n.enqueue(queue.Job{ID: fmt.Sprintf("j%03d", i), Group: fmt.Sprint(i % 2), Payload: make([]byte, 1000)})
		}
		if _, err := n.Registry().Reshard(w.ctx, queue.DefaultQueue, 1); err != nil {
			t.Fatal(err)
		}
		select {
		case <-n.runs[0].done:
		case <-time.After(time.Minute):
			t.Fatal("the import does not fail")
		}
		cut.Store(false)
		meanwhile(n)
		n.serve(queue.DefaultQueue, 0)
		w.untilResharded(1)
		last := map[string]string{}
		for i := range 300 {
			got := n.claim(queue.ClaimRequest{Worker: "w"})
			if len(got) != 1 || last[got[0].Job.Group] >= got[0].Job.ID || len(got[0].Payload) != 1000 {
				t.Fatalf("claim %d: %+v after %v", i, got, last)
			}
			if got[0].Job.ID[0] != 'j' {
				t.Fatalf("claim %d: the job has got another ID: %+v", i, got)
			}
			last[got[0].Job.Group] = got[0].Job.ID
			wantOutcome(t, n.settle(queue.Complete, got[0]), queue.Completed, "")
		}
		if st := n.stats(); st.Waiting != 0 || st.Enqueued != 300 {
			t.Errorf("%+v", st)
		}
	})
}

// forge changes a token in the middle of its MAC.
func forge(token string) string {
	at := len(token) - 10
	other := byte('A')
	if token[at] == other {
		other = 'B'
	}
	return token[:at] + string(other) + token[at+1:]
}

// wantNoFormerObjects waits until the objects of the former shards are deleted.
func (w *world) wantNoFormerObjects() {
	r := NewRegistry(w.bucket, w.prefix)
	for range 600 {
		if _, err := r.List(w.ctx); err == nil && len(r.list.Removed) == 0 {
			return
		}
		time.Sleep(time.Second)
	}
	w.t.Errorf("the objects of former shards stay: %+v", r.list.Removed)
}

// TestReshardRefusals: what cannot be done is refused, and changes nothing.
func TestReshardRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.declare(queue.Settings{Shards: 2})
	r := NewRegistry(w.bucket, "")
	r.SetMaxShards(20)
	for _, shards := range []int{0, -1, 257, 10_000} {
		_, err := r.Reshard(w.ctx, queue.DefaultQueue, shards)
		wantRefusal(t, err, queue.BadRequest)
	}
	_, err := r.Reshard(w.ctx, "none", 3)
	wantRefusal(t, err, queue.QueueNotFound)
	_, err = r.Reshard(w.ctx, queue.DefaultQueue, 100)
	wantRefusal(t, err, queue.TooManyShards)
	_, err = r.Declare(w.ctx, queue.Settings{Name: queue.DefaultQueue, Shards: 3})
	wantRefusal(t, err, queue.BadRequest)
	set, err := r.Reshard(w.ctx, queue.DefaultQueue, 2)
	if err != nil || set.Resharding != (queue.Resharding{}) {
		t.Errorf("to the same number: %+v, %v", set, err)
	}
	if set, err = r.Reshard(w.ctx, queue.DefaultQueue, 4); err != nil || set.Resharding.Stage != queue.Preparing || set.Resharding.Shards != 4 || set.Shards != 2 {
		t.Errorf("%+v, %v", set, err)
	}
	_, err = r.Reshard(w.ctx, queue.DefaultQueue, 5)
	wantRefusal(t, err, queue.ReshardConflict)
	if made, err := r.Declare(w.ctx, queue.Settings{Name: queue.DefaultQueue, Visibility: time.Minute}); err != nil || made.Resharding != set.Resharding {
		t.Errorf("a declaration meanwhile: %+v, %v", made, err)
	}
	if set, err = r.Reshard(w.ctx, queue.DefaultQueue, 2); err != nil || set.Resharding != (queue.Resharding{}) || set.Shards != 2 {
		t.Errorf("cancelled: %+v, %v", set, err)
	}
	if _, err := r.Reshard(w.ctx, queue.DefaultQueue, 4); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		at, err := r.get(w.ctx, queue.DefaultQueue, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.advance(w.ctx, at); err != nil {
			t.Fatal(err)
		}
		_, err = r.Reshard(w.ctx, queue.DefaultQueue, 2)
		wantRefusal(t, err, queue.ReshardConflict)
		_, err = r.Reshard(w.ctx, queue.DefaultQueue, 5)
		wantRefusal(t, err, queue.ReshardConflict)
	}
	if err := r.Remove(w.ctx, queue.DefaultQueue); err != nil {
		t.Fatal(err)
	}
	if removed := slices.Collect(maps.Keys(removedShards(r))); len(removed) != 2 {
		t.Errorf("removed while it was resharded: %v", removed)
	}
}

func removedShards(r *Registry) map[uint64]int {
	out := map[uint64]int{}
	for _, g := range r.list.Removed {
		out[g.Incarnation] = g.Shards
	}
	return out
}

// TestOlderVersionsLeaveAReshardAlone: a version that does not know resharding must not write the list.
func TestOlderVersionsLeaveAReshardAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.declare(queue.Settings{})
	r := NewRegistry(w.bucket, "")
	formats := []int{}
	format := func() {
		o, err := w.bucket.Read(w.ctx, "v1/queues")
		if err != nil {
			t.Fatal(err)
		}
		f, err := parseRegistry(o.Data)
		if err != nil {
			t.Fatal(err)
		}
		formats = append(formats, f.Format)
	}
	format()
	if _, err := r.Reshard(w.ctx, queue.DefaultQueue, 4); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		format()
		at, err := r.get(w.ctx, queue.DefaultQueue, 0)
		if err == nil {
			err = r.advance(w.ctx, at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{1, 2, 2, 2, 1}; !slices.Equal(formats, want) {
		t.Errorf("formats %v, want %v", formats, want)
	}
}

// TestRenamedTwice: a job whose ID was taken in an earlier change of the number of shards has another one. If its producer
// submits it again, the next change finds that one taken, too.
func TestRenamedTwice(t *testing.T) {
	for name, batch := range map[string]int{"one append": importBatch, "many appends": 100} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, nil)
				w.declare(queue.Settings{Shards: 2})
				n := w.node("n1")
				n.importBatch = batch
				var groups [2]string // of both shards
				for i := range 2 {
					n.serve(queue.DefaultQueue, i)
					for x := 0; groups[i] == ""; x++ {
						if g := fmt.Sprint("g", x); shardOf(g, 2) == i {
							groups[i] = g
						}
					}
				}
				n.enqueue(queue.Job{ID: "same", Group: groups[0]})
				time.Sleep(time.Second)
				n.enqueue(queue.Job{ID: "same", Group: groups[1]})
				n.reshard(1)
				n.reshard(2)
				n.enqueue(queue.Job{ID: "same", Group: groups[1]})
				n.reshard(1)
				if st := n.stats(); st.Waiting != 3 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// TestImportOfMuch: a shard whose import is larger than what may be unacknowledged waits for acknowledgements.
func TestImportOfMuch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var importing atomic.Bool
		w := newWorld(t, mem.New(mem.Config{Latency: func(c mem.Call) time.Duration {
			if importing.Load() && c.Op == mem.Create && strings.Contains(c.Key, "/log/") {
				return 5 * time.Second
			}
			return 0
		}}))
		w.declare(queue.Settings{Shards: 2})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		n.serve(queue.DefaultQueue, 1)
		payload := make([]byte, queue.InlinePayload)
		const jobs = 300
		for i := range jobs {
			n.enqueue(queue.Job{ID: fmt.Sprint("j", i), Payload: payload})
		}
		importing.Store(true)
		n.reshard(1)
		if st := n.stats(); st.Waiting != jobs {
			t.Errorf("%+v", st)
		}
	})
}
