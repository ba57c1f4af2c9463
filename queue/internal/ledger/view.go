package ledger

import (
	"maps"
	"math"
	"slices"
)

// Job is a copy of a job's current state. Payload is shared and immutable.
type Job struct {
	Number              uint64
	ID, Type, Group     string
	Payload             string // "" if it is not in memory
	Slot                uint64 // of the segment of the log that has the payload; 0: none
	Blob                string // key of the payload object
	Size                int    // of the payload, in bytes
	State               State
	Held                bool
	Priority            int8
	Policy              Policy
	Attempts            int
	Deliveries          int
	UncountedDeliveries int   // of Deliveries, those before the last redrive, and those that reached no worker
	Begun               bool  // the current delivery counts as an attempt
	Created             int64 // milliseconds, like all times here
	At                  int64 // Delayed: when due. Active: end of the claim. Dead: when it died
	Expires             int64 // end of its time to live; 0: never
	Cause               string
	Worker, Request     string // of the claim; of the last claim if Dead
	Epoch, Visibility   int64
	Nonce               uint32
	Tokenless           bool
	deliveriesSinceBase int
}

// Find returns the live job with an ID.
func (l *Ledger) Find(id string) (Job, bool) {
	i, ok := l.ids.get(Pack(id))
	if !ok || l.jobs.at(i).state == None {
		return Job{}, false
	}
	return l.view(i), true
}

// Job returns the live job with a number.
func (l *Ledger) Job(number uint64) (Job, bool) {
	i, ok := l.liveIndex(number)
	if !ok {
		return Job{}, false
	}
	return l.view(i), true
}

// Lookup looks up an ID among live jobs and those that have ended. For an expected job (see ReserveID),
// isHeld is true and the state is None.
func (l *Ledger) Lookup(id ID) (s State, isHeld bool) {
	if i, ok := l.ids.get(id); ok {
		return l.jobs.at(i).state, l.jobs.at(i).flags&held != 0
	}
	if pos, ok := l.window.get(id, l.now); ok {
		return l.window.at(pos).state, false
	}
	return None, false
}

// JobWithoutPayload is Job without ID and payload, for callers that have them.
func (l *Ledger) JobWithoutPayload(number uint64) (Job, bool) {
	i, ok := l.liveIndex(number)
	if !ok {
		return Job{}, false
	}
	return l.jobWithoutPayload(i), true
}

// IDAndPayload returns the ID and payload of a live job, which JobWithoutPayload leaves out.
func (l *Ledger) IDAndPayload(number uint64) (id ID, payload string) {
	i, ok := l.liveIndex(number)
	if !ok {
		return ID{}, ""
	}
	return l.jobs.at(i).packed(), l.jobs.at(i).payload()
}

func (l *Ledger) view(i uint32) Job {
	v := l.jobWithoutPayload(i)
	j := l.jobs.at(i)
	v.ID, v.Payload = j.packed().String(), j.payload()
	return v
}

func (l *Ledger) jobWithoutPayload(i uint32) Job {
	j := l.jobs.at(i)
	t := l.times(i)
	v := Job{
		Number: j.number, Type: l.types.text[j.typ], Size: int(j.size), Slot: l.segments.all[j.segment].slot,
		State: j.state, Held: j.flags&held != 0, Priority: j.priority, Policy: l.policy(j), Attempts: int(j.attempts),
		Deliveries: int(j.deliveries), Begun: j.flags&begun != 0, Created: j.created, At: t.at, Expires: t.expires,
		deliveriesSinceBase: int(j.deliveries),
	}
	if m := j.more; m != nil {
		v.Group, v.Cause = m.group, m.cause
		v.UncountedDeliveries = int(m.uncountedDeliveries)
		v.deliveriesSinceBase -= v.UncountedDeliveries
		if m.blob != "" {
			v.Blob, v.Size = m.blob, m.size
		}
		if c := m.claim; c != nil {
			v.Worker, v.Request, v.Epoch, v.Visibility = c.worker, c.request, c.epoch, c.visibility
			v.Nonce, v.Tokenless = c.nonce, c.tokenless
		}
	}
	return v
}

// MaxDeliveries is how often a job can be delivered: the counter, which distinguishes its claims, ends there.
const MaxDeliveries = math.MaxUint16 - 1

// DeliveriesEnded reports whether the job cannot be delivered again.
func (j *Job) DeliveriesEnded() bool { return j.Deliveries >= MaxDeliveries }

