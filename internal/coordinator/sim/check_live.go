package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// restartBound notes that a fault has just begun or ended. From now on the cluster has the whole bound to be well
// again.
func (w *world) restartBound(string) {
	c := &w.check
	c.settled, c.disturbedAt = false, w.now
	if !c.settleArmed {
		c.settleArmed = true
		w.queue.push(event{at: w.now + w.bound(), kind: evSettled})
	}
}

// bound returns the time within which the cluster must be well again, whatever happened before. It covers a lease
// that a step of the store's clock has lengthened, a TTL after a new store, a death, a forced end of a drain, and
// the brake, and a failed first attempt to run something. Then it covers a round of rebalancing.
func (w *world) bound() time.Duration {
	t := w.t
	return w.round() + t.LeaseDuration + 3*t.NodeRegistrationTTL + t.ForceAfter(w.longestDrain()) + w.placing() + t.SettleWindow
}

// placing returns the time within which a free unit that a member may run is running, after a failed first attempt.
func (w *world) placing() time.Duration { return 2*w.t.AcknowledgeTimeout + 4*w.t.HeartbeatInterval }

// round returns how long a round of rebalancing takes: the settle window, a forced end of the drains, and the starts.
func (w *world) round() time.Duration {
	t := w.t
	round := t.SettleWindow + t.ForceAfter(w.longestDrain()) + t.AcknowledgeTimeout + 2*t.HeartbeatInterval
	for _, k := range w.works {
		if k.OneByOne > 0 {
			round += k.Ready.Max
		}
	}
	return round
}

// longestDrain returns the longest drain timeout of any unit.
func (w *world) longestDrain() time.Duration {
	longest := w.t.DrainTimeout
	for _, k := range w.works {
		longest = max(longest, k.Spec.DrainTimeout)
	}
	return longest
}

// checkWell checks whether the cluster is well, once nothing has changed for the bound.
func (c *checks) checkWell(w *world) {
	c.settleArmed = false
	if due := c.disturbedAt + w.bound(); w.now < due {
		c.settleArmed = true
		w.queue.push(event{at: due, kind: evSettled})
		return
	}
	if w.server.down || w.server.fork != nil {
		return
	}
	w.stats.Settled++
	w.note(line{what: "settled?", proc: -1, unit: -1})
	c.roundUntil = 0
	c.checkWellBy(w, "I5")
	c.settled = w.fail == nil
	c.steadied = c.steadied && w.now < c.steadiedAt+w.bound() // its share may still be on the way
}

// healthy reports whether a process can do its part.
func (p *process) healthy() bool {
	return p != nil && p.state == running && !p.stopping && !p.host.cutOff && !p.host.deaf
}

// checkWellBy checks that the cluster is well: every healthy process is a member, one leads, and every unit that a
// healthy node may run is running.
func (c *checks) checkWellBy(w *world, rule string) {
	snap, err := w.server.store.Snapshot(context.Background())
	if err != nil {
		w.violate("I8", "snapshot: %v", err)
		return
	}
	c.grow(len(w.units))
	for i := range snap.Units {
		if b := c.model.checkRow(&snap.Units[i], w.unitAt); b != nil {
			w.violate(b.rule, "%s", b.what)
		}
	}
	members := w.members(snap)
	candidates := 0
	for _, p := range members {
		if !p.host.advert.Traits.NeverLead {
			candidates++
		}
	}
	c.checkMembers(w, snap)
	if candidates > 0 {
		c.checkOneLeads(w, snap, rule)
		c.checkUnitsRun(w, snap, members, rule)
		c.checkEvenLoads(w, snap, members)
		c.operations.checkAllAnswered(w, snap)
	}
}

// members returns the healthy processes that are live in the store.
func (w *world) members(snap *daemon.Snapshot) []*process {
	var out []*process
	for i := range snap.Nodes {
		m := &snap.Nodes[i]
		if p := w.byInc[m.Incarnation]; p.healthy() && w.in(m) {
			out = append(out, p)
		}
	}
	return out
}

// in reports whether a row is that of a live member. With Noise, one lost message may make it late.
func (w *world) in(m *node.Member) bool {
	return m.State == node.Live && (m.LeaderState == "" || m.LeaderState == node.Late && w.cfg.Faults&Noise != 0)
}

func (c *checks) checkMembers(w *world, snap *daemon.Snapshot) {
	for _, h := range w.hosts {
		p := h.proc
		if !p.healthy() || h.twin != nil {
			continue
		}
		in := false
		for i := range snap.Nodes {
			m := &snap.Nodes[i]
			in = in || m.Incarnation == p.who.Incarnation && w.in(m)
		}
		if !in {
			w.violate("I5", "p%02d is healthy and no live member", p.index)
		}
	}
}

