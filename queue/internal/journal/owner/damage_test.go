package owner_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
)

// marking returns a configuration with marks.
func marking(name string, generation int64) owner.Config {
	cfg := config(name, generation)
	cfg.MarkAfter, cfg.MarkEvery = time.Second, time.Minute
	return cfg
}

// idle lets a machine become idle.
func (r *rig) idle() {
	r.t.Helper()
	r.now += time.Hour
	r.do(r.m.Tick(r.now))
	r.run()
}

// copyOf returns a bucket with the same objects.
func copyOf(t *testing.T, b *mem.Bucket) *mem.Bucket {
	t.Helper()
	c := empty()
	for _, key := range b.Keys() {
		data, _ := b.Peek(key)
		if _, err := c.Write(t.Context(), key, data); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// refused takes over the journal again and again, as a node does, and expects a refusal each time.
func refused(t *testing.T, b *mem.Bucket, kind error, key string) {
	t.Helper()
	for attempt := range 3 {
		r := newRig(t, b, marking("next", int64(10+attempt)))
		r.do(r.m.Start(r.now))
		r.run()
		object, ok := errors.AsType[*owner.ObjectError](r.err)
		if r.owns || !r.ended || !errors.Is(r.err, kind) || !ok || object.Key != key {
			t.Fatalf("attempt %d: owns %t, %v with the state %q; want a refusal for %s", attempt+1, r.owns, r.err, r.state, key)
		}
	}
	for _, key := range b.Keys() { // no fence fills the gap
		data, _ := b.Peek(key)
		if h, err := format.DecodeHeader(data); err == nil && h.Fence && h.Epoch > 1 {
			t.Errorf("%s is a fence of epoch %d", key, h.Epoch)
		}
	}
}

// TestAMissingSegmentIsNoEnd: if any acknowledged segment is missing, the journal is not taken over
// without it, however often that is tried: after a crash, when the journal was idle before, and
// after a clean close.
func TestAMissingSegmentIsNoEnd(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		whole := empty()
		first := started(t, whole, marking("first", 1))
		for n := range 30 {
			first.add(fmt.Sprint(n))
			first.run()
			first.now += time.Second
		}
		if closed {
			first.do(first.m.Close(first.now))
			first.run()
		} else {
			first.idle()
		}
		for slot := uint64(1); slot <= 30; slot++ {
			b := copyOf(t, whole)
			if err := b.Delete(t.Context(), "q/"+format.SlotKey(slot)); err != nil {
				t.Fatal(err)
			}
			refused(t, b, owner.ErrMissing, format.SlotKey(slot))
		}
		next := started(t, whole, marking("next", 2))
		if len(next.state) != 30 {
			t.Errorf("closed %t: without damage: %q", closed, next.state)
		}
	}
}

// TestExchangedSegments: two exchanged segments of one journal, or of two journals, do not fit.
func TestExchangedSegments(t *testing.T) {
	t.Parallel()
	make30 := func() *mem.Bucket {
		b := empty()
		r := started(t, b, marking("first", 1))
		for n := range 5 {
			r.add(fmt.Sprint(n))
			r.run()
			r.now += time.Second
		}
		r.idle()
		return b
	}
	one, other := make30(), make30()
	for slot := uint64(1); slot <= 5; slot++ {
		key := "q/" + format.SlotKey(slot)
		unrelated, _ := other.Peek(key)
		b := copyOf(t, one)
		if _, err := b.Write(t.Context(), key, unrelated); err != nil {
			t.Fatal(err)
		}
		refused(t, b, owner.ErrCorrupt, format.SlotKey(slot))
		if slot == 5 {
			continue
		}
		b = copyOf(t, one)
		next := "q/" + format.SlotKey(slot+1)
		x, _ := b.Peek(key)
		y, _ := b.Peek(next)
		if _, err := b.Write(t.Context(), key, y); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Write(t.Context(), next, x); err != nil {
			t.Fatal(err)
		}
		refused(t, b, owner.ErrCorrupt, format.SlotKey(slot))
	}
}

// TestAnOlderHead: whichever older HEAD is restored, either all that was acknowledged is there in
// the end, or the journal is refused.
func TestAnOlderHead(t *testing.T) {
	t.Parallel()
	b := empty()
	var heads [][]byte
	var want []string
	keep := func() {
		head, _ := b.Peek("q/" + format.HeadKey)
		heads = append(heads, bytes.Clone(head))
	}
	for generation := int64(1); generation <= 4; generation++ {
		r := started(t, b, marking(fmt.Sprint(generation), generation))
		keep()
		for round := range 3 {
			for range 3 {
				want = append(want, fmt.Sprint(len(want)))
				r.add(want[len(want)-1])
				r.run()
			}
			if round == 1 {
				continue
			}
			_, effects, err := r.m.Checkpoint(r.now)
			if err != nil {
				t.Fatal(err)
			}
			r.do(effects)
			effects, err = r.m.WriteChunk([]byte(strings.Join(want, " ")))
			if err != nil {
				t.Fatal(err)
			}
			r.do(effects)
			effects, err = r.m.Commit(nil)
			if err != nil {
				t.Fatal(err)
			}
			r.do(effects)
			r.run()
			keep()
		}
		if generation%2 == 0 {
			r.do(r.m.Close(r.now))
			r.run()
			keep()
		} else {
			r.idle()
		}
	}
	served, closedOver := 0, 0
	for n, old := range heads {
		b := copyOf(t, b)
		if _, err := b.Write(t.Context(), "q/"+format.HeadKey, old); err != nil {
			t.Fatal(err)
		}
		for attempt := range int64(4) {
			r := newRig(t, b, marking("next", 10+attempt))
			r.do(r.m.Start(r.now))
			r.run()
			if !r.owns {
				if attempt == 0 {
					closedOver++
				}
				continue
			}
			if got := strings.Fields(strings.Join(r.state, " ")); !slices.Equal(got, want) {
				t.Errorf("HEAD %d, attempt %d: the state is %q", n+1, attempt+1, got)
			}
			served++
			break
		}
	}
	if served == 0 || closedOver == 0 {
		t.Errorf("%d of %d older HEADs led to the state, %d were refused at first", served, len(heads), closedOver)
	}
}

// TestTheHeadOfAnotherJournal: the HEAD of another journal is refused.
func TestTheHeadOfAnotherJournal(t *testing.T) {
	t.Parallel()
	b := empty()
	cfg := marking("first", 1)
	cfg.Name = "orders/1/0"
	started(t, b, cfg).add("x")
	cfg = marking("second", 2)
	cfg.Name = "orders/1/1"
	r := newRig(t, b, cfg)
	r.do(r.m.Start(r.now))
	r.run()
	if r.owns || !errors.Is(r.err, owner.ErrCorrupt) {
		t.Errorf("owns %t, %v", r.owns, r.err)
	}
}

// TestSalvage: what is left of a damaged journal is taken over, what is missing is reported, and from
// then on the journal is undamaged.
func TestSalvage(t *testing.T) {
	t.Parallel()
	whole := empty()
	first := started(t, whole, marking("first", 1))
	for n := range 6 {
		first.add(fmt.Sprint(n))
		first.run()
		first.now += time.Second
	}
	first.idle()
	key := func(slot uint64) string { return "q/" + format.SlotKey(slot) }
	for name, c := range map[string]struct {
		damage func(b *mem.Bucket)
		want   []string
		lost   [2]uint64
	}{
		"gone":           {func(b *mem.Bucket) { _ = b.Delete(t.Context(), key(3)) }, []string{"0", "1", "3", "4", "5"}, [2]uint64{3, 4}},
		"the last one":   {func(b *mem.Bucket) { _ = b.Delete(t.Context(), key(6)) }, []string{"0", "1", "2", "3", "4"}, [2]uint64{6, 7}},
		"cut off":        {func(b *mem.Bucket) { _, _ = b.Write(t.Context(), key(2), []byte("EMSG")) }, []string{"0", "2", "3", "4", "5"}, [2]uint64{2, 3}},
		"another's":      {func(b *mem.Bucket) { d, _ := b.Peek(key(5)); _, _ = b.Write(t.Context(), key(4), d) }, []string{"0", "1", "2", "4", "5"}, [2]uint64{4, 5}},
		"nothing at all": {func(*mem.Bucket) {}, []string{"0", "1", "2", "3", "4", "5"}, [2]uint64{}},
	} {
		b := copyOf(t, whole)
		c.damage(b)
		cfg := marking("repair", 1)
		cfg.Salvage, cfg.Owner = true, "first"
		r := started(t, b, cfg)
		if !slices.Equal(r.state, c.want) {
			t.Errorf("%s: the state is %q", name, r.state)
		}
		if len(r.lost) > 1 || len(r.lost) == 1 != (c.lost[0] != 0) || len(r.lost) == 1 && (r.lost[0].Slot != c.lost[0] || r.lost[0].Next != c.lost[1]) {
			t.Errorf("%s: lost %+v", name, r.lost)
		}
		_, effects, err := r.m.Checkpoint(r.now)
		if err != nil {
			t.Fatal(err)
		}
		r.do(effects)
		effects, err = r.m.WriteChunk([]byte(strings.Join(r.state, " ")))
		r.do(effects)
		effects2, err2 := r.m.Commit(nil)
		if r.do(effects2); err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		r.run()
		r.do(r.m.Close(r.now))
		r.run()
		next := started(t, b, marking("next", 2))
		if got := strings.Fields(strings.Join(next.state, " ")); !slices.Equal(got, c.want) {
			t.Errorf("%s: after the repair: %q", name, got)
		}
	}
}

// TestDamageOfVoidSegments: an unreadable segment that a fence makes void does not prevent a
// takeover.
func TestDamageOfVoidSegments(t *testing.T) {
	t.Parallel()
	b := empty()
	first := started(t, b, marking("first", 1))
	first.add("a")
	first.run()
	second := started(t, b, marking("second", 2)) // its fence is in slot 2
	second.add("b")
	second.run()
	for _, data := range []string{"EMSG", "EMSG\x09 of a newer program, perhaps; it is longer than a header is, and nobody needs it"} {
		if _, err := b.Write(t.Context(), "q/"+format.SlotKey(4), []byte(data)); err != nil {
			t.Fatal(err)
		}
		started(t, copyOf(t, b), marking("third", 3)).wants("a", "b")
	}
}

// TestUnreadableBehindTheEnd: an unreadable segment behind an empty slot might say that this slot
// was acknowledged, so the journal is refused. A salvage reports it, and its fence makes sure that
// no one can fill the slot.
func TestUnreadableBehindTheEnd(t *testing.T) {
	t.Parallel()
	b := empty()
	first := started(t, b, marking("first", 1))
	first.add("a")
	first.run()
	late := format.SlotKey(2)
	first.hold = func(c *owner.Call) bool { return c.Key == late }
	first.add("b")
	first.add("c")
	first.run()
	if _, err := b.Write(t.Context(), "q/"+format.SlotKey(3), []byte("EMSG")); err != nil {
		t.Fatal(err)
	}
	refused(t, copyOf(t, b), owner.ErrCorrupt, format.SlotKey(3))
	cfg := marking("repair", 2)
	cfg.Salvage = true
	r := started(t, b, cfg)
	r.wants("a")
	if len(r.lost) != 1 || r.lost[0].Slot != 2 || r.lost[0].Next != 4 {
		t.Errorf("lost %+v", r.lost)
	}
	first.hold = nil
	first.run()
	if !first.ended || len(first.acks) != 1 {
		t.Errorf("the former owner: ended %t, acknowledged %v", first.ended, first.acks)
	}
}

// TestSalvagedBelowWhatHeadKnows: if a log has lost more slots than a window, a salvage continues
// behind all that was acknowledged. The next takeover finds nothing missing, even after a crash.
func TestSalvagedBelowWhatHeadKnows(t *testing.T) {
	t.Parallel()
	b := empty()
	first := started(t, b, marking("first", 1))
	for n := range 100 {
		first.add(fmt.Sprint(n))
		first.run()
	}
	first.do(first.m.Close(first.now))
	first.run()
	for slot := uint64(11); slot <= 100; slot++ {
		if err := b.Delete(t.Context(), "q/"+format.SlotKey(slot)); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, copyOf(t, b), owner.ErrMissing, format.SlotKey(11))
	// A repair removes the mark that the log was closed; a refused takeover has done so
	// already.
	start := newRig(t, b, marking("second", 2))
	start.do(start.m.Start(start.now))
	start.run()
	cfg := marking("repair", 3)
	cfg.Salvage = true
	r := started(t, b, cfg)
	if len(r.state) != 10 || len(r.lost) != 1 || r.lost[0].Slot != 11 || r.lost[0].Next != 101 {
		t.Errorf("the state is %q, lost %+v", r.state, r.lost)
	}
	r.add("after")
	r.run()
	for range 2 { // two checkpoints, and then a crash
		r.add("more")
		_, effects, err := r.m.Checkpoint(r.now)
		if err != nil {
			t.Fatal(err)
		}
		r.do(effects)
		effects, err = r.m.WriteChunk([]byte("checkpoint"))
		r.do(effects)
		effects2, err2 := r.m.Commit(nil)
		if r.do(effects2); err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		r.run()
	}
	started(t, b, marking("next", 4)).wants("checkpoint")
}
