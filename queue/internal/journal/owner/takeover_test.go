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

func TestANewJournalBeginsAtSlotOne(t *testing.T) {
	t.Parallel()
	r := started(t, empty(), config("a", 1))
	want := []string{"read HEAD HEAD 2", "list  0", "create HEAD HEAD 0", "copy HEAD " + format.CopyKey(1) + " 0"}
	if !slices.Equal(r.log, want) {
		t.Errorf("%q", r.log)
	}
	h := r.head()
	if h.Epoch != 1 || h.StoreID != "store" || h.Generation != 1 || h.Owner != "a" || len(h.Secret) != 32 || h.Closed != 0 {
		t.Errorf("%+v", h)
	}
	if slot := r.add("x"); slot != 1 {
		t.Errorf("the first slot is %d", slot)
	}
}

func TestAJournalWithoutHeadIsNotNew(t *testing.T) {
	t.Parallel()
	b := empty()
	if _, err := b.Create(context.Background(), "q/"+format.SlotKey(5), []byte("x")); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, b, config("a", 1))
	r.do(r.m.Start(r.now))
	r.run()
	if !errors.Is(r.err, owner.ErrMissing) {
		t.Errorf("%v", r.err)
	}
}

// TestTwoBeginAtOnce: two owners create HEAD at once: the one that is refused reads the other
// one's.
func TestTwoBeginAtOnce(t *testing.T) {
	t.Parallel()
	b := empty()
	r := newRig(t, b, config("a", 1))
	r.hold = func(c *owner.Call) bool { return c.Op == owner.CreateHead }
	r.do(r.m.Start(r.now))
	r.run()
	started(t, b, config("bb", 2))
	r.hold = nil
	r.run()
	if !errors.Is(r.err, owner.ErrGeneration) {
		t.Errorf("%v", r.err)
	}
}

func TestWhoMayTakeOver(t *testing.T) {
	t.Parallel()
	adopt := config("b", 1)
	adopt.StoreID, adopt.Adopt = "another", true
	unrelated := config("b", 99)
	unrelated.StoreID = "another"
	for name, c := range map[string]struct {
		cfg  owner.Config
		want error
	}{
		"a higher generation":                {config("b", 6), nil},
		"the same, of the same owner":        {config("a", 5), nil},
		"the same, of another owner":         {config("b", 5), owner.ErrGeneration},
		"a lower one":                        {config("a", 4), owner.ErrGeneration},
		"another store":                      {unrelated, owner.ErrOtherStore},
		"another store's, but told to adopt": {adopt, nil},
	} {
		b := empty()
		old := started(t, b, config("a", 5))
		r := newRig(t, b, c.cfg)
		r.do(r.m.Start(r.now))
		r.run()
		if !errors.Is(r.err, c.want) || (c.want == nil) != r.owns {
			t.Errorf("%s: owns %t, %v", name, r.owns, r.err)
		}
		var g *owner.GenerationError
		if errors.As(r.err, &g) && (g.Floor != 6 || g.Held != 5 || g.Owner != "a") {
			t.Errorf("%s: %+v", name, g)
		}
		if r.owns && (r.head().Epoch != old.head().Epoch || r.m.View().Epoch != 2 || r.head().StoreID != c.cfg.StoreID) {
			t.Errorf("%s: %+v", name, r.head())
		}
	}
}

// TestAFenceEndsTheEpochBefore: R3, R5: the fence is in the first empty slot and jumps over all
// slots that may be outstanding.
func TestAFenceEndsTheEpochBefore(t *testing.T) {
	t.Parallel()
	b := empty()
	old := started(t, b, config("a", 1))
	old.add("x")
	old.run()
	old.add("y")
	old.run()
	old.hold = writesSlots
	old.add("unacknowledged")
	window := old.head().Window
	r := started(t, b, config("b", 2))
	r.wants("x", "y")
	f := r.segment(3).Header
	if !f.Fence || f.Epoch != 2 || int(f.Jump) < window {
		t.Errorf("%+v", f)
	}
	if slot := r.add("z"); slot != 3+uint64(f.Jump) {
		t.Errorf("the first slot is %d, the fence jumps by %d", slot, f.Jump)
	}
	old.hold = nil
	old.run()
	if !errors.Is(old.err, owner.ErrFenced) || !slices.Equal(old.acks, []uint64{1, 2}) {
		t.Errorf("the old owner: %v, %v", old.err, old.acks)
	}
}

