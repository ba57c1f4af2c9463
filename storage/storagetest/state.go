package storagetest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/emitd/emitd/daemon"
)

var stateStories = []story{
	{"a unit without a state has none", States, stateOfNobody},
	{"a run finds what the run before it has left", States, stateOutlivesRun},
	{"a state is written behind the fence", States, stateBehindFence},
	{"revisions follow each other, and a repeated write changes nothing", States, stateRevisions},
	{"the events come in the same step and name the run and its node", States, stateEvents},
	{"each unit has a state of its own", States, statesApart},
	{"a state that is too large is refused", States, stateTooLarge},
	{"of two writes of one revision, one happens", States, stateRaces},
}

func (w *world) states() daemon.StateStore {
	w.Helper()
	s, ok := w.Store.(daemon.StateStore)
	w.holds(ok, "the store is no daemon.StateStore")
	return s
}

// state reads a unit's state; the zero value says that there is none.
func (w *world) state(u daemon.Unit) daemon.UnitState {
	w.Helper()
	found, err := w.states().UnitStates(w.ctx, u)
	w.ok(err)
	w.holds(len(found) <= 1, "%d states of %s", len(found), u)
	if len(found) == 0 {
		return daemon.UnitState{}
	}
	return found[0]
}

// save saves a state whose document has the text as its only field.
func (w *world) save(f daemon.Fence, revision int64, text string, events ...daemon.Event) error {
	return w.states().SaveUnitState(w.ctx, f, daemon.UnitState{Revision: revision, Data: document(text)}, events...)
}

func document(text string) json.RawMessage { return fmt.Appendf(nil, `{"text":%q}`, text) }

// left ends the story unless the unit's state is this one.
func (w *world) left(f daemon.Fence, revision int64, text string) {
	w.Helper()
	got := w.state(f.Unit)
	w.holds(!got.SavedAt.IsZero(), "the state of %s has no time", f.Unit)
	got.SavedAt = daemon.UnitState{}.SavedAt
	w.equal("state of "+f.Unit.String(), got, daemon.UnitState{Unit: f.Unit, Generation: f.Generation, Revision: revision, Data: document(text)})
}

func stateOfNobody(w *world) {
	w.equal("states", w.state(unit0), daemon.UnitState{})
	all, err := w.states().UnitStates(w.ctx, daemon.Unit{})
	w.ok(err)
	w.equal("states", len(all), 0)
}

func stateOutlivesRun(w *world) {
	l, peers := w.cluster(2)
	old := l.bring(unit0, peers[0], daemon.Active)
	w.ok(w.Store.StampFence(w.ctx, old.Fence()))
	w.ok(w.save(old.Fence(), 1, "by the first"))
	l.change(on(old, daemon.Expire))
	now := l.assign(unit0, peers[1])
	w.left(old.Fence(), 1, "by the first")
	w.ok(w.Second.StampFence(w.ctx, now.Fence()))
	w.left(old.Fence(), 1, "by the first")
	w.ok(w.save(now.Fence(), 2, "by the second"))
	w.left(now.Fence(), 2, "by the second")
	w.stale(w.save(old.Fence(), 3, "too late"), old.Fence(), now.Generation)
	w.stale(w.save(old.Fence(), 1, "by the first"), old.Fence(), now.Generation) // also a repetition
	w.left(now.Fence(), 2, "by the second")
}

func stateBehindFence(w *world) {
	for _, f := range []daemon.Fence{fence(0), fence(3)} {
		w.stale(w.save(f, 1, "not stamped"), f, 0)
	}
	w.ok(w.Store.StampFence(w.ctx, fence(3)))
	head := w.snapshot().Head
	for _, f := range []daemon.Fence{fence(2), fence(4), fence(0)} {
		w.stale(w.save(f, 1, "of another run", daemon.Event{Kind: "test.refused"}), f, 3)
	}
	w.equal("state", w.state(unit0), daemon.UnitState{})
	w.equal("events of refused writes", w.snapshot().Head, head)
	w.ok(w.save(fence(3), 1, "stamped"))
	w.left(fence(3), 1, "stamped")
}

