// Package owner is the state machine of one owner of a journal. It makes every decision of the
// protocol in package journal: values and the time come in, effects go out. It has no goroutine,
// channel, clock or I/O. The log (package journal) and the simulator (journal/sim) drive the same
// machine.
//
// # Life
//
//	Start ─▶ taking over ─▶ owning ─▶ closing ─▶ ended
//	           R1 … R5       Append      Close
//
// Every phase may end at once: fenced, stopped, or refused. The driver carries out effects in their
// order. It answers each [Call], at any later time, by [Machine.Result] with the call's ID. Answers
// to calls of an abandoned attempt are ignored. Any number of calls may be in flight. A slot is
// only ever attempted with one body.
//
// # Retries
//
// A call that has certainly failed, or has an unknown outcome, is repeated with the same bytes
// after a growing, jittered pause. The machine never gives up; the driver does, by Stop.
package owner

import (
	"math"
	"time"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// Config has the values on which the rules depend. All fields must be set, except where stated.
type Config struct {
	StoreID    string
	Generation int64
	Owner      string
	Adopt      bool
	// Name identifies the journal; the HEAD of another one is refused. Empty: not checked.
	Name string
	// Salvage takes over what is left of a damaged journal: missing and damaged segments are
	// skipped, each with a Skipped effect.
	Salvage bool

	Window int
	// MinGap is the least time between two segments. If MaxGap is longer, a segment is written at once
	// when none is being written, or up to MinGap after the newest acknowledgement if fewer callers wait for it
	// than waited for the one before. Otherwise, the time is between the two: about the latency of a
	// write divided by Window, less when few are being written.
	MinGap, MaxGap time.Duration
	// WritesPerSecond limits the segments that carry few records; see budget. 0: no limit.
	WritesPerSecond float64
	// MarkAfter is how long a journal is idle before it writes a mark: a segment without
	// records that says that the ones before it were acknowledged. MarkEvery is the least time
	// between two marks. 0: no marks.
	MarkAfter, MarkEvery time.Duration
	MaxSegment           int
	MaxCall              int
	MaxPending           int
	PartSize             int
	Readahead            int
	ReadBytes            int // bytes of slots that may wait for replay

	// Rand returns 64 random bits that no other process, nor a copy of this one, gets.
	Rand func() uint64
}

// phase is the machine's phase of life.
type phase int

const (
	idle phase = iota
	taking
	owning
	closing
	ended
)

// never is a time before all others.
const never = time.Duration(math.MinInt64 / 2)

// Machine is one owner. Its methods must not be called concurrently; now must never go back.
type Machine struct {
	cfg     Config
	phase   phase
	err     error // why it ended; nil after a clean close
	pending []Effect

	calls  []*Call // in flight, in the order of their IDs
	lastID uint64

	// Both are nil once it owns the journal, to free the memory of the takeover.
	takeover      *takeover
	attemptNonces map[uint64]bool // nonces of all our attempts at R1

	// Valid in the phases owning and closing.
	head    format.Head // HEAD as it is stored, written by this owner
	version string      // version of HEAD
	change  *change     // the change of HEAD that is in flight; nil: none

	log       commits
	ckpt      *checkpoint
	collector collector
	time      int64 // the newest time in the journal, µs

	stats Stats
}

// Stats are counts since Start; see Stats of package journal.
type Stats struct {
	Slots                           int
	Bytes                           int64
	Segments, Records, SegmentBytes int64
	Repeated, Recognised            int64
}

// New returns a machine that waits for Start.
func New(cfg Config) *Machine {
	return &Machine{
		cfg: cfg, takeover: &takeover{}, attemptNonces: map[uint64]bool{}, time: minTime, log: commits{lastSegmentAt: never, markedAt: never, wakeAt: never, budget: newBudget(cfg.WritesPerSecond)},
	}
}

// Start begins the takeover.
func (m *Machine) Start(now time.Duration) []Effect {
	m.phase = taking
	m.call(&Call{Op: ReadHead, Key: format.HeadKey})
	return m.effects()
}

// Stop ends the machine: nothing is acknowledged any more. Once HEAD says closed, only its copy is missing, and the end is clean.
func (m *Machine) Stop(err error) []Effect {
	if m.head.Closed != 0 {
		err = nil
	}
	m.end(err)
	return m.effects()
}

// View is the machine's state as callers see it.
type View struct {
	Err        error // why it ended; nil before, and after a clean close
	Epoch      int64
	Secret     []byte
	Time       int64  // the newest time of the journal, µs
	Durable    uint64 // the highest acknowledged slot
	NewestSlot uint64 // the highest slot that has a record or is being gathered

	Pending     int  // bytes of records that are not acknowledged
	Outstanding int  // slots that are being written
	Full        bool // Append returns ErrFull for every record
	Backlog     int  // bytes of the checkpoint that are not stored
	Stats       Stats
}

// View returns the current state.
func (m *Machine) View() View {
	v := View{
		Err: m.err, Epoch: m.head.Epoch, Secret: m.head.Secret, Time: m.time, Durable: m.log.durable, NewestSlot: m.newestSlot(),
		Pending: m.log.pending, Outstanding: len(m.log.window), Full: m.log.pending >= m.cfg.MaxPending, Stats: m.stats,
	}
	if m.ckpt != nil {
		v.Backlog = m.ckpt.backlog
	}
	return v
}

func (m *Machine) effects() []Effect {
	out := m.pending
	m.pending = nil
	return out
}

func (m *Machine) emit(e Effect) { m.pending = append(m.pending, e) }

func (m *Machine) end(err error) {
	if m.phase == ended {
		return
	}
	m.phase, m.err = ended, err
	m.calls = nil
	m.emit(End{Err: err})
}

// owns reports whether the machine owns the journal.
func (m *Machine) owns() bool { return m.phase == owning || m.phase == closing }
