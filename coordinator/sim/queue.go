package sim

import "time"

// queue holds what is going to happen: a heap ordered by time, then by the order of arrival.
type queue struct {
	heap []event
	seq  uint64
}

// event is something that is going to happen. Which fields are set depends on the kind.
type event struct {
	at   time.Duration
	seq  uint64
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

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !before(&q.heap[i], &q.heap[parent]) {
			break
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// pop removes the first event; the queue must not be empty.
func (q *queue) pop() event {
	top := q.heap[0]
	n := len(q.heap) - 1
	q.heap[0] = q.heap[n]
	q.heap[n] = event{}
	q.heap = q.heap[:n]
	q.sink(0)
	return top
}

func (q *queue) sink(i int) {
	for {
		first := i
		for c := 4*i + 1; c <= 4*i+4 && c < len(q.heap); c++ {
			if before(&q.heap[c], &q.heap[first]) {
				first = c
			}
		}
		if first == i {
			return
		}
		q.heap[i], q.heap[first] = q.heap[first], q.heap[i]
		i = first
	}
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }
