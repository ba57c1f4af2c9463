package outbox

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/outbox"
)

// writtenRecord records what the writers committed and what they rolled back.
type writtenRecord struct {
	mu sync.Mutex
	// place is the index of a committed message among those of its key, in the order of the key's lock.
	place  map[uuid.UUID]int
	key    map[uuid.UUID]string
	length map[string]int // of each key
	undone map[uuid.UUID]bool
}

func newLedger() *writtenRecord {
	return &writtenRecord{place: map[uuid.UUID]int{}, key: map[uuid.UUID]string{}, length: map[string]int{}, undone: map[uuid.UUID]bool{}}
}

// note records what a transaction is about to commit and what it has undone. The writer calls it last,
// while it holds the lock of the key, so that places are in the order of the locks.
func (l *writtenRecord) note(kept, gone []outbox.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range kept {
		l.place[m.ID], l.key[m.ID] = l.length[m.Key], m.Key
		l.length[m.Key]++
	}
	for _, m := range gone {
		l.undone[m.ID] = true
	}
}

// committed returns the number of committed messages.
func (l *writtenRecord) committed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.place)
}

// arrival is a message as a reader of the receiver sees it.
type arrival struct {
	id         uuid.UUID
	generation int64 // of the relay that sent it; 0 if the receiver does not store it
	partition  int32 // of a receiver that keeps order only within partitions
}

// verdict is the result of comparing the two records.
type verdict struct {
	committed, undone int // messages

	lost       int // committed, and never seen
	ghosts     int // seen, and not committed
	inversions int // first seen after a later one of its key
	repeated   int // seen again
	// unexplained counts messages seen again from the same relay, without a crash or a hand-over in between.
	unexplained int
	// backwards counts messages from an older relay than an earlier message of the same key, or than an
	// earlier arrival of the same message.
	backwards int
}

// check compares the arrivals with the ledger. They are in the order in which readers see them; between
// different keys any order is valid.
func (l *writtenRecord) check(arrivals []arrival) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := verdict{committed: len(l.place), undone: len(l.undone)}
	last := map[uuid.UUID]arrival{}
	furthest, newest := map[string]int{}, map[string]int64{}
	for _, a := range arrivals {
		place, known := l.place[a.id]
		if !known {
			v.ghosts++
			continue
		}
		key := l.key[a.id]
		before, again := last[a.id]
		late := again && a.generation < before.generation && a.partition == before.partition
		if key != "" {
			late = late || a.generation < newest[key]
			newest[key] = max(newest[key], a.generation)
		}
		if late {
			v.backwards++
		}
		last[a.id] = a
		switch {
		case again:
			v.repeated++
			if a.generation == before.generation {
				v.unexplained++
			}
		case key != "" && place < furthest[key]:
			v.inversions++
		default:
			furthest[key] = place
		}
	}
	v.lost = len(l.place) - len(last)
	return v
}

// repeats says which messages may be seen again.
type repeats string

const (
	never      repeats = "never"
	byHandOver repeats = "each explained by a hand-over"
	byFailover repeats = "explained by the failover"
)

// report checks the verdict against the promises, and records the figures for the document.
func (v verdict) report(t *testing.T, what string, again repeats) {
	t.Helper()
	t.Logf("%s: %d messages committed, %d rolled back: %+v", what, v.committed, v.undone, v)
	what = fmt.Sprintf("%s, %d messages", what, v.committed)
	drill.Never(t, what+", lost", v.lost)
	drill.Never(t, what+fmt.Sprintf(", delivered of %d rolled back", v.undone), v.ghosts)
	drill.Never(t, what+", out of order in their key", v.inversions)
	if what += ", delivered again"; again == never {
		drill.Never(t, what, v.repeated)
		return
	}
	drill.Count(t, what, v.repeated, string(again))
	if again == byHandOver && v.unexplained > 0 {
		t.Errorf("%s: %d times by the same relay", what, v.unexplained)
	}
}

// TestCheckFindsViolations checks that judge finds violations.
func TestCheckFindsViolations(t *testing.T) {
	t.Parallel()
	l := newLedger()
	var m []outbox.Message
	for range 4 {
		m = append(m, outbox.Message{ID: uuid.New(), Key: "k"})
	}
	gone := outbox.Message{ID: uuid.New(), Key: "k"}
	l.note(m[:3], nil)
	l.note(m[3:], []outbox.Message{gone})
	at := func(generation int64, ids ...int) (out []arrival) {
		for _, i := range ids {
			out = append(out, arrival{id: m[i].ID, generation: generation})
		}
		return out
	}
	for name, c := range map[string]struct {
		arrivals []arrival
		want     verdict
	}{
		"all is well":        {at(1, 0, 1, 2, 3), verdict{}},
		"a hand-over":        {append(at(1, 0, 1, 2), at(2, 1, 2, 3)...), verdict{repeated: 2}},
		"lost":               {at(1, 0, 2, 3), verdict{lost: 1}},
		"out of order":       {at(1, 0, 2, 1, 3), verdict{inversions: 1}},
		"rolled back":        {append(at(1, 0, 1, 2, 3), arrival{id: gone.ID, generation: 1}), verdict{ghosts: 1}},
		"again for nothing":  {at(1, 0, 1, 1, 2, 3), verdict{repeated: 1, unexplained: 1}},
		"again, out of turn": {append(at(2, 0, 1, 2, 3), at(1, 3)...), verdict{repeated: 1, backwards: 1}},
	} {
		c.want.committed, c.want.undone = 4, 1
		if got := l.check(c.arrivals); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
