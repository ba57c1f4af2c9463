package owner_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
)

// checkpointRuns writes a checkpoint that has the previous one's runs without the first drop, and
// new ones.
func (r *rig) checkpointRuns(drop int, made []string, state ...string) {
	r.t.Helper()
	r.add("x")
	r.run()
	_, effects, err := r.m.Checkpoint(r.now)
	if err != nil {
		r.t.Fatal(err)
	}
	r.do(effects)
	for _, run := range made {
		effects, err := r.m.WriteRun([]byte(run))
		if err != nil {
			r.t.Fatal(err)
		}
		r.do(effects)
	}
	for _, chunk := range state {
		effects, err := r.m.WriteChunk([]byte(chunk))
		if err != nil {
			r.t.Fatal(err)
		}
		r.do(effects)
	}
	if err := r.m.DropRuns(drop); err != nil {
		r.t.Fatal(err)
	}
	if effects, err = r.m.Commit(nil); err != nil {
		r.t.Fatal(err)
	}
	r.do(effects)
	r.run()
}

// runs returns the runs that HEAD names.
func (r *rig) runs() (keys []string) {
	for _, run := range r.head().Checkpoint.Runs {
		keys = append(keys, run.Key())
	}
	return keys
}

func (r *rig) has(key string) bool {
	_, ok := r.bucket.Peek("q/" + key)
	return ok
}

func letters(n int) string { return strings.Repeat("r", n) }

// TestRunsAreWrittenOnce: a run is one object, whatever its size and that of parts. Later
// checkpoints have it without writing it, and so has the next owner.
func TestRunsAreWrittenOnce(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1)) // parts have 500 bytes
	long := letters(3000)
	r.checkpointRuns(0, []string{long, "r2"}, "one")
	if c := r.head().Checkpoint; len(c.Runs) != 2 || c.Parts != 3 {
		t.Fatalf("%+v", c)
	}
	first := r.runs()
	r.checkpointRuns(0, []string{"r3"}, "two")
	if got := r.runs(); len(got) != 3 || !slices.Equal(got[:2], first) {
		t.Errorf("%q, before %q", got, first)
	}
	r.hold = func(c *owner.Call) bool { return c.Op == owner.CreateSlot } // nothing may write it again
	next := started(t, r.bucket, config("bb", 2))
	next.wants(long, "r2", "r3", "two")
	next.checkpointRuns(1, nil, "three")
	if got := next.runs(); len(got) != 2 || got[0] != first[1] {
		t.Errorf("%q, before %q", got, first)
	}
	started(t, r.bucket, config("ccc", 3)).wants("r2", "r3", "three")
}

// TestARunCostsOnce: the bytes of a run are not stored again.
func TestARunCostsOnce(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	noise := make([]byte, 4000)
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	r.checkpointRuns(0, []string{string(noise)}, "one")
	before := b.Stats()[mem.Create].BytesIn
	if before < 1000 {
		t.Fatalf("%d bytes", before)
	}
	for range 3 {
		r.checkpointRuns(0, nil, "one")
	}
	if n := b.Stats()[mem.Create].BytesIn - before; n > 1000 {
		t.Errorf("three more checkpoints took %d bytes", n)
	}
}

// TestRunsAreCollected: a run is deleted when neither the newest nor the previous checkpoint names
// it, whoever wrote it.
func TestRunsAreCollected(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	r.checkpointRuns(0, []string{"r1", "r2"}, "one")
	runs := r.runs()
	r.checkpointRuns(0, nil, "two")
	r.checkpointRuns(1, nil, "three")
	if !r.has(runs[0]) || !r.has(runs[1]) {
		t.Fatal("a run is gone that the checkpoint before names")
	}
	r = started(t, r.bucket, config("bb", 2))
	r.checkpointRuns(0, nil, "four")
	if r.has(runs[0]) || !r.has(runs[1]) {
		t.Errorf("first %t, second %t", r.has(runs[0]), r.has(runs[1]))
	}
	r.checkpointRuns(1, nil, "five")
	r.checkpointRuns(0, nil, "six")
	if r.has(runs[1]) {
		t.Error("a run is left that nobody names")
	}
	if got := r.keys("ckpt/"); len(got) != 2 {
		t.Errorf("left: %q", got)
	}
}

// TestAMissingRun: a missing run that HEAD names is an error that names it; it never counts as
// empty.
func TestAMissingRun(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	r.checkpointRuns(0, []string{"r1", "r2"}, "one")
	r.checkpointRuns(0, nil, "two")
	key := r.runs()[0]
	if err := b.Delete(context.Background(), "q/"+key); err != nil {
		t.Fatal(err)
	}
	next := newRig(t, b, config("bb", 2))
	next.do(next.m.Start(next.now))
	next.run()
	if next.owns || !errors.Is(next.err, owner.ErrMissing) || !strings.Contains(next.err.Error(), key) {
		t.Errorf("%v", next.err)
	}
}

