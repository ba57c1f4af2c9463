package memory

import (
	"time"

	"github.com/emitd/emitd/daemon"
)

// snapshot reads the whole cluster. It copies the rows of nodes, because each heartbeat writes
// them. Units and adverts are shared with other readers.
func (s *state) snapshot(now time.Time) *daemon.Snapshot {
	return &daemon.Snapshot{
		Now: now, Cluster: s.cluster, Term: s.term, Lease: s.lease,
		Nodes:    s.members(),
		Units:    s.units.all(),
		Adverts:  s.adverts,
		Head:     s.head,
		Commands: s.commands.Open(),
	}
}

// Image is the content of a store at one moment.
type Image struct{ state *state }

// Clone returns the store's present content. It costs a copy of the nodes' rows and one pointer
// per unit.
func (s *Store) Clone() *Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Image{s.state.clone()}
}

// Restore puts an earlier content back, like an asynchronous failover that lost the newest rows.
// Terms, generations, fences, events and locks go back to what they were then. The store identity
// stays; to simulate a failover that changes it, call SetStoreID afterwards. An image may be
// restored any number of times, into any store.
func (s *Store) Restore(image *Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = image.state.clone()
	s.lastEventPassed = s.state.head
}

// SetStoreID changes the store identity.
func (s *Store) SetStoreID(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storeID = id
}
