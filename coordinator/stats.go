package coordinator

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/internal/coordinator/supervisor"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// stats turns the store's answers into metrics and spans. Only the loop uses it. It takes part in
// no decision.
type stats struct {
	c *Coordinator
	m *instruments

	// seen is the term in the newest reply, and expires the end of its lease.
	seen    node.Term
	expires time.Time
	// own are the states of this node's units, as in the newest reply.
	own map[daemon.Unit]daemon.State
	// freed is since when each free unit is free; only the leader fills it.
	freed map[daemon.Unit]time.Time
	// counted are the units that the newest snapshot counted, and counts their numbers.
	counted []daemon.Record
	counts  map[daemon.State]int64
}

func newStats(c *Coordinator) *stats {
	return &stats{c: c, m: c.m, own: map[daemon.Unit]daemon.State{}, freed: map[daemon.Unit]time.Time{}}
}

// answered handles the answer to a call.
func (st *stats) answered(q callInFlight, r member.Result) {
	took := time.Since(q.began)
	switch {
	case q.call.Heartbeat != nil:
		st.heartbeat(q, r, took)
	case q.call.Report != nil:
		st.report(q.call.Report, r)
	case q.call.Commit != nil:
		st.commit(q.call.Commit, r, q.began)
	case r.Snapshot != nil:
		st.snapshot(r.Snapshot)
	}
}

// heartbeat records the duration of a heartbeat, and of the renewal or campaign that it carried.
func (st *stats) heartbeat(q callInFlight, r member.Result, took time.Duration) {
	request := q.call.Heartbeat.TermRequest
	// Fast calls without an error are the rule and carry no information, so only the others become
	// spans.
	remarkable := r.Err != nil || took > q.call.Timeout/2
	st.m.recordDuration(st.m.heartbeat, took, r.Err)
	switch {
	case request.Renew != 0:
		st.m.recordDuration(st.m.renew, took, r.Err)
		if remarkable {
			st.m.span("emitd.renew", q.began, r.Err, attribute.Int64("emitd.term", request.Renew))
		}
	case request.Campaign:
		outcome := "lost"
		if r.Reply != nil && r.Reply.Verdict == storage.Elect {
			outcome = "won"
		}
		st.m.recordDuration(st.m.election, took, r.Err, attribute.String("emitd.outcome", outcome))
		if remarkable || outcome == "won" {
			st.m.span("emitd.elect", q.began, r.Err, attribute.String("emitd.outcome", outcome))
		}
	}
	if r.Reply != nil {
		st.reply(q.began, took, r.Reply)
	}
}

// reply records what a reply shows: the offset of the clocks, the term, this node's units.
func (st *stats) reply(began time.Time, took time.Duration, r *storage.Reply) {
	middle := began.Add(took / 2)
	offset := middle.Sub(r.Now)
	st.m.clockOffset.Store(&offset)
	st.c.storeClock.Store(&reading{r.Now, middle})
	if r.Verdict == storage.Elect && st.seen.Held() {
		st.m.recordDuration(st.m.leaderless, r.Term.ElectedAt.Sub(st.expires), nil)
	}
	st.seen, st.expires = r.Term, r.Lease.ExpiresAt
	clear(st.own)
	for i := range r.Units {
		st.own[r.Units[i].Unit] = r.Units[i].State
	}
}

// elected drops what an earlier term of this node has collected.
func (st *stats) elected() {
	clear(st.freed)
	st.counted = nil
}

// report counts the steps that this node has reported.
func (st *stats) report(sent *storage.Report, r member.Result) {
	steps := make(map[daemon.Unit]daemon.Step, len(sent.Units))
	for i := range sent.Units {
		steps[sent.Units[i].Unit] = sent.Units[i].Step
	}
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if !o.Applied {
			continue
		}
		step := steps[o.Unit]
		st.step(st.own[o.Unit], o.Record.State, string(step))
		st.own[o.Unit] = o.Record.State
		id := supervisor.MetricID(o.Unit.Daemon)
		switch step {
		case daemon.Acknowledge:
			st.m.recordDuration(st.m.acknowledge, o.Record.Since.Sub(o.Record.AssignedAt), nil, id)
		case daemon.Confirm:
			st.m.recordDuration(st.m.drain, o.Record.Since.Sub(o.Record.RevokedAt), nil, id)
		}
	}
}