// TestACleanCloseNeedsNoFence: an owner that closed has nothing outstanding: a takeover needs no
// fence, and the fewest requests.
func TestACleanCloseNeedsNoFence(t *testing.T) {
	t.Parallel()
	b := empty()
	old := started(t, b, config("a", 1))
	old.add("x")
	old.run()
	old.add("y")
	old.hold = writesSlots
	old.do(old.m.Close(old.now))
	if old.run(); old.head().Closed != 0 {
		t.Error("closed while a slot is outstanding")
	}
	old.hold = nil
	old.run()
	if !old.ended || old.err != nil || old.head().Closed != 3 {
		t.Fatalf("ended %t, %v, %+v", old.ended, old.err, old.head())
	}
	r := started(t, b, config("b", 2))
	r.wants("x", "y")
	want := []string{
		"read HEAD HEAD 0", "replace HEAD HEAD 0", "list log/ 0", "read segment " + format.SlotKey(1) + " 0", "read segment " + format.SlotKey(2) + " 0",
		"copy HEAD " + format.CopyKey(3) + " 0",
	}
	if !slices.Equal(r.log, want) {
		t.Errorf("%q", r.log)
	}
	if slot := r.add("z"); slot != 3 || r.head().Closed != 0 {
		t.Errorf("slot %d, %+v", slot, r.head())
	}
}

// TestAFenceMetLateIsAFence: Q1: the slot was empty when it was read, and has the fence of an
// interrupted takeover when ours arrives.
func TestAFenceMetLateIsAFence(t *testing.T) {
	t.Parallel()
	b := empty()
	old := started(t, b, config("a", 1))
	old.add("x")
	old.run()
	starter := newRig(t, b, config("bb", 2))
	starter.hold = writesSlots
	starter.do(starter.m.Start(starter.now))
	starter.run() // its fence is in flight
	r := newRig(t, b, config("ccc", 3))
	r.hold = writesSlots
	r.do(r.m.Start(r.now))
	r.run()
	starter.release(format.SlotKey(2))
	jump := starter.segment(2).Header.Jump
	r.hold = nil
	r.run()
	if !r.owns || !r.segment(2+uint64(jump)).Header.Fence {
		t.Fatalf("owns %t, %v", r.owns, r.err)
	}
	if slot := r.add("y"); slot != 2+2*uint64(jump) {
		t.Errorf("the first slot is %d", slot)
	}
	starter.hold = nil
	starter.run() // R4
	if !errors.Is(starter.err, owner.ErrGeneration) || starter.owns {
		t.Errorf("the starter: owns %t, %v", starter.owns, starter.err)
	}
}

// TestACommitMetLateIsKept: the slot was empty when it was read, and has the old owner's segment
// when our fence arrives. The segment may have been acknowledged, so it belongs to the state.
func TestACommitMetLateIsKept(t *testing.T) {
	t.Parallel()
	b := empty()
	old := started(t, b, config("a", 1))
	old.hold = writesSlots
	r := newRig(t, b, config("bb", 2))
	r.hold = writesSlots
	r.do(r.m.Start(r.now))
	r.run()
	old.add("x")
	old.add("y")
	old.hold = nil
	old.run()
	r.hold = nil
	r.run()
	if !r.owns {
		t.Fatal(r.err)
	}
	r.wants("x", "y")
	// It was overtaken once, so it created a barrier, which is in a void slot now.
	barrier := slices.IndexFunc(r.log, func(s string) bool { return strings.HasPrefix(s, "write segment "+format.SlotKey(1+32-1)) })
	if first := r.add("z"); barrier < 0 || first <= 32 || !r.segment(32).Header.Fence {
		t.Errorf("barrier %d, first slot %d", barrier, first)
	}
}

// TestHeadIsReadAgain: R4: while we read, another owner took over and deleted slots.
func TestHeadIsReadAgain(t *testing.T) {
	t.Parallel()
	b := empty()
	started(t, b, config("a", 1))
	r := newRig(t, b, config("bb", 2))
	r.hold = writesSlots
	r.do(r.m.Start(r.now))
	r.run()
	b2 := mem.New(mem.Config{}) // the slot for its fence was deleted meanwhile
	other := started(t, b, config("ccc", 3))
	raw, _ := b.Peek("q/HEAD")
	if _, err := b2.Create(context.Background(), "q/HEAD", raw); err != nil {
		t.Fatal(err)
	}
	r.executor.Bucket = b2
	r.hold = nil
	r.run()
	if r.owns || !errors.Is(r.err, owner.ErrGeneration) || other.head().Generation != 3 {
		t.Errorf("owns %t, %v", r.owns, r.err)
	}
}

