package storagetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// adverts are what processes of the model advertise.
var adverts = []daemon.Advert{
	plain,
	{Traits: node.Traits{Version: "v2", Labels: map[string]string{"zone": "b"}}, Kinds: []daemon.Kind{"acme:b", "acme:a"}},
	{Traits: node.Traits{Version: "v3", NeverLead: true}},
}

// actions are the possible next calls. Frequent ones are listed twice.
func (m *model) actions() map[string]func(*rapid.T) {
	out := map[string]func(*rapid.T){
		"beat": m.beats, "beat again": m.beats,
		"take over": m.takesOver,
		"commit":    m.commits, "commit again": m.commits,
		"report": m.reports, "report again": m.reports,
		"leave":  m.leaves,
		"judge":  m.changesNode,
		"stamp":  m.stampsFence,
		"submit": m.submits,
		"answer": m.answers,
		"page":   m.readsPage,
	}
	if m.exact {
		out["wait"] = m.waits
	}
	if m.lacks&Locks == 0 {
		out["lock"] = m.locks
	}
	if m.lacks&Sweeps == 0 {
		out["sweep"] = m.sweeps
	}
	if m.lacks&States == 0 {
		out["save"], out["save again"] = m.savesState, m.savesState
	}
	if m.lacks&Keys == 0 {
		out["keys"], out["keys again"] = m.changesKeys, m.changesKeys
	}
	return out
}

// among draws one of the values; earlier ones come more often.
func among[T any](rt *rapid.T, label string, values ...T) T {
	i := min(rapid.IntRange(0, len(values)).Draw(rt, label), rapid.IntRange(0, len(values)).Draw(rt, label+"'"))
	return values[min(i, len(values)-1)]
}

func chance(rt *rapid.T, label string, percent int) bool {
	return rapid.IntRange(1, 100).Draw(rt, label) <= percent
}

// length draws a duration. Without a frozen clock, it draws only ones that make no difference to
// any clock.
func (m *model) length(rt *rapid.T, label string) time.Duration {
	if m.exact {
		return among(rt, label, long, time.Minute, over, time.Millisecond, 0)
	}
	return among(rt, label, long, over)
}

func (m *model) process(rt *rapid.T) node.Identity {
	return m.processes[rapid.IntRange(0, len(m.processes)-1).Draw(rt, "process")]
}

func (m *model) unit(rt *rapid.T) daemon.Unit {
	return m.units[rapid.IntRange(0, len(m.units)-1).Draw(rt, "unit")]
}

// beats sends a heartbeat with any claim, fresh or stale.
func (m *model) beats(rt *rapid.T) {
	who := m.process(rt)
	step := among(rt, "seq", 1, 1, 1, 2, 0, -1)
	variant := among(rt, "advert", -1, 0, 1, 2)
	ttl := among(rt, "ttl", long, 0)
	if m.exact {
		ttl = among(rt, "ttl", long, time.Minute, 0)
	}
	claims := among(rt, "claims", "renews", "nothing", "stands", "stands after its loss")
	number, renewals := among(rt, "number", 0, 0, 0, -1, 1), among(rt, "renewals", 0, 0, 0, -1, 1)
	b := storage.Heartbeat{
		Node: who, TTL: ttl,
		EventsAfter: among(rt, "after", int64(0), -1, 3, 1000), WantMembers: chance(rt, "members", 20),
		TermRequest: storage.TermRequest{Lease: m.length(rt, "lease"), Unchanged: chance(rt, "unchanged", 30), PassSeq: rapid.Uint64Range(0, 9).Draw(rt, "passes")},
	}
	if chance(rt, "proves an end", 15) {
		b.ExitEvidence = []node.Incarnation{m.process(rt).Incarnation, m.process(rt).Incarnation}
	}
	leaderEnded := chance(rt, "proves the leader's end", 15)
	back, backBy := m.unit(rt), int64(-2)
	if chance(rt, "tells a return", 20) {
		backBy = among(rt, "of the run", int64(0), 0, 1, -1)
	}
	heard := among(rt, "heard", 0, 1, -1)
	termPlus, genPlus := among(rt, "highest term", 0, 0, 0, 1, 50), among(rt, "highest generation", 0, 0, 0, 1, 50)
	m.do(rt, fmt.Sprintf("%s beats (seq %+d, advert %d, %s, proves the end of %v, of the leader: %v, returned: %v %+d)", who.Incarnation, step, variant, claims, b.ExitEvidence, leaderEnded, back, backBy), func(s *side) string {
		beat := b
		if leader := s.snap.Term.Leader.Incarnation; leaderEnded && leader != "" {
			beat.ExitEvidence = []node.Incarnation{leader}
		}
		if backBy > -2 {
			beat.ReturnedRuns = []daemon.Fence{{Unit: back, Generation: s.unit(back).Generation + backBy}}
		}
		beat.Seq, beat.ConfirmedSeq = seqPlus(s.row(who).Seq, step), seqPlus(s.row(who).ConfirmedSeq, heard)
		if variant >= 0 {
			beat.Advert = &adverts[variant]
		}
		t := s.snap.Term.Number + int64(number)
		beat.TermRequest.SeenTerm, beat.TermRequest.SeenRenewals = t, s.snap.Lease.Renewals+int64(renewals)
		switch claims {
		case "renews":
			beat.TermRequest.Renew = t
		case "stands":
			beat.TermRequest.Campaign = true
		case "stands after its loss":
			beat.TermRequest.Campaign, beat.TermRequest.LostThrough = true, t
		}
		if termPlus > 0 {
			beat.HighestTerm = s.snap.Term.Number + int64(termPlus)
		}
		if genPlus > 0 {
			beat.HighestGeneration = s.highest() + int64(genPlus)
		}
		return s.beat(beat)
	})
}

