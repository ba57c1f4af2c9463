package broker

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// payloadFor returns the payload of a job in the tests of payloads: its size and content depend on the ID.
func payloadFor(id string) []byte {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	rng := rand.New(rand.NewPCG(h.Sum64(), 1))
	payload := make([]byte, rng.IntN(4*ledger.SmallPayload))
	for i := range payload {
		payload[i] = byte(rng.Uint32())
	}
	return payload
}

// payloadStorm is a storm whose clients check payloads.
type payloadStorm struct {
	storm
	acked     map[string]bool // jobs whose submission was acknowledged
	completed map[string]int  // by job: completions that were acknowledged, or may have happened
	checked   atomic.Int64    // payloads that were read out of segments
	next      int
}

// TestPayloadStorm: each job that was acknowledged and not completed can be claimed with its payload.
// Meanwhile checkpoints are written, payloads move to other segments, old segments are deleted, brokers
// are killed, replaced and drained, and the store loses, delays and refuses requests. Nothing but the
// segments has the payloads.
func TestPayloadStorm(t *testing.T) {
	t.Parallel()
	for seed := range uint64(number("EMITD_TEST_PAYLOAD_SEEDS", 8)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { payloadWeather(t, seed) })
		})
	}
}

func payloadWeather(t *testing.T, seed uint64) {
	s := &payloadStorm{acked: map[string]bool{}, completed: map[string]int{}}
	s.rnd, s.stop = rand.New(rand.NewPCG(seed, 7)), make(chan struct{})
	calm := atomic.Bool{}
	calm.Store(true)
	bucket := mem.New(mem.Config{
		Latency: func(mem.Call) time.Duration { return time.Duration(1+s.roll(30)) * time.Millisecond },
		Faults: func(c mem.Call) mem.Fault {
			if calm.Load() {
				return mem.Fault{}
			}
			return s.fault(c)
		},
	})
	s.world = newWorld(t, bucket)
	s.declare(queue.Settings{Retry: queue.Retry{MaxAttempts: 10_000, Backoff: time.Millisecond}})
	calm.Store(false)
	for i := range 3 {
		n := s.node(fmt.Sprint("n", i))
		n.recentBytes = int64(i * 300)
		n.segments = newSegmentCache(1) // it keeps none
		n.checkpointDue = func(l *journal.Log, _ int64) bool { return l.Stats().Slots >= 3 }
		n.cleaningRule = s.someSegments
		s.nodes = append(s.nodes, n)
	}
	var clients sync.WaitGroup
	for n := range 5 {
		clients.Go(func() { s.client(n) })
	}
	var last *run
	for range 12 {
		n := s.nodes[s.roll(len(s.nodes))]
		if last != nil {
			switch s.roll(3) {
			case 0:
				last.kill()
			case 1:
				last.a.BeginDrain()
			default: // the old broker does not know
			}
		}
		last = n.begin(queue.DefaultQueue, 0)
		time.Sleep(time.Duration(500+s.roll(2500)) * time.Millisecond)
		n.noneRejected(queue.DefaultQueue, 0)
	}
	calm.Store(true)
	time.Sleep(5 * time.Second)
	close(s.stop)
	clients.Wait()
	s.finish(seed)
}

// someSegments is a rule of cleaning that chooses segments at random.
func (s *payloadStorm) someSegments(l *ledger.Ledger, below uint64, _ int64) (some []ledger.SparseSegment) {
	for slot := range l.JobsBySlot() {
		if slot < below && s.roll(3) == 0 {
			some = append(some, ledger.SparseSegment{Slot: slot, Total: 1})
		}
	}
	return some
}

// client submits jobs, and claims some, until the storm ends.
func (s *payloadStorm) client(n int) {
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		s.submit()
		time.Sleep(time.Duration(s.roll(100)) * time.Millisecond)
		b := s.nodes[s.roll(len(s.nodes))]
		s.claimSome(b, fmt.Sprint(n))
		if s.roll(5) == 0 {
			s.inspectAll(b)
		}
	}
}

