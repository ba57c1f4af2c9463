package owner

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// takeover is the state of one attempt of R1 to R5; see the package comment of journal.
type takeover struct {
	LogWalk // the way along the log: At is the next slot to replay

	listed       bool        // HEAD was missing, and the prefix was listed
	replaced     format.Head // the HEAD that R1 replaces
	newHead      format.Head // the HEAD that R1 writes
	version      string      // version of mine
	created      bool        // there was no HEAD: a new journal
	claimSent    bool        // R1 was sent; reading has begun already
	headReplaced bool        // HEAD is known to be mine
	verifying    bool        // HEAD is being read again: for R4, or because an object is missing
	suspicion    error       // the error with which the takeover ends if HEAD is still mine

	objects      []format.Run            // the parts of the checkpoint, in order
	parts        map[int]*format.Segment // parts that were read before their turn
	nextPart     int                     // the next part to restore
	readingParts map[int]bool            // parts that are being read
	partsAhead   int                     // how many parts may be in flight or wait
	kept         []uint64                // slots to which the checkpoint refers
	keptDue      bool                    // kept is not read yet

	listing      bool              // the listing of the log is not complete
	reread       map[uint64]bool   // slots that are listed but were read as empty; they are read once more
	suspectSlot  *suspectSlot      // At is empty but should not be; it is being read again
	salvageEnd   uint64            // the slot at which a log that is salvaged ends, as far as known
	nextAhead    uint64            // the next slot to read ahead
	reading      map[uint64]bool   // slots that are being read
	budget       int               // limit for slots that are being read or wait; grows while slots are found, shrinks while reads fail
	size         int               // estimated size of a slot: about the largest recent one
	readAhead    map[uint64]*found // slots that were read before their turn
	fence        *Write            // the fence of R3
	barriers     map[uint64]*Write // fences far ahead, by slot
	refusedFence *Call             // the creation of the fence that was refused; its slot is being read
}

// found is the content of a slot. A nil segment means that the slot was empty, or could not be
// read.
type found struct {
	segment *format.Segment
	err     error // why it could not be read, in a log that is salvaged
}

const (
	firstBudget    = 32
	mostPartsAhead = 8
	// BarrierWindows is how many windows ahead a barrier may be.
	BarrierWindows = 8
	// MaxWindow is the limit of Config.Window.
	MaxWindow = format.MaxWindow / BarrierWindows
)

// readHead decides how to go on after HEAD was read: at the beginning, after R1 was refused, in R4,
// or because an object is missing.
func (m *Machine) readHead(r Result) {
	t := m.takeover
	if r.Answer == NotFound {
		m.headAbsent()
		return
	}
	head := r.head
	switch {
	case t.claimSent && head.Nonce == t.newHead.Nonce && head.Epoch == t.newHead.Epoch:
		t.version = r.Version
		m.headIsMine()
	default:
		m.replaceHead(head, r.Version)
	}
}

// headAbsent decides how to go on without a HEAD. If there are no other objects either, the journal
// is new; otherwise HEAD was lost.
func (m *Machine) headAbsent() {
	t := m.takeover
	switch {
	case t.created && !t.headReplaced: // its creation was refused although it does not exist: some stores do that
		m.repeat(&Call{Op: CreateHead, Key: format.HeadKey, Data: format.EncodeHead(t.newHead)}, 0)
	case t.claimSent:
		m.end(&ObjectError{Key: format.HeadKey, Kind: ErrMissing, Err: errors.New("it was there a moment ago")})
	case t.listed: // other objects exist, and HEAD is still missing
		m.end(&ObjectError{Key: format.HeadKey, Kind: ErrMissing, Err: errors.New("the journal has other objects")})
	default:
		m.call(&Call{Op: List})
	}
}

// createIfEmpty continues after the listing of a journal without HEAD: it creates a new journal if there
// are no objects.
func (m *Machine) createIfEmpty(r Result) {
	m.takeover.listed = true
	if len(r.Entries) > 0 { // another process may have created it just now
		m.call(&Call{Op: ReadHead, Key: format.HeadKey})
		return
	}
	t := m.takeover
	*t = takeover{LogWalk: LogWalk{At: 1}, claimSent: true, created: true}
	t.newHead = format.Head{
		Epoch: 1, StoreID: m.cfg.StoreID, Generation: m.cfg.Generation, Owner: m.cfg.Owner,
		Nonce: m.cfg.Rand(), Window: m.cfg.Window, Secret: m.secret(), Serial: 1, Name: m.cfg.Name,
	}
	t.previousPutID = t.newHead.FirstLink()
	m.attemptNonces[t.newHead.Nonce] = true
	m.emit(Reset{})
	m.call(&Call{Op: CreateHead, Key: format.HeadKey, Data: format.EncodeHead(t.newHead)})
}

// secret returns 32 random bytes.
func (m *Machine) secret() []byte {
	b := make([]byte, 0, 32)
	for range 4 {
		r := m.cfg.Rand()
		for i := range 8 {
			b = append(b, byte(r>>(8*i)))
		}
	}
	return b
}

