package storagetest

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

var reportStories = []story{
	{"exactly the pairs of the lifecycle table are accepted", 0, followsTable},
	{"the leader's steps are not the holder's to report", 0, refusesLeadersSteps},
	{"only the exact holder and generation may report", 0, wantsExactHolder},
	{"repeating one's own report is harmless", 0, repeatsHarmlessly},
	{"an acknowledgement makes the unit active and keeps its failures", 0, acknowledges},
	{"a run that fails again and again is counted, told once, and forgotten once it is well", 0, countsFailures},
	{"a unit that runs keeps the reason of its assignment", 0, keepsReason},
	{"a release with an error is one failure event", 0, releases},
	{"embargoes grow by strikes and never shrink", 0, embargoes},
	{"embargoes of processes that are gone are dropped", Sweeps, dropsEmbargoes},
	{"an abandoned unit is kept from its process", 0, abandons},
	{"the return of an abandoned run ends its embargo", 0, liftsReturned},
	{"the return of an abandoned run ends no other embargo", 0, liftsReturnedAlone},
	{"a refused heartbeat ends no embargo", 0, refusesReturn},
	{"a resumed run has a new generation and ends the old one", 0, resumes},
	{"a postponed assignment has a new generation and a new deadline", 0, postpones},
	{"a resumed generation is past whatever anybody has seen", 0, resumesPastSeen},
	{"one refused report disturbs no other", 0, decidesReportsAlone},
	{"steps of one unit in one report are taken in order", 0, reportsInOrder},
	{"a former holder's report is refused once the unit is elsewhere", 0, refusesFormerHolder},
}

// reportable are the holder's steps, leaderly the leader's.
var (
	reportable = []daemon.Step{
		daemon.Acknowledge, daemon.Confirm, daemon.Release, daemon.Abandon, daemon.Resume, daemon.Postpone, daemon.Fail, daemon.Recover,
	}
	leaderly = []daemon.Step{daemon.Assign, daemon.Revoke, daemon.Expire}
)

var allStates = []daemon.State{daemon.Unassigned, daemon.Assigning, daemon.Active, daemon.Revoking, daemon.Deleted}

func followsTable(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	for i, from := range allStates {
		for j, step := range reportable {
			u := daemon.Unit{Daemon: "acme:table", Index: 10*i + j}
			r := l.bring(u, p, from)
			before, because := w.snapshot(), "why"
			if step.KeepsHolder() {
				because = r.Reason
			}
			out := p.report(storage.UnitReport{Unit: u, Generation: r.Generation, Step: step, Reason: "why"})[0]
			next, ok := daemon.Next(from, step)
			row := w.unit(u)
			w.equal("row as read", row, out.Record)
			switch events := w.history(before.Head); {
			case !ok:
				w.equal(string(step)+" in "+string(from)+" changes the row", out.Record, r)
				w.equal("events", len(events), 0)
			case step == daemon.Recover: // of what never failed
				w.equal("row", out.Record, r)
				w.equal("events", len(events), 0)
			default:
				w.equal(string(step)+" in "+string(from)+" is applied", out.Applied, true)
				w.equal("state", row.State, next)
				w.equal("reason", row.Reason, because)
				w.equal("holder", row.Holder, p.id)
				if step.IsHealthReport() {
					w.equal("since", row.Since, r.Since)
				} else {
					w.within("since", row.Since, before.Now, w.snapshot().Now)
				}
				w.equal("events", len(events), 1)
				w.equal("reason of the event", events[0].Reason, "why")
				w.equal("unit of the event", events[0].Unit, u)
				w.equal("generation of the event", events[0].Generation, row.Generation)
				w.equal("term of the event", events[0].Term, row.Term)
				w.equal("node of the event", events[0].Incarnation, p.id.Incarnation)
			}
		}
	}
}

func refusesLeadersSteps(w *world) {
	l, peers := w.cluster(1)
	for i, from := range allStates {
		u := daemon.Unit{Daemon: "acme:table", Index: i}
		r := l.bring(u, peers[0], from)
		w.unchangedUnit(u, func() {
			for _, step := range append([]daemon.Step{"", "explode"}, leaderly...) {
				out := peers[0].report(storage.UnitReport{Unit: u, Generation: r.Generation, Step: step})[0]
				w.equal("outcome of "+string(step), out, storage.Outcome{Unit: u, Record: r})
			}
		})
	}
}