// seqPlus is a sequence number by its distance from the row's.
func seqPlus(n uint64, step int) uint64 { return uint64(max(int64(n)+int64(step), 0)) }

// takesOver makes another process the leader, so that terms change often enough.
func (m *model) takesOver(rt *rapid.T) {
	who := m.process(rt)
	lease := m.length(rt, "lease")
	m.do(rt, fmt.Sprintf("%s takes over", who.Incarnation), func(s *side) string {
		return s.beat(storage.Heartbeat{
			Node: who, Seq: s.row(who).Seq + 1, Advert: &adverts[0], TTL: 0, EventsAfter: -1,
			TermRequest: storage.TermRequest{Lease: lease, Campaign: true, SeenTerm: s.snap.Term.Number, SeenRenewals: s.snap.Lease.Renewals, Unchanged: true},
		})
	})
}

// change is a leader's change in words.
type change struct {
	unit     daemon.Unit
	step     daemon.Step // "fit" is one that the row's state allows
	gen      int64       // distance from the row's
	state    daemon.State
	to       node.Identity
	dead     int // 0 none, 1 as seen, 2 another seq
	embargo  time.Duration
	forced   bool
	retired  bool
	ack, drn time.Duration
}

func (m *model) drawChange(rt *rapid.T) change {
	return change{
		unit:    m.unit(rt),
		step:    among(rt, "step", daemon.Step("fit"), "fit", "fit", daemon.Assign, daemon.Expire, daemon.Revoke, "", daemon.Acknowledge),
		gen:     among(rt, "generation", int64(0), 0, 0, 0, 1, -1),
		state:   among(rt, "state", daemon.State("as seen"), "as seen", "as seen", daemon.Active, ""),
		to:      m.process(rt),
		dead:    among(rt, "dead", 0, 1, 2),
		embargo: among(rt, "embargo", 0, long, 2*long),
		forced:  chance(rt, "forced", 50),
		retired: chance(rt, "retired", 20),
		ack:     among(rt, "ack", 0, time.Second), drn: among(rt, "drain", 0, time.Minute),
	}
}

// resolve turns a change into numbers, using the side's rows.
func (c change) resolve(s *side) storage.Change {
	r := s.unit(c.unit)
	out := storage.Change{
		Unit: c.unit, Step: c.step, State: r.State, To: c.to, Generation: r.Generation + c.gen,
		AcknowledgeTimeout: c.ack, DrainTimeout: c.drn, Reason: "r", Forced: c.forced, Retired: c.retired, Embargo: c.embargo,
	}
	if c.state != "as seen" {
		out.State = c.state
	}
	if c.step == "fit" {
		out.Step = map[daemon.State]daemon.Step{
			daemon.Unassigned: daemon.Assign, daemon.Deleted: daemon.Assign, daemon.Assigning: daemon.Expire,
			daemon.Active: daemon.Revoke, daemon.Revoking: daemon.Expire,
		}[r.State]
	}
	if c.dead > 0 && out.Step == daemon.Expire {
		out.Dead = &storage.NodeVersion{Incarnation: r.Holder.Incarnation, Seq: s.row(r.Holder).Seq + uint64(c.dead-1)}
	}
	return out
}

