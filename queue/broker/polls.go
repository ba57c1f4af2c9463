package broker

import (
	"sync"
	"sync/atomic"
)

// polls are the long polls with a request ID that wait at this node.
type polls struct {
	mu      sync.Mutex
	waiting map[pollID]*longPoll
}

type pollID struct{ queue, request string }

// longPoll is a claim call that waits for jobs, with one call in each of the node's shards.
type longPoll struct {
	id    pollID
	taken atomic.Bool // see call
	done  chan *call
}

// supersede answers the long poll of a request without jobs, if one waits: its caller has called again because it expects
// no answer any more, and jobs that went to the lost call would stay claimed.
func (p *polls) supersede(id pollID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer(id)
}

// answer is supersede. The caller holds mu.
func (p *polls) answer(id pollID) {
	if before := p.waiting[id]; before != nil && !before.taken.Swap(true) {
		none := &claimCall{}
		none.work = none
		before.done <- &none.call
	}
}

// begin adds a long poll. It takes the place of one of the same request.
func (p *polls) begin(queue, request string) *longPoll {
	l := &longPoll{id: pollID{queue, request}, done: make(chan *call, 1)}
	if request == "" {
		return l
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer(l.id)
	if p.waiting == nil {
		p.waiting = map[pollID]*longPoll{}
	}
	p.waiting[l.id] = l
	return l
}

// end forgets a long poll.
func (p *polls) end(l *longPoll) {
	if l.id.request == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[l.id] == l {
		delete(p.waiting, l.id)
	}
}