func stateRevisions(w *world) {
	w.ok(w.Store.StampFence(w.ctx, fence(3)))
	e := daemon.Event{Kind: "test.written"}
	for _, revision := range []int64{-1, 0, 2, 7} {
		w.refused(w.save(fence(3), revision, "none is there", e), daemon.ErrStateRevision)
	}
	w.ok(w.save(fence(3), 1, "one", e))
	w.ok(w.save(fence(3), 2, "two", e))
	head := w.snapshot().Head
	w.ok(w.save(fence(3), 2, "again", e))
	w.left(fence(3), 2, "two")
	for _, revision := range []int64{1, 0, 4, -1} {
		w.refused(w.save(fence(3), revision, "out of order", e), daemon.ErrStateRevision)
	}
	w.ok(w.Store.StampFence(w.ctx, fence(5)))
	w.refused(w.save(fence(5), 2, "the revision of another run", e), daemon.ErrStateRevision)
	w.left(fence(3), 2, "two")
	w.equal("events of writes that did not happen", w.snapshot().Head, head)
	w.ok(w.save(fence(5), 3, "three", e))
	w.left(fence(5), 3, "three")
	w.equal("events", w.snapshot().Head, head+1)
}

func stateEvents(w *world) {
	l, peers := w.cluster(1)
	r := l.bring(unit0, peers[0], daemon.Active)
	w.ok(w.Store.StampFence(w.ctx, r.Fence()))
	head := w.snapshot().Head
	w.ok(w.save(r.Fence(), 1, "x",
		daemon.Event{Kind: "test.first", Reason: "why", Detail: json.RawMessage(`{"a":[1]}`), Node: "not this", Term: 1},
		daemon.Event{Kind: "test.second"}))
	got := w.history(head)
	w.equal("events", len(got), 2)
	want := daemon.Event{
		Seq: head + 1, At: got[0].At, Kind: "test.first", Node: peers[0].id.Name, NodeID: peers[0].id.ID, Incarnation: peers[0].id.Incarnation,
		Daemon: unit0.Daemon, Unit: unit0, Term: r.Term, Generation: r.Generation, Reason: "why", Detail: json.RawMessage(`{"a":[1]}`),
	}
	w.equal("first event", got[0], want)
	want.Seq, want.Kind, want.Reason, want.Detail, want.At = head+2, "test.second", "", nil, got[1].At
	w.equal("second event", got[1], want)
	w.ok(w.Store.StampFence(w.ctx, daemon.Fence{Unit: unit0, Generation: r.Generation + 1}))
	w.ok(w.save(daemon.Fence{Unit: unit0, Generation: r.Generation + 1}, 2, "y", daemon.Event{Kind: "test.third"}))
	third := w.history(head + 2)
	w.equal("events", len(third), 1)
	w.equal("the node of a run that is not in the unit's row", third[0].Node, "")
}

func statesApart(w *world) {
	others := []daemon.Unit{unit1, {Daemon: "acme"}, {Daemon: "acme:reports/0"}}
	for i, u := range append(others, unit0) {
		f := daemon.Fence{Unit: u, Generation: int64(i + 1)}
		w.ok(w.Store.StampFence(w.ctx, f))
		w.ok(w.save(f, 1, u.String()))
	}
	for i, u := range others {
		w.left(daemon.Fence{Unit: u, Generation: int64(i + 1)}, 1, u.String())
	}
	all, err := w.states().UnitStates(w.ctx, daemon.Unit{})
	w.ok(err)
	w.equal("states", len(all), len(others)+1)
	for i := range all[1:] {
		w.holds(all[i].Unit.Compare(all[i+1].Unit) < 0, "%s comes before %s", all[i].Unit, all[i+1].Unit)
	}
}

func stateTooLarge(w *world) {
	w.ok(w.Store.StampFence(w.ctx, fence(1)))
	room := 4<<10 - len(document(""))
	err := w.save(fence(1), 1, strings.Repeat("x", room+1))
	w.holds(err != nil && strings.Contains(err.Error(), "4097 bytes"), "a state of 4097 bytes: %v", err)
	w.equal("state", w.state(unit0), daemon.UnitState{})
	w.ok(w.save(fence(1), 1, strings.Repeat("x", room)))
}

func stateRaces(w *world) {
	w.ok(w.Store.StampFence(w.ctx, fence(1)))
	for revision := int64(1); revision <= 10; revision++ {
		head := w.snapshot().Head
		done := make(chan error, 2)
		for _, store := range []any{w.Store, w.Second} {
			states, ok := store.(daemon.StateStore)
			w.holds(ok, "the store is no daemon.StateStore")
			go func() {
				s := daemon.UnitState{Revision: revision, Data: document("x")}
				done <- states.SaveUnitState(context.WithoutCancel(w.ctx), fence(1), s, daemon.Event{Kind: "test.written"})
			}()
		}
		w.ok(<-done)
		w.ok(<-done)
		w.equal("events of two equal writes", w.snapshot().Head, head+1)
	}
}