// commit counts the steps that this leader has committed.
func (st *stats) commit(sent *storage.Commit, r member.Result, began time.Time) {
	st.m.span("emitd.reconcile", began, r.Err, attribute.Int64("emitd.term", sent.Term.Number),
		attribute.Int("emitd.changes", len(sent.Changes)), attribute.Int("emitd.skipped", skipped(r.Outcomes)))
	// One commit may free a unit and assign it again. The outcomes of a unit are in the order of
	// its changes.
	changes := make(map[daemon.Unit][]*storage.Change, len(sent.Changes))
	for i := range sent.Changes {
		c := &sent.Changes[i]
		changes[c.Unit] = append(changes[c.Unit], c)
	}
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if len(changes[o.Unit]) == 0 {
			continue
		}
		c := changes[o.Unit][0]
		changes[o.Unit] = changes[o.Unit][1:]
		if !o.Applied || c.Step == "" {
			continue
		}
		st.step(c.State, o.Record.State, reason(c))
		if o.Record.State == daemon.Deleted {
			st.freed[o.Unit] = o.Record.Since
		}
	}
}

// skipped counts the changes that were not applied.
func skipped(outcomes []storage.Outcome) (n int) {
	for i := range outcomes {
		if !outcomes[i].Applied {
			n++
		}
	}
	return n
}

// reason names why the leader took a step, out of a fixed set of words.
func reason(c *storage.Change) string {
	switch {
	case c.Step != daemon.Expire:
		return string(c.Step)
	case c.Dead != nil:
		return "node_lost"
	case c.State == daemon.Assigning:
		return "ack_timeout"
	case c.State == daemon.Revoking:
		return "drain_timeout"
	}
	return string(c.Step)
}

// step counts one transition of an assignment.
func (st *stats) step(from, to daemon.State, reason string) {
	st.m.assignmentTransitions.Add(context.Background(), 1, metric.WithAttributes(st.m.cluster,
		attribute.String("from", string(from)), attribute.String("to", string(to)), attribute.String("reason", reason)))
}

// snapshot counts nodes and units. While nothing changes, a snapshot has the units of the one before, and their numbers.
func (st *stats) snapshot(s *daemon.Snapshot) {
	n := &counts{nodes: map[node.State]int64{}, units: st.counts}
	for i := range s.Nodes {
		state := s.Nodes[i].State
		if state == node.Live && s.Nodes[i].LeaderState != "" {
			state = s.Nodes[i].LeaderState
		}
		n.nodes[state]++
	}
	if len(s.Units) == 0 || len(s.Units) != len(st.counted) || &s.Units[0] != &st.counted[0] {
		n.units = st.countUnits(s.Units)
		st.counted, st.counts = s.Units, n.units
	}
	st.m.counts.Store(n)
}

// countUnits counts units by state, and records how long those that run again were free.
func (st *stats) countUnits(units []daemon.Record) map[daemon.State]int64 {
	n := map[daemon.State]int64{}
	for i := range units {
		u := &units[i]
		since, free := st.freed[u.Unit]
		switch {
		case u.Retired:
			delete(st.freed, u.Unit)
			continue
		case u.State.IsFree():
			n[shown(u, daemon.Unassigned)]++
			if !free {
				st.freed[u.Unit] = u.Since
			}
			continue
		case u.State == daemon.Active && free:
			st.m.recordDuration(st.m.unowned, u.Since.Sub(since), nil, supervisor.MetricID(u.Unit.Daemon))
			delete(st.freed, u.Unit)
		}
		n[shown(u, u.State)]++
	}
	if len(st.freed) == 0 {
		st.freed = map[daemon.Unit]time.Time{} // the old one stays as large as it was
	}
	return n
}

// shown returns the state under which a unit is counted.
func shown(u *daemon.Record, state daemon.State) daemon.State {
	if u.Crashing() {
		return crashing
	}
	return state
}
