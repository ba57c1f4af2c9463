package ledger

import (
	"cmp"
	"fmt"
	"slices"
)

// Apply changes the state by one record. now is the log's time at that record; it moves the
// ledger's time forward. The only error is ErrVoid: the record makes no sense for the state, or for
// some of its jobs, and has not changed those. Live, that is a bug of the caller.
func (l *Ledger) Apply(r *Record, now int64) error {
	l.Advance(max(now, r.At))
	switch r.Kind {
	case Enqueue:
		return l.enqueue(r)
	case Claim:
		return l.each(r, (*Ledger).claim)
	case AttemptStarted:
		return l.each(r, (*Ledger).started)
	case Complete:
		return l.each(r, (*Ledger).complete)
	case Fail:
		return l.each(r, (*Ledger).fail)
	case Release:
		return l.each(r, (*Ledger).release)
	case Expire:
		return l.each(r, (*Ledger).expire)
	case Cancel, Purge:
		return l.each(r, (*Ledger).cancel)
	case DeadLetter:
		return l.each(r, (*Ledger).die)
	case Redrive:
		return l.each(r, (*Ledger).redrive)
	case MakeReady:
		return l.each(r, (*Ledger).run)
	case MovePayload:
		return l.movePayload(r)
	case Pause, Resume:
		l.paused = r.Kind == Pause
	case Configure:
		l.config = r.Config.withDefaults()
		l.window.forget(l.now, l.config.DedupIDs)
	case Seal:
		l.sealed = true
	case ImportBegin, ImportJob, ImportEnded, ImportEnd:
		return l.applyImport(r)
	default:
		return fmt.Errorf("apply a record of kind %d: %w", r.Kind, ErrVoid)
	}
	return nil
}

// Replay decodes and applies a record of a slot of the log. ErrVoid is as for Apply; ErrCorrupt and
// ErrNewer mean that the record cannot be decoded.
func (l *Ledger) Replay(b []byte, now int64, slot uint64) error {
	if l.replayed == nil {
		l.replayed = &Record{memo: &lastStrings{}}
	}
	if err := l.replayed.decode(b); err != nil {
		return err
	}
	l.replayed.Slot = slot
	return l.Apply(l.replayed, now)
}

// each applies a record to each of its jobs; n is the job's position in the record.
func (l *Ledger) each(r *Record, step func(l *Ledger, i uint32, r *Record, n int) bool) error {
	void := 0
	for n, number := range r.Numbers {
		i, ok := l.liveIndex(number)
		if !ok || !step(l, i, r, n) {
			void++
		}
	}
	if void > 0 {
		return fmt.Errorf("apply a record of kind %d to %d jobs, %d of them: %w", r.Kind, len(r.Numbers), void, ErrVoid)
	}
	return nil
}

func (l *Ledger) enqueue(r *Record) error {
	number, id := r.Numbers[0], r.packed()
	i, taken := l.numbers.get(number)
	switch {
	case taken && l.jobs.at(i).state == None && l.jobs.at(i).has(id):
		l.expected--
	case taken || l.isKnown(id):
		return fmt.Errorf("enqueue job %d: %w", number, ErrVoid)
	default:
		i = l.addJob(number, id)
	}
	l.fill(i, r)
	l.totals.Enqueued++
	t := times{at: r.RunAt, expires: r.Expires}
	if r.RunAt > l.now {
		l.attach(i, Delayed, t)
	} else {
		l.attach(i, Waiting, t)
	}
	return nil
}

// isKnown reports whether an ID belongs to a live job, or to one that ended within the deduplication
// window.
func (l *Ledger) isKnown(id ID) bool {
	_, live := l.ids.get(id)
	if live {
		return true
	}
	_, known := l.window.get(id, l.now)
	return known
}

// addJob adds a job of which only number and ID are known.
func (l *Ledger) addJob(number uint64, id ID) uint32 {
	l.next = max(l.next, number+1)
	i := l.jobs.alloc()
	j := l.jobs.at(i)
	j.id, j.idLen, j.number = id.id, id.len, number
	if id.len == idLong {
		l.updateExtras(j, func(m *extras) { m.id = id.long })
	}
	l.ids.add(id, i)
	l.numbers.add(number, i)
	return i
}

