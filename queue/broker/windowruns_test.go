package broker

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/journal/format"
)

// stored returns a bucket that counts the bytes of checkpoints.
func stored() (bucket *mem.Bucket, bytes *atomic.Int64) {
	bytes = new(atomic.Int64)
	return mem.New(mem.Config{Faults: func(c mem.Call) mem.Fault {
		if c.Op == mem.Create && strings.Contains(c.Key, "/ckpt/") {
			bytes.Add(int64(c.Size))
		}
		return mem.Fault{}
	}}), bytes
}

// end completes jobs with the largest results, which the shard remembers: 32 of them are enough for
// a run.
func (n *node) end(prefix string, jobs int) {
	n.w.t.Helper()
	rng := rand.NewChaCha8([32]byte{byte(len(prefix))})
	for i := range jobs {
		id := fmt.Sprint(prefix, i)
		n.enqueue(queue.Job{ID: id, Type: id})
		c := n.claim(queue.ClaimRequest{Types: []string{id}})
		result := make([]byte, queue.MaxResult)
		_, _ = rng.Read(result)
		wantOutcome(n.w.t, n.settle(queue.Complete, c[0], func(s *queue.Settlement) { s.Result = result }), queue.Completed, "")
	}
}

// checkpointer returns a node that writes a checkpoint when the function is called.
func (w *world) checkpointer(owner string) (n *node, checkpoint func()) {
	n = w.node(owner)
	var due atomic.Bool
	n.checkpointDue = func(*journal.Log, int64) bool { return due.Swap(false) }
	return n, func() {
		due.Store(true)
		n.stats() // a round
		synctest.Wait()
		if due.Load() {
			w.t.Fatal("no checkpoint was begun")
		}
	}
}

// named returns the keys of the runs that HEAD names.
func (w *world) named() (keys []string) {
	w.t.Helper()
	bucket := w.bucket.(*mem.Bucket)
	for _, key := range bucket.Keys() {
		if at, ok := strings.CutSuffix(key, format.HeadKey); ok {
			raw, _ := bucket.Peek(key)
			head, err := format.DecodeHead(raw)
			if err != nil {
				w.t.Fatal(err)
			}
			for _, r := range head.Checkpoint.Runs {
				keys = append(keys, at+r.Key())
			}
		}
	}
	return keys
}

// TestASecondCheckpointDoesNotStoreTheWindow: later checkpoints, including those of later brokers,
// do not store again what a checkpoint has stored of the deduplication window; and nothing of it is
// missing.
func TestASecondCheckpointDoesNotStoreTheWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket, bytes := stored()
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		const jobs = 150
		var sizes []int64
		for i, owner := range []string{"a", "b", "c"} {
			n, checkpoint := w.checkpointer(owner)
			r := n.serve(queue.DefaultQueue, 0)
			if i == 0 {
				n.end("first", jobs)
			} else if st := n.stats(); st.DedupIDs != int64(jobs+2*i) {
				t.Errorf("%s begins with %d IDs", owner, st.DedupIDs)
			}
			for round := range 2 {
				n.end(fmt.Sprint(owner, round, "-"), 1)
				before := bytes.Load()
				checkpoint()
				sizes = append(sizes, bytes.Load()-before)
			}
			r.kill()
		}
		// A later one contains the few results that are in no run, each time until they are
		// enough for one.
		if later := slices.Max(sizes[1:]); sizes[0] < jobs*queue.MaxResult || later > 7*queue.MaxResult {
			t.Errorf("checkpoints of %d bytes", sizes)
		}
		if n := len(w.named()); n < 2 || n > 4 { // of 2 to 4 MiB
			t.Errorf("%d runs", n)
		}
		n, _ := w.checkpointer("d")
		n.serve(queue.DefaultQueue, 0)
		for _, id := range []string{"first0", "first77", "first149", "a0-0", "b1-0", "c1-0"} {
			if got := n.enqueue(queue.Job{ID: id}); !got[0].Duplicate {
				t.Errorf("%s is forgotten", id)
			}
		}
	})
}

// TestASmallerWindowDropsRuns: IDs that new settings make a queue forget are deleted, and the next
// broker knows the others.
func TestASmallerWindowDropsRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket, _ := stored()
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		a, checkpoint := w.checkpointer("a")
		r := a.serve(queue.DefaultQueue, 0)
		for _, name := range []string{"first", "second", "third"} {
			a.end(name, 40)
			checkpoint()
		}
		before := w.named()
		if len(before) != 3 {
			t.Fatalf("%d runs", len(before))
		}
		w.redeclared(a, queue.Settings{DedupIDs: 50})
		for n := range 3 {
			a.end(fmt.Sprint("more", n, "-"), 1)
			checkpoint()
		}
		if after := w.named(); len(after) != 2 || !slices.Equal(after, before[1:]) {
			t.Errorf("%q, before %q", after, before)
		}
		if _, ok := bucket.Peek(before[0]); ok {
			t.Errorf("%s was not deleted", before[0])
		}
		r.kill()
		b, _ := w.checkpointer("b")
		b.serve(queue.DefaultQueue, 0)
		if st := b.stats(); st.DedupIDs != 50 {
			t.Errorf("%+v", st)
		}
		for id, want := range map[string]bool{"first1": false, "second32": false, "second33": true, "third0": true, "more2-0": true} {
			if got := b.enqueue(queue.Job{ID: id}); got[0].Duplicate != want {
				t.Errorf("%s: %+v", id, got)
			}
		}
	})
}