// TestARunThatIsGoneForGoodReason: a takeover begins again if a run was dropped and deleted while
// it read slowly.
func TestARunThatIsGoneForGoodReason(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	r.checkpointRuns(0, []string{"r1"}, "one")
	key := r.runs()[0]
	late := newRig(t, b, config("bb", 2))
	late.hold = func(c *owner.Call) bool { return c.Key == key }
	late.do(late.m.Start(late.now))
	late.run()
	next := started(t, b, config("ccc", 3))
	next.checkpointRuns(1, []string{"r2"}, "two")
	next.checkpointRuns(0, nil, "three")
	next.checkpointRuns(0, nil, "four")
	if next.has(key) {
		t.Fatal("the run is there")
	}
	late.hold = nil
	late.run()
	if late.owns || !errors.Is(late.err, owner.ErrGeneration) {
		t.Errorf("%v", late.err)
	}
	started(t, b, config("dddd", 4)).wants("r2", "four")
}

// TestARunOfADeposedOwner: after a takeover between a run and the HEAD that would have named it, no
// HEAD ever names that run, whenever its write arrives, and it is deleted.
func TestARunOfADeposedOwner(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	r.checkpointRuns(0, []string{"r1"}, "one")
	r.hold = func(c *owner.Call) bool { return c.Op == owner.ReplaceHead || strings.HasSuffix(c.Key, "/000001") }
	r.checkpointRuns(0, []string{"stored", "late"}, "two")
	late := slices.IndexFunc(r.calls, func(c *owner.Call) bool { return c.Op == owner.CreatePart })
	if late < 0 {
		t.Fatal("nothing is held")
	}
	if slices.ContainsFunc(r.calls, func(c *owner.Call) bool { return c.Op == owner.ReplaceHead }) {
		t.Error("HEAD is to name a run that is not stored")
	}
	key := r.calls[late].Key
	next := started(t, b, config("bb", 2))
	next.wants("r1", "one", "x")
	next.checkpointRuns(0, []string{"r2"}, "three")
	r.hold = nil
	r.run()
	if !errors.Is(r.err, owner.ErrFenced) || !next.has(key) {
		t.Fatalf("%v, stored %t", r.err, next.has(key))
	}
	next.checkpointRuns(0, nil, "four")
	next.checkpointRuns(0, nil, "five")
	if next.has(key) {
		t.Error("a run is left that nobody names")
	}
	started(t, b, config("ccc", 3)).wants("r1", "r2", "five")
}

// TestADeposedOwnerCollects: a replaced owner that continues to delete deletes nothing that a later
// owner's checkpoints name.
func TestADeposedOwnerCollects(t *testing.T) {
	t.Parallel()
	b := empty()
	r := started(t, b, config("a", 1))
	r.checkpointRuns(0, []string{"r1", "r2"}, "one")
	r.checkpointRuns(1, []string{"r3"}, "two")
	r.hold = func(c *owner.Call) bool { return c.Op == owner.Delete }
	r.checkpointRuns(0, []string{"r4"}, "three")
	next := started(t, b, config("bb", 2))
	next.wants("r2", "r3", "r4", "three")
	next.checkpointRuns(0, []string{"r5"}, "four")
	r.hold = nil
	r.run()
	started(t, b, config("ccc", 3)).wants("r2", "r3", "r4", "r5", "four")
	if got := r.progress[len(r.progress)-1]; !got.Collected || got.Deleted == 0 {
		t.Errorf("%+v", got)
	}
}

func TestWhatRunsRefuse(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	if _, err := r.m.WriteRun(nil); !errors.Is(err, owner.ErrClosed) {
		t.Errorf("a run of no checkpoint: %v", err)
	}
	r.checkpointRuns(0, []string{"r1"}, "one")
	if _, _, err := r.m.Checkpoint(r.now); err != nil {
		t.Fatal(err)
	}
	if _, err := r.m.WriteRun(make([]byte, format.MaxRaw)); !errors.Is(err, owner.ErrTooLarge) {
		t.Errorf("a huge run: %v", err)
	}
	if _, err := r.m.WriteRun([]byte("mine")); err != nil {
		t.Fatal(err)
	}
	if r.m.DropRuns(2) == nil || r.m.DropRuns(-1) == nil { // its own runs cannot be dropped
		t.Error("runs are dropped that it has not")
	}
	r.m.Abort()
	r.checkpointRuns(0, nil, "two") // the aborted checkpoint has no effect
	started(t, r.bucket, config("bb", 2)).wants("r1", "two")
	if err := r.m.DropRuns(0); !errors.Is(err, owner.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}