// TestAnotherRunOfTheSameProcess: of two runs of one process with one generation, one gives up:
// they do not replace each other for ever.
func TestAnotherRunOfTheSameProcess(t *testing.T) {
	t.Parallel()
	b := empty()
	started(t, b, config("a", 1))
	r := newRig(t, b, config("a", 1))
	r.hold = writesSlots
	r.do(r.m.Start(r.now))
	r.run()
	second := started(t, b, config("a", 1))
	r.hold = nil
	r.run()
	if !errors.Is(r.err, owner.ErrFenced) || second.ended {
		t.Errorf("%v, %v", r.err, second.err)
	}
}

// TestR1IsRecognised: an attempt of R1 whose answer was lost is recognised by its nonce.
func TestR1IsRecognised(t *testing.T) {
	t.Parallel()
	b := empty()
	started(t, b, config("a", 1))
	b.Inject(mem.Replace, "q/HEAD", mem.Fault{Kind: mem.LostReply})
	r := started(t, b, config("bb", 2))
	if r.m.View().Epoch != 2 || r.head().Epoch != 2 {
		t.Errorf("epochs %d, %d: it claimed twice", r.m.View().Epoch, r.head().Epoch)
	}
}

func TestWhatIsMissingIsAnError(t *testing.T) {
	t.Parallel()
	b := empty()
	old := started(t, b, config("a", 1))
	old.add("x")
	old.run()
	old.do(old.m.Close(old.now))
	old.run()
	if err := b.Delete(context.Background(), "q/"+format.SlotKey(1)); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, b, config("bb", 2))
	r.do(r.m.Start(r.now))
	r.run()
	if !errors.Is(r.err, owner.ErrMissing) || !strings.Contains(r.err.Error(), format.SlotKey(1)) {
		t.Errorf("%v", r.err)
	}
}

func TestATornReadIsReadAgain(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]error{1: nil, 2: nil, 3: owner.ErrCorrupt} {
		b := empty()
		old := started(t, b, config("a", 1))
		old.add("x")
		old.run()
		for range n {
			b.Inject(mem.Read, "q/"+format.SlotKey(1), mem.Fault{Kind: mem.TornRead})
		}
		r := newRig(t, b, config("bb", 2))
		r.do(r.m.Start(r.now))
		r.run()
		if !errors.Is(r.err, want) || (want == nil) != r.owns {
			t.Errorf("torn %d times: %v", n, r.err)
		}
	}
}

func TestANewerFormatIsNotTouched(t *testing.T) {
	t.Parallel()
	b := empty()
	old := started(t, b, config("a", 1))
	old.add("x")
	old.run()
	raw, _ := b.Peek("q/" + format.SlotKey(1))
	raw[4]++ // the version
	r := newRig(t, b, config("bb", 2))
	r.do(r.m.Start(r.now))
	r.run()
	if !errors.Is(r.err, owner.ErrNewer) {
		t.Errorf("%v", r.err)
	}
}

// TestDisorderIsDoubted: slots in an impossible order: an owner wrote beyond its window, or a later
// owner deleted the slots between while we read. HEAD tells which.
func TestDisorderIsDoubted(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		b := empty()
		started(t, b, config("a", 1))
		started(t, b, config("bb", 2)) // a fence of epoch 2 in slot 1, and nothing behind it
		body := format.NewBody(0)
		body.Add(0, []byte("x"))
		raw := codec.Encode(&format.Header{Slot: 33, Epoch: 1, PutID: 42}, &body)
		if _, err := b.Create(context.Background(), "q/"+format.SlotKey(33), raw); err != nil {
			t.Fatal(err)
		}
		r := newRig(t, b, config("ccc", 3))
		r.hold = func(c *owner.Call) bool { return c.Op == owner.ReadSlot }
		r.do(r.m.Start(r.now))
		r.run()
		want := owner.ErrCorrupt
		if replaced {
			want = owner.ErrGeneration
			later := newRig(t, b, config("dddd", 4))
			later.hold = r.hold
			later.do(later.m.Start(later.now))
			later.run()
		}
		r.hold = nil
		r.run()
		if !errors.Is(r.err, want) {
			t.Errorf("replaced %t: %v", replaced, r.err)
		}
	}
}
