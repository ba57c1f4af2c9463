package sim

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Every check fails on a history that breaks its promise, and passes on the most similar history
// that does not.

var unit0 = daemon.Unit{Daemon: "acme:a", Index: 0}

// happened returns an event of the store about unit0.
func happened(seq int64, kind daemon.EventKind, generation, term int64, inc node.Incarnation) daemon.Event {
	e := daemon.Event{Seq: seq, Kind: kind, Generation: generation, Term: term, Incarnation: inc}
	if strings.HasPrefix(string(kind), "assignment.") {
		e.Unit = unit0
	}
	return e
}

// history is a valid beginning: a leader, an assignment, its acknowledgement.
func history() []daemon.Event {
	return []daemon.Event{
		happened(1, daemon.NodeRegistered, 0, 0, "a"),
		happened(2, daemon.LeaderElected, 0, 100, "a"),
		happened(3, daemon.AssignmentAssigned, 100, 100, "a"),
		happened(4, daemon.AssignmentActive, 100, 100, "a"),
	}
}

func play(events []daemon.Event) *broken {
	m := model{units: []unitModel{{state: daemon.Unassigned}}}
	var t terms
	var highest int64
	for i := range events {
		e, u := &events[i], -1
		if !e.Unit.IsZero() {
			u = 0
		}
		if b := m.event(e, u); b != nil {
			return b
		}
		switch e.Kind {
		case daemon.LeaderElected:
			if b := t.elected(e.Term); b != nil {
				return b
			}
		case daemon.AssignmentAssigned, daemon.AssignmentResumed:
			if b := checkIssued(&highest, e); b != nil {
				return b
			}
		}
	}
	return nil
}

func TestHistoriesOfTheStore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rule string
		then       []daemon.Event
	}{
		{"sound", "", []daemon.Event{
			happened(5, daemon.AssignmentResumed, 101, 100, "a"), happened(6, daemon.AssignmentRevoking, 101, 100, "a"),
			happened(7, daemon.AssignmentDeleted, 101, 100, "a"), happened(8, daemon.LeaderLost, 0, 100, "a"),
			happened(9, daemon.LeaderElected, 0, 200, "b"), happened(10, daemon.AssignmentAssigned, 200, 200, "b"),
		}},
		{"a gap", "I8", []daemon.Event{happened(6, daemon.AssignmentRevoking, 100, 100, "a")}},
		{"a number twice", "I8", []daemon.Event{happened(4, daemon.AssignmentRevoking, 100, 100, "a")}},
		{"elected while held", "I8", []daemon.Event{happened(5, daemon.LeaderElected, 0, 200, "b")}},
		{"lost twice", "I8", []daemon.Event{happened(5, daemon.LeaderLost, 0, 100, "a"), happened(6, daemon.LeaderLost, 0, 100, "a")}},
		{"a term's number again", "I1", []daemon.Event{happened(5, daemon.LeaderLost, 0, 100, "a"), happened(6, daemon.LeaderElected, 0, 100, "b")}},
		{"active after revoking", "A1", []daemon.Event{happened(5, daemon.AssignmentRevoking, 100, 100, "a"), happened(6, daemon.AssignmentActive, 100, 100, "a")}},
		{"assigned while held", "A1", []daemon.Event{happened(5, daemon.AssignmentAssigned, 200, 100, "b")}},
		{"ended by another", "A1", []daemon.Event{happened(5, daemon.AssignmentDeleted, 100, 100, "b")}},
		{"ended under another generation", "A1", []daemon.Event{happened(5, daemon.AssignmentDeleted, 99, 100, "a")}},
		{"resumed without a new generation", "A1", []daemon.Event{happened(5, daemon.AssignmentResumed, 100, 100, "a")}},
		{"a generation again", "I3", []daemon.Event{happened(5, daemon.AssignmentDeleted, 100, 100, "a"), happened(6, daemon.AssignmentAssigned, 100, 100, "b")}},
		{"a lower generation", "I3", []daemon.Event{happened(5, daemon.AssignmentResumed, 99, 100, "a")}},
		{"assigned by a vacant term", "I2", []daemon.Event{
			happened(5, daemon.AssignmentDeleted, 100, 100, "a"), happened(6, daemon.LeaderLost, 0, 100, "a"),
			happened(7, daemon.AssignmentAssigned, 101, 100, "b"),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := play(append(history(), c.then...))
			switch {
			case c.rule == "" && b != nil:
				t.Errorf("%s: %s", b.rule, b.what)
			case c.rule != "" && (b == nil || b.rule != c.rule):
				t.Errorf("%+v, want %s broken", b, c.rule)
			}
		})
	}
}

