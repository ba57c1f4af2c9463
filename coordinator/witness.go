package coordinator

import (
	"sync"
	"time"

	"github.com/emitd/emitd/node"
)

// witness knows the other processes of this host and looks whether they have ended. Proof of
// death frees their units at once instead of after NodeRegistrationTTL.
type witness struct {
	self node.Member
	host hostLevel

	mu    sync.Mutex
	peers map[node.Incarnation]node.Host
}

func newWitness(id node.Identity, own node.Host) *witness {
	return &witness{
		self: node.Member{Identity: id, Traits: node.Traits{Host: own}},
		host: thisHostLevel(), peers: map[node.Incarnation]node.Host{},
	}
}

// see takes a whole member list.
func (w *witness) see(members []node.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.peers)
	for i := range members {
		m := &members[i]
		// Nodes of this very process live as long as who looks, and there may be a thousand.
		if m.Present() && !m.Witnessed && m.Host.BootID != "" && m.Host.BootID == w.self.Host.BootID &&
			(m.Host.PID != w.self.Host.PID || m.Host.Start != w.self.Host.Start) {
			w.peers[m.Incarnation] = m.Host
		}
	}
}

// ended lists the processes that are proven to have ended, each every time it is asked until a
// member list shows that it is known.
func (w *witness) ended() []node.Incarnation {
	w.mu.Lock()
	peers := make(map[node.Incarnation]node.Host, len(w.peers))
	for inc, h := range w.peers {
		peers[inc] = h
	}
	w.mu.Unlock()
	var out []node.Incarnation
	over := map[node.Host]bool{} // a process with many nodes is looked at once
	for inc, h := range peers {
		ended, looked := over[h]
		if !looked {
			ended = w.host.ended(h)
			over[h] = ended
		}
		if ended {
			out = append(out, inc)
		}
	}
	return out
}

// witnessInterval returns how often to look: a signal to each peer of the host is cheap.
func witnessInterval(heartbeat time.Duration) time.Duration { return min(time.Second, heartbeat/4) }