// commits commits some changes, mostly under the present term.
func (m *model) commits(rt *rapid.T) {
	changes := make([]change, among(rt, "changes", 1, 2, 3, 0))
	for i := range changes {
		changes[i] = m.drawChange(rt)
	}
	by, plus := among(rt, "term", "present", "present", "present", "present", "next", "another's"), among(rt, "highest", 0, 0, 1, 50)
	who := m.process(rt)
	m.do(rt, fmt.Sprintf("commit of %d under the %s term: %+v", len(changes), by, changes), func(s *side) string {
		c := storage.Commit{Term: s.snap.Term.Ref()}
		switch by {
		case "next":
			c.Term.Number++
		case "another's":
			c.Term.Node, c.Term.Incarnation = who.ID, who.Incarnation
		}
		if plus > 0 {
			c.HighestGeneration = s.highest() + int64(plus)
		}
		for _, change := range changes {
			c.Changes = append(c.Changes, change.resolve(s))
		}
		return s.commit(c)
	})
}

// changesNode commits a change that calls a node late or deaf, or declares it dead.
func (m *model) changesNode(rt *rapid.T) {
	who, step := m.process(rt), among(rt, "seq", 0, 0, 1)
	state := among(rt, "state", node.Removed, node.Late, node.Deaf, node.Live)
	m.do(rt, fmt.Sprintf("%s is judged %s (seq %+d)", who.Incarnation, state, step), func(s *side) string {
		return s.commit(storage.Commit{Term: s.snap.Term.Ref(), Nodes: []storage.NodeChange{{
			Guard: storage.NodeVersion{Incarnation: who.Incarnation, Seq: seqPlus(s.row(who).Seq, step)}, State: state, Reason: "j",
		}}})
	})
}

// reported is a holder's step in words.
type reported struct {
	unit   daemon.Unit
	gen    int64 // distance from the row's
	report storage.UnitReport
}

func (m *model) drawStep(rt *rapid.T) reported {
	return reported{m.unit(rt), among(rt, "generation", int64(0), 0, 0, 0, 1, -1), storage.UnitReport{
		Step: among(rt, "step", daemon.Step("fit"), "fit", "fit", daemon.Release, daemon.Resume, daemon.Postpone, daemon.Abandon, daemon.Acknowledge, daemon.Confirm, daemon.Expire,
			daemon.Fail, daemon.Recover),
		Reason: "r", RetryIn: among(rt, "retry", 0, long), Error: among(rt, "error", "", "boom"), Failures: among(rt, "failures", 0, 3), Embargo: among(rt, "embargo", 0, long, 2*long),
		AcknowledgeTimeout: among(rt, "ack", 0, time.Second),
	}}
}

// put turns a step into numbers, using the side's rows.
func (r reported) put(s *side) storage.UnitReport {
	row, out := s.unit(r.unit), r.report
	out.Unit, out.Generation = r.unit, row.Generation+r.gen
	if out.Step == "fit" {
		out.Step = map[daemon.State]daemon.Step{
			daemon.Assigning: daemon.Acknowledge, daemon.Active: daemon.Release, daemon.Revoking: daemon.Confirm,
		}[row.State]
	}
	return out
}

// twin returns the other process of the same member.
func (m *model) twin(who node.Identity) node.Identity {
	for _, other := range m.processes {
		if other.ID == who.ID && other.Incarnation != who.Incarnation {
			return other
		}
	}
	return who
}

// reports reports steps of one unit or two, mostly by its holder.
func (m *model) reports(rt *rapid.T) {
	who, step := m.process(rt), among(rt, "seq", 1, 1, 1, 0)
	speaker := among(rt, "by", "the holder", "the holder", "the holder", "its twin", "another")
	steps := make([]reported, among(rt, "units", 1, 2))
	for i := range steps {
		steps[i] = m.drawStep(rt)
	}
	plus := among(rt, "highest", 0, 0, 1, 50)
	m.do(rt, fmt.Sprintf("%s (or %s) reports (seq %+d) %+v", speaker, who.Incarnation, step, steps), func(s *side) string {
		by := who
		if h := s.unit(steps[0].unit).Holder; speaker == "the holder" && h.Incarnation != "" {
			by = h
		} else if speaker == "its twin" && h.Incarnation != "" {
			by = m.twin(h)
		}
		r := storage.Report{Node: by, Seq: seqPlus(s.row(by).Seq, step)}
		if plus > 0 {
			r.HighestGeneration = s.highest() + int64(plus)
		}
		for _, step := range steps {
			r.Units = append(r.Units, step.put(s))
		}
		return s.report(r)
	})
}