func TestRowsAreComparedWithEvents(t *testing.T) {
	t.Parallel()
	m := model{units: []unitModel{{daemon.Active, 7, "a"}}}
	at := map[daemon.Unit]int{unit0: 0}
	row := daemon.Record{Unit: unit0, State: daemon.Active, Generation: 7, Holder: node.Identity{Incarnation: "a"}}
	if b := m.checkUnits([]daemon.Record{row}, "a", at); b != nil {
		t.Errorf("a true list: %s", b.what)
	}
	if b := m.checkUnits(nil, "b", at); b != nil {
		t.Errorf("a true empty list: %s", b.what)
	}
	if m.checkUnits(nil, "a", at) == nil {
		t.Error("a unit is missing from the list")
	}
	for name, change := range map[string]func(*daemon.Record){
		"state":      func(r *daemon.Record) { r.State = daemon.Revoking },
		"generation": func(r *daemon.Record) { r.Generation++ },
		"holder":     func(r *daemon.Record) { r.Holder.Incarnation = "b" },
		"unit":       func(r *daemon.Record) { r.Unit.Index = 5 },
	} {
		other := row
		change(&other)
		if m.checkRow(&other, at) == nil {
			t.Errorf("a row with another %s passed", name)
		}
	}
}

func TestCommitsOfReplacedTerms(t *testing.T) {
	t.Parallel()
	m := model{term: 100, leader: "a"}
	if b := m.commit(node.TermRef{Number: 100, Incarnation: "a"}); b != nil {
		t.Error(b.what)
	}
	for _, ref := range []node.TermRef{{Number: 99, Incarnation: "a"}, {Number: 100, Incarnation: "b"}} {
		if m.commit(ref) == nil {
			t.Errorf("%+v passed", ref)
		}
	}
	m.vacant = true
	if m.commit(node.TermRef{Number: 100, Incarnation: "a"}) == nil {
		t.Error("a commit of a vacant term passed")
	}
}

func TestEffectsInOrderOfGenerations(t *testing.T) {
	t.Parallel()
	r := resource{value: 10, generation: 7}
	if r.accept(7, 11) != nil || r.accept(8, 11) != nil {
		t.Error("a sound effect was called broken")
	}
	if r.accept(6, 11) == nil {
		t.Error("an effect of an earlier generation passed")
	}
	if r.accept(8, 10) == nil {
		t.Error("an acknowledged effect was overwritten")
	}
}

// scene is a world in which the test itself causes the events.
func scene(t *testing.T) (w *world, a, b *process) {
	t.Helper()
	w = newWorld(Config{Seed: 1, Nodes: 2, Work: []Work{plain("acme:a", 2)}})
	w.now = time.Hour
	for i, h := range w.hosts {
		p := &process{
			t: w.t, w: w, index: i, host: h, who: node.Identity{Incarnation: incarnation(i)},
			started: make([]int64, 2), listings: make([]listed, 2),
		}
		p.watch.init()
		h.proc, w.byInc[p.who.Incarnation] = p, p
		w.procs = append(w.procs, p)
	}
	w.check.grow(2)
	return w, w.procs[0], w.procs[1]
}

// running returns a run of the first unit that has been entered.
func (p *process) running(generation int64) *run {
	u := p.w.units[0]
	p.listings[0] = listed{generation, p.w.now}
	r := &run{p: p, u: u, fence: daemon.Fence{Unit: u.Unit, Generation: generation}}
	p.w.check.started(p.w, r)
	p.runs = append(p.runs, r)
	r.phase, r.entered = live, p.w.now
	p.w.check.entered(p.w, r)
	return r
}

// demand checks which rule the world reports as broken, if any.
func demand(t *testing.T, w *world, rule string) {
	t.Helper()
	got := ""
	if w.fail != nil {
		got = w.fail.Rule
	}
	if got != rule {
		t.Errorf("broken: %q (%v), want %q", got, w.fail, rule)
	}
}

func TestRunsAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rule string
		do         func(w *world, a, b *process)
	}{
		{"one after the other", "", func(w *world, a, b *process) {
			w.check.left(a.running(1))
			b.running(2)
		}},
		{"two at once", "I4", func(w *world, a, b *process) {
			a.running(1)
			b.running(2)
		}},
		{"one generation in two processes", "I3", func(w *world, a, b *process) {
			w.check.left(a.running(1))
			b.running(1)
		}},
		{"two in one process", "A9", func(w *world, a, b *process) {
			a.running(1)
			a.running(2)
		}},
		{"a generation started twice", "A9", func(w *world, a, b *process) {
			r := a.running(1)
			w.check.left(r)
			a.runs = nil
			a.running(1)
		}},
		{"never listed", "I6", func(w *world, a, b *process) {
			w.check.started(w, &run{p: a, u: w.units[0], fence: daemon.Fence{Unit: w.units[0].Unit, Generation: 3}})
		}},
		{"the first is paused", "", func(w *world, a, b *process) {
			a.running(1)
			a.state, a.watch.paused, a.watch.pausedTill = paused, true, w.now+time.Hour
			b.running(2)
		}},
		{"the first was paused and does not end", "I4", func(w *world, a, b *process) {
			a.running(1)
			a.state, a.watch.paused, a.watch.pausedTill = paused, true, w.now+time.Minute
			b.running(2)
			w.now += time.Minute
			a.resume()
			w.now += a.noticed(w.t.StopTimeout) + 1
			w.check.overlapEnds(w, 0)
		}},
		{"the first ignores its cancellation", "", func(w *world, a, b *process) {
			r := a.running(1)
			r.stuck, r.cancelled, r.cancelAt = true, true, w.now-w.t.StopTimeout
			b.running(2)
		}},
		{"the first ignores its cancellation and still has time", "I4", func(w *world, a, b *process) {
			r := a.running(1)
			r.stuck, r.cancelled, r.cancelAt = true, true, w.now
			b.running(2)
		}},
		{"abandoned too early", "A5", func(w *world, a, b *process) {
			r := a.running(1)
			r.cancelled, r.cancelAt = true, w.now-w.t.StopTimeout/2
			w.check.abandoned(w, r)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, a, b := scene(t)
			c.do(w, a, b)
			demand(t, w, c.rule)
		})
	}
}

// A run must be cancelled at its drain deadline once its process was told that the unit was revoked. A leader that
// holds the unit itself is not told by the answer to its commit: the store may lose the commit before the next
// heartbeat.
func TestRunAfterRevoke(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rule string
		call       member.Call
		cancelled  bool
	}{
		{"goes on", "A5", member.Call{Heartbeat: &storage.Heartbeat{}}, false},
		{"goes on after a report", "A5", member.Call{Report: &storage.Report{}}, false},
		{"is cancelled", "", member.Call{Heartbeat: &storage.Heartbeat{}}, true},
		{"goes on after the commit", "", member.Call{Commit: &storage.Commit{}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, a, _ := scene(t)
			r := a.running(1)
			w.check.revoked[0] = revocation{1, w.now}
			record := daemon.Record{Unit: unit0, State: daemon.Revoking, Generation: 1, Holder: a.who, DrainTimeout: w.t.DrainTimeout}
			answer := &call{p: a, req: c.call, issuedAt: w.now}
			if c.call.Heartbeat != nil {
				answer.result.Reply = &storage.Reply{Units: []daemon.Record{record}}
			} else {
				answer.result.Outcomes = []storage.Outcome{{Unit: unit0, Record: record}}
			}
			w.check.answered(a, answer)
			r.cancelled = c.cancelled
			_ = w.runFor(w.t.DrainTimeout + w.t.Wakeup)
			demand(t, w, c.rule)
		})
	}
}

