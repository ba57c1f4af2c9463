package storagetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var eventStories = []story{
	{"the history is read in pages, oldest first", 0, pages},
	{"an empty history has no head and no oldest", 0, pagesEmpty},
	{"heartbeats bring membership events only", 0, bringsRoll},
	{"a reader whose events are gone is told so", Sweeps, reportsBehind},
	{"a reader that is ahead of the store is told so", 0, reportsAhead},
	{"one heartbeat brings at most 500 events, the next the rest", 0, boundsRoll},
	{"a life has one event for each change, in order", 0, emitsLife},
	{"what was done elsewhere is recorded between the events of the cluster", Records, records},
}

func pages(w *world) {
	for i := range 7 {
		w.join(fmt.Sprintf("node-%d", i))
	}
	page, err := w.Store.Events(w.ctx, 0, 3)
	w.ok(err)
	w.equal("head", page.Head, int64(7))
	w.equal("oldest", page.Oldest, int64(1))
	seqs := func(es []daemon.Event) []int64 {
		var out []int64
		for _, e := range es {
			out = append(out, e.Seq)
		}
		return out
	}
	w.equal("first page", seqs(page.Events), []int64{1, 2, 3})
	for _, c := range []struct {
		after int64
		limit int
		want  []int64
	}{
		{3, 3, []int64{4, 5, 6}}, {6, 3, []int64{7}}, {7, 3, nil}, {100, 3, nil}, {5, 100, []int64{6, 7}}, {0, 0, nil}, {-1, 2, []int64{1, 2}},
	} {
		page, err := w.Store.Events(w.ctx, c.after, c.limit)
		w.ok(err)
		w.equal(fmt.Sprintf("page after %d of %d", c.after, c.limit), seqs(page.Events), c.want)
		w.equal("head", page.Head, int64(7))
	}
	w.equal("head of the snapshot", w.snapshot().Head, int64(7))
}

func pagesEmpty(w *world) {
	page, err := w.Store.Events(w.ctx, 0, 10)
	w.ok(err)
	w.equal("page", *page, storage.EventPage{})
}

func bringsRoll(w *world) {
	l, peers := w.cluster(1) // events: registered, elected, registered
	p := peers[0]
	l.bring(unit0, p, daemon.Deleted)
	late := w.join("late")
	l.declareDead(late)
	head := w.snapshot().Head
	r := p.beat(after(0))
	var kinds []daemon.EventKind
	for i, e := range r.Events {
		kinds = append(kinds, e.Kind)
		w.equal("event", e, w.history(e.Seq - 1)[0])
		w.holds(i == 0 || r.Events[i-1].Seq < e.Seq, "events are out of order")
	}
	w.equal("kinds", kinds, []daemon.EventKind{daemon.NodeRegistered, daemon.NodeRegistered, daemon.NodeRegistered, daemon.NodeRemoved})
	w.equal("head", r.Head, head)
	w.equal("behind", r.EventsMissing, false)
	r = p.beat(after(r.Events[2].Seq))
	w.equal("events after the third", len(r.Events), 1)
	w.equal("events after the head", len(p.beat(after(head)).Events), 0)
	r = p.beat(after(-1))
	w.equal("events when none are asked for", len(r.Events), 0)
	w.equal("behind when none are asked for", r.EventsMissing, false)
	w.equal("head when none are asked for", r.Head, head)
}

func reportsBehind(w *world) {
	for i := range 6 {
		w.join(fmt.Sprintf("node-%d", i))
	}
	p := w.join("reader")
	n, err := w.sweep().SweepEvents(w.ctx, w.sweeper(), storage.Retention{Age: long, MaxEvents: 3}, 100)
	w.ok(err)
	w.equal("removed", n, 4)
	for _, c := range []struct {
		after  int64
		behind bool
		events int
	}{{0, true, 3}, {3, true, 3}, {4, false, 3}, {5, false, 2}, {7, false, 0}, {-1, false, 0}} {
		r := p.beat(after(c.after))
		w.equal(fmt.Sprintf("behind after %d", c.after), r.EventsMissing, c.behind)
		w.equal(fmt.Sprintf("events after %d", c.after), len(r.Events), c.events)
		w.equal("head", r.Head, int64(7))
	}
	_, err = w.sweep().SweepEvents(w.ctx, w.sweeper(), storage.Retention{Age: over, MaxEvents: 100}, 100)
	w.ok(err)
	page, err := w.Store.Events(w.ctx, 0, 100)
	w.ok(err)
	w.equal("page of a swept history", *page, storage.EventPage{Head: 7})
	w.equal("behind in a swept history", p.beat(after(6)).EventsMissing, true)
	w.equal("behind at its head", p.beat(after(7)).EventsMissing, false)
	w.join("next")
	w.equal("number of the next event", w.history(0)[0].Seq, int64(8))
}

