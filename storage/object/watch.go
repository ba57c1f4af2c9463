package object

import (
	"sync"
	"time"

	"github.com/emitd/emitd/storage"
)

// silence tells whether a node has said nothing for ttl.
type silence func(m *member, ttl time.Duration, now time.Time) bool

// silent is a silence: by the common clock, or as this process has seen it by its own.
func (s *Store) silent(m *member, ttl time.Duration, now time.Time) bool {
	if s.cfg.Clock != nil {
		return !storage.InUse(m.LastHeartbeatAt, now, ttl)
	}
	return s.seenSince.unchanged("node "+string(m.Incarnation), m.Seq) >= ttl
}

// sightings remember since when something was seen unchanged, by the clock of this process: it
// only runs forward, and who is late sees less, never more.
type sightings struct {
	mu sync.Mutex
	of map[string]sighting
}

type sighting struct {
	value any
	since time.Time
}

// maxSightings bounds the memory of things that may be gone. To forget one means to wait for it
// once more.
const maxSightings = 10_000

// unchanged notes the present value and returns for how long it has been seen.
func (w *sightings) unchanged(key string, value any) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if old, ok := w.of[key]; ok && old.value == value {
		return now.Sub(old.since)
	}
	if len(w.of) >= maxSightings {
		clear(w.of)
	}
	w.of[key] = sighting{value, now}
	return 0
}
