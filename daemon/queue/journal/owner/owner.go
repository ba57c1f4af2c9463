// Package owner is one owner of a journal as a state machine. Every rule of package journal that
// decides is decided here: values and the time come in, effects go out. There is no goroutine, no
// channel, no clock and no I/O; the shell (package journal) and the simulator (journal/sim) drive
// the same machine.
//
// # Life
//
//	Start ─▶ taking over ─▶ owning ─▶ closing ─▶ ended
//	           R1 … R5       Append      Close
//
// Every phase may end at once: fenced, stopped, or refused. Effects are carried out in their order;
// a [Call] is answered, at some time, by [Machine.Result] with its ID. Answers to calls of an
// abandoned attempt are ignored. Calls may be under way in any number, except that a slot is only
// ever attempted with one body.
//
// # Retries
//
// A call that has certainly failed, or whose outcome is unknown, is called again with the same
// bytes, after a growing, jittered pause. It is the shell's to give up: it stops the machine.
package owner

import (
	"math"
	"time"

	"github.com/emitd/emitd/daemon/queue/journal/format"
)

// Config is what the rules depend on. All fields must be set.
type Config struct {
	StoreID    string
	Generation int64
	Owner      string
	Adopt      bool
	// Name says of what it is the journal: the HEAD of another one is refused. Empty: unknown.
	Name string
	// Salvage takes over what is left of a damaged journal: segments that are missing or damaged are
	// passed over, each with a Lost.
	Salvage bool

	Window int
	// MinGap is the least time between two cuts under load. If MaxGap is longer, it is a Window-th of
	// what a write takes, within the two: closer cuts would only fill the window.
	MinGap, MaxGap time.Duration
	// MarkAfter is how long a journal is idle before a segment without records says that the ones
	// before it were acknowledged, and MarkEvery the least time between two of those. 0: never.
	MarkAfter, MarkEvery time.Duration
	MaxSegment           int
	MaxCall              int
	MaxPending           int
	PartSize             int
	Readahead            int
	ReadBytes            int // of slots that wait for being replayed

	// Rand returns 64 random bits that no other process, nor a copy of this one, draws.
	Rand func() uint64
}

// phase is where the machine stands.
type phase int

const (
	idle phase = iota
	taking
	owning
	closing
	ended
)

// never is a time long before all others.
const never = time.Duration(math.MinInt64 / 2)

// Machine is one owner. Its methods are called one at a time; now never goes back.
type Machine struct {
	cfg   Config
	phase phase
	err   error // why it ended; nil after a clean close
	out   []Effect

	calls  map[uint64]*Call // under way
	lastID uint64

	take  *takeover       // nil once it owns the journal: most of what a machine needs is for that
	began map[uint64]bool // nonces of R1

	// Valid from owning on.
	head    format.Head // as HEAD stands, written by this owner
	version string      // of HEAD
	change  *change     // of HEAD, under way

	log  commits
	ckpt *checkpoint
	gc   collector
	time int64 // the newest time of the journal, µs

	stats Stats
}

// Stats counts since Start; see Stats of package journal.
type Stats struct {
	Slots                           int
	Bytes                           int64
	Segments, Records, SegmentBytes int64
	Repeated, Recognised            int64
}

// New returns a machine that waits for Start.
func New(cfg Config) *Machine {
	return &Machine{
		cfg: cfg, take: &takeover{}, calls: map[uint64]*Call{}, began: map[uint64]bool{}, time: minTime, log: commits{lastCut: never, markedAt: never, wake: never},
	}
}

// Start begins the takeover.
func (m *Machine) Start(now time.Duration) []Effect {
	m.phase = taking
	m.call(&Call{Op: ReadHead, Key: format.HeadKey})
	return m.effects()
}

// Stop ends the machine: nothing is acknowledged any more.
func (m *Machine) Stop(err error) []Effect {
	m.end(err)
	return m.effects()
}

// View is what a machine says of itself.
type View struct {
	Err     error // why it ended; nil before, and after a clean close
	Epoch   int64
	Secret  []byte
	Time    int64  // the newest time of the journal, µs
	Durable uint64 // the highest acknowledged slot
	Barrier uint64 // the highest slot that has a record

	Pending     int  // bytes of records that are not acknowledged
	Outstanding int  // slots that are being written
	Full        bool // Append refuses every record
	Backlog     int  // bytes of the checkpoint that are not stored
	Stats       Stats
}

// View returns what stands now.
func (m *Machine) View() View {
	v := View{
		Err: m.err, Epoch: m.head.Epoch, Secret: m.head.Secret, Time: m.time, Durable: m.log.durable, Barrier: m.newest(),
		Pending: m.log.pending, Outstanding: len(m.log.window), Full: m.log.pending >= m.cfg.MaxPending, Stats: m.stats,
	}
	if m.ckpt != nil {
		v.Backlog = m.ckpt.backlog
	}
	return v
}

func (m *Machine) effects() []Effect {
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) emit(e Effect) { m.out = append(m.out, e) }

func (m *Machine) end(err error) {
	if m.phase == ended {
		return
	}
	m.phase, m.err = ended, err
	clear(m.calls)
	m.emit(End{Err: err})
}

// owns reports whether the machine may append to the log.
func (m *Machine) owns() bool { return m.phase == owning || m.phase == closing }
