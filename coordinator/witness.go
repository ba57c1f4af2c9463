package coordinator

import (
	"sync"
	"time"

	"github.com/emitd/emitd/node"
)

// witness knows the other processes of this host and looks whether they have ended. Proof of
// death frees their units and their term at once, instead of after NodeRegistrationTTL and the lease.
type witness struct {
	self node.Member
	host hostLevel
	// met says that there are peers which were not looked at yet: a process that was restarted finds its
	// predecessor in the first list.
	met chan struct{} // capacity 1

	mu    sync.Mutex
	peers map[node.Incarnation]node.Host
}

func newWitness(id node.Identity, own node.Host) *witness {
	return &witness{
		self: node.Member{Identity: id, Traits: node.Traits{Host: own}},
		host: thisHostLevel(), met: make(chan struct{}, 1), peers: map[node.Incarnation]node.Host{},
	}
}

// see takes a whole member list.
func (w *witness) see(members []node.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.peers
	w.peers = make(map[node.Incarnation]node.Host, len(old))
	for i := range members {
		if m := &members[i]; m.Present() && !m.Witnessed {
			w.add(m, old)
		}
	}
}

// meet takes one process that no member list has shown: it has the ID with which this one cannot register.
func (w *witness) meet(m node.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.add(&m, w.peers)
}

// add keeps a process of this host, and says so if it is not among those known. Nodes of this very
// process live as long as who looks, and there may be a thousand.
func (w *witness) add(m *node.Member, known map[node.Incarnation]node.Host) {
	if m.Host.BootID == "" || m.Host.BootID != w.self.Host.BootID ||
		(m.Host.PID == w.self.Host.PID && m.Host.Start == w.self.Host.Start) {
		return
	}
	_, old := known[m.Incarnation]
	w.peers[m.Incarnation] = m.Host
	if !old {
		select {
		case w.met <- struct{}{}:
		default:
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
func witnessInterval(heartbeat time.Duration) time.Duration {
	return min(250*time.Millisecond, heartbeat/4)
}
