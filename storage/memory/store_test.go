package memory_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

var unit = daemon.Unit{Daemon: "acme:reports"}

// assign declares the unit and assigns it to the process itself.
func assign(t testing.TB, p *process) daemon.Record {
	t.Helper()
	term := p.lead(t)
	p.change(t, term, storage.Change{Unit: unit})
	return p.change(t, term, storage.Change{Unit: unit, Step: daemon.Assign, State: daemon.Unassigned, To: p.id})
}

func snapshot(t testing.TB, s *memory.Store) *daemon.Snapshot {
	t.Helper()
	snap, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func history(t testing.TB, s *memory.Store) []daemon.Event {
	t.Helper()
	page, err := s.Events(t.Context(), 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return page.Events
}

// An image does not change, whatever happens to the store or to another store that was restored
// from the image.
func TestRestore(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := memory.Open(memory.Config{Now: c.Now})
	p := join(t, s, 0)
	r := assign(t, p)
	if err := s.StampFence(t.Context(), r.Fence()); err != nil {
		t.Fatal(err)
	}
	lock, err := s.Acquire(t.Context(), "lock", "me", time.Minute, storage.Lock{})
	if err != nil {
		t.Fatal(err)
	}
	before, events, image := snapshot(t, s), history(t, s), s.Clone()

	// Two rounds, because the first restored store must not have changed the image either.
	for round := range 2 {
		seq := p.seq
		join(t, s, round+1)
		if out, err := s.Report(t.Context(), storage.Report{Node: p.id, Seq: p.seq + 1, Units: []storage.UnitReport{{Unit: unit, Generation: r.Generation, Step: daemon.Acknowledge}}}); err != nil || !out[0].Applied {
			t.Fatal(out, err)
		}
		if err := s.StampFence(t.Context(), daemon.Fence{Unit: unit, Generation: r.Generation + 5}); err != nil {
			t.Fatal(err)
		}
		if err := s.Release(t.Context(), lock); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Submit(t.Context(), storage.Command{ID: "c", Kind: "x"}); err != nil {
			t.Fatal(err)
		}
		s.Restore(image)
		if got := snapshot(t, s); !reflect.DeepEqual(got, before) {
			t.Fatalf("round %d: the cluster is\n%+v, was\n%+v", round, got, before)
		}
		if got := history(t, s); !reflect.DeepEqual(got, events) {
			t.Fatalf("round %d: the history is\n%+v, was\n%+v", round, got, events)
		}
		if err := s.Fence(r.Fence()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if _, err := s.Extend(t.Context(), lock, time.Minute); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if reply := p.beat(t); len(reply.Units) != 1 || reply.Units[0].State != daemon.Assigning || len(reply.Commands) != 0 {
			t.Fatalf("round %d: the holder is told %+v", round, reply)
		}
		s.Restore(image)
		p.seq = seq
	}
}

// After a failover that lost the newest rows, numbers do not repeat: the nodes' reports, the clock
// and the fence keep them growing.
func TestRestoreRepeatsNoNumber(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := memory.Open(memory.Config{Now: c.Now})
	a, b := join(t, s, 0), join(t, s, 1)
	image := s.Clone()
	lost := assign(t, a)
	c.Advance(-time.Hour) // the standby's clock is also behind
	s.Restore(image)
	s.SetStoreID("standby")
	a.seq += 10
	a.beat(t, func(h *storage.Heartbeat) { h.HighestTerm, h.HighestGeneration = lost.Term, lost.Generation })
	now := assign(t, b)
	if now.Term <= lost.Term || now.Generation <= lost.Generation {
		t.Errorf("term %d and generation %d after term %d and generation %d", now.Term, now.Generation, lost.Term, lost.Generation)
	}
	if got := b.beat(t).StoreID; got != "standby" {
		t.Errorf("store id is %q", got)
	}
	if got := snapshot(t, s).StoreID; got != "standby" {
		t.Errorf("store id of the snapshot is %q", got)
	}
}

// A reply never changes after a reader got it.
func TestAnswersAreImmutable(t *testing.T) {
	t.Parallel()
	s := memory.Open(memory.Config{KeepEvents: 5})
	p := join(t, s, 0)
	term := p.lead(t)
	units := []daemon.Unit{unit, {Daemon: unit.Daemon, Index: 1}, {Daemon: unit.Daemon, Index: 2}}
	for _, u := range units {
		p.change(t, term, storage.Change{Unit: u})
		p.change(t, term, storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: p.id})
	}
	reply := p.beat(t, func(h *storage.Heartbeat) { h.EventsAfter, h.WantMembers = 0, true })
	snap, events := snapshot(t, s), history(t, s)
	copies := []any{slices.Clone(reply.Units), slices.Clone(reply.Members), slices.Clone(snap.Nodes), slices.Clone(snap.Units), len(snap.Adverts), slices.Clone(events)}

	for _, u := range units {
		i := slices.IndexFunc(snap.Units, func(r daemon.Record) bool { return r.Unit == u })
		p.change(t, term, storage.Change{Unit: u, Step: daemon.Expire, State: daemon.Assigning, Generation: snap.Units[i].Generation, Embargo: time.Hour})
	}
	p.change(t, term, storage.Change{Unit: daemon.Unit{Daemon: "aaa:first"}})
	p.beat(t, func(h *storage.Heartbeat) { h.Advert = &daemon.Advert{Kinds: []daemon.Kind{"other"}} })
	join(t, s, 1)
	for i, now := range []any{reply.Units, reply.Members, snap.Nodes, snap.Units, len(snap.Adverts), events} {
		if !reflect.DeepEqual(now, copies[i]) {
			t.Errorf("answer %d is now\n%+v, was\n%+v", i, now, copies[i])
		}
	}
}

// A caller may change its arguments after the call.
func TestAdvertsAreCopied(t *testing.T) {
	t.Parallel()
	s := memory.Open(memory.Config{})
	p := join(t, s, 0)
	advert := daemon.Advert{Kinds: []daemon.Kind{"a"}, Specs: []daemon.Spec{{ID: "a", Requires: map[string]string{"disk": "ssd"}}}}
	advert.Traits.Labels = map[string]string{"zone": "a"}
	p.beat(t, func(h *storage.Heartbeat) { h.Advert = &advert })
	text := string(advert.Encode())
	advert.Kinds[0], advert.Specs[0].Requires["disk"], advert.Traits.Labels["zone"] = "b", "hdd", "b"
	snap := snapshot(t, s)
	if got := string(snap.Advert(snap.Nodes[0]).Encode()); got != text {
		t.Errorf("the advert is %s, was %s", got, text)
	}
	if got := snap.Nodes[0].Labels["zone"]; got != "a" {
		t.Errorf("the zone is %q", got)
	}
}

// The history is bounded, the observer gets all of it, and the numbers go on.
func TestKeepEvents(t *testing.T) {
	t.Parallel()
	var reported []int64
	var stamps []daemon.Fence
	s := memory.Open(memory.Config{
		KeepEvents: 3,
		OnEvent:    func(e daemon.Event) { reported = append(reported, e.Seq) },
		OnStamp:    func(f daemon.Fence) { stamps = append(stamps, f) },
	})
	p := join(t, s, 0)
	term := p.lead(t)
	c := storage.Commit{Term: term.Ref()}
	for i := range 20 { // one step with more events than are kept
		u := daemon.Unit{Daemon: "acme:reports", Index: i}
		c.Changes = append(c.Changes, storage.Change{Unit: u}, storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: p.id})
	}
	if _, err := s.Commit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	page, err := s.Events(t.Context(), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	if page.Head != 22 || page.Oldest != 20 || len(page.Events) != 3 || page.Events[0].Seq != 20 {
		t.Errorf("page is %+v", page)
	}
	if r := p.beat(t, func(h *storage.Heartbeat) { h.EventsAfter = 1 }); !r.EventsMissing {
		t.Error("the reader is not told that it fell behind")
	}
	for i, seq := range reported {
		if seq != int64(i+1) {
			t.Fatalf("the observer was told of %v", reported)
		}
	}
	if len(reported) != 22 {
		t.Errorf("the observer was told of %d events, want 22", len(reported))
	}
	for _, generation := range []int64{3, 3, 5, 4} {
		_ = s.StampFence(t.Context(), daemon.Fence{Unit: unit, Generation: generation}) // refused or not: the observer shows it
	}
	want := []daemon.Fence{{Unit: unit, Generation: 3}, {Unit: unit, Generation: 5}}
	if !slices.Equal(stamps, want) {
		t.Errorf("the observer was told of stamps %v, want %v", stamps, want)
	}
	image := s.Clone()
	s.Restore(image)
	join(t, s, 1)
	if len(reported) != 23 || reported[22] != 23 {
		t.Errorf("after a restoration the observer was told of %v", reported[22:])
	}
}

// Wake-ups name the nodes concerned, come after the change, and their receiver may call the store.
func TestOnWake(t *testing.T) {
	t.Parallel()
	var s *memory.Store
	var got []storage.WakeUp
	s = memory.Open(memory.Config{OnWake: func(w storage.WakeUp) {
		got = append(got, w)
		if _, err := s.Snapshot(context.Background()); err != nil {
			t.Error(err)
		}
	}})
	l, p := join(t, s, 0), join(t, s, 1)
	term := l.lead(t)
	l.change(t, term, storage.Change{Unit: unit})
	got = nil
	l.change(t, term, storage.Change{Unit: unit, Step: daemon.Assign, State: daemon.Unassigned, To: p.id})
	if err := s.Leave(t.Context(), storage.Leave{Node: p.id, Seq: 2, Drain: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.Leave(t.Context(), storage.Leave{Node: l.id, Seq: 3, Resign: term.Number}); err != nil {
		t.Fatal(err)
	}
	want := []storage.WakeUp{
		{Nodes: []node.Incarnation{p.id.Incarnation}},
		{Nodes: []node.Incarnation{l.id.Incarnation}, Leader: true},
		{},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("wake-ups are\n%+v, want\n%+v", got, want)
	}
}

// A slow watcher gets one wake-up for everybody instead of all the wake-ups that it missed.
func TestSlowWatcher(t *testing.T) {
	t.Parallel()
	s := memory.Open(memory.Config{})
	l := join(t, s, 0)
	term := l.lead(t)
	ctx, cancel := context.WithCancel(t.Context())
	entered, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var got []storage.WakeUp
	last := make(chan struct{})
	go func() {
		done <- s.Watch(ctx, func(w storage.WakeUp) {
			if got = append(got, w); len(got) == 1 {
				close(entered)
				<-goOn
			} else if len(got) == 2 {
				close(last)
			}
		})
	}()
	submit := func(id string) {
		if _, err := s.Submit(t.Context(), storage.Command{ID: id, Kind: "x"}); err != nil {
			t.Error(err)
		}
	}
	for i := 0; ; i++ { // until the watch has begun
		submit("begin" + string(rune('a'+i%26)) + time.Duration(i).String())
		select {
		case <-entered:
		default:
			continue
		}
		break
	}
	for i := range 200 {
		u := daemon.Unit{Daemon: "acme:reports", Index: i}
		p := join(t, s, i+1)
		l.change(t, term, storage.Change{Unit: u})
		l.change(t, term, storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: p.id})
	}
	close(goOn)
	<-last
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch returned %v", err)
	}
	if len(got) > 80 || len(got[1].Nodes) != 0 {
		t.Errorf("%d wake-ups came, the second is %+v", len(got), got[1])
	}
}

// A refusal of Fence names both generations.
func TestFence(t *testing.T) {
	t.Parallel()
	s := memory.Open(memory.Config{})
	f := daemon.Fence{Unit: unit, Generation: 3}
	for _, unstamped := range []daemon.Fence{f, {}, {Unit: unit}} {
		if err := s.Fence(unstamped); !errors.Is(err, daemon.ErrStale) {
			t.Errorf("fence %v without a stamp: %v", unstamped, err)
		}
	}
	if err := s.StampFence(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if err := s.Fence(f); err != nil {
		t.Error(err)
	}
	f.Generation = 2
	var stale *daemon.StaleError
	if err := s.Fence(f); !errors.As(err, &stale) || stale.HeldGeneration != 3 || stale.Fence != f {
		t.Errorf("fence %v: %v", f, err)
	}
}

// A stream of short transactions does not prevent the next run from stamping. Transactions that
// come after the stamp wait behind it, and are refused then.
func TestStampIsNotStarved(t *testing.T) {
	t.Parallel()
	s := memory.Open(memory.Config{})
	old, now := daemon.Fence{Unit: unit, Generation: 3}, daemon.Fence{Unit: unit, Generation: 4}
	if err := s.StampFence(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	stamped := make(chan error, 1)
	err := s.InTx(t.Context(), old, func() error {
		go func() { stamped <- s.StampFence(context.Background(), now) }()
		// The next transaction either joins this one (the stamp does not wait yet) or waits until
		// it is refused.
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			err := s.InTx(ctx, old, func() error { return nil })
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-stamped; err != nil {
		t.Fatal(err)
	}
	if err := s.Fence(old); !errors.Is(err, daemon.ErrStale) {
		t.Errorf("the old fence: %v", err)
	}
}

// Every method refuses a call whose context has ended.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	s := memory.Open(memory.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := daemon.Fence{Unit: unit, Generation: 1}
	_, acquire := s.Acquire(ctx, "a", "b", time.Minute, storage.Lock{})
	_, extend := s.Extend(ctx, storage.Lock{}, time.Minute)
	_, nodes := s.SweepNodes(ctx, f, 0, 1)
	for i, err := range []error{acquire, extend, s.Release(ctx, storage.Lock{}), nodes, s.StampFence(ctx, f), s.InTx(ctx, f, func() error { return nil })} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("call %d returned %v", i, err)
		}
	}
}