func reportsAhead(w *world) {
	p := w.join("node-a")
	r := p.beat(after(1 << 40))
	w.equal("behind", r.EventsMissing, true)
	w.equal("head", r.Head, int64(1))
}

func boundsRoll(w *world) {
	l, peers := w.cluster(1)
	guard := storage.NodeVersion{Incarnation: peers[0].id.Incarnation}
	start := w.snapshot().Head
	for i := range 510 {
		l.changeNode(storage.NodeChange{Guard: guard, State: []node.State{node.Late, node.Deaf}[i%2]})
	}
	r := l.beat(after(start))
	w.equal("events", len(r.Events), 500)
	w.equal("behind", r.EventsMissing, false)
	w.equal("first", r.Events[0].Seq, start+1)
	w.equal("head", r.Head, start+510)
	r = l.beat(after(r.Events[499].Seq))
	w.equal("the rest", len(r.Events), 10)
}

func emitsLife(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.bring(unit0, p, daemon.Active)
	r = p.step(r, daemon.Resume)
	p.step(l.change(on(r, daemon.Revoke)), daemon.Confirm)
	r = l.change(on(l.assign(unit0, p), daemon.Expire, func(c *storage.Change) { c.Forced = true }))
	p.report(storage.UnitReport{Unit: unit0, Generation: l.assign(unit0, p).Generation, Step: daemon.Release, Error: "boom"})
	p.step(l.bring(unit1, p, daemon.Revoking), daemon.Abandon)
	l.changeNode(storage.NodeChange{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation}, State: node.Late})
	p.leave(storage.Leave{Deregister: true})
	l.leave(storage.Leave{Resign: l.term.Number})
	want := []daemon.EventKind{
		daemon.NodeRegistered, daemon.LeaderElected, daemon.NodeRegistered,
		daemon.AssignmentAssigned, daemon.AssignmentActive, daemon.AssignmentResumed, daemon.AssignmentRevoking, daemon.AssignmentDeleted,
		daemon.AssignmentAssigned, daemon.AssignmentForced,
		daemon.AssignmentAssigned, daemon.AssignmentFailed,
		daemon.AssignmentAssigned, daemon.AssignmentActive, daemon.AssignmentRevoking, daemon.AssignmentAbandoned,
		daemon.NodeLate, daemon.NodeRemoved, daemon.LeaderLost,
	}
	events := w.history(0)
	var kinds []daemon.EventKind
	for i, e := range events {
		kinds = append(kinds, e.Kind)
		w.equal("number", e.Seq, int64(i+1))
	}
	w.equal("kinds", kinds, want)
	w.equal("state", r.State, daemon.Deleted)
}

func records(w *world) {
	r, ok := w.Store.(storage.Recorder)
	w.holds(ok, "the store is no storage.Recorder")
	w.ok(r.Record(w.ctx, daemon.Event{Seq: 99, Kind: "queue.purge", Node: "ignored", Reason: "3 jobs", Detail: []byte(`{"actor":"alice"}`)}))
	w.join("node-0")
	w.ok(r.Record(w.ctx, daemon.Event{Kind: "queue.pause"}))
	page, err := w.Store.Events(w.ctx, 0, 10)
	w.ok(err)
	w.holds(len(page.Events) == 3 && page.Head == 3, "%d events, the newest is %d, want 3", len(page.Events), page.Head)
	first, last := page.Events[0], page.Events[2]
	w.holds(!first.At.IsZero() && !last.At.Before(first.At), "the events are at %s and %s", first.At, last.At)
	w.equal("detail", strings.ReplaceAll(string(first.Detail), " ", ""), `{"actor":"alice"}`)
	first.At, last.At, first.Detail, last.Detail = time.Time{}, time.Time{}, nil, nil
	w.equal("first", first, daemon.Event{Seq: 1, Kind: "queue.purge", Reason: "3 jobs"})
	w.equal("last", last, daemon.Event{Seq: 3, Kind: "queue.pause"})
}