func TestTrust(t *testing.T) {
	t.Parallel()
	term := func(p *process) node.Term { return node.Term{Number: 5, Leader: p.who} }
	for _, c := range []struct {
		name, rule string
		do         func(w *world, a, b *process)
	}{
		{"a run that was listed in time", "", func(w *world, a, b *process) {
			r := a.running(1)
			w.now += r.p.runTrust() - 1
			w.check.runTrust(w, r)
		}},
		{"a run beyond its trust", "I6", func(w *world, a, b *process) {
			r := a.running(1)
			w.now += r.p.runTrust()
			w.check.runTrust(w, r)
		}},
		{"a listing of another generation extends nothing", "I6", func(w *world, a, b *process) {
			r := a.running(1)
			w.now += r.p.runTrust()
			a.list(&daemon.Record{Unit: r.u.Unit, State: daemon.Active, Generation: 2, Holder: a.who}, w.now)
			w.check.runTrust(w, r)
		}},
		{"a leader that was renewed in time", "", func(w *world, a, b *process) {
			a.watch.leaseFrom = w.now
			w.check.elected(w, a, term(a))
			w.now += a.leaderTrust() - 1
			w.check.checkLeaderTrust(w, a, 5)
		}},
		{"a leader beyond its trust", "I6", func(w *world, a, b *process) {
			a.watch.leaseFrom = w.now
			w.check.elected(w, a, term(a))
			w.now += a.leaderTrust()
			w.check.checkLeaderTrust(w, a, 5)
		}},
		{"two leaders", "I1", func(w *world, a, b *process) {
			w.check.elected(w, a, term(a))
			w.check.elected(w, b, term(b))
		}},
		{"two leaders, the first paused", "", func(w *world, a, b *process) {
			w.check.elected(w, a, term(a))
			a.state, a.watch.paused = paused, true
			w.check.elected(w, b, term(b))
		}},
		{"two leaders, the first has had time to notice", "I1", func(w *world, a, b *process) {
			w.check.elected(w, a, term(a))
			a.watch.paused, a.watch.pausedTill = true, w.now
			w.check.elected(w, b, term(b))
			w.now += a.noticed(0)
			w.check.overlapEnds(w, -1)
		}},
		{"a leader of another's term", "I1", func(w *world, a, b *process) { w.check.elected(w, a, term(b)) }},
		{"elected twice", "hooks", func(w *world, a, b *process) {
			w.check.elected(w, a, term(a))
			w.check.elected(w, a, term(a))
		}},
		{"lost without leading", "hooks", func(w *world, a, b *process) { w.check.lost(w, a, member.LeadershipLost{}) }},
		{"joined twice", "hooks", func(w *world, a, b *process) {
			for range 2 {
				w.check.notice(w, a, &member.Notice{Kind: member.NodeJoined, Member: member.KnownMember{Identity: b.who}})
			}
		}},
		{"left without having joined", "hooks", func(w *world, a, b *process) {
			w.check.notice(w, a, &member.Notice{Kind: member.NodeLeft, Member: member.KnownMember{Identity: b.who}})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, a, b := scene(t)
			c.do(w, a, b)
			demand(t, w, c.rule)
		})
	}
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rule string
		kind       daemon.EventKind
		quiet      time.Duration
	}{
		{"dead after a TTL", "", daemon.NodeRemoved, 90 * time.Second},
		{"dead too early", "I6", daemon.NodeRemoved, 89 * time.Second},
		{"deaf after a TTL", "", daemon.NodeDeaf, 90 * time.Second},
		{"deaf too early", "I6", daemon.NodeDeaf, 89 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, a, _ := scene(t)
			a.watch.beatAt, a.watch.heardAt = w.now-c.quiet, w.now-c.quiet
			e := happened(1, c.kind, 0, 0, a.who.Incarnation)
			w.check.event(w, &e)
			demand(t, w, c.rule)
		})
	}
}

