package object

import (
	"sync"
	"time"

	"github.com/emitd/emitd/storage"
)

// silentFunc reports whether a node has been silent for ttl.
type silentFunc func(m *member, ttl time.Duration, now time.Time) bool

// silent decides by the shared clock, or by how long this process has seen the row unchanged, by its own
// clock.
func (s *Store) silent(m *member, ttl time.Duration, now time.Time) bool {
	if s.cfg.Clock != nil {
		return !storage.NodeIDInUse(m.LastHeartbeatAt, now, ttl)
	}
	return s.unchangedSince.unchanged("node "+string(m.Incarnation), m.Seq) >= ttl
}

// unchangedTimes remember since when a value was seen unchanged, by the clock of this process. That
// clock only runs forward. A process that looks late measures a shorter time, never a longer one.
type unchangedTimes struct {
	mu sync.Mutex
	of map[string]observation
}

type observation struct {
	value any
	since time.Time
}

// maxSightings bounds the memory for values that may be gone. A forgotten value must be observed
// once more for the whole time.
const maxSightings = 10_000

// unchanged records the present value and returns for how long it has been seen.
func (w *unchangedTimes) unchanged(key string, value any) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if old, ok := w.of[key]; ok && old.value == value {
		return now.Sub(old.since)
	}
	if len(w.of) >= maxSightings {
		clear(w.of)
	}
	w.of[key] = observation{value, now}
	return 0
}