// unchangedUnit runs act and ends the story if a unit's row or the history has changed; the
// reporting node's row may.
func (w *world) unchangedUnit(u daemon.Unit, act func()) {
	w.Helper()
	row, head := w.unit(u), w.snapshot().Head
	act()
	w.equal("row", w.unit(u), row)
	w.equal("head", w.snapshot().Head, head)
}

func wantsExactHolder(w *world) {
	l, peers := w.cluster(2)
	a, b := peers[0], peers[1]
	twin := a.again()
	twin.beat(advert(plain), ttl(0))
	for i, from := range []daemon.State{daemon.Assigning, daemon.Active, daemon.Revoking, daemon.Deleted} {
		u := daemon.Unit{Daemon: "acme:exact", Index: i}
		r := l.bring(u, a, from)
		w.unchangedUnit(u, func() {
			for _, step := range reportable {
				report := storage.UnitReport{Unit: u, Generation: r.Generation, Step: step}
				for _, p := range []*peer{b, twin, l.peer} {
					w.equal("outcome for another", p.report(report)[0], storage.Outcome{Unit: u, Record: r})
				}
				for _, d := range []int64{-1, 1, -r.Generation} {
					wrong := report
					wrong.Generation += d
					w.equal("outcome of another generation", a.report(wrong)[0], storage.Outcome{Unit: u, Record: r})
				}
			}
			missing := storage.UnitReport{Unit: daemon.Unit{Daemon: "acme:nothing"}, Generation: r.Generation, Step: daemon.Acknowledge}
			w.equal("outcome of no unit", a.report(missing)[0], storage.Outcome{Unit: missing.Unit})
		})
	}
}

func repeatsHarmlessly(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	for i, c := range []struct {
		from daemon.State
		step daemon.Step
	}{
		{daemon.Assigning, daemon.Acknowledge},
		{daemon.Revoking, daemon.Confirm},
		{daemon.Revoking, daemon.Abandon},
		{daemon.Assigning, daemon.Release},
		{daemon.Active, daemon.Release},
	} {
		u := daemon.Unit{Daemon: "acme:again", Index: i}
		r := l.bring(u, p, c.from)
		report := storage.UnitReport{Unit: u, Generation: r.Generation, Step: c.step, Reason: "first", Error: "boom", Failures: 2, Embargo: time.Minute}
		first := p.report(report)[0]
		w.equal("applied", first.Applied, true)
		w.unchangedUnit(u, func() {
			report.Reason, report.Error = "second", "bang"
			for range 2 {
				w.equal("outcome of the repetition", p.report(report)[0], first)
			}
		})
	}
}

func acknowledges(w *world) {
	l, peers := w.cluster(2)
	r := l.assign(unit0, peers[0])
	out := peers[0].report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Release, Error: "no disk", Failures: 3})
	w.equal("failures", out[0].Record.Failures, 3)
	r = l.assign(unit0, peers[1])
	head := w.snapshot().Head
	got := peers[1].step(r, daemon.Acknowledge)
	want := r
	want.State, want.Since, want.Failures = daemon.Active, got.Since, 3
	w.equal("row", got, want)
	w.equal("kind", w.history(head)[0].Kind, daemon.AssignmentActive)
}

func countsFailures(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.bring(unit0, p, daemon.Active)
	head, before := w.snapshot().Head, w.snapshot().Now
	fail := func(n int, why string) daemon.Record {
		w.Helper()
		out := p.report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Fail, Reason: why, Error: why, Failures: n, RetryIn: time.Minute})[0]
		w.equal("applied", out.Applied, true)
		w.equal("row as read", w.unit(unit0), out.Record)
		return out.Record
	}
	one := fail(2, "boom")
	w.equal("failures", one.Failures, 2)
	w.equal("error", one.Error, "boom")
	w.within("failing since", one.FailingSince, before, w.snapshot().Now)
	w.within("next try", one.RetryAt, before.Add(time.Minute), w.snapshot().Now.Add(time.Minute))
	two := fail(7, "bang")
	w.equal("failures", two.Failures, 7)
	w.equal("error", two.Error, "bang")
	w.equal("failing since", two.FailingSince, one.FailingSince)
	w.equal("failures after a report that was overtaken", fail(3, "bang").Failures, 7)
	events := w.history(head)
	w.equal("events", len(events), 1)
	w.equal("kind", events[0].Kind, daemon.AssignmentFailing)

	// A new run does not reset the failures only because it has begun.
	given := p.report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Release, Error: "bang", Failures: 2})[0].Record
	w.equal("failures", given.Failures, 9)
	w.equal("failing since", given.FailingSince, one.FailingSince)
	w.equal("next try", given.RetryAt.IsZero(), true)
	r = p.step(l.assign(unit0, p), daemon.Acknowledge)
	w.equal("failures of the next run", r.Failures, 9)

	head = w.snapshot().Head
	well := p.step(r, daemon.Recover)
	w.equal("failures", well.Failures, 0)
	w.equal("failing since", well.FailingSince.IsZero(), true)
	w.equal("state", well.State, daemon.Active)
	w.equal("since", well.Since, r.Since)
	p.step(well, daemon.Recover)
	events = w.history(head)
	w.equal("events", len(events), 1)
	w.equal("kind", events[0].Kind, daemon.AssignmentRecovered)
}