// A term's number may be below an earlier one only if nothing could know: the store lost the term,
// its clock went back, and no live process saw the term or reported it to the new store.
func TestTermThatNobodyRemembers(t *testing.T) {
	t.Parallel()
	const lostTerm = 2000
	for _, c := range []struct {
		name, rule string
		number     int64 // of the next term
		clock      int64 // of the store, in milliseconds
		then       func(w *world, saw *process)
	}{
		{"nobody remembers", "", 1001, 900, func(_ *world, saw *process) { saw.state = dead }},
		{"who saw it uses a former primary", "", 1001, 900, func(_ *world, saw *process) { saw.host.onOld = true }},
		{"who saw it lives", "I1", 1001, 900, func(*world, *process) {}},
		{"who saw it is paused", "I1", 1001, 900, func(_ *world, saw *process) { saw.state = paused }},
		{"who saw it told before it ended", "I1", 1001, 900, func(w *world, saw *process) {
			w.check.terms.reported(lostTerm)
			saw.state = dead
		}},
		{"the clock did not go back", "I1", 1001, lostTerm + 1, func(_ *world, saw *process) { saw.state = dead }},
		{"not above what the store has", "I1", 1000, 900, func(_ *world, saw *process) { saw.state = dead }},
		{"above all there was", "", lostTerm + 1, 900, func(*world, *process) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, a, b := scene(t)
			elect := func(number, clock int64, p *process) {
				e := happened(w.check.model.seq+1, daemon.LeaderElected, 0, number, p.who.Incarnation)
				e.At = time.UnixMilli(clock)
				w.check.event(w, &e)
			}
			elect(1000, 1000, a)
			kept := w.check.model.clone()
			kept.vacant = true
			w.check.model.vacant = true
			elect(lostTerm, lostTerm, b)
			b.watch.sawTerm = lostTerm
			w.check.model = kept
			w.check.failedOver(w)
			c.then(w, b)
			elect(c.number, c.clock, a)
			demand(t, w, c.rule)
		})
	}

	// The same without a failover: the store itself must remember.
	w, a, _ := scene(t)
	for i, number := range []int64{2000, 1001} {
		e := happened(int64(i+1), daemon.LeaderElected, 0, number, a.who.Incarnation)
		e.At = time.UnixMilli(900)
		w.check.event(w, &e)
		w.check.model.vacant = true
	}
	demand(t, w, "I1")
}

func TestStops(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rule string
		do         func(w *world, a *process)
	}{
		{"stopped in good order", "", func(w *world, a *process) { w.check.stopped(w, a) }},
		{"stopped while it leads", "stop", func(w *world, a *process) {
			a.watch.leading = true
			w.check.stopped(w, a)
		}},
		{"stopped while something runs", "stop", func(w *world, a *process) {
			a.running(1)
			w.check.stopped(w, a)
		}},
		{"stopped with something abandoned", "", func(w *world, a *process) {
			a.running(1).abandoned = true
			w.check.stopped(w, a)
		}},
		{"not stopped in time", "stop", func(w *world, a *process) {
			a.stopBy = w.now
			w.check.stopOverdue(w, a)
		}},
		{"not stopped in time, but paused meanwhile", "", func(w *world, a *process) {
			a.stopBy, a.watch.paused, a.watch.pausedTill = w.now, true, w.now-time.Second
			w.check.stopOverdue(w, a)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, a, _ := scene(t)
			c.do(w, a)
			demand(t, w, c.rule)
		})
	}
}

// Liveness: an empty store with healthy processes is not well. In a cluster that was well, nothing
// may change.
func TestLiveness(t *testing.T) {
	t.Parallel()
	w, _, _ := scene(t)
	w.check.checkWellBy(w, "I5")
	demand(t, w, "I5")

	for _, kind := range []daemon.EventKind{daemon.LeaderElected, daemon.NodeDeaf, daemon.AssignmentRevoking} {
		w, a, _ := scene(t)
		e := happened(1, kind, 1, 1, a.who.Incarnation)
		w.check.well[0] = true
		w.check.checkNothingMoves(w, &e, 0)
		demand(t, w, "") // it was not found well
		w.check.settled = true
		w.check.checkNothingMoves(w, &e, 0)
		demand(t, w, "I5")
	}
}

// After a kill in a cluster that was well, the bounds of checkAfterKill count to the millisecond.
func TestSharpBounds(t *testing.T) {
	t.Parallel()
	s := onStage(t, Config{Nodes: 3}).begin()
	p := s.leader()
	units := []*unit{p.runs[0].u}
	p.kill()
	for _, h := range s.hosts {
		h.proc.tickGen++ // no timer fires any more, so no node reacts
	}
	s.check.checkAfterKill(s.world, units, true)
	if err := s.runFor(s.t.LeaseDuration + time.Second); err == nil {
		t.Error("nobody led after the leader's death, and nobody noticed")
	}
}

// The text of a violation says how to replay it.
func TestViolationReportsItsSeed(t *testing.T) {
	t.Parallel()
	w, _, _ := scene(t)
	w.violate("I9", "something %s", "broke")
	w.violate("I9", "something else broke")
	err := w.runFor(time.Second)
	var v *Violation
	if !errors.As(err, &v) || v.Seed != 1 || !strings.Contains(err.Error(), "I9 broken at 1h0m0s of seed 1: something broke") {
		t.Errorf("%v", err)
	}
}
