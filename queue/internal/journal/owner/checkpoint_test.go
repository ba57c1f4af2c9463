package owner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
)

// checkpoint writes the state in chunks and commits it.
func (r *rig) checkpoint(state []string, kept ...uint64) uint64 {
	r.t.Helper()
	upTo, effects, err := r.m.Checkpoint(r.now)
	if err != nil {
		r.t.Fatal(err)
	}
	r.do(effects)
	for _, chunk := range state {
		effects, err := r.m.WriteChunk([]byte(chunk))
		if err != nil {
			r.t.Fatal(err)
		}
		r.do(effects)
	}
	effects, err = r.m.Commit(kept)
	if err != nil {
		r.t.Fatal(err)
	}
	r.do(effects)
	return upTo
}

func (r *rig) keys(prefix string) (keys []string) {
	for _, k := range r.bucket.Keys() {
		if rest, ok := strings.CutPrefix(k, "q/"+prefix); ok {
			keys = append(keys, strings.TrimLeft(rest, "0"))
		}
	}
	return keys
}

// TestACheckpointWaitsForWhatItCovers: HEAD names a checkpoint only when everything it covers is
// durable and all its parts are stored.
func TestACheckpointWaitsForWhatItCovers(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	r.hold = func(c *owner.Call) bool { return c.Op == owner.CreateSlot || c.Op == owner.CreatePart }
	r.add("x")
	upTo := r.checkpoint([]string{strings.Repeat("s", 400), strings.Repeat("t", 400)})
	r.run()
	parts := 0
	for _, c := range slices.Clone(r.calls) {
		if c.Op == owner.CreatePart {
			parts++
			r.release(c.Key)
		}
	}
	if upTo != 1 || parts != 2 || r.head().Checkpoint.Slot != 0 {
		t.Fatalf("up to %d, %d parts, %+v", upTo, parts, r.head())
	}
	r.hold = nil
	r.run()
	if c := r.head().Checkpoint; c.Slot != 2 || c.Parts != 2 || c.Bytes == 0 {
		t.Errorf("%+v", c)
	}
	next := started(t, r.bucket, config("bb", 2))
	next.wants(strings.Repeat("s", 400), strings.Repeat("t", 400))
}

func TestOneCheckpointAtATime(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	if _, _, err := r.m.Checkpoint(r.now); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.m.Checkpoint(r.now); !errors.Is(err, owner.ErrBusy) {
		t.Errorf("%v", err)
	}
	if _, err := r.m.Commit([]uint64{1}); err == nil {
		t.Error("a slot was kept that does not exist")
	}
	if !r.m.Abort() || r.m.Abort() {
		t.Error("it was not given up, or twice")
	}
	if _, err := r.m.WriteChunk(nil); !errors.Is(err, owner.ErrClosed) {
		t.Errorf("a chunk after the end: %v", err)
	}
	r.checkpoint(nil)
	r.run()
	if r.head().Checkpoint.Slot != 1 {
		t.Errorf("%+v", r.head())
	}
}

// TestCollection: Q10: below the previous checkpoint, slots that neither checkpoint needs are
// deleted; fences never are.
func TestCollection(t *testing.T) {
	t.Parallel()
	b := empty()
	old := started(t, b, config("a", 1))
	for i := range 3 {
		old.add(fmt.Sprint(i))
		old.run()
	}
	r := started(t, b, config("bb", 2)) // a fence in slot 4
	first := r.add("a")
	for _, x := range []string{"b", "c", "d"} {
		r.run()
		r.add(x)
	}
	r.run()
	r.checkpoint([]string{"one"}, 2, first)
	r.run()
	if got := r.keys("log/"); len(got) != 8 {
		t.Errorf("after one checkpoint, which has no previous one: %v", got)
	}
	r.add("e")
	r.run()
	r.checkpoint([]string{"two"}, first)
	r.run()
	want := []string{"2", "4", fmt.Sprint(first), fmt.Sprint(first + 4)}
	if got := r.keys("log/"); !slices.Equal(got, want) {
		t.Errorf("after two checkpoints: %v, want %v", got, want)
	}
	r.add("f")
	r.run()
	r.checkpoint([]string{"three"})
	r.run()
	want = []string{"4", fmt.Sprint(first), fmt.Sprint(first + 5)} // the previous one refers to the first
	if got := r.keys("log/"); !slices.Equal(got, want) {
		t.Errorf("after three checkpoints: %v, want %v", got, want)
	}
	// A new owner starts over: it knows which slots the checkpoint keeps, and examines all
	// others.
	next := started(t, b, config("ccc", 3))
	next.wants("three")
	next.checkpoint([]string{"four"})
	next.run()
	if got := next.keys("log/"); len(got) != 2 || got[0] != "4" {
		t.Errorf("after four checkpoints: %v", got)
	}
	if got := next.keys("ckpt/"); len(got) != 2 {
		t.Errorf("checkpoints: %v", got)
	}
}

// TestKeptSlotsAreKnownToTheNextOwner: the slots to which a checkpoint refers survive a change of
// owner.
func TestKeptSlotsAreKnownToTheNextOwner(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	for range 3 {
		r.add("x")
		r.run()
	}
	r.checkpoint([]string{"one"}, 2)
	r.run()
	next := started(t, b, config("bb", 2))
	next.checkpoint([]string{"two"})
	next.run()
	if got := next.keys("log/"); !slices.Equal(got, []string{"2", "4"}) {
		t.Errorf("%v", got)
	}
}