// leaves gives up any combination of term, units and registration.
func (m *model) leaves(rt *rapid.T) {
	who, step := m.process(rt), among(rt, "seq", 1, 1, 1, 0)
	byLeader := chance(rt, "by leader", 40)
	resign, number := chance(rt, "resign", 60), among(rt, "number", 0, 0, 1)
	l := storage.Leave{
		Drain: chance(rt, "drain", 30), DrainTimeout: time.Minute, Deregister: chance(rt, "deregister", 20), Reason: node.Shutdown,
		Command: among(rt, "command", "", uuid(4, 0), uuid(4, 1)), Actor: among(rt, "actor", "", "alice"),
	}
	m.do(rt, fmt.Sprintf("%s leaves (seq %+d, leader: %v, resign: %v %+d) %+v", who.Incarnation, step, byLeader, resign, number, l), func(s *side) string {
		l := l
		l.Node = who
		if byLeader && s.snap.Term.Number != 0 {
			l.Node = s.snap.Term.Leader
		}
		l.Seq = seqPlus(s.row(l.Node).Seq, step)
		if resign {
			l.Resign = s.snap.Term.Number + int64(number)
		}
		return s.text.err(s.store.Leave(context.Background(), l))
	})
}

// stampsFence stamps a fence near the unit's generation.
func (m *model) stampsFence(rt *rapid.T) {
	u, d := m.unit(rt), among(rt, "generation", int64(0), 0, -1, 1, 60)
	m.do(rt, fmt.Sprintf("stamp of %s at %+d", u, d), func(s *side) string {
		return s.text.err(s.store.StampFence(context.Background(), daemon.Fence{Unit: u, Generation: s.unit(u).Generation + d}))
	})
}

// savesState stamps a fence, or not, and saves a state with a revision near the present one.
func (m *model) savesState(rt *rapid.T) {
	u, d, stamped := m.unit(rt), among(rt, "generation", int64(0), 0, 0, -1, 1), chance(rt, "stamped", 70)
	step, events := among(rt, "revision", int64(1), 1, 1, 0, 2, -1), rapid.IntRange(0, 2).Draw(rt, "events")
	m.do(rt, fmt.Sprintf("state of %s at %+d, revision %+d, stamped: %v, %d events", u, d, step, stamped, events), func(s *side) string {
		states, ok := s.store.(daemon.StateStore)
		if !ok {
			return "no daemon.StateStore"
		}
		ctx, f := context.Background(), daemon.Fence{Unit: u, Generation: s.unit(u).Generation + d}
		if stamped {
			_ = s.store.StampFence(ctx, f) // a refusal is seen below
		}
		before, err := states.UnitStates(ctx, u)
		if err != nil {
			return s.text.err(err)
		}
		next := daemon.UnitState{Revision: step, Data: fmt.Appendf(nil, `{"by":%d}`, step)}
		if len(before) > 0 {
			next.Revision += before[0].Revision
		}
		answer := s.text.err(states.SaveUnitState(ctx, f, next, make([]daemon.Event, events)...))
		after, err := states.UnitStates(ctx, daemon.Unit{})
		if err != nil {
			return s.text.err(err)
		}
		for _, state := range after {
			answer += "\n" + s.text.unitState(state)
		}
		return answer
	})
}

// changesKeys adds some keys and removes others, or sweeps.
func (m *model) changesKeys(rt *rapid.T) {
	c := storage.KeyChange{Daemon: "acme:b", Actor: among(rt, "actor", "", "alice"), Reason: "why"}
	for _, u := range m.units {
		switch among(rt, "key", "add", "remove", "leave") {
		case "add":
			c.Add = append(c.Add, u.Key)
		case "remove":
			c.Remove = append(c.Remove, u.Key)
		}
	}
	c.Add = slices.DeleteFunc(c.Add, func(key string) bool { return key == "" })
	c.Remove = slices.DeleteFunc(c.Remove, func(key string) bool { return key == "" })
	u, d := m.unit(rt), among(rt, "generation", int64(-2), -2, 0, 1)
	sweep, age := chance(rt, "sweep", 30), m.length(rt, "age")
	m.do(rt, fmt.Sprintf("keys %+v fenced by %s at %+d, sweep of those older than %v: %v", c, u, d, age, sweep), func(s *side) string {
		keys, ok := s.store.(storage.KeyStore)
		if !ok {
			return "no storage.KeyStore"
		}
		ctx, c := context.Background(), c
		if d > -2 {
			c.Fence = daemon.Fence{Unit: u, Generation: s.unit(u).Generation + d}
		}
		counts, err := keys.ChangeKeys(ctx, c)
		answer := fmt.Sprint(counts, s.text.err(err))
		if sweep {
			f := daemon.Fence{Unit: sweeperUnit, Generation: 3}
			_ = s.store.StampFence(ctx, f) // a refusal is seen below
			n, err := keys.SweepUnits(ctx, f, age, 100)
			answer += fmt.Sprint(" swept ", n, s.text.err(err))
		}
		return answer
	})
}

