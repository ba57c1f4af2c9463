package sim

import (
	"context"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// director injects faults at times drawn from the seed. It works in episodes: some faults, then repair, then
// enough quiet time for the cluster to be well and to stay well for a while.
type director struct {
	w     *world
	kinds []Faults // those that happen in episodes
	due   int      // faults of this episode that are not over
}

func (d *director) begin(w *world) {
	d.w = w
	for k := Kill; k <= Standstill; k <<= 1 {
		if w.cfg.Faults&k != 0 {
			d.kinds = append(d.kinds, k)
		}
	}
	for _, k := range [...]Faults{Fork, Retime, Operate, Keys} {
		if w.cfg.Faults&k != 0 {
			d.kinds = append(d.kinds, k)
		}
	}
	d.quiet()
	if len(d.kinds) > 0 {
		w.after(w.bound()+w.upTo(w.t.NodeRegistrationTTL), d.episode)
	}
}

// noise is the rate of occasional faults of messages.
var noise = network{lose: 0.002, loseReply: 0.002, repeat: 0.004, slow: 0.002}

// quiet sets the network to its state between episodes.
func (d *director) quiet() {
	d.w.network = network{}
	if d.w.cfg.Faults&Noise != 0 {
		d.w.network = noise
	}
}

// episode begins the next episode.
func (d *director) episode() {
	w := d.w
	if w.calm && w.check.settled && w.cfg.Faults&Kill != 0 {
		d.sharpKill()
		return
	}
	w.calm = false
	n := 1
	spread := time.Duration(0)
	if w.chance(0.6) {
		n = 2 + w.rng.IntN(4)
		spread = w.upTo(3 * w.t.NodeRegistrationTTL)
	}
	d.due = n
	for range n {
		kind := d.kinds[w.rng.IntN(len(d.kinds))]
		w.after(w.upTo(spread), func() { d.fault(kind) })
	}
}

// over notes that a fault has ended. After the last one, everything is repaired.
func (d *director) over() {
	d.due--
	if d.due > 0 {
		return
	}
	d.w.after(d.w.upTo(d.w.t.HeartbeatInterval), d.repair)
}

// end ends a fault after a while.
func (d *director) end(after time.Duration, do func()) {
	d.w.after(after, func() {
		do()
		d.w.restartBound("fault ended")
		d.over()
	})
}

// repair ends all faults. It plans the next episode for when the cluster will have been checked to be well.
func (d *director) repair() {
	w := d.w
	d.quiet()
	w.open()
	for _, h := range w.hosts {
		h.cutOff, h.deaf, h.slow = false, false, 0
		if h.twin != nil {
			h.twin.kill()
			h.twin = nil
		}
		if p := h.proc; p != nil && p.state == dead && !h.standing && !w.chance(0.1) {
			w.start(h)
		}
	}
	if w.alive() == 0 {
		w.start(w.hosts[0])
	}
	w.liftAll()
	w.calm = w.chance(0.1)
	w.restartBound("repair")
	w.after(w.bound()+w.upTo(w.t.NodeRegistrationTTL), d.episode)
}

func (w *world) alive() int {
	n := 0
	for _, h := range w.hosts {
		if h.proc != nil && h.proc.state != dead {
			n++
		}
	}
	return n
}

// victim draws a live process, half of the time the leader; nil if there is none.
func (d *director) victim() *process {
	w := d.w
	if c := &w.check; len(c.leaderTerms) > 0 && w.chance(0.5) {
		return c.leaderTerms[w.rng.IntN(len(c.leaderTerms))].p
	}
	first := w.rng.IntN(len(w.hosts))
	for i := range w.hosts {
		if p := w.hosts[(first+i)%len(w.hosts)].proc; p != nil && p.state == running {
			return p
		}
	}
	return nil
}

// lasting draws how long a fault lasts: near the deadlines of the protocol, or far beyond.
func (d *director) lasting() time.Duration {
	w, t := d.w, d.w.t
	switch w.rng.IntN(8) {
	case 0:
		return w.upTo(t.HeartbeatInterval)
	case 1, 2:
		return w.between(t.HeartbeatInterval, t.LeaseDuration)
	case 3:
		return w.between(t.LeaseDuration-t.Margin(t.LeaseDuration), t.LeaseDuration+t.HeartbeatInterval)
	case 4:
		return w.between(t.NodeRegistrationTTL-t.StopTimeout-t.Margin(t.NodeRegistrationTTL), t.NodeRegistrationTTL+t.HeartbeatInterval)
	case 5, 6:
		return w.between(t.LeaseDuration, 4*t.NodeRegistrationTTL)
	default:
		return w.between(t.NodeRegistrationTTL, w.bound()+2*t.NodeRegistrationTTL)
	}
}

// fault begins a fault.
func (d *director) fault(kind Faults) {
	w := d.w
	w.stats.Faults++
	w.restartBound("fault")
	v := d.victim()
	if of := Outage | BadNetwork | ClockStep | Rollback | Fork | Retime | Operate | Keys; v == nil && of&kind == 0 {
		d.end(0, func() {})
		return
	}
	w.note(line{what: "fault", more: kind.String(), proc: -1, unit: -1})
	switch kind {
	case Kill:
		v.kill()
		d.restart(v)
	case CrashAt:
		v.crashIn, v.crashAt = 1+w.rng.IntN(6), crashPoint(w.rng.IntN(int(crashPoints)))
		d.restart(v)
	case Stop:
		v.stop()
		d.restart(v)
	case Pause:
		d.pause(v)
	case Cut:
		v.host.cutOff = true
		d.end(d.lasting(), func() { v.host.cutOff = false })
	case Deaf:
		v.host.deaf = true
		d.end(d.lasting(), func() { v.host.deaf = false })
	case Outage:
		w.server.down, w.server.quick = true, w.chance(0.5)
		d.end(min(d.lasting(), 5*time.Minute), w.open)
	case BadNetwork:
		d.badNetwork(v)
	case ClockStep:
		d.stepClock()
	case Rollback:
		d.rollback()
	case Fork:
		d.primaries()
	case Retime:
		d.retime()
	case Operate:
		d.operate()
	case Keys:
		d.keys()
	case RowGone:
		w.removeRow(v)
		d.end(0, func() {})
	case SlowHost:
		v.host.slow = w.upTo(v.t.QueryTimeout * 9 / 20)
		d.end(d.lasting(), func() { v.host.slow = 0 })
	case Deploy:
		d.deploy(v)
	case Twins:
		d.twin(v)
	case Standstill:
		d.standstill(v)
	}
}

// badNetwork loses, repeats and delays messages of all nodes for a while.
func (d *director) badNetwork(v *process) {
	w := d.w
	w.network = network{lose: w.rng.Float64() * 0.4, loseReply: w.rng.Float64() * 0.4, repeat: w.rng.Float64() * 0.4, slow: w.rng.Float64() * 0.4}
	long := min(d.lasting(), w.bound()/2)
	d.wakeOften(v, w.now+long)
	d.end(long, d.quiet)
}

// standstill stops a machine for a while, its clock included. Without a store's clock, or together with a failover
// that loses rows, more can go wrong than the promises cover.
func (d *director) standstill(v *process) {
	w, long := d.w, d.lasting()
	if w.server.image != nil || w.cfg.Store.NoClock {
		d.end(0, func() {})
		return
	}
	v.host.standStill(w, long)
	d.end(long+w.upTo(w.t.HeartbeatInterval), func() {})
}

// wakeOften wakes one process again and again without need.
func (d *director) wakeOften(v *process, till time.Duration) {
	w := d.w
	if v == nil || v.state == dead || w.now >= till || w.cfg.Store.NoWakeUps {
		return
	}
	v.later(0, member.WakeUp{})
	w.after(w.upTo(2*time.Second), func() { d.wakeOften(v, till) })
}

// deploy makes a node advertise fewer instances of a daemon, and all of them again later. At times it switches
// back and forth for a while, so that units are revoked soon after they were assigned.
func (d *director) deploy(v *process) {
	w, h := d.w, v.host
	i := w.rng.IntN(len(w.works))
	less := h.full
	less.Specs = slices.Clone(h.full.Specs)
	if less.Specs[i].Keyed() {
		less.Specs = slices.Delete(less.Specs, i, i+1) // the node still runs its kind
	} else {
		less.Specs[i].Instances = 1 + w.rng.IntN(max(less.Specs[i].Instances, 1))
	}
	w.deploying++
	h.advertise(less)
	long := d.lasting()
	if w.chance(0.5) {
		for at := time.Duration(0); at < min(long, w.t.LeaseDuration); at += w.upTo(w.t.HeartbeatInterval / 4) {
			w.after(at, func() { h.advertise(h.full) })
			at += w.upTo(w.t.QueryTimeout)
			w.after(at, func() { h.advertise(less) })
		}
	}
	d.end(max(long, w.t.LeaseDuration+w.t.HeartbeatInterval), func() {
		w.deploying--
		h.advertise(h.full)
	})
}

// advertise changes the advert of the machine's processes, and of those that will follow them.
func (h *host) advertise(a daemon.Advert) {
	h.advert = a
	for _, p := range [...]*process{h.proc, h.twin} {
		if p != nil && p.state != dead {
			p.later(0, member.Advertise{Advert: a})
		}
	}
}

// restart starts another process on the machine of one that is going to end.
func (d *director) restart(v *process) {
	w := d.w
	wait := w.upTo(time.Second)
	switch w.rng.IntN(4) {
	case 0, 1:
		wait = w.upTo(2 * w.t.NodeRegistrationTTL)
	case 2:
		wait = d.lasting()
	}
	d.end(wait, func() {
		if v.host.proc.state == dead && !v.host.standing {
			w.start(v.host)
		}
	})
}

func (d *director) pause(v *process) {
	w := d.w
	long := d.lasting()
	if w.chance(0.05) {
		long = time.Hour
	}
	if w.chance(0.5) {
		v.pauseIn, v.pauseFor = 1+w.rng.IntN(4), long
	} else {
		v.pause(long)
	}
	d.end(long+w.upTo(w.t.HeartbeatInterval), func() {})
}

func (d *director) stepClock() {
	w := d.w
	step := func(by time.Duration) {
		w.server.clock.stepped += by
		w.note(line{what: "clock step", proc: -1, unit: -1, a: int64(by / time.Millisecond)})
	}
	switch w.rng.IntN(6) {
	case 0:
		for i := range 60 {
			w.after(time.Duration(i)*500*time.Millisecond, func() { step(3 * time.Second); w.restartBound("step") })
		}
		d.end(30*time.Second, func() {})
	case 1:
		step(time.Hour)
		d.end(0, func() {})
	case 2:
		step(-time.Hour)
		d.end(0, func() {})
	case 3: // many steps, each too small to be noticed alone
		by := w.between(-w.t.ClockStep/2, w.t.ClockStep/2)
		for i := range 60 {
			w.after(time.Duration(i)*w.t.HeartbeatInterval/4, func() { step(by); w.restartBound("step") })
		}
		d.end(15*w.t.HeartbeatInterval, func() {})
	default:
		step(w.between(-10*time.Second, 10*time.Second))
		d.end(0, func() {})
	}
}

// rollback makes the store fail over to its state of a while ago.
func (d *director) rollback() {
	w := d.w
	if slices.ContainsFunc(w.procs, func(p *process) bool { return p.state != dead && (p.host.standing || p.watch.unaware) }) {
		d.end(0, func() {})
		return
	}
	w.saveImage()
	gap := w.upTo(time.Second)
	if w.chance(0.5) {
		gap = w.upTo(2 * w.t.NodeRegistrationTTL)
	}
	out := w.upTo(w.t.HeartbeatInterval)
	pooled := w.chance(0.5)
	w.after(gap, func() { w.server.down, w.server.quick, w.server.pooled = true, true, pooled })
	d.end(gap+out, func() {
		w.failover()
		w.open()
	})
}

// operator is the fence under which the simulator itself sweeps.
var operator = daemon.Fence{Unit: daemon.Unit{Daemon: "sim:operator"}, Generation: 1}

// removeRow deletes a node's row, as a person with a database client might. It makes the row a tombstone in the
// name of the present leader and sweeps it at once. Other young tombstones must stay, so it does nothing while
// there are any. While timings are mixed, it does nothing to a process with the long ones: a process with short ones
// that starts before the row is back cannot know them (decision 45).
func (w *world) removeRow(v *process) {
	if w.otherTimings() > 0 && v.t == w.t {
		return
	}
	ctx, store := context.Background(), w.server.store
	snap, err := store.Snapshot(ctx)
	if err != nil || !snap.Term.Held() {
		return
	}
	var row *node.Member
	for i := range snap.Nodes {
		m := &snap.Nodes[i]
		if !m.Present() && snap.Now.Sub(m.EndedAt) < 2*w.t.NodeRegistrationTTL {
			return
		}
		if m.Incarnation == v.who.Incarnation {
			row = m
		}
	}
	if row == nil {
		return
	}
	w.restartBound("row removed")
	w.check.forged = true
	defer func() { w.check.forged = false }()
	_, err = store.Commit(ctx, storage.Commit{Term: snap.Term.Ref(), Nodes: []storage.NodeChange{{
		Guard: storage.NodeVersion{Incarnation: row.Incarnation, Seq: row.Seq}, State: node.Removed, Reason: "removed by hand",
	}}})
	if err == nil {
		err = w.sweep(-time.Second)
	}
	if err != nil {
		w.violate("I8", "the row of p%02d cannot be removed: %v", v.index, err)
	}
}

// sweep removes tombstones, as the built-in daemon does.
func (w *world) sweep(age time.Duration) error {
	ctx, store := context.Background(), w.server.store
	if err := store.StampFence(ctx, operator); err != nil {
		return err
	}
	_, err := store.SweepNodes(ctx, operator, age, 100)
	if err == nil && w.cfg.Faults&Keys != 0 {
		err = w.sweepKeys()
	}
	return err
}

// sweepHourly keeps the store from growing.
func (w *world) sweepHourly() {
	if err := w.sweep(2 * w.t.NodeRegistrationTTL); err != nil {
		w.violate("I8", "sweep: %v", err)
	}
	w.after(time.Hour, w.sweepHourly)
}

// twin starts a second process on a machine, with the name and sometimes also the ID of the first.
func (d *director) twin(v *process) {
	w, h := d.w, v.host
	if h.twin != nil || h.proc.state == dead || h.standing {
		d.end(0, func() {})
		return
	}
	if w.chance(0.5) {
		w.start(h)
	} else {
		w.startAs(h, node.Identity{Name: h.name, ID: v.who.ID, Incarnation: incarnation(len(w.procs))})
	}
	twin := h.twin
	d.end(d.lasting(), func() {
		if h.twin == twin && twin != nil {
			twin.kill()
			h.twin = nil
		}
	})
}

// sharpKill kills one process of a healthy cluster and checks the bounds of checkAfterKill.
func (d *director) sharpKill() {
	w := d.w
	d.due = 1
	v := d.victim()
	if v == nil {
		d.over()
		return
	}
	w.stats.Faults++
	var units []*unit
	for _, r := range v.runs {
		if w.check.well[r.u.index] {
			units = append(units, r.u)
		}
	}
	led := v.watch.leading
	v.kill()
	w.check.checkAfterKill(w, units, led)
	d.end(w.bound()+time.Second, func() {})
}

// String returns the name of the kind, if f is a single kind.
func (f Faults) String() string {
	names := [...]string{"kill", "crash at call", "stop", "pause", "cut", "deaf", "outage", "bad network", "clock step", "rollback", "row gone", "slow host", "deploy", "twins", "standstill", "noise", "bad agents", "bursts", "fork", "retime", "operate"}
	for i, name := range names {
		if f == 1<<i {
			return name
		}
	}
	return "several"
}
