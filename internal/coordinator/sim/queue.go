package sim

import "time"

// queue holds the future events: a heap ordered by time, then by order of arrival. The heap moves
// small keys without pointers. The events stay in their slots, which are reused.
type queue struct {
	heap  []key
	slots []event
	free  []int32
	seq   uint64
}

// key orders an event and points to its slot.
type key struct {
	at   time.Duration
	seq  uint64
	slot int32
}

// event is a future event. The kind determines which fields are set.
type event struct {
	at   time.Duration
	kind eventKind
	p    *process
	run  *run
	call *call
	n    int64
	in   any // a member.Input, or a func()
}

type eventKind uint8

const (
	// Events within a process: frozen while it is paused, dropped once it is dead.
	evTick eventKind = iota
	evSend
	evReply
	evTimeout
	evInput // in is the input
	evReady
	evReturn
	evFail
	evRetry // enter again after a failure, or stamp again
	evEffect

	lastOfProcess

	// Events outside of processes.
	evArrive       // a call at the store
	evEffectArrive // an effect at the resource
	evTrust        // check: is the run still valid?
	evLeaderTrust  // check: is the leadership still valid?
	evOverlap      // check: is an excused overlap over?
	evSettled      // check: is the cluster well?
	evDo           // in is a func
)

// empty reports whether there are no events.
func (q *queue) empty() bool { return len(q.heap) == 0 }

// next returns the time of the first event. The queue must not be empty.
func (q *queue) next() time.Duration { return q.heap[0].at }

func (q *queue) push(e event) {
	slot := int32(len(q.slots))
	if n := len(q.free); n > 0 {
		slot, q.free = q.free[n-1], q.free[:n-1]
		q.slots[slot] = e
	} else {
		q.slots = append(q.slots, e)
	}
	q.seq++
	k := key{e.at, q.seq, slot}
	q.heap = append(q.heap, k)
	i := len(q.heap) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !k.before(&q.heap[parent]) {
			break
		}
		q.heap[i] = q.heap[parent]
		i = parent
	}
	q.heap[i] = k
}

// pop removes the first event. The queue must not be empty.
func (q *queue) pop() event {
	slot := q.heap[0].slot
	n := len(q.heap) - 1
	last := q.heap[n]
	q.heap = q.heap[:n]
	if n > 0 {
		q.sink(last)
	}
	e := q.slots[slot]
	q.slots[slot] = event{}
	q.free = append(q.free, slot)
	return e
}

// sink replaces the first key by k and moves it down to its place.
func (q *queue) sink(k key) {
	i := 0
	for {
		first := -1
		for c := 4*i + 1; c <= 4*i+4 && c < len(q.heap); c++ {
			if first < 0 || q.heap[c].before(&q.heap[first]) {
				first = c
			}
		}
		if first < 0 || k.before(&q.heap[first]) {
			break
		}
		q.heap[i] = q.heap[first]
		i = first
	}
	q.heap[i] = k
}

func (k *key) before(l *key) bool { return k.at < l.at || k.at == l.at && k.seq < l.seq }