// mayOwn returns why this owner may not take over a journal with this HEAD; nil: it may.
func (m *Machine) mayOwn(h format.Head) error {
	switch {
	case h.Name != "" && m.cfg.Name != "" && h.Name != m.cfg.Name:
		return corrupt(format.HeadKey, "it is of the journal %q, this one is %q", h.Name, m.cfg.Name)
	case h.Repair != "" && !m.cfg.Salvage:
		return &ObjectError{Key: format.HeadKey, Kind: ErrRepairing}
	case m.cfg.Adopt && h.StoreID != m.cfg.StoreID:
		return nil
	case h.StoreID != m.cfg.StoreID:
		return &ObjectError{Key: format.HeadKey, Kind: ErrOtherStore, Err: fmt.Errorf("it says %q, ours is %q", h.StoreID, m.cfg.StoreID)}
	case m.attemptNonces[h.Nonce]: // our own earlier attempt, which arrived late
		return nil
	case m.takeover.claimSent && h.Generation == m.cfg.Generation && h.Owner == m.cfg.Owner:
		// Another run of this same process. One of the two must give up; otherwise they
		// would take the journal from each other for ever.
		return fmt.Errorf("%w: another run of the same process", ErrFenced)
	case h.Generation > m.cfg.Generation, h.Generation == m.cfg.Generation && h.Owner != m.cfg.Owner:
		return &GenerationError{Generation: m.cfg.Generation, Held: h.Generation, Floor: h.Generation + 1, Owner: h.Owner}
	}
	return nil
}

// replaceHead sends R1. It also begins to read the checkpoint and the log of the HEAD that R1 replaces.
// That is safe because objects are immutable, and everything is dropped if R1 is refused. An empty
// slot, however, proves nothing before R1 has happened.
func (m *Machine) replaceHead(old format.Head, version string) {
	if err := m.mayOwn(old); err != nil {
		m.end(err)
		return
	}
	m.calls = nil
	mine := old
	mine.Epoch, mine.Nonce, mine.Closed = old.Epoch+1, m.cfg.Rand(), 0
	mine.StoreID, mine.Generation, mine.Owner = m.cfg.StoreID, m.cfg.Generation, m.cfg.Owner
	// AckedBelow keeps what a clean close said, in case this attempt finds damage.
	mine.AckedBelow, mine.Serial, mine.Name = max(old.AckedBelow, old.Closed), old.Serial+1, cmp.Or(m.cfg.Name, old.Name)
	// Until our fence is written, slots may be outstanding as far as the widest window of all
	// earlier owners reaches, and as far as our barriers. If we are interrupted before that,
	// the next owner's fence must still void all of them, so the window must not shrink.
	//
	// Example: owner 1 has a window of 64, slot 20 is the first empty one, and its request for slot 60 is held
	// back. Owner 2, with a window of 2, writes HEAD and is interrupted before its fence. If HEAD then named
	// only the 16 slots of owner 2, the fence of owner 3 would void slots 20 to 35. The late request could
	// still fill slot 60 with a segment of owner 1, in the middle of owner 3's log.
	mine.Window = max(old.Window, BarrierWindows*m.cfg.Window)
	if old.Closed != 0 {
		mine.Window = m.cfg.Window
	}
	start := old.Checkpoint.Start()
	m.attemptNonces[mine.Nonce] = true
	*m.takeover = takeover{
		LogWalk: NewLogWalk(&old, old.Checkpoint), replaced: old, newHead: mine, claimSent: true, nextAhead: start, budget: firstBudget,
		objects: old.Checkpoint.Objects(), parts: map[int]*format.Segment{}, readingParts: map[int]bool{}, partsAhead: mostPartsAhead, readAhead: map[uint64]*found{}, reading: map[uint64]bool{}, barriers: map[uint64]*Write{},
		keptDue: old.Checkpoint.Kept > 0, listing: true, reread: map[uint64]bool{},
	}
	m.takeover.Window = uint64(mine.Window)
	if old.Closed != 0 {
		m.takeover.budget = m.cfg.Readahead
	}
	m.time, m.stats.Slots, m.stats.Bytes = minTime, 0, 0
	if old.Checkpoint.Slot > 0 {
		m.time = old.Checkpoint.Time
	}
	m.emit(Reset{})
	c := &Call{Op: ReplaceHead, Key: format.HeadKey, Data: format.EncodeHead(mine), Old: version}
	if n := len(m.attemptNonces); n > 1 { // two processes that want the journal must not retry in step
		c.After = m.pause(n - 2)
	}
	m.call(c)
	if m.takeover.keptDue {
		m.call(&Call{Op: ReadPart, Key: format.PartKey(old.Checkpoint, -1), part: -1})
	}
	m.call(&Call{Op: List, Key: format.LogPrefix, Cursor: format.SlotKey(start - 1)})
	m.readAhead()
}

// headAnswered handles the answer to R1.
func (m *Machine) headAnswered(r Result) {
	if r.Answer == Done {
		m.takeover.version = r.Version
		m.headIsMine()
		return
	}
	// Another process was faster, or our attempt succeeded and its answer was lost: HEAD's nonce tells.
	m.call(&Call{Op: ReadHead, Key: format.HeadKey})
}

// headIsMine continues once HEAD is known to be what this attempt wrote. The first time this
// confirms R1; the second time it is R4, and the takeover ends.
func (m *Machine) headIsMine() {
	t := m.takeover
	if !t.headReplaced {
		t.headReplaced = true
		if t.suspicion != nil {
			m.rereadHead()
			return
		}
		m.advance()
		return
	}
	if t.suspicion != nil {
		m.end(t.suspicion)
		return
	}
	t.previousPutID = t.fence.Header.PutID
	m.beginOwnership(t.At + uint64(t.fence.Header.Jump))
}

// rereadHead reads HEAD once more.
func (m *Machine) rereadHead() {
	m.takeover.verifying = true
	m.call(&Call{Op: ReadHead, Key: format.HeadKey})
}

// suspect handles an object that is missing, or belongs to a later epoch. If HEAD is still ours, no
// other process can have deleted or written it, and err is the result. Otherwise the attempt begins
// again.
func (m *Machine) suspect(err error) {
	m.takeover.suspicion = err
	if m.takeover.headReplaced && !m.takeover.verifying {
		m.rereadHead()
	}
}

func missing(key string) error { return &ObjectError{Key: key, Kind: ErrMissing} }