func (c *checks) checkOneLeads(w *world, snap *daemon.Snapshot, rule string) {
	p := w.byInc[snap.Term.Leader.Incarnation]
	switch {
	case !snap.Term.Held() || p == nil:
		w.violate(rule, "nobody leads")
	case !p.healthy() || !p.watch.leading:
		w.violate(rule, "p%02d should lead term %d and does not (healthy: %v)", p.index, snap.Term.Number, p.healthy())
	}
}

func (c *checks) checkUnitsRun(w *world, snap *daemon.Snapshot, members []*process, rule string) {
	rows := make([]*daemon.Record, len(w.units))
	for i := range snap.Units {
		if u, ok := w.unitAt[snap.Units[i].Unit]; ok {
			rows[u] = &snap.Units[i]
		}
	}
	held := w.held(snap)
	for _, p := range members {
		if !p.hasRoom(held, 0) {
			w.violate(rule, "p%02d holds %d, at most %d", p.index, held[p], p.host.advert.Traits.MaxWeight)
		}
	}
	c.excuseByEmbargo(w, snap, rows, members, held)
	for i, u := range w.units {
		c.well[i] = false
		if u.Key != "" && (rows[i] == nil || rows[i].Retired) {
			if r := rows[i]; r != nil && !r.State.IsFree() && w.byInc[r.Holder.Incarnation].healthy() {
				w.violate(rule, "%s is %s on %s, although its key was removed", u.Unit, r.State, r.Holder.Name)
			}
			continue
		}
		// A standing command may keep a unit from running.
		if u.work.flaky() || w.deploying > 0 || len(snap.Commands) > 0 || len(w.able(u, rows[i], members, held)) == 0 {
			continue
		}
		if c.heldBack[i] || c.onItsWay(w, i) {
			continue
		}
		if why := w.notRunning(u, rows[i]); why != "" {
			w.violate(rule, "%s does not run: %s", u.Unit, why)
		}
		c.well[i] = true
	}
}

// able returns the members that could run the unit if no embargo kept it from them.
func (w *world) able(u *unit, row *daemon.Record, members []*process, held map[*process]int) []*process {
	return slices.DeleteFunc(slices.Clone(members), func(p *process) bool {
		// A unit that the process holds has room already.
		room := p.hasRoom(held, u.work.Spec.WithDefaults().Weight) || row != nil && row.HeldBy(p.who.Incarnation)
		return !room || !w.mayRun(p, u.work)
	})
}

func (w *world) mayRun(p *process, k *Work) bool {
	a := &p.host.advert
	spec := k.Spec.WithDefaults()
	if a.Traits.NoDaemons || !a.RunsKind(spec.Kind) {
		return false
	}
	for name, value := range spec.Requires {
		if a.Traits.Labels[name] != value {
			return false
		}
	}
	return true
}

// abandons reports whether the process has an abandoned run of the unit that has not returned.
func (p *process) abandons(u *unit) bool {
	return slices.ContainsFunc(p.runs, func(r *run) bool { return r.u == u && r.abandoned })
}

// checkReturn checks the end of an abandoned run. Within two heartbeats the store must know, and must no longer keep
// the unit from the process because of that run. The check applies only if nothing was broken meanwhile.
func (c *checks) checkReturn(w *world, r *run) {
	p, u, at := r.p, r.u, c.disturbedAt
	well := func() bool {
		return p.healthy() && !w.server.down && w.server.fork == nil && c.disturbedAt == at && w.fewFaults()
	}
	if !well() {
		return
	}
	within := w.t.HeartbeatInterval*22/10 + 2*w.t.QueryTimeout
	w.after(within, func() {
		snap, err := w.server.store.Snapshot(context.Background())
		if err != nil || !well() || p.abandons(u) {
			return
		}
		i := slices.IndexFunc(snap.Units, func(rec daemon.Record) bool { return rec.Unit == u.Unit })
		if i < 0 {
			return
		}
		w.stats.Returned++
		for _, e := range snap.Units[i].Embargoes {
			if e.Incarnation == p.who.Incarnation && e.AbandonedGeneration > 0 && e.InForce(snap.Now) {
				w.violate("A5", "%s is kept from p%02d for run %d, %v after that had returned", u.Unit, p.index, e.AbandonedGeneration, within)
			}
			if e.Length > longestEmbargo || e.AbandonedGeneration > 0 && e.Length > longestAbandoned {
				w.violate("A5", "an embargo of %s is %v long", u.Unit, e.Length)
			}
		}
	})
}

// fewFaults reports whether the network has at most occasional faults.
func (w *world) fewFaults() bool { return w.network.lose <= noise.lose }