// Exhausted reports whether the job will be dead when its current delivery ends. attempt says
// whether that end counts as an attempt.
func (j *Job) Exhausted(attempt bool) bool {
	attempts := j.Attempts
	if attempt && !j.Begun {
		attempts++
	}
	return attempts >= int(j.Policy.Max) || j.deliveriesSinceBase >= 3*int(j.Policy.Max) || j.DeliveriesEnded()
}

// End is what is remembered about a job that has ended.
type End struct {
	State  State // Completed or Cancelled
	At     int64
	Nonce  uint32 // of the claim that completed it
	Result []byte // shared: must not be changed
}

// Ended returns how the job with an ID ended, within the deduplication window.
func (l *Ledger) Ended(id string) (End, bool) {
	pos, ok := l.window.get(Pack(id), l.now)
	if !ok {
		return End{}, false
	}
	e := l.window.at(pos)
	return End{State: e.state, At: e.at, Nonce: e.nonce, Result: l.window.result[pos]}, true
}

// Paused reports whether claims are paused.
func (l *Ledger) Paused() bool { return l.paused }

// Config returns the settings on which the state depends.
func (l *Ledger) Config() Config { return l.config }

// Best returns the waiting job to be claimed next, among those of the given types, or of any type
// if types is empty. It does not check whether the queue is paused.
func (l *Ledger) Best(types []string) (number uint64, ok bool) {
	best := uint32(math.MaxUint32)
	consider := func(typ uint32) {
		if int(typ) >= len(l.readyByType) || l.readyByType[typ].len() == 0 {
			return
		}
		if top := l.best(&l.readyByType[typ]); best == math.MaxUint32 || l.less(top, best) {
			best = top
		}
	}
	if len(types) == 0 {
		for _, typ := range l.nonEmptyTypes {
			consider(typ)
		}
	}
	for _, name := range types {
		if typ, known := l.types.get(name); known {
			consider(typ)
		}
	}
	if best == math.MaxUint32 {
		return 0, false
	}
	return l.jobs.at(best).number, true
}

// ExpiredClaims returns up to limit jobs whose claim has ended by now. The claim that ended first is among
// them.
func (l *Ledger) ExpiredClaims(now int64, limit int) []uint64 { return l.claims.due(now, limit) }

// ExpiredTTLs returns up to limit waiting or delayed jobs whose time to live is over by now.
func (l *Ledger) ExpiredTTLs(now int64, limit int) []uint64 { return l.ttl.due(now, limit) }

// due returns entries by walking the heap from the top; it changes nothing.
func (t *timers) due(now int64, limit int) []uint64 {
	var out []uint64
	for open := []int{0}; len(open) > 0 && len(out) < limit; open = open[1:] {
		at := open[0]
		if at >= len(t.heap) || t.heap[at].at > now {
			continue
		}
		out = append(out, t.jobs.at(t.heap[at].job).number)
		for c := arity*at + 1; c <= arity*at+arity; c++ {
			open = append(open, c)
		}
	}
	return out
}

// NextDeadline returns the next time at which something happens by itself: a job becomes due, a claim or a
// time to live ends. ok is false if there is none.
func (l *Ledger) NextDeadline() (at int64, ok bool) {
	for _, t := range []*timers{&l.delayed, &l.claims, &l.ttl} {
		if len(t.heap) > 0 && (!ok || t.heap[0].at < at) {
			at, ok = t.heap[0].at, true
		}
	}
	return at, ok
}

// Extend sets a new end of an active job's claim. It needs no record, because after a takeover
// every claim gets a fresh visibility timeout.
func (l *Ledger) Extend(number uint64, until int64) bool {
	i, ok := l.liveIndex(number)
	if !ok || l.jobs.at(i).state != Active || l.jobs.at(i).flags&held != 0 {
		return false
	}
	l.claims.move(l.jobs.at(i).pos, until)
	return true
}

// TakeOver ends the replay and gives every claim one fresh visibility timeout. It is not a record.
func (l *Ledger) TakeOver(now int64) {
	l.replayed = nil // it references the last segment
	l.Advance(now)
	for _, number := range l.claims.due(math.MaxInt64, len(l.claims.heap)) {
		i, _ := l.numbers.get(number)
		l.Extend(number, now+l.jobs.at(i).more.claim.visibility)
	}
}

