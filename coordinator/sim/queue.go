package sim

import "time"

// queue holds what is going to happen: a heap ordered by time, then by the order of arrival. The
// heap moves small keys without pointers; the events stay in their slots, which are used again.
type queue struct {
	heap  []key
	slots []event
	free  []int32
	seq   uint64
}

// key orders an event and says where it is.
type key struct {
	at   time.Duration
	seq  uint64
	slot int32
}

// event is something that is going to happen. Which fields are set depends on the kind.
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
	// Things that happen within a process: frozen while it is paused, void once it is dead.
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

	// Things that happen outside.
	evArrive       // a call at the store
	evEffectArrive // an effect at the resource
	evTrust        // check: does the run still have trust?
	evReign        // check: does the leader still have trust?
	evOverlap      // check: is an excused overlap over?
	evSettled      // check: is the cluster well?
	evDo           // in is a func
)

// empty reports whether nothing is going to happen.
func (q *queue) empty() bool { return len(q.heap) == 0 }

// next returns when the first event happens; the queue must not be empty.
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

// pop removes the first event; the queue must not be empty.
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

// sink puts k where the first key was and lets it down to its place.
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
