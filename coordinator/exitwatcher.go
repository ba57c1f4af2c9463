package coordinator

import (
	"sync"
	"time"

	"github.com/emitd/emitd/node"
)

// exitWatcher watches the other nodes' processes on this host for their end. Exit evidence frees their units and
// their term at once, instead of after NodeRegistrationTTL and the lease.
type exitWatcher struct {
	self node.Member
	host processProbe
	// peersAdded signals that peers were added that have not been checked yet. A process that was restarted finds its
	// predecessor in its first member list.
	peersAdded chan struct{} // capacity 1

	mu    sync.Mutex
	peers map[node.Incarnation]node.Host
}

func newExitWatcher(id node.Identity, own node.Host) *exitWatcher {
	return &exitWatcher{
		self: node.Member{Identity: id, Traits: node.Traits{Host: own}},
		host: newProcessProbe(), peersAdded: make(chan struct{}, 1), peers: map[node.Incarnation]node.Host{},
	}
}

// setPeers replaces the peers by those of a member list.
func (w *exitWatcher) setPeers(members []node.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.peers
	w.peers = make(map[node.Incarnation]node.Host, len(old))
	for i := range members {
		if m := &members[i]; m.Present() && !m.ExitProven {
			w.add(m, old)
		}
	}
}

// addPeer adds one process that no member list has shown: the one with this node's ID, because of which this node
// cannot register.
func (w *exitWatcher) addPeer(m node.Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.add(&m, w.peers)
}

// add adds a process of this host, and signals peersAdded if it is new. It skips nodes of this very process, which live
// as long as the watcher, and of which there may be a thousand.
func (w *exitWatcher) add(m *node.Member, known map[node.Incarnation]node.Host) {
	if m.Host.BootID == "" || m.Host.BootID != w.self.Host.BootID ||
		(m.Host.PID == w.self.Host.PID && m.Host.Start == w.self.Host.Start) {
		return
	}
	_, old := known[m.Incarnation]
	w.peers[m.Incarnation] = m.Host
	if !old {
		select {
		case w.peersAdded <- struct{}{}:
		default:
		}
	}
}

// ended returns the processes that have provably ended. It returns each of them every time, until a member list
// shows that the store knows.
func (w *exitWatcher) ended() []node.Incarnation {
	w.mu.Lock()
	peers := make(map[node.Incarnation]node.Host, len(w.peers))
	for inc, h := range w.peers {
		peers[inc] = h
	}
	w.mu.Unlock()
	var out []node.Incarnation
	over := map[node.Host]bool{} // a process with many nodes is checked once
	for inc, h := range peers {
		ended, checked := over[h]
		if !checked {
			ended = w.host.ended(h)
			over[h] = ended
		}
		if ended {
			out = append(out, inc)
		}
	}
	return out
}

// exitCheckInterval returns how often to check. A check sends one signal to each peer of the host, which is cheap.
func exitCheckInterval(heartbeat time.Duration) time.Duration {
	return min(250*time.Millisecond, heartbeat/4)
}