// JobsOfRequest returns the jobs that the claim call with this request ID has claimed, as far as those
// claims still hold.
func (l *Ledger) JobsOfRequest(request string) []uint64 {
	return slices.Sorted(slices.Values(l.requests[request]))
}

// EachFrom calls f for the jobs from number on, in the order of their numbers, until f returns false. f
// may change the job it is called for, but no other.
func (l *Ledger) EachFrom(number uint64, f func(Job) bool) {
	l.numbers.from(number, func(_ uint64, i uint32) bool { return l.jobs.at(i).state == None || f(l.view(i)) })
}

// Stats are the counts of a ledger.
type Stats struct {
	Waiting, Delayed, Active, Dead int
	Paused                         bool
	Oldest                         int64 // when the oldest waiting job was enqueued; 0: no job waits
	Totals                         Totals
	Next                           uint64 // the next job's number
	// Bytes of the index, of payloads in memory, of the deduplication window.
	IndexBytes, PayloadBytes, DedupBytes int64
	DedupIDs                             int
}

// Stats returns the counts. Finding the oldest waiting job has amortized constant cost: each number
// is passed once.
func (l *Ledger) Stats() Stats {
	s := Stats{
		Waiting: l.count[Waiting], Delayed: l.count[Delayed], Active: l.count[Active], Dead: l.count[Dead],
		Paused: l.paused, Totals: l.totals, Next: l.next,
		IndexBytes: l.bytes(), PayloadBytes: l.payloadBytes, DedupBytes: l.window.bytes(), DedupIDs: l.window.ids.n,
	}
	if s.Waiting > 0 {
		l.numbers.from(l.oldest, func(number uint64, i uint32) bool {
			if l.jobs.at(i).state != Waiting {
				return true
			}
			l.oldest, s.Oldest = number, l.jobs.at(i).created
			return false
		})
	}
	return s
}

// Waiting returns how many jobs are waiting; held ones are counted as well.
func (l *Ledger) Waiting() int { return l.count[Waiting] }

// Jobs returns how many jobs are live, for limits.
func (l *Ledger) Jobs() int { return l.jobs.n - l.expected }

// Bytes returns the memory of live jobs, index and payloads, estimated in constant time.
func (l *Ledger) Bytes() int64 {
	return int64(l.jobs.n)*100 + l.payloadBytes + l.extraBytes + l.segments.bytes()
}

// CheckpointBytes estimates the size of a checkpoint in bytes, without the deduplication window, of
// which a checkpoint writes only what is new.
func (l *Ledger) CheckpointBytes() int64 {
	return int64(l.Jobs())*savedJobSize + l.payloadBytes - l.recent.bytes + l.extraBytes
}

// savedJobSize is about what a waiting job takes in a checkpoint.
const savedJobSize = 64

// bytes returns the memory of the index.
func (l *Ledger) bytes() int64 {
	n := l.jobs.bytes() + l.ids.bytes() + l.numbers.bytes() + l.delayed.bytes() + l.claims.bytes() + l.ttl.bytes()
	n += l.extraBytes + l.types.size + l.segments.bytes() + int64(len(l.heldTimes))*64
	for i := range l.readyByType {
		n += int64(cap(l.readyByType[i].heap)+cap(l.readyByType[i].fifo.jobs))*4 + readyQueueSize
	}
	return n
}

// Size returns the size of a job's payload in bytes, inline or not; 0 if there is no such job.
func (l *Ledger) Size(number uint64) int {
	i, ok := l.liveIndex(number)
	if !ok {
		return 0
	}
	j := l.jobs.at(i)
	if j.more != nil && j.more.blob != "" {
		return j.more.size
	}
	return int(j.size)
}

// Unreferenced returns those keys that are not the payload of a job.
func (l *Ledger) Unreferenced(keys map[string]bool) []string {
	left := maps.Clone(keys)
	l.numbers.from(0, func(_ uint64, i uint32) bool {
		if m := l.jobs.at(i).more; m != nil && m.blob != "" {
			delete(left, m.blob)
		}
		return true
	})
	return slices.Sorted(maps.Keys(left))
}

// Blob returns the key of the job's payload object, or "".
func (l *Ledger) Blob(number uint64) string {
	i, ok := l.liveIndex(number)
	if !ok || l.jobs.at(i).more == nil {
		return ""
	}
	return l.jobs.at(i).more.blob
}