// notRunning returns why a unit is not running properly; "" if it is.
func (w *world) notRunning(u *unit, row *daemon.Record) string {
	if row == nil {
		return "it has no row"
	}
	p := w.byInc[row.Holder.Incarnation]
	switch {
	case row.State != daemon.Active:
		return "its row says " + string(row.State)
	case !p.healthy():
		return "it is held by a process that is not healthy: " + string(row.Holder.Incarnation)
	case u.externalGeneration > row.Generation:
		return "its generation is below what a foreign resource has seen"
	}
	for _, r := range p.runs {
		if r.u == u && r.phase == live && r.fence.Generation == row.Generation {
			return ""
		}
	}
	return "no run of its generation is alive on " + string(row.Holder.Incarnation)
}

// checkNothingMoves checks that nothing changes in a cluster that was found well.
func (c *checks) checkNothingMoves(w *world, e *daemon.Event, unit int) {
	round := e.Kind == daemon.AssignmentRevoking && strings.HasPrefix(e.Reason, string(plan.Rebalancing))
	if round {
		c.movedAt[unit] = w.now
	}
	if !c.settled {
		return
	}
	switch e.Kind {
	case daemon.LeaderElected, daemon.LeaderLost:
		w.violate("I5", "%s of term %d in a cluster that was well", e.Kind, e.Term)
	case daemon.NodeRemoved, daemon.NodeLate, daemon.NodeDeaf:
		lost := e.Kind == daemon.NodeLate && w.cfg.Faults&Noise != 0 // one lost message is enough
		if p := w.byInc[e.Incarnation]; p.healthy() && !lost {
			w.violate("I5", "%s of the healthy p%02d", e.Kind, p.index)
		}
	}
	if round && (w.restless() || c.steadied || w.now < c.roundUntil) {
		c.well[unit] = false // other units have moved since the cluster was even
	}
	if e.Kind == daemon.AssignmentActive && c.heldBack[unit] {
		c.heldBack[unit] = false
		c.roundBegins(w, w.roundAfterEmbargo())
	}
	if unit >= 0 && c.well[unit] {
		w.violate("I5", "%s of %s in a cluster that was well", e.Kind, e.Unit)
	}
}

// checkAfterKill checks the bounds after a kill -9 in a cluster that was well. units are those that the victim ran; led is
// whether it led.
func (c *checks) checkAfterKill(w *world, units []*unit, led bool) {
	t := w.t
	takeover := t.LeaseDuration + 250*time.Millisecond
	if w.cfg.Store.NoClock {
		takeover += t.Late() // until a candidate has observed the last renewal
	}
	died, at := w.now, c.disturbedAt
	if led {
		w.after(takeover, func() {
			if c.disturbedAt == at && len(c.leaderTerms) == 0 && w.anyCandidate() {
				w.violate("I5", "nobody leads %v after the leader was killed", w.now-died)
			}
		})
	}
	wake := 50 * time.Millisecond
	if w.cfg.Store.NoWakeUps {
		wake = t.HeartbeatInterval*11/10 + t.QueryTimeout
	}
	again := max(t.NodeRegistrationTTL, takeover+t.Grace()) + 100*time.Millisecond + wake
	switch {
	case w.cfg.Store.NoClock && led: // only what the next leader has observed itself counts
		again = takeover + t.NodeRegistrationTTL + 100*time.Millisecond + wake
	case w.cfg.Store.NoClock: // this leader observed the last heartbeat up to an interval late
		again += t.Late()
	}
	queued := time.Duration(0) // behind starts that the machine makes one after another
	for _, k := range w.works {
		if k.OneByOne > 0 {
			queued += k.Ready.Max
		}
	}
	for _, u := range units {
		w.after(again+queued+u.work.Ready.Max, func() {
			if c.disturbedAt != at || len(u.live) > 0 || u.enteredAt > died { // a unit that ran again may move since
				return
			}
			if w.anyCandidate() && w.canRun(u) {
				w.violate("I5", "%s does not run %v after its node was killed", u.Unit, w.now-died)
			}
		})
	}
	w.stats.Kills++
}

func (w *world) anyCandidate() bool {
	for _, h := range w.hosts {
		if h.proc.healthy() && !h.advert.Traits.NeverLead {
			return true
		}
	}
	return false
}

// canRun reports whether a healthy node may run the unit now.
func (w *world) canRun(u *unit) bool {
	snap, err := w.server.store.Snapshot(context.Background())
	if err != nil {
		return false
	}
	i := slices.IndexFunc(snap.Units, func(r daemon.Record) bool { return r.Unit == u.Unit })
	if i < 0 {
		return false
	}
	able := w.able(u, &snap.Units[i], w.members(snap), w.held(snap))
	return len(able) > 0 && keptFor(u, &snap.Units[i], able, snap.Now) <= 0
}
