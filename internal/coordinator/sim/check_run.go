package sim

import "time"

// started checks the start of a run.
func (c *checks) started(w *world, r *run) {
	c.grow(len(w.units))
	p, u := r.p, r.u.index
	if p.started[u] >= r.fence.Generation {
		w.violate("A9", "p%02d starts %s, having started generation %d before", p.index, r.fence, p.started[u])
	}
	p.started[u] = r.fence.Generation
	if p.listings[u].generation != r.fence.Generation {
		w.violate("I6", "p%02d starts %s, which no reply listed for it", p.index, r.fence)
	}
	r.listed = p.listings[u].sent
	if p.learnedWithin(p.t.NodeRegistrationTTL) {
		w.violate("store identity", "p%02d starts %s %v after it heard that the store is another one", p.index, r.fence, w.now-p.watch.changedAt)
	}
	for _, other := range p.runs {
		if other.u == r.u {
			w.violate("A9", "p%02d starts %s while its run %s has not returned", p.index, r.fence, other.fence)
		}
	}
}

// entered checks the moment at which an agent's code begins to run.
func (c *checks) entered(w *world, r *run) {
	o := &c.owners[r.u.index]
	if r.p.host.onOld || r.p.watch.strayed {
		o = &owner{process: -1}
	}
	if o.generation == r.fence.Generation && o.process != r.p.index {
		w.violate("I3", "%s runs on p%02d and ran on p%02d", r.fence, r.p.index, o.process)
	}
	if r.fence.Generation > o.generation {
		*o = owner{r.fence.Generation, r.p.index}
	}
	r.u.live, r.u.enteredAt = append(r.u.live, r), w.now
	c.runsTogether(w, r.u)
	w.queue.push(event{at: w.now + r.p.runTrust(), kind: evTrust, run: r, n: r.epoch})
}

// left notes the moment at which an agent's code has ended.
func (c *checks) left(r *run) {
	for i, other := range r.u.live {
		if other == r {
			r.u.live = append(r.u.live[:i], r.u.live[i+1:]...)
			return
		}
	}
}

// abandoned checks that a run had its time to return.
func (c *checks) abandoned(w *world, r *run) {
	if !r.cancelled || w.now-r.cancelAt < quick(r.p.t.StopTimeout) && r.p.excuse(0) <= r.cancelAt {
		w.violate("A5", "p%02d abandons %s before StopTimeout", r.p.index, r.fence)
	}
}

// excused reports whether a run may be alive although its validity is over.
func (r *run) excused(w *world) bool { return r.excusedTill(w) > w.now }

// excusedTill returns until when that is: while its process is paused and shortly after. A run that ignores its
// cancellation is excused for ever, once its time to return is over.
func (r *run) excusedTill(w *world) time.Duration {
	if r.stuck && r.cancelled && w.now >= r.cancelAt+r.p.toReturn() {
		return forever
	}
	return r.p.excuse(r.p.noticed(r.p.t.StopTimeout))
}

// runsTogether checks that no two runs of a unit are alive at once, unless something excuses it. In one process
// nothing does.
func (c *checks) runsTogether(w *world, u *unit) {
	if len(u.live) < 2 {
		return
	}
	for i, a := range u.live {
		for _, b := range u.live[:i] {
			till := max(a.excusedTill(w), b.excusedTill(w))
			switch {
			case apart(a.p, b.p):
			case a.p == b.p:
				w.violate("A9", "p%02d runs %s and %s at once", a.p.index, b.fence, a.fence)
			case w.now >= till:
				w.violate("I4", "%s runs on p%02d since %v and %s on p%02d since %v", b.fence, b.p.index, b.entered, a.fence, a.p.index, a.entered)
			case till != forever:
				w.queue.push(event{at: till, kind: evOverlap, n: int64(u.index)})
			}
		}
	}
}

// overlapEnds checks overlaps again that were excused until now. The unit -1 stands for leadership.
func (c *checks) overlapEnds(w *world, unit int) {
	if unit < 0 {
		c.together(w)
		return
	}
	c.runsTogether(w, w.units[unit])
}

// resumed schedules the checks at the end of what a pause excuses.
func (c *checks) resumed(w *world, p *process) {
	for _, r := range p.runs {
		w.queue.push(event{at: p.excuse(p.noticed(p.t.StopTimeout)), kind: evOverlap, n: int64(r.u.index)})
	}
	w.queue.push(event{at: p.excuse(p.noticed(0)), kind: evOverlap, n: -1})
}

// unaware handles the end of a standstill. What the process considers valid may be over for others. It finds out
// with the next answered heartbeat, or when the validity ends by its own clock.
func (c *checks) unaware(w *world, p *process) {
	p.watch.unaware, p.watch.sentSince = true, w.now
	p.watch.pausedTill = w.now + slow(p.t.NodeRegistrationTTL)
	since := w.now
	w.after(slow(p.t.NodeRegistrationTTL), func() {
		if p.watch.unaware && p.watch.sentSince == since {
			c.aware(w, p)
		}
	})
}

// aware ends what a standstill excuses.
func (c *checks) aware(w *world, p *process) {
	p.watch.unaware, p.watch.strayed = false, false
	if p.state == running {
		p.watch.pausedTill = w.now
		c.resumed(w, p)
	}
}

// runTrust returns how long a run may go on after the beginning of the newest answered heartbeat that lists it.
func (p *process) runTrust() time.Duration {
	t := p.t
	return slow(t.NodeRegistrationTTL-t.Margin(t.NodeRegistrationTTL)) + t.Wakeup
}

// runTrust checks that a run that is still alive has been listed.
func (c *checks) runTrust(w *world, r *run) {
	if r.phase != live && r.phase != waiting {
		return
	}
	end := r.listed + r.p.runTrust()
	if r.phase != live {
		end = max(end, w.now+w.t.NodeRegistrationTTL)
	}
	end = max(end, r.excusedTill(w))
	switch {
	case w.now >= end:
		w.violate("I6", "%s runs on p%02d, last listed by a reply to a call from %v", r.fence, r.p.index, r.listed)
	case end == forever && r.p.watch.pausedTill == forever: // it stands still, and its end checks again
		w.after(w.t.NodeRegistrationTTL, func() { c.runTrust(w, r) })
	case end == forever && (r.p.state == paused || r.p.watch.unaware):
		w.queue.push(event{at: max(r.p.watch.pausedTill, w.now) + time.Millisecond, kind: evTrust, run: r, n: r.epoch})
	case end != forever:
		w.queue.push(event{at: end, kind: evTrust, run: r, n: r.epoch})
	}
}

// accepted checks an effect that the fence let pass: generations only grow, and no run overwrites a value that it
// has not read.
func (c *checks) accepted(w *world, u *unit, generation, value int64) {
	if err := u.resource.accept(generation, value); err != nil {
		w.violate(err.rule, "%s: %s", u.Unit, err.what)
	}
}

func (r *resource) accept(generation, value int64) *broken {
	switch {
	case generation < r.generation:
		return breaks("I4", "an effect of generation %d passed after one of %d", generation, r.generation)
	case value != r.value+1:
		return breaks("I4", "generation %d wrote %d over %d: acknowledged effects are lost", generation, value, r.value)
	}
	return nil
}