// fill sets the fields of a job from its Enqueue record. It does not attach the job.
func (l *Ledger) fill(i uint32, r *Record) {
	j := l.jobs.at(i)
	j.created, j.priority = r.At, r.Priority
	j.flags = l.checkpointParity
	l.fillPayload(j, r)
	j.typ = l.types.intern(r.Type)
	policy := cmp.Or(r.Policy, DefaultPolicy)
	j.policy = l.policies.intern(policy)
	if r.Group != "" || r.Blob != "" || j.policy == ownPolicy {
		l.updateExtras(j, func(m *extras) {
			m.group, m.blob, m.size = r.Group, r.Blob, r.Size
			if j.policy == ownPolicy {
				own := policy
				m.policy = &own
			}
		})
	}
}

// claim applies a Claim record. It ignores a delivery that is not newer than the job's.
func (l *Ledger) claim(i uint32, r *Record, n int) bool {
	j := l.jobs.at(i)
	// The same delivery number can come twice. Two owners in a row may have handed out the job;
	// both records were lost with them, and both workers presented their tokens and were
	// accepted. The claim of the later epoch wins.
	if d := uint64(j.deliveries); d > r.Deliveries[n] || d == r.Deliveries[n] && (j.state != Active || j.more.claim.epoch >= r.Epoch) {
		return true // the job is past that delivery
	}
	if j.state == Dead {
		return false
	}
	t := l.detach(i)
	l.unindexRequest(j)
	j.deliveries = uint16(r.Deliveries[n])
	j.flags &^= begun
	l.setClaim(j, r)
	l.indexRequest(j)
	t.at = r.Until
	l.attach(i, Active, t)
	return true
}

// setClaim stores the claim of a record in the job.
func (l *Ledger) setClaim(j *job, r *Record) {
	if j.more == nil {
		both := new(struct { // one allocation for both
			more  extras
			claim claim
		})
		j.more = &both.more
		j.more.claim = &both.claim
		l.extraBytes += j.more.bytes()
	}
	l.updateExtras(j, func(m *extras) {
		if m.claim == nil {
			m.claim = new(claim)
		}
		*m.claim = claim{
			worker: r.Worker, request: r.Request, epoch: r.Epoch,
			visibility: r.Visibility, nonce: r.Nonce, tokenless: r.Tokenless,
		}
	})
}

// indexRequest records which request made a claim, so that a repeated request finds it.
func (l *Ledger) indexRequest(j *job) {
	if request := j.more.claim.request; request != "" {
		setEntry(&l.requests, request, append(l.requests[request], j.number))
		l.extraBytes += int64(len(request)) + 80
	}
}

// unindexRequest removes the job's claim from the requests, if the job has one.
func (l *Ledger) unindexRequest(j *job) {
	if j.more == nil || j.more.claim == nil || j.state != Active {
		return
	}
	if request := j.more.claim.request; request != "" {
		left := slices.DeleteFunc(l.requests[request], func(n uint64) bool { return n == j.number })
		if len(left) == 0 {
			delete(l.requests, request)
		} else {
			l.requests[request] = left
		}
		l.extraBytes -= int64(len(request)) + 80
	}
}

// forgetClaim deletes what is stored about the last claim.
func (l *Ledger) forgetClaim(j *job) {
	if j.more != nil && j.more.claim != nil {
		l.updateExtras(j, func(m *extras) { m.claim = nil })
	}
}

// isClaim reports whether the record is about the job's current claim.
func (j *job) isClaim(r *Record, n int) bool {
	return j.state == Active && uint64(j.deliveries) == r.Deliveries[n] && j.more.claim.epoch == r.Epoch
}

func (l *Ledger) started(i uint32, r *Record, n int) bool {
	j := l.jobs.at(i)
	if j.isClaim(r, n) {
		l.saveBeforeChange(i)
		l.countAttempt(j)
	}
	return true
}

// countAttempt counts the current delivery as an attempt, once.
func (l *Ledger) countAttempt(j *job) {
	if j.flags&begun == 0 {
		j.flags |= begun
		j.attempts = min(j.attempts+1, 1<<15)
	}
}

func (l *Ledger) complete(i uint32, r *Record, _ int) bool {
	j := l.jobs.at(i)
	if j.state != Active {
		return false
	}
	l.totals.Completed++
	l.end(i, ended{at: r.At, state: Completed, nonce: j.more.claim.nonce}, r.Result)
	return true
}