func keepsReason(w *world) {
	l, peers := w.cluster(1)
	l.change(storage.Change{Unit: unit0})
	r := l.change(storage.Change{Unit: unit0, State: daemon.Unassigned, Step: daemon.Assign, To: peers[0].id, Reason: "least loaded"})
	for _, step := range []daemon.Step{daemon.Acknowledge, daemon.Resume, daemon.Resume} {
		for _, reason := range []string{"", "former run had ended"} {
			head := w.snapshot().Head
			out := peers[0].report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: step, Reason: reason})[0]
			w.equal("applied", out.Applied, true)
			r = out.Record
			w.equal("reason after "+string(step), r.Reason, "least loaded")
			w.equal("reason as read", w.unit(unit0).Reason, "least loaded")
			if e := w.history(head); len(e) > 0 { // a second acknowledgement is none
				w.equal("reason of the event", e[0].Reason, reason)
			}
		}
	}
	r = l.change(on(r, daemon.Revoke, func(c *storage.Change) { c.Reason = "node draining" }))
	w.equal("reason once it is asked back", r.Reason, "node draining")
}

func releases(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	for i, c := range []struct {
		err      string
		failures int
		want     int
		kind     daemon.EventKind
	}{
		{"", 0, 0, daemon.AssignmentDeleted},
		{"boom", 0, 1, daemon.AssignmentFailed},
		{"bang", 4, 5, daemon.AssignmentFailed},
		{"", 3, 5, daemon.AssignmentDeleted},
	} {
		r := l.assign(unit0, p)
		head := w.snapshot().Head
		got := p.report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Release, Reason: "why", Error: c.err, Failures: c.failures})[0].Record
		w.equal("state", got.State, daemon.Deleted)
		w.equal("forced", got.Forced, false)
		w.equal("failures", got.Failures, c.want)
		w.equal("error", got.Error, []string{"", "boom", "bang", "bang"}[i])
		e := w.history(head)
		w.equal("events", len(e), 1)
		w.equal("kind", e[0].Kind, c.kind)
		w.equal("reason", e[0].Reason, "why")
	}
}

func embargoes(w *world) {
	l, peers := w.cluster(2)
	strike := func(p *peer, d time.Duration) []daemon.Embargo {
		w.Helper()
		r := l.assign(unit0, p)
		return p.report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Release, Reason: "why", Embargo: d})[0].Record.Embargoes
	}
	find := func(list []daemon.Embargo, p *peer) daemon.Embargo {
		for _, e := range list {
			if e.Incarnation == p.id.Incarnation {
				return e
			}
		}
		return daemon.Embargo{}
	}
	a, b := peers[0], peers[1]
	before := w.snapshot().Now
	list := strike(a, time.Hour)
	w.equal("embargoes", len(list), 1)
	first := find(list, a)
	w.within("until", first.Until, before.Add(time.Hour), w.snapshot().Now.Add(time.Hour))
	w.equal("strikes", first.Strikes, 1)
	w.equal("length", first.Length, time.Hour)

	list = strike(a, time.Second)
	w.equal("strikes", find(list, a).Strikes, 2)
	w.holds(find(list, a).Until.Equal(first.Until), "a shorter embargo ended the longer one")
	w.equal("length of the longer one", find(list, a).Length, time.Hour)
	list = strike(a, 2*time.Hour)
	w.equal("strikes", find(list, a).Strikes, 3)
	w.holds(find(list, a).Until.After(first.Until), "a longer embargo did not count")
	w.equal("length of the latest", find(list, a).Length, 2*time.Hour)
	list = strike(b, time.Minute)
	w.equal("embargoes", len(list), 2)
	w.equal("strikes of the other", find(list, b).Strikes, 1)
	w.equal("strikes of the first", find(list, a).Strikes, 3)
	w.equal("embargoes as read", w.unit(unit0).Embargoes, list)
	w.equal("embargoes after a release without one", strike(a, 0), list)
}

