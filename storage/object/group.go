package object

import (
	"slices"
	"sync"
)

// group holds the steps of this process that wait for a write of the cluster object (group commit). The step that
// holds Store.clusterMu takes along all others that wait: one read and one write serve them all. If another process is
// first, all of them together need one more attempt. A node that starts many runs, reports and sends a heartbeat at
// the same time therefore writes once.
type group struct {
	mu      sync.Mutex
	waiting []*proposal // in order of arrival
}

// proposal is a step that waits. The call that it belongs to and the call that carries it out may differ.
type proposal struct {
	step
	alone bool // it is written alone from now on; guarded by Store.clusterMu

	mu                sync.Mutex    // held while the step is applied
	abandonedByCaller bool          // its caller has given up: the step must not be applied
	ready             chan struct{} // closed when there is an answer
	answer                          // valid once ready is closed
}

// answer is the result of a step.
type answer struct {
	c   *cluster // the cluster after the step
	err error
}

func (g *group) add(st step) *proposal {
	p := &proposal{step: st, ready: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, p)
	return p
}

// batchOf lists the steps that p is written together with, itself included.
func (g *group) batchOf(p *proposal) []*proposal {
	if p.alone {
		return []*proposal{p}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.waiting)
}

// drop ends the wait of the caller. After it has returned, the step is not applied any more.
func (g *group) drop(p *proposal) {
	p.mu.Lock()
	p.abandonedByCaller = true
	p.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, p); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
}

// answer gives the answer to a step. The caller holds clusterMu.
func (g *group) answer(p *proposal, a answer) {
	p.answer = a
	close(p.ready)
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, p); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
}

// answered reports whether there is an answer.
func (p *proposal) answered() bool {
	select {
	case <-p.ready:
		return true
	default:
		return false
	}
}