// end removes a job and remembers its ID.
func (l *Ledger) end(i uint32, e ended, result []byte) {
	j := l.jobs.at(i)
	l.detach(i)
	l.unindexRequest(j)
	if len(result) > 0 {
		result = slices.Clone(result)
	} else {
		result = nil
	}
	p := j.packed()
	l.remove(i)
	l.window.add(p, e, l.config.DedupWindow, result)
	l.window.forget(l.now, l.config.DedupIDs)
}

func (l *Ledger) fail(i uint32, r *Record, n int) bool {
	j := l.jobs.at(i)
	if j.state != Active {
		return false
	}
	t := l.detach(i)
	l.unindexRequest(j)
	l.countAttempt(j)
	l.totals.Failed++
	l.updateExtras(j, func(m *extras) { m.cause = r.Cause })
	if r.Dead {
		l.totals.Died++
		t.at = r.At
		l.attach(i, Dead, t)
		return true
	}
	l.forgetClaim(j)
	l.setPlace(j, r, n)
	t.at = r.RunAt
	if r.RunAt > l.now {
		l.attach(i, Delayed, t)
	} else {
		l.attach(i, Waiting, t)
	}
	return true
}

// setPlace gives a job the new place that the record names, if any.
func (l *Ledger) setPlace(j *job, r *Record, n int) {
	if len(r.Places) == 0 || r.Places[n] == 0 {
		return
	}
	j.flags |= movedToEnd
	l.ensureExtras(j).place = r.Places[n]
	l.next = max(l.next, r.Places[n]+1)
}

func (l *Ledger) release(i uint32, r *Record, n int) bool {
	j := l.jobs.at(i)
	if j.state != Active {
		return false
	}
	t := l.detach(i)
	l.unindexRequest(j)
	l.forgetClaim(j)
	l.setPlace(j, r, n)
	if r.Undelivered {
		l.updateExtras(j, func(m *extras) {
			m.cause, m.uncountedDeliveries = cmp.Or(r.Cause, m.cause), min(m.uncountedDeliveries, j.deliveries-1)+1
		})
	}
	if r.RunAt > l.now {
		l.attach(i, Delayed, times{at: r.RunAt, expires: t.expires})
	} else {
		l.attach(i, Waiting, times{expires: t.expires})
	}
	return true
}

func (l *Ledger) expire(i uint32, r *Record, n int) bool {
	j := l.jobs.at(i)
	if !j.isClaim(r, n) {
		return true // the job is past that delivery
	}
	t := l.detach(i)
	l.unindexRequest(j)
	l.countAttempt(j)
	l.totals.Failed++
	l.forgetClaim(j)
	if r.Cause != "" {
		l.updateExtras(j, func(m *extras) { m.cause = r.Cause })
	}
	l.setPlace(j, r, n)
	l.attach(i, Waiting, times{expires: t.expires})
	return true
}

func (l *Ledger) cancel(i uint32, r *Record, _ int) bool {
	if r.Kind == Cancel {
		l.totals.Cancelled++
	}
	l.end(i, ended{at: r.At, state: Cancelled}, nil)
	return true
}

func (l *Ledger) die(i uint32, r *Record, _ int) bool {
	j := l.jobs.at(i)
	if j.state == Dead {
		return false
	}
	t := l.detach(i)
	l.unindexRequest(j)
	if j.state == Active && !r.Undelivered {
		l.countAttempt(j)
		l.totals.Failed++
	}
	if r.TTLExpired {
		l.totals.Expired++
	} else {
		l.totals.Died++
	}
	l.updateExtras(j, func(m *extras) { m.cause = r.Cause })
	t.at = r.At
	l.attach(i, Dead, t)
	return true
}

func (l *Ledger) redrive(i uint32, _ *Record, _ int) bool {
	j := l.jobs.at(i)
	if j.state != Dead {
		return false
	}
	l.detach(i)
	l.forgetClaim(j)
	l.updateExtras(j, func(m *extras) { m.cause, m.uncountedDeliveries = "", j.deliveries })
	j.attempts = 0
	j.flags &^= begun
	// A time to live is not kept: it may be over already, and may be why the job died; an
	// operator wants the job to run now.
	l.attach(i, Waiting, times{})
	return true
}

func (l *Ledger) run(i uint32, _ *Record, _ int) bool {
	if s := l.jobs.at(i).state; s != Delayed && s != Waiting { // it may have become due meanwhile
		return false
	}
	t := l.detach(i)
	l.attach(i, Waiting, times{expires: t.expires})
	return true
}