// submits submits one of three commands.
func (m *model) submits(rt *rapid.T) {
	id, number := uuid(4, rapid.IntRange(0, 2).Draw(rt, "id")), among(rt, "number", -2, 0, 1)
	kind, actor := among(rt, "kind", daemon.CommandResign, daemon.CommandDrain, "other"), among(rt, "actor", "alice", "")
	m.do(rt, fmt.Sprintf("command %s (%s, term %+d)", id, kind, number), func(s *side) string {
		c := storage.Command{ID: id, Kind: kind, Actor: actor, Reason: "why"}
		if number > -2 {
			c.Term = s.snap.Term.Number + int64(number)
		}
		got, err := s.store.Submit(context.Background(), c)
		if err != nil {
			return s.text.err(err)
		}
		return s.text.command(*got)
	})
}

// answers commits results of two of the three commands.
func (m *model) answers(rt *rapid.T) {
	var results []storage.CommandResult
	for i := range among(rt, "results", 1, 2) {
		results = append(results, storage.CommandResult{
			ID:     uuid(4, i+among(rt, "first", 0, 1)),
			Result: among(rt, "result", daemon.ResultInForce, daemon.ResultRefused+": why"), Done: among(rt, "done", false, true),
		})
	}
	by := among(rt, "term", 0, 0, 0, 1)
	m.do(rt, fmt.Sprintf("the leader of term %+d answers %+v", by, results), func(s *side) string {
		c := storage.Commit{Term: s.snap.Term.Ref(), Commands: results}
		c.Term.Number += int64(by)
		return s.commit(c)
	})
}

// readsPage reads part of the history.
func (m *model) readsPage(rt *rapid.T) {
	after, limit := rapid.Int64Range(-1, 60).Draw(rt, "after"), rapid.IntRange(0, 10).Draw(rt, "limit")
	m.do(rt, fmt.Sprintf("events after %d, at most %d", after, limit), func(s *side) string {
		page, err := s.store.Events(context.Background(), after, limit)
		if err != nil {
			return s.text.err(err)
		}
		return s.text.page(page)
	})
}

// waits moves both clocks, also back.
func (m *model) waits(rt *rapid.T) {
	d := among(rt, "time", time.Second, time.Millisecond, 30*time.Second, time.Minute, long, -time.Minute, -long)
	m.do(rt, fmt.Sprintf("%v pass", d), func(s *side) string { s.advance(d); return "" })
}

// locks acquires, extends or releases a lock.
func (m *model) locks(rt *rapid.T) {
	name, who := among(rt, "name", "a", "b"), owner(rapid.IntRange(0, 2).Draw(rt, "owner"))
	what, ttl, number := among(rt, "what", "acquire", "extend", "release"), m.length(rt, "ttl"), among(rt, "number", int64(0), 0, 1)
	expired := rapid.Bool().Draw(rt, "expired")
	m.do(rt, fmt.Sprintf("%s %s lock %s for %v (number %+d, expired %t)", who, what, name, ttl, number, expired), func(s *side) string {
		return s.lock(what, name, who, ttl, number, expired)
	})
}

// sweeps removes old rows. Limits are not drawn, because the contract does not say which of several
// equally old rows goes first.
func (m *model) sweeps(rt *rapid.T) {
	what, age, keep := among(rt, "what", "nodes", "events", "locks"), m.length(rt, "age"), rapid.IntRange(0, 40).Draw(rt, "keep")
	least := rapid.IntRange(0, 40).Draw(rt, "least")
	generation := among(rt, "generation", int64(2), 2, 1)
	m.do(rt, fmt.Sprintf("sweep of %s older than %v, keeping %d to %d", what, age, least, keep), func(s *side) string {
		return s.sweep(what, daemon.Fence{Unit: sweeperUnit, Generation: generation}, storage.Retention{Age: age, MaxEvents: keep, MinEvents: least})
	})
}