// dropsEmbargoes: otherwise a unit that meets a new process every day would collect all their
// embargoes.
func dropsEmbargoes(w *world) {
	l, peers := w.cluster(3)
	var list []daemon.Embargo
	for i, p := range peers {
		r := l.assign(unit0, p)
		list = p.report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Release, Embargo: long})[0].Record.Embargoes
		if i == 0 {
			p.leave(storage.Leave{Deregister: true})
		}
	}
	w.equal("embargoes while the tombstone is there", len(list), 3)
	_, err := w.sweep().SweepNodes(w.ctx, w.sweeper(), over, 100)
	w.ok(err)
	p := peers[1]
	r := l.assign(unit0, p)
	list = p.report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Release, Embargo: long})[0].Record.Embargoes
	w.equal("embargoes at the next strike", len(list), 2)
	for _, e := range list {
		w.holds(e.Incarnation != peers[0].id.Incarnation, "the embargo of a process that is gone was kept")
	}
}

func abandons(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.bring(unit0, p, daemon.Revoking)
	head := w.snapshot().Head
	got := p.report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Abandon, Reason: "ignored its context", Embargo: time.Minute})[0].Record
	w.equal("state", got.State, daemon.Deleted)
	w.equal("forced", got.Forced, true)
	w.equal("embargoes", got.Embargoes, []daemon.Embargo{
		{Incarnation: p.id.Incarnation, Node: p.id.Name, Until: got.Since.Add(time.Minute), Length: time.Minute, Strikes: 1, AbandonedGeneration: r.Generation, Reason: "ignored its context"},
	})
	e := w.history(head)
	w.equal("events", len(e), 1)
	w.equal("kind", e[0].Kind, daemon.AssignmentAbandoned)
	w.equal("reason", e[0].Reason, "ignored its context")
}

func resumes(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.bring(unit0, p, daemon.Active)
	head := w.snapshot().Head
	got := p.step(r, daemon.Resume)
	w.equal("generation", got.Generation, r.Generation+1)
	want := r
	want.Generation, want.Since = got.Generation, got.Since
	w.equal("row", got, want)
	e := w.history(head)
	w.equal("events", len(e), 1)
	w.equal("kind", e[0].Kind, daemon.AssignmentResumed)
	w.equal("generation of the event", e[0].Generation, got.Generation)

	w.unchangedUnit(unit0, func() {
		for _, step := range reportable {
			out := p.report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: step})[0]
			w.equal("outcome of "+string(step)+" by the former run", out, storage.Outcome{Unit: unit0, Record: got})
		}
		w.equal("a revoke of the former run", l.commit(on(r, daemon.Revoke))[0].Applied, false)
	})
	p.step(l.change(on(got, daemon.Revoke)), daemon.Confirm)
}

func postpones(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.bring(unit0, p, daemon.Assigning)
	w.ok(w.Store.StampFence(w.ctx, daemon.Fence{Unit: unit0, Generation: r.Generation + 20}))
	before := w.snapshot()
	got := p.report(storage.UnitReport{
		Unit: unit0, Generation: r.Generation, Step: daemon.Postpone, Reason: "why", AcknowledgeTimeout: 17 * time.Second,
	})[0].Record
	w.equal("generation, above the fence", got.Generation, r.Generation+21)
	w.within("assigned_at", got.AssignedAt, before.Now, w.snapshot().Now)
	want := r
	want.Generation, want.Since, want.AssignedAt, want.AcknowledgeTimeout = got.Generation, got.Since, got.AssignedAt, 17*time.Second
	w.equal("row", got, want)
	w.equal("row as read", w.unit(unit0), want)
	e := w.history(before.Head)
	w.equal("events", len(e), 1)
	w.equal("kind", e[0].Kind, daemon.AssignmentPostponed)
	w.equal("generation of the event", e[0].Generation, got.Generation)
	w.unchangedUnit(unit0, func() {
		for _, step := range reportable {
			out := p.report(storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: step})[0]
			w.equal("outcome of "+string(step)+" under the former generation", out, storage.Outcome{Unit: unit0, Record: got})
		}
		w.equal("an expiry decided before", l.commit(on(r, daemon.Expire))[0].Applied, false)
	})
	same := p.step(got, daemon.Postpone)
	w.equal("timeout when none is given", same.AcknowledgeTimeout, 17*time.Second)
	p.step(same, daemon.Acknowledge)
}