// TestCollectionGivesUp: the collection gives up on a store that does not delete; the next
// checkpoint tries again.
func TestCollectionGivesUp(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	r.add("x")
	r.run()
	r.checkpoint(nil)
	r.run()
	r.instead = func(c *owner.Call) (owner.Result, bool) {
		return owner.Result{Answer: owner.Failed, Err: errors.New("no")}, c.Op == owner.Delete
	}
	r.add("y")
	r.run()
	r.checkpoint(nil)
	r.run()
	last := r.progress[len(r.progress)-1]
	if !last.Collected || last.Err == nil || r.ended {
		t.Errorf("%+v, %v", last, r.err)
	}
	r.instead = nil
	r.add("z")
	r.run()
	r.checkpoint(nil)
	r.run()
	if got := r.keys("log/"); !slices.Equal(got, []string{"3"}) {
		t.Errorf("%v", got)
	}
}

// TestCollectionThatGaveUpForgetsNothing: a slot that two checkpoints kept, and that could not be deleted afterwards, is
// deleted after the next checkpoint.
func TestCollectionThatGaveUpForgetsNothing(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	kept := r.add("kept")
	r.run()
	next := func(keep ...uint64) {
		r.add("x")
		r.run()
		r.checkpoint(nil, keep...)
		r.run()
	}
	next(kept)
	next(kept)
	next(kept)
	next()
	r.instead = func(c *owner.Call) (owner.Result, bool) {
		return owner.Result{Answer: owner.Failed, Err: errors.New("no")}, c.Op == owner.Delete
	}
	next()
	if last := r.progress[len(r.progress)-1]; !last.Collected || last.Err == nil {
		t.Fatalf("%+v", last)
	}
	r.instead = nil
	next()
	if got := r.keys("log/"); slices.Contains(got, fmt.Sprint(kept)) {
		t.Errorf("%v", got)
	}
}

// TestADeposedOwnerNamesNoCheckpoint: if another owner has replaced HEAD, a checkpoint does not
// come into force, and the log has ended.
func TestADeposedOwnerNamesNoCheckpoint(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	r.add("x")
	r.run()
	r.hold = func(c *owner.Call) bool { return c.Op == owner.ReplaceHead }
	r.checkpoint([]string{"one"})
	r.run()
	next := started(t, b, config("bb", 2))
	r.hold = nil
	r.run()
	if !errors.Is(r.err, owner.ErrFenced) || next.head().Checkpoint.Slot != 0 {
		t.Errorf("%v, %+v", r.err, next.head())
	}
}

// TestAmbiguousChangesOfHead: a change of HEAD with an unknown outcome, or that was refused without
// reason, is resolved.
func TestAmbiguousChangesOfHead(t *testing.T) {
	t.Parallel()
	for _, kind := range []mem.FaultKind{mem.LostReply, mem.LostRequest, mem.Late, mem.Refused, mem.Conflict} {
		b := empty()
		r := started(t, b, config("a", 1))
		r.add("x")
		r.run()
		b.Inject(mem.Replace, "q/HEAD", mem.Fault{Kind: kind})
		r.checkpoint([]string{"one"})
		r.run()
		b.DeliverLate()
		r.do(r.m.Close(r.now))
		r.run()
		if r.err != nil || !r.ended || r.head().Checkpoint.Slot != 2 || r.head().Closed != 2 {
			t.Errorf("%v: %v, %+v", kind, r.err, r.head())
		}
	}
}

// TestAMissingPart: a missing part is an error that names it; it never counts as empty.
func TestAMissingPart(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	r.add("x")
	r.run()
	r.checkpoint([]string{"one"})
	r.run()
	key := "q/" + format.PartKey(r.head().Checkpoint, 0)
	if err := b.Delete(context.Background(), key); err != nil {
		t.Fatal(err)
	}
	next := newRig(t, b, config("bb", 2))
	next.do(next.m.Start(next.now))
	next.run()
	if !errors.Is(next.err, owner.ErrMissing) || !strings.Contains(next.err.Error(), "ckpt/") {
		t.Errorf("%v", next.err)
	}
}

// TestAClosedJournalHasItsCopy: a journal that is closed right after a checkpoint ends when the copy of HEAD is stored too, so
// that what a stopped node leaves is whole. It does not wait for a second attempt.
func TestAClosedJournalHasItsCopy(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		r := started(t, empty(), config("a", 1))
		r.add("x")
		r.hold = func(c *owner.Call) bool { return c.Op == owner.CopyHead }
		r.run()
		r.checkpoint([]string{"x"})
		r.run()
		copied := r.head().Serial
		r.do(r.m.Close(r.now))
		r.run()
		if r.head().Closed == 0 || r.ended {
			t.Fatalf("closed %d, ended %v", r.head().Closed, r.ended)
		}
		if fails {
			r.instead = func(*owner.Call) (owner.Result, bool) {
				return owner.Result{Answer: owner.Failed, Err: errors.New("away")}, true
			}
		}
		r.release(format.CopyKey(copied))
		if _, err := r.bucket.Read(context.Background(), "q/"+format.CopyKey(copied)); !r.ended || r.err != nil || (err != nil) != fails {
			t.Errorf("ended %v, %v, copy %v", r.ended, r.err, err)
		}
	}
}

// TestAClosedJournalWithoutItsCopy: a store that does not answer the request for the copy does not make an unclean end of a clean one.
func TestAClosedJournalWithoutItsCopy(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	r.hold = func(c *owner.Call) bool { return c.Op == owner.CopyHead }
	r.add("x")
	r.run()
	r.checkpoint([]string{"x"})
	r.run()
	r.do(r.m.Close(r.now))
	r.run()
	if r.head().Closed == 0 || r.ended {
		t.Fatalf("closed %d, ended %v", r.head().Closed, r.ended)
	}
	r.do(r.m.Stop(errors.New("the time for closing is over")))
	if !r.ended || r.err != nil {
		t.Errorf("ended %v, %v; want a clean end", r.ended, r.err)
	}
}
