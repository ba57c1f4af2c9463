package owner_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
)

// rig drives one machine by hand: calls wait until run carries them out, in order, in no time.
type rig struct {
	t        *testing.T
	m        *owner.Machine
	bucket   *mem.Bucket
	executor journal.Executor
	now      time.Duration

	calls    []*owner.Call // calls that are not carried out yet
	log      []string      // calls that were carried out: operation, key, answer
	hold     func(*owner.Call) bool
	instead  func(*owner.Call) (owner.Result, bool) // answers a call without the bucket
	state    []string
	acks     []uint64
	wake     time.Duration
	owns     bool
	ended    bool
	err      error
	progress []owner.Progress
	lost     []owner.Skipped
}

var (
	codec    = format.NewCodec()
	machines atomic.Uint64 // no two machines get the same random numbers
)

func config(name string, generation int64) owner.Config {
	rng := rand.New(rand.NewPCG(1, machines.Add(1)))
	return owner.Config{
		StoreID: "store", Generation: generation, Owner: name, Window: 4, MinGap: 5 * time.Millisecond,
		MaxSegment: 1000, MaxCall: 5000, MaxPending: 10_000, PartSize: 500, Readahead: 64, ReadBytes: 1 << 20,
		Rand: rng.Uint64,
	}
}

func newRig(t *testing.T, bucket *mem.Bucket, cfg owner.Config) *rig {
	t.Helper()
	return &rig{t: t, m: owner.New(cfg), bucket: bucket, executor: journal.Executor{Bucket: bucket, Prefix: "q", Codec: codec}, now: time.Hour}
}

// started returns a rig that owns the journal.
func started(t *testing.T, bucket *mem.Bucket, cfg owner.Config) *rig {
	t.Helper()
	r := newRig(t, bucket, cfg)
	r.do(r.m.Start(r.now))
	r.run()
	if !r.owns {
		t.Fatalf("%s does not own the journal: %v\n%s", cfg.Owner, r.err, strings.Join(r.log, "\n"))
	}
	return r
}

func (r *rig) do(effects []owner.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case *owner.Call:
			r.calls = append(r.calls, e)
		case owner.Reset:
			r.state = nil
		case owner.Restore:
			r.fold(e.Part)
		case owner.Replay:
			r.fold(e.Segment)
		case owner.Skipped:
			r.lost = append(r.lost, e)
		case owner.Owned:
			r.owns = true
		case owner.Ack:
			r.acks = append(r.acks, e.Slot)
		case owner.SetTimer:
			r.wake = e.At
		case owner.Progress:
			r.progress = append(r.progress, e)
		case owner.End:
			r.ended, r.err = true, e.Err
		}
	}
}

func (r *rig) fold(s *format.Segment) {
	for _, b := range s.Batches {
		for record := range b.Records() {
			r.state = append(r.state, string(record))
		}
	}
}

// run carries out all calls that are not held.
func (r *rig) run() {
	r.t.Helper()
	for range 10_000 {
		at := slices.IndexFunc(r.calls, func(c *owner.Call) bool { return r.hold == nil || !r.hold(c) })
		if at < 0 {
			return
		}
		c := r.calls[at]
		r.calls = slices.Delete(r.calls, at, at+1)
		r.carry(c)
	}
	r.t.Fatalf("it does not end:\n%s", strings.Join(r.log[len(r.log)-20:], "\n"))
}

func (r *rig) carry(c *owner.Call) {
	r.now += c.After
	var res owner.Result
	other := false
	if r.instead != nil {
		res, other = r.instead(c)
		res.ID = c.ID
	}
	if !other {
		res = r.executor.Execute(context.Background(), c)
	}
	r.log = append(r.log, fmt.Sprintf("%s %s %d", c.Op, c.Key, res.Answer))
	r.do(r.m.Result(r.now, res))
}

// release carries out the calls of a slot, or of another key, that were held.
func (r *rig) release(key string) {
	r.t.Helper()
	at := slices.IndexFunc(r.calls, func(c *owner.Call) bool { return c.Key == key })
	if at < 0 {
		r.t.Fatalf("no call of %s waits", key)
	}
	c := r.calls[at]
	r.calls = slices.Delete(r.calls, at, at+1)
	r.carry(c)
}

// add appends records a second later, so that they are cut at once.
func (r *rig) add(records ...string) uint64 {
	r.t.Helper()
	r.now += time.Second
	return r.append(records...)
}

// append appends records now.
func (r *rig) append(records ...string) uint64 {
	r.t.Helper()
	raw := make([][]byte, len(records))
	for i, x := range records {
		raw[i] = []byte(x)
	}
	slot, effects, err := r.m.Append(r.now, int64(r.now/time.Microsecond), 1, raw)
	if err != nil {
		r.t.Fatal(err)
	}
	r.do(effects)
	return slot
}

// outstanding returns the slots that are being written.
func (r *rig) outstanding() (slots []uint64) {
	for _, c := range r.calls {
		if slot, ok := format.ParseSlotKey(c.Key); ok && c.Op == owner.CreateSlot {
			slots = append(slots, slot)
		}
	}
	return slots
}

// segment returns the stored segment of a slot.
func (r *rig) segment(slot uint64) *format.Segment {
	r.t.Helper()
	raw, ok := r.bucket.Peek("q/" + format.SlotKey(slot))
	if !ok {
		r.t.Fatalf("slot %d is empty", slot)
	}
	s, err := codec.Decode(raw)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) head() format.Head {
	r.t.Helper()
	raw, _ := r.bucket.Peek("q/" + format.HeadKey)
	h, err := format.DecodeHead(raw)
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

func (r *rig) wants(records ...string) {
	r.t.Helper()
	if !slices.Equal(r.state, records) {
		r.t.Errorf("the state is %q, want %q", r.state, records)
	}
}

func writesSlots(c *owner.Call) bool { return c.Op == owner.CreateSlot }

func empty() *mem.Bucket { return mem.New(mem.Config{}) }