// redeclared declares other settings, and waits until they are in force.
func (w *world) redeclared(n *node, set queue.Settings) {
	w.t.Helper()
	set.Name = queue.DefaultQueue
	if _, err := n.Registry().Declare(w.ctx, set); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// TestAResultInARun: the answer to a repeated complete, and the result, survive takeovers.
func TestAResultInARun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.declare(queue.Settings{})
		a, checkpoint := w.checkpointer("a")
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(1)...)
		done := a.claimOne("j0")
		wantOutcome(t, a.settle(queue.Complete, done, func(s *queue.Settlement) { s.Result = []byte("forty-two") }), queue.Completed, "")
		a.end("other", 40)
		checkpoint()
		if len(w.named()) == 0 {
			t.Fatal("no run was written")
		}
		for _, owner := range []string{"b", "c"} {
			r.kill()
			var n *node
			n, checkpoint = w.checkpointer(owner)
			r = n.serve(queue.DefaultQueue, 0)
			wantOutcome(t, n.settle(queue.Complete, done), queue.Completed, "")
			if i := n.get("j0"); string(i.Result) != "forty-two" {
				t.Errorf("%+v", i)
			}
			n.end(owner, 1)
			checkpoint()
		}
	})
}

// TestADamagedRun: a broker that finds a run of the window missing or damaged serves nothing,
// rather than accepting completed jobs again; when the run is restored, everything is known.
func TestADamagedRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket, _ := stored()
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		a, checkpoint := w.checkpointer("a")
		r := a.serve(queue.DefaultQueue, 0)
		a.end("first", 50)
		checkpoint()
		r.kill()
		key := w.named()[0]
		good, _ := bucket.Peek(key)
		try := func(name string, kind error) {
			n := w.node(name)
			refused := n.begin(queue.DefaultQueue, 0)
			<-refused.done
			if !errors.Is(refused.err, kind) || !strings.Contains(refused.err.Error(), "/ckpt/") && !strings.Contains(refused.err.Error(), "ckpt/") {
				t.Errorf("%s: %v", name, refused.err)
			}
		}
		if err := bucket.Delete(w.ctx, key); err != nil {
			t.Fatal(err)
		}
		try("gone", journal.ErrMissing)
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		if _, err := bucket.Write(w.ctx, key, bad); err != nil {
			t.Fatal(err)
		}
		try("damaged", journal.ErrCorrupt)
		if _, err := bucket.Write(w.ctx, key, good); err != nil {
			t.Fatal(err)
		}
		b := w.node("b")
		b.serve(queue.DefaultQueue, 0)
		if got := b.enqueue(queue.Job{ID: "first44"}); !got[0].Duplicate || b.stats().DedupIDs != 50 {
			t.Errorf("%+v", got)
		}
	})
}

// TestTakeoverWithAFullWindow: the runs are read concurrently, a fixed number at a time.
func TestTakeoverWithAFullWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var slow atomic.Bool
		bucket := mem.New(mem.Config{Latency: func(mem.Call) (wait time.Duration) {
			if slow.Load() {
				wait = latency
			}
			return wait
		}})
		w := newWorld(t, bucket)
		w.declare(queue.Settings{DedupIDs: 400})
		a, checkpoint := w.checkpointer("a")
		r := a.serve(queue.DefaultQueue, 0)
		for i := range 10 {
			a.end(fmt.Sprint("round", i, "-"), 41)
			checkpoint()
		}
		slow.Store(true)
		r.kill()
		b, _ := w.checkpointer("b")
		begun := time.Now()
		b.serve(queue.DefaultQueue, 0)
		if took := time.Since(begun); took > 8*latency { // HEAD, its replacement, the fence, HEAD; runs are read meanwhile
			t.Errorf("the takeover took %v", took)
		}
		if st := b.stats(); st.DedupIDs != 400 {
			t.Errorf("%+v", st)
		}
		got := b.enqueue(queue.Job{ID: "round0-9"}, queue.Job{ID: "round0-10"}, queue.Job{ID: "round9-40"})
		if got[0].Duplicate || !got[1].Duplicate || !got[2].Duplicate {
			t.Errorf("%+v", got)
		}
	})
}
