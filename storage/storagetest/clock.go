package storagetest

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

var clockStories = []story{
	{"a lease ends to the millisecond", FrozenClock, leaseEnds},
	{"an ID is in use to the millisecond", FrozenClock, idInUseEnds},
	{"facts carry the time of the step that made them", FrozenClock, stampsFacts},
	{"the store stamps a confirmation when a higher number is confirmed", Clock, stampsConfirmations},
	{"numbers grow while the clock steps back", Clock, numbersOverStepBack},
	{"a holder renews over a step forward, and candidates agree that the lease is over", Clock, stepForward},
	{"a step back keeps the lease of a holder that is gone; the candidate's own clock ends it", Clock, stepBack},
	{"a step of the clock gives no lock away", Clock | Locks, stepKeepsLock},
	{"a step of the clock keeps no lock for a holder that is gone", Clock | Locks, stepFreesLock},
	{"a released lock is swept by its age, one that is held never", Clock | Locks | Sweeps, sweepsReleasedLocks},
	{"lock numbers grow while the clock steps back", Clock | Locks | Sweeps, lockNumbersOverStepBack},
	{"history stays without gaps when it is swept after a step back", Clock | Sweeps, sweepOverStepBack},
	{"an id is in use for the TTL that its own process states", Clock, idInUseByItsOwnTTL},
	{"an id is not in use for as long as the clock was set back", Clock, idFreeAfterStepBack},
	{"a node that comes back after a long time is judged by the store's clock", Clock, returnsAfterLong},
}

func leaseEnds(w *world) {
	a, b := w.join("node-a"), w.join("node-b")
	t := a.beat(campaign(time.Minute)).Term
	w.Advance(time.Minute - time.Millisecond)
	w.equal("verdict a millisecond before", b.beat(campaign(long), seen(t.Number, 0)).Verdict, storage.Refuse)
	w.Advance(time.Millisecond)
	w.equal("verdict at the end", b.beat(campaign(long), seen(t.Number, 0)).Verdict, storage.Elect)
}

func idInUseEnds(w *world) {
	a := w.join("node-a")
	b := a.again()
	w.Advance(time.Minute - time.Millisecond)
	_, err := b.try(advert(plain), ttl(time.Minute))
	w.refused(err, storage.ErrIDInUse)
	w.Advance(time.Millisecond)
	b.beat(advert(plain), ttl(time.Minute))
	// A report is no heartbeat.
	c := b.again()
	w.Advance(time.Minute)
	b.report()
	c.beat(advert(plain), ttl(time.Minute))
}

// idInUseByItsOwnTTL: a process that comes with a shorter TTL does not apply it to one with a longer TTL.
func idInUseByItsOwnTTL(w *world) {
	slow := plain
	slow.Traits.Timing.NodeRegistrationTTL = time.Hour
	a := w.join("node-a")
	a.beat(advert(slow), ttl(time.Hour))
	b := a.again()
	w.Advance(time.Hour - time.Millisecond)
	_, err := b.try(advert(plain), ttl(time.Minute))
	w.refused(err, storage.ErrIDInUse)
	w.Advance(time.Millisecond)
	b.beat(advert(plain), ttl(time.Minute))
}

// idFreeAfterStepBack: the last heartbeat of a process that was killed may lie ahead of a clock that
// was set back since.
func idFreeAfterStepBack(w *world) {
	a := w.join("node-a")
	b := a.again()
	w.Advance(-time.Minute + time.Millisecond)
	_, err := b.try(advert(plain), ttl(time.Minute))
	w.refused(err, storage.ErrIDInUse)
	w.Advance(-time.Hour)
	b.beat(advert(plain), ttl(time.Minute))
}

// stepKeepsLock: whatever the clock says, a lock belongs to its holder until it is released or
// named as expired.
func stepKeepsLock(w *world) {
	s := w.locker()
	held, err := s.Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	for _, step := range []time.Duration{time.Minute, 365 * 24 * time.Hour, -366 * 24 * time.Hour, 2 * time.Hour} {
		w.Advance(step)
		_, err := s.Acquire(w.ctx, "lock", owner(2), time.Minute, storage.Lock{})
		w.refused(err, storage.ErrLocked)
		renewed, err := s.Extend(w.ctx, held, time.Minute)
		w.ok(err)
		w.equal("number", renewed.Number, held.Number)
	}
}

// stepFreesLock: whatever the clock says, a holding that was seen unchanged is over, and one that
// was extended is not.
func stepFreesLock(w *world) {
	s := w.locker()
	w.Advance(2 * time.Hour)
	first, err := s.Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	w.Advance(-2 * time.Hour)
	seen, err := s.Acquire(w.ctx, "lock", owner(2), time.Minute, storage.Lock{})
	w.refused(err, storage.ErrLocked)
	w.holds(seen.ExpiresAt.After(seen.Now.Add(time.Hour)), "the stamps should mislead: %v at %v", seen.ExpiresAt, seen.Now)
	second, err := s.Acquire(w.ctx, "lock", owner(2), time.Minute, seen)
	w.ok(err)
	w.holds(second.Number > first.Number, "number %d after %d", second.Number, first.Number)
}

func sweepsReleasedLocks(w *world) {
	s, f := w.locker(), w.sweeper()
	_, err := s.Acquire(w.ctx, "held", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	released, err := s.Acquire(w.ctx, "released", owner(2), time.Minute, storage.Lock{})
	w.ok(err)
	w.ok(s.Release(w.ctx, released))
	w.Advance(time.Hour)
	for _, want := range []struct {
		age time.Duration
		n   int
	}{{2 * time.Hour, 0}, {30 * time.Minute, 1}, {-long, 0}} {
		n, err := w.sweep().SweepLocks(w.ctx, f, want.age, 100)
		w.ok(err)
		w.equal("removed", n, want.n)
	}
	_, err = s.Acquire(w.ctx, "held", owner(3), time.Minute, storage.Lock{})
	w.refused(err, storage.ErrLocked)
}

func stampsFacts(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	tick := func() time.Time {
		w.Advance(time.Second)
		return w.snapshot().Now
	}
	at := func(what string, got, want time.Time) { w.within(what, got, want, want) }

	declared := tick()
	r := l.change(storage.Change{Unit: unit0})
	at("since of the declaration", r.Since, declared)
	assigned := tick()
	r = l.assign(unit0, p)
	at("since", r.Since, assigned)
	at("assigned_at", r.AssignedAt, assigned)
	active := tick()
	r = p.step(r, daemon.Acknowledge)
	at("since", r.Since, active)
	resumed := tick()
	r = p.step(r, daemon.Resume)
	at("since", r.Since, resumed)
	revoked := tick()
	r = l.change(on(r, daemon.Revoke))
	at("since", r.Since, revoked)
	at("revoked_at", r.RevokedAt, revoked)
	at("assigned_at", r.AssignedAt, assigned)
	ended := tick()
	r = p.step(r, daemon.Confirm)
	at("since", r.Since, ended)
	at("revoked_at of an ended assignment", r.RevokedAt, revoked)

	times := []time.Time{assigned, active, resumed, revoked, ended}
	events := w.history(w.snapshot().Head - int64(len(times)))
	for i, e := range events {
		at(string(e.Kind), e.At, times[i])
	}
	gone := tick()
	p.leave(storage.Leave{Deregister: true})
	at("ended_at", w.row(p).EndedAt, gone)
}

func stampsConfirmations(w *world) {
	p := w.join("node-a", heard(1))
	at := w.row(p).ConfirmedAt
	w.Advance(time.Second)
	for _, h := range []uint64{1, 0} {
		p.beat(heard(h))
		w.holds(w.row(p).ConfirmedAt.Equal(at), "heard_at moved without news")
	}
	p.beat(advert(plain), heard(1))
	w.holds(w.row(p).ConfirmedAt.Equal(at), "heard_at moved with an advert")
	w.holds(w.row(p).RegisteredAt.Before(w.snapshot().Now), "registered_at moved with an advert")
	now := w.snapshot().Now
	p.beat(heard(2))
	w.within("heard_at", w.row(p).ConfirmedAt, now, w.snapshot().Now)
	w.Advance(time.Second)
	now = w.snapshot().Now
	p.beat()
	w.within("last_heartbeat_at", w.row(p).LastHeartbeatAt, now, w.snapshot().Now)
	w.Advance(time.Second)
	p.report()
	p.leave(storage.Leave{Drain: true})
	w.holds(w.row(p).LastHeartbeatAt.Before(w.snapshot().Now.Add(-rounding)), "a report or a leave counts as a heartbeat")
}

func numbersOverStepBack(w *world) {
	a := w.join("node-a")
	last := a.lead()
	w.Advance(-time.Hour)
	for range 5 {
		a.leave(storage.Leave{Resign: last.Number})
		next := a.lead()
		w.equal("number", next.Number, last.Number+1)
		last = next
		w.Advance(-time.Minute)
	}
	w.Advance(3 * time.Hour)
	a.leave(storage.Leave{Resign: last.Number})
	next := a.lead()
	now := w.snapshot().Now.UnixMilli()
	w.holds(next.Number > last.Number && next.Number <= now && next.Number > now-waitTimeout.Milliseconds(), "number %d at %d", next.Number, now)
}

func stepForward(w *world) {
	a, b := w.join("node-a"), w.join("node-b")
	t := a.beat(campaign(time.Minute)).Term
	w.Advance(time.Hour)
	r := a.beat(renew(t.Number, time.Minute))
	w.equal("verdict of the holder", r.Verdict, storage.Renew)
	w.equal("verdict of a candidate", b.beat(campaign(long), seen(t.Number, 1)).Verdict, storage.Refuse)
	w.Advance(time.Hour)
	w.equal("verdict of a candidate after the end", b.beat(campaign(long), seen(t.Number, 1)).Verdict, storage.Elect)
}

func stepBack(w *world) {
	a, b := w.join("node-a"), w.join("node-b")
	t := a.beat(campaign(time.Minute)).Term
	w.Advance(-time.Hour)
	w.equal("verdict by the store's clock", b.beat(campaign(long), seen(t.Number, 0)).Verdict, storage.Refuse)
	w.equal("verdict by the own clock", b.beat(campaign(long), seen(t.Number, 0), unchanged).Verdict, storage.Elect)
}

func lockNumbersOverStepBack(w *world) {
	s := w.locker()
	last, err := s.Acquire(w.ctx, "lock", owner(1), time.Minute, storage.Lock{})
	w.ok(err)
	w.Advance(-2 * time.Hour)
	for i := range 4 {
		if i == 1 {
			w.ok(s.Release(w.ctx, last))
			w.equal("swept", w.sweepLocks(), 1)
		}
		next, err := s.Acquire(w.ctx, "lock", owner(10+i), time.Minute, last)
		w.ok(err)
		w.holds(next.Number > last.Number, "number %d after %d", next.Number, last.Number)
		last = next
	}
}

func sweepOverStepBack(w *world) {
	f := w.sweeper()
	w.join("now-1")
	w.join("now-2")
	w.Advance(-2 * time.Hour)
	w.join("past")
	w.Advance(2 * time.Hour)
	// The third event is older than an hour, the two before it are not.
	n, err := w.sweep().SweepEvents(w.ctx, f, storage.Retention{Age: time.Hour, MaxEvents: 100}, 100)
	w.ok(err)
	w.equal("removed", n, 0)
	w.Advance(90 * time.Minute)
	n, err = w.sweep().SweepEvents(w.ctx, f, storage.Retention{Age: time.Hour, MaxEvents: 100}, 100)
	w.ok(err)
	w.equal("removed later", n, 3)
}

func returnsAfterLong(w *world) {
	a := w.join("node-a")
	b := a.again()
	w.Advance(time.Hour)
	a.beat()
	_, err := b.try(advert(plain), ttl(time.Minute))
	w.refused(err, storage.ErrIDInUse)
	w.Advance(-30 * time.Second) // the last heartbeat is in the future now: it is not long ago
	_, err = b.try(advert(plain), ttl(time.Minute))
	w.refused(err, storage.ErrIDInUse)
}