func (s *payloadStorm) submit() {
	jobs := make([]queue.Job, 1+s.roll(4))
	s.mu.Lock()
	for i := range jobs {
		s.next++
		jobs[i].ID = fmt.Sprint("j", s.next)
		jobs[i].Payload = payloadFor(jobs[i].ID)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	if _, err := s.nodes[s.roll(len(s.nodes))].Enqueue(ctx, queue.DefaultQueue, jobs); err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range jobs {
		s.acked[j.ID] = true
	}
}

// check compares a payload with what was submitted.
func (s *payloadStorm) check(b *node, id string, payload []byte) {
	if want := payloadFor(id); !bytes.Equal(payload, want) {
		s.t.Errorf("%s: job %s has a payload of %d bytes that is not the one of %d bytes that was submitted", b.owner, id, len(payload), len(want))
	}
	if len(payload) > ledger.SmallPayload {
		s.checked.Add(1)
	}
}

// claimSome claims jobs, checks their payloads, and settles them in one way or another.
func (s *payloadStorm) claimSome(b *node, worker string) {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	got, err := b.Claim(ctx, queue.DefaultQueue, queue.ClaimRequest{Worker: worker, Max: 1 + s.roll(4), Visibility: 2 * time.Second})
	if err != nil {
		return
	}
	for _, c := range got {
		s.check(b, c.Job.ID, c.Payload)
		x := queue.Settlement{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token}
		switch s.roll(4) {
		case 0:
			x.Verb = queue.Release
		case 1:
			x.Verb = queue.Fail
		case 2:
			continue // the claim expires
		default:
			s.mu.Lock()
			s.completed[c.Job.ID]++
			s.mu.Unlock()
		}
		out, err := b.Settle(ctx, queue.DefaultQueue, []queue.Settlement{x})
		if x.Verb == queue.Complete && (err != nil && queue.TagOf(err) != queue.UnknownOutcome || err == nil && out[0].Err != nil) {
			s.mu.Lock()
			if s.completed[c.Job.ID]--; s.completed[c.Job.ID] == 0 { // that of an earlier claim may have happened
				delete(s.completed, c.Job.ID)
			}
			s.mu.Unlock()
		}
	}
}

// inspectAll reads a page of jobs with their payloads. A payload may be missing if its job has ended since.
func (s *payloadStorm) inspectAll(b *node) {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	page, err := b.List(ctx, queue.DefaultQueue, queue.Query{Payload: true})
	if err != nil {
		return
	}
	for i, j := range page.Jobs {
		if len(page.Payloads[i]) > 0 {
			s.check(b, j.ID, page.Payloads[i])
		}
	}
}

// finish takes the queue over a last time, verifies it, and claims all jobs that are left.
func (s *payloadStorm) finish(seed uint64) {
	s.t.Helper()
	for _, r := range s.nodes[0].runs {
		r.kill()
	}
	for _, n := range s.nodes {
		for _, r := range n.runs {
			r.kill()
		}
	}
	n := s.nodes[0]
	n.serve(queue.DefaultQueue, 0)
	left := map[string]bool{}
	for id := range s.acked {
		if s.completed[id] == 0 {
			left[id] = true
		}
	}
	inSegments := len(n.shard(queue.DefaultQueue, 0).ledger.JobsBySlot())
	if found, err := n.Registry().Verify(s.ctx, ""); err != nil || len(found.Problems) > 0 {
		s.t.Errorf("seed %d: verify: %+v, %v", seed, found, err)
	}
	if st := n.stats(); st.Dead > 0 {
		page, err := n.List(s.ctx, queue.DefaultQueue, queue.Query{State: queue.Dead})
		s.t.Errorf("seed %d: %d jobs are dead: %+v, %v", seed, st.Dead, page, err)
	}
	for range 200 {
		time.Sleep(time.Second) // claims of before end
		for _, c := range n.claim(queue.ClaimRequest{Worker: "last", Max: 1000, Visibility: time.Hour}) {
			s.check(n, c.Job.ID, c.Payload)
			delete(left, c.Job.ID)
		}
		if len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		s.t.Errorf("seed %d: %d acknowledged jobs are lost: %v", seed, len(left), left)
	}
	if len(s.acked) < 100 || len(s.completed) < 20 || s.checked.Load() < 100 || inSegments < 2 {
		s.t.Errorf("seed %d: the storm is a calm: %d submitted, %d completed, %d payloads checked, %d segments at the end", seed, len(s.acked), len(s.completed), s.checked.Load(), inSegments)
	}
	s.t.Logf("seed %d: %d submitted, %d completed, %d payloads checked, %d segments at the end", seed, len(s.acked), len(s.completed), s.checked.Load(), inSegments)
}

// quiet returns a broker whose shard writes checkpoints only when checkpointNow is called.
func quiet(t *testing.T, recent int64) (*world, *mem.Bucket, *node, *run) {
	t.Helper()
	bucket := mem.New(mem.Config{})
	w := newWorld(t, bucket)
	w.declare(queue.Settings{})
	n := w.quietNode("n1", recent)
	return w, bucket, n, n.serve(queue.DefaultQueue, 0)
}

func (w *world) quietNode(owner string, recent int64) *node {
	n := w.node(owner)
	n.recentBytes = recent
	n.checkpointDue = func(*journal.Log, int64) bool { return false }
	return n
}

// checkpointed writes a checkpoint, waits until it is in force, and for the cleaning after it.
func (n *node) checkpointed() {
	n.w.t.Helper()
	s := n.shard(queue.DefaultQueue, 0)
	n.command(queue.Command{Act: queue.Pause}) // a record, so that the checkpoint has a slot of its own
	n.command(queue.Command{Act: queue.Resume})
	var before storedCheckpoint
	if err := s.inquire(n.w.ctx, func(s *shard) {
		before = s.checkpoints.committed
		s.checkpoints.begin()
	}); err != nil {
		n.w.t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		passed := false
		err := s.inquire(n.w.ctx, func(s *shard) {
			passed = s.cleaning.passed != before && s.cleaning.passed != nil && !s.cleaning.busy.Load()
		})
		if err != nil || time.Now().After(deadline) {
			n.w.t.Fatal("no checkpoint", err)
		}
		if passed {
			return
		}
	}
}

// segmentsOf returns how many segments with records are in the bucket.
func segmentsOf(bucket *mem.Bucket) (n int) {
	for _, key := range bucket.Keys() {
		if strings.Contains(key, "/log/") {
			n++
		}
	}
	return n
}

func bigJobs(prefix string, n int) []queue.Job {
	jobs := make([]queue.Job, n)
	for i := range jobs {
		id := fmt.Sprint(prefix, "-", i)
		jobs[i] = queue.Job{ID: id, Payload: bytes.Repeat([]byte(id+" "), 1024/len(id))}
	}
	return jobs
}

// wantPayloads claims all jobs and compares their payloads.
func (n *node) wantPayloads(jobs []queue.Job) {
	n.w.t.Helper()
	got := n.claim(queue.ClaimRequest{Worker: "w", Max: queue.MaxCall})
	if len(got) != len(jobs) {
		n.w.t.Fatalf("claimed %d jobs, want %d", len(got), len(jobs))
	}
	for i, c := range got {
		if c.Job.ID != jobs[i].ID || !bytes.Equal(c.Payload, jobs[i].Payload) {
			n.w.t.Fatalf("claimed %s with a payload of %d bytes, want %s with %d", c.Job.ID, len(c.Payload), jobs[i].ID, len(jobs[i].Payload))
		}
	}
}

// TestRecentJobsAreNotRead: jobs that are claimed soon come from memory.
func TestRecentJobsAreNotRead(t *testing.T) {
	t.Parallel()
	_, bucket, n, _ := quiet(t, ledger.RecentBytes)
	before := bucket.Stats()[mem.Read].Calls
	jobs := bigJobs("a", 100)
	n.enqueue(jobs...)
	n.wantPayloads(jobs)
	if reads := bucket.Stats()[mem.Read].Calls - before; reads != 0 {
		t.Errorf("%d reads", reads)
	}
}

// TestPayloadsAreNotInMemory: payloads are neither in memory nor in checkpoints. A segment is read once
// for all of its jobs, whether they are claimed one by one or together, and also by the next owner.
func TestPayloadsAreNotInMemory(t *testing.T) {
	t.Parallel()
	w, bucket, n, r := quiet(t, 0)
	first, second := bigJobs("a", 100), bigJobs("b", 100)
	n.enqueue(first...)
	n.enqueue(second...)
	if st := n.stats(); st.PayloadBytes != 0 {
		t.Errorf("%+v", st)
	}
	written := bucket.Stats()[mem.Create].BytesIn
	n.checkpointed()
	if size := bucket.Stats()[mem.Create].BytesIn - written; size > 20_000 {
		t.Errorf("a checkpoint of 200 jobs has %d bytes", size)
	}
	n.checkpointed()
	before := bucket.Stats()[mem.Read].Calls
	for _, j := range first {
		if c := n.claimOne(j.ID); !bytes.Equal(c.Payload, j.Payload) {
			t.Fatalf("job %s has a payload of %d bytes", j.ID, len(c.Payload))
		}
	}
	if _, p, err := n.Get(w.ctx, queue.DefaultQueue, "b-7"); err != nil || !bytes.Equal(p, second[7].Payload) {
		t.Errorf("%d bytes, %v", len(p), err)
	}
	if page, err := n.List(w.ctx, queue.DefaultQueue, queue.Query{State: queue.Waiting, Payload: true}); err != nil || !bytes.Equal(page.Payloads[9], second[9].Payload) {
		t.Error(err)
	}
	n.wantPayloads(second)
	if reads := bucket.Stats()[mem.Read].Calls - before; reads != 2 {
		t.Errorf("%d reads of two segments", reads)
	}
	r.kill()
	next := w.quietNode("n2", 0)
	next.serve(queue.DefaultQueue, 0)
	for _, j := range append(first, second...) {
		if _, p, err := next.Get(w.ctx, queue.DefaultQueue, j.ID); err != nil || !bytes.Equal(p, j.Payload) {
			t.Fatalf("job %s has a payload of %d bytes: %v", j.ID, len(p), err)
		}
	}
}

// TestSegmentsAreCleaned: a segment of which most is garbage, and segments with few jobs, are deleted
// after the payloads that are needed have moved.
func TestSegmentsAreCleaned(t *testing.T) {
	t.Parallel()
	w, bucket, n, r := quiet(t, 0)
	jobs := bigJobs("a", 1000)
	n.enqueue(jobs...)
	var small []queue.Job
	for i := range 100 {
		small = append(small, bigJobs(fmt.Sprint("small", i), 1)...)
		n.enqueue(small[i])
	}
	got := n.claim(queue.ClaimRequest{Worker: "w", Max: 800})
	for _, c := range got {
		wantOutcome(t, n.settle(queue.Complete, c), queue.Completed, "")
	}
	for range 4 {
		n.checkpointed()
	}
	left := slices.Concat(jobs[800:], small)
	for deadline := time.Now().Add(time.Minute); segmentsOf(bucket) > 25; n.stats() {
		if time.Now().After(deadline) {
			t.Fatalf("%d segments are left", segmentsOf(bucket))
		}
	}
	if found, err := n.Registry().Verify(w.ctx, ""); err != nil || len(found.Problems) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
	r.kill()
	next := w.quietNode("n2", 0)
	next.serve(queue.DefaultQueue, 0)
	next.wantPayloads(left)
}

// TestPayloadMovesWhileItIsRead: a caller that has found out where a payload is gets it although it has
// moved since, and the segment was deleted.
func TestPayloadMovesWhileItIsRead(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	w := newWorld(t, bucket)
	w.declare(queue.Settings{})
	n := w.quietNode("n1", 0)
	n.segments = newSegmentCache(0)
	n.cleaningRule = func(l *ledger.Ledger, below uint64, _ int64) (all []ledger.SparseSegment) {
		for slot := range l.JobsBySlot() {
			all = append(all, ledger.SparseSegment{Slot: slot})
		}
		return all
	}
	n.serve(queue.DefaultQueue, 0)
	jobs := bigJobs("a", 3)
	n.enqueue(jobs...)
	s := n.shard(queue.DefaultQueue, 0)
	before, err := s.slotOf(w.ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	n.checkpointed()
	if err := bucket.Delete(w.ctx, journal.SlotKey(s.prefix, before)); err != nil {
		t.Fatal(err)
	}
	if now, err := s.slotOf(w.ctx, 2); err != nil || now == before {
		t.Fatal(now, before, err)
	}
	if p, err := n.segmentPayload(w.ctx, s, payloadPlace{2, ledger.Pack("a-1"), before}); err != nil || !bytes.Equal(p, jobs[1].Payload) {
		t.Errorf("%d bytes, %v", len(p), err)
	}
}

// TestLostSegment: a job whose segment was deleted by somebody becomes a dead letter that says so.
// Verify names the segment, and other jobs are not affected.
func TestLostSegment(t *testing.T) {
	t.Parallel()
	w, bucket, n, _ := quiet(t, 0)
	n.enqueue(bigJobs("lost", 1)...)
	n.checkpointed()
	n.checkpointed()
	kept := bigJobs("kept", 1)
	n.enqueue(kept...)
	s := n.shard(queue.DefaultQueue, 0)
	slot, err := s.slotOf(w.ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	key := journal.SlotKey(s.prefix, slot)
	if err := bucket.Delete(w.ctx, key); err != nil {
		t.Fatal(err)
	}
	found, err := n.Registry().Verify(w.ctx, "")
	// A copy of HEAD that is not written yet may be another problem.
	if err != nil || !slices.ContainsFunc(found.Problems, func(p Problem) bool { return p.Object == key && p.Lost }) {
		t.Errorf("%+v, %v", found, err)
	}
	n.wantPayloads(kept)
	i := n.get("lost-0")
	for deadline := time.Now().Add(20 * time.Second); i.State != queue.Dead && time.Now().Before(deadline); { // its death is stored in the background
		i = n.get("lost-0")
	}
	if i.State != queue.Dead || !strings.Contains(i.Cause, key) {
		t.Errorf("%+v", i)
	}
}

// TestExchangedSegments: a segment of another shard in the place of one with payloads is recognised.
func TestExchangedSegments(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	w := newWorld(t, bucket)
	w.declare(queue.Settings{Shards: 2})
	n := w.quietNode("n1", 0)
	var keys [2]string
	var ids [2]string
	for i := range 2 {
		n.serve(queue.DefaultQueue, i)
		for n := 0; ids[i] == ""; n++ {
			if id := fmt.Sprint("j", n); shardOf(id, 2) == i {
				ids[i] = id
			}
		}
		n.enqueue(queue.Job{ID: ids[i], Payload: make([]byte, 1000)})
		s := n.shard(queue.DefaultQueue, i)
		slot, err := s.slotOf(w.ctx, 1)
		if err != nil || slot == 0 {
			t.Fatal(slot, err)
		}
		keys[i] = journal.SlotKey(s.prefix, slot)
	}
	if keys[0][len(keys[0])-20:] != keys[1][len(keys[1])-20:] {
		t.Fatal(keys)
	}
	x, err := bucket.Read(w.ctx, keys[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Write(w.ctx, keys[1], x.Data); err != nil {
		t.Fatal(err)
	}
	if _, p, err := n.Get(w.ctx, queue.DefaultQueue, ids[0]); err != nil || len(p) != 1000 {
		t.Error(len(p), err)
	}
	if _, _, err := n.Get(w.ctx, queue.DefaultQueue, ids[1]); queue.TagOf(err) != queue.Unavailable {
		t.Error(err)
	}
	found, err := n.Registry().Verify(w.ctx, "")
	// A copy of HEAD that is not written yet may be another problem.
	if err != nil || !slices.ContainsFunc(found.Problems, func(p Problem) bool { return p.Object == keys[1] }) {
		t.Errorf("%+v, %v", found, err)
	}
}