func resumesPastSeen(w *world) {
	l, peers := w.cluster(2)
	p := peers[0]
	r := l.bring(unit0, p, daemon.Active)
	n := r.Generation
	resume := func(highest int64) int64 {
		w.Helper()
		out, err := p.via.Report(w.ctx, storage.Report{
			Node: p.id, Seq: p.next(), HighestGeneration: highest,
			Units: []storage.UnitReport{{Unit: unit0, Generation: w.unit(unit0).Generation, Step: daemon.Resume}},
		})
		w.ok(err)
		w.equal("applied", out[0].Applied, true)
		return out[0].Record.Generation
	}
	w.equal("generation after the reporter's highest", resume(n+50), n+51)
	peers[1].beat(highest(0, n+70))
	w.equal("generation after another's highest", resume(0), n+71)
	w.ok(w.Store.StampFence(w.ctx, daemon.Fence{Unit: unit0, Generation: n + 90}))
	w.equal("generation after the fence", resume(0), n+91)
}

func decidesReportsAlone(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	good, bad, gone := l.assign(unit0, p), l.assign(unit1, p), l.assign(unit2, p)
	l.change(on(gone, daemon.Expire))
	out := p.report(
		storage.UnitReport{Unit: unit1, Generation: bad.Generation, Step: daemon.Confirm},
		storage.UnitReport{Unit: unit0, Generation: good.Generation, Step: daemon.Acknowledge},
		storage.UnitReport{Unit: unit2, Generation: gone.Generation, Step: daemon.Acknowledge},
		storage.UnitReport{Unit: unit1, Generation: bad.Generation, Step: daemon.Release},
	)
	for i, want := range []bool{false, true, false, true} {
		w.holds(out[i].Applied == want, "report %d: applied %v, want %v", i, out[i].Applied, want)
	}
	w.equal("unit of the second outcome", out[1].Unit, unit0)
	w.equal("state of what has gone", out[2].Record.State, daemon.Deleted)
}

func reportsInOrder(w *world) {
	l, peers := w.cluster(1)
	r := l.assign(unit0, peers[0])
	head := w.snapshot().Head
	out := peers[0].report(
		storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Acknowledge},
		storage.UnitReport{Unit: unit0, Generation: r.Generation, Step: daemon.Release, Error: "boom"},
	)
	w.equal("state after the first", out[0].Record.State, daemon.Active)
	w.equal("state after the second", out[1].Record.State, daemon.Deleted)
	e := w.history(head)
	w.equal("events", len(e), 2)
	w.equal("first", e[0].Kind, daemon.AssignmentActive)
	w.equal("second", e[1].Kind, daemon.AssignmentFailed)
}

func refusesFormerHolder(w *world) {
	l, peers := w.cluster(2)
	a, b := peers[0], peers[1]
	old := l.assign(unit0, a)
	l.change(on(old, daemon.Expire))
	now := l.assign(unit0, b)
	w.unchangedUnit(unit0, func() {
		for _, step := range reportable {
			w.equal("applied", a.report(storage.UnitReport{Unit: unit0, Generation: old.Generation, Step: step})[0].Applied, false)
			w.equal("applied with the new generation", a.report(storage.UnitReport{Unit: unit0, Generation: now.Generation, Step: step})[0].Applied, false)
		}
	})
	b.step(now, daemon.Acknowledge)
	// The unit comes back to the first process, whose former run still has no rights.
	l.change(on(w.unit(unit0), daemon.Expire))
	again := l.assign(unit0, a)
	w.equal("applied", a.report(storage.UnitReport{Unit: unit0, Generation: old.Generation, Step: daemon.Acknowledge})[0].Applied, false)
	a.step(again, daemon.Acknowledge)
}
