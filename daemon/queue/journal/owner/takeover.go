package owner

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/emitd/emitd/daemon/queue/journal/format"
)

// takeover is one attempt of R1 to R5.
type takeover struct {
	Trail // of the log: At is the next slot to be replayed

	listed    bool        // HEAD was absent, and other keys were looked for
	replaced  format.Head // what R1 replaces
	mine      format.Head // what R1 writes
	version   string      // of mine
	created   bool        // there was no HEAD
	begun     bool        // R1 was sent; what follows is read already
	confirmed bool        // R1 has happened
	verifying bool        // HEAD is read again (R4), or because an object is missing
	doubt     error       // how it ends if HEAD is still ours

	objects  []format.Run            // of which the checkpoint is made
	parts    map[int]*format.Segment // those that were read before their turn
	nextPart int                     // to be restored
	askPart  int                     // to be asked
	kept     []uint64                // slots the checkpoint refers to
	keptDue  bool                    // not read yet

	listing  bool              // Slots is not complete
	twice    map[uint64]bool   // slots that are listed, were read as empty, and are read again
	gap      *gap              // At should not be empty, and is read again
	end      uint64            // the slot at which a log that is salvaged ends, as far as anybody knows
	ask      uint64            // the next slot to be asked
	asking   map[uint64]bool   // calls under way
	budget   int               // slots asked or waiting; grows while slots are found
	size     int               // of a slot: about the largest of late
	got      map[uint64]*found // read before their turn
	fence    *Write            // of R3
	barriers map[uint64]*Write // fences far ahead, by slot
	pending  *Call             // R3 under way, for which the slot is read
}

// found is what stood in a slot; nil segment: nothing, or what could not be read.
type found struct {
	segment *format.Segment
	err     error // what is wrong with it, of a log that is salvaged
}

const (
	firstBudget = 32
	partsAhead  = 8
	// Reach is how many windows ahead a barrier may stand.
	Reach = 8
	// MaxWindow bounds Config.Window.
	MaxWindow = format.MaxWindow / Reach
)

// readHead judges HEAD: at the beginning, when R1 was refused, in R4, or when something is missing.
func (m *Machine) readHead(r Result) {
	t := m.take
	if r.Answer == NotFound {
		m.headAbsent()
		return
	}
	head := r.head
	switch {
	case t.begun && head.Nonce == t.mine.Nonce && head.Epoch == t.mine.Epoch:
		t.version = r.Version
		m.headIsMine()
	default:
		m.claim(head, r.Version)
	}
}

func (m *Machine) headAbsent() {
	t := m.take
	switch {
	case t.created && !t.confirmed: // its creation was refused: stores do that
		m.again(&Call{Op: CreateHead, Key: format.HeadKey, Data: format.EncodeHead(t.mine)}, 0)
	case t.begun:
		m.end(&ObjectError{Key: format.HeadKey, Kind: ErrMissing, Err: errors.New("it was there a moment ago")})
	case t.listed: // and other keys were there, and HEAD is still absent
		m.end(&ObjectError{Key: format.HeadKey, Kind: ErrMissing, Err: errors.New("the journal has other objects")})
	default:
		m.call(&Call{Op: List})
	}
}

// listed continues after the listing of a journal without HEAD.
func (m *Machine) listed(r Result) {
	m.take.listed = true
	if len(r.Entries) > 0 { // somebody may just have created it
		m.call(&Call{Op: ReadHead, Key: format.HeadKey})
		return
	}
	t := m.take
	*t = takeover{Trail: Trail{At: 1}, begun: true, created: true}
	t.mine = format.Head{
		Epoch: 1, StoreID: m.cfg.StoreID, Generation: m.cfg.Generation, Owner: m.cfg.Owner,
		Nonce: m.cfg.Rand(), Window: m.cfg.Window, Secret: m.secret(), Serial: 1, Name: m.cfg.Name,
	}
	t.link = t.mine.Root()
	m.began[t.mine.Nonce] = true
	m.emit(Reset{})
	m.call(&Call{Op: CreateHead, Key: format.HeadKey, Data: format.EncodeHead(t.mine)})
}

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

// admit says whether this owner may take a journal with this HEAD.
func (m *Machine) admit(h format.Head) error {
	switch {
	case h.Name != "" && m.cfg.Name != "" && h.Name != m.cfg.Name:
		return corrupt(format.HeadKey, "it is of the journal %q, this one is %q", h.Name, m.cfg.Name)
	case h.Repair != "" && !m.cfg.Salvage:
		return &ObjectError{Key: format.HeadKey, Kind: ErrRepairing}
	case m.cfg.Adopt && h.StoreID != m.cfg.StoreID:
		return nil
	case h.StoreID != m.cfg.StoreID:
		return &ObjectError{Key: format.HeadKey, Kind: ErrForeign, Err: fmt.Errorf("it says %q, ours is %q", h.StoreID, m.cfg.StoreID)}
	case m.began[h.Nonce]: // our own earlier attempt, which arrived late
		return nil
	case m.take.begun && h.Generation == m.cfg.Generation && h.Owner == m.cfg.Owner:
		// Another run of this very process. One of the two must give up, or both would claim
		// in turn for ever.
		return fmt.Errorf("%w: another run of the same process", ErrFenced)
	case h.Generation > m.cfg.Generation, h.Generation == m.cfg.Generation && h.Owner != m.cfg.Owner:
		return &GenerationError{Generation: m.cfg.Generation, Held: h.Generation, Floor: h.Generation + 1, Owner: h.Owner}
	}
	return nil
}

// claim is R1. What it replaces is read at once: objects are immutable, and if R1 is refused all of
// it is dropped. Only an empty slot is not believed before R1 has happened.
func (m *Machine) claim(old format.Head, version string) {
	if err := m.admit(old); err != nil {
		m.end(err)
		return
	}
	clear(m.calls)
	mine := old
	mine.Epoch, mine.Nonce, mine.Closed = old.Epoch+1, m.cfg.Rand(), 0
	mine.StoreID, mine.Generation, mine.Owner = m.cfg.StoreID, m.cfg.Generation, m.cfg.Owner
	// What a clean close says is not forgotten if this attempt finds that the log is damaged.
	mine.Known, mine.Serial, mine.Name = max(old.Known, old.Closed), old.Serial+1, cmp.Or(m.cfg.Name, old.Name)
	// Until our fence stands, slots may be outstanding as far as the widest window of all earlier
	// owners, and as far as our barriers: who is interrupted before its fence must not have
	// narrowed what the next one's fence voids.
	mine.Window = max(old.Window, Reach*m.cfg.Window)
	if old.Closed != 0 {
		mine.Window = m.cfg.Window
	}
	start := old.Checkpoint.Start()
	m.began[mine.Nonce] = true
	*m.take = takeover{
		Trail: NewTrail(&old, old.Checkpoint), replaced: old, mine: mine, begun: true, ask: start, budget: firstBudget,
		objects: old.Checkpoint.Objects(), parts: map[int]*format.Segment{}, got: map[uint64]*found{}, asking: map[uint64]bool{}, barriers: map[uint64]*Write{},
		keptDue: old.Checkpoint.Kept > 0, listing: true, twice: map[uint64]bool{},
	}
	m.take.Window = uint64(mine.Window)
	if old.Closed != 0 {
		m.take.budget = m.cfg.Readahead
	}
	m.time, m.stats.Slots, m.stats.Bytes = minTime, 0, 0
	if old.Checkpoint.Slot > 0 {
		m.time = old.Checkpoint.Time
	}
	m.emit(Reset{})
	c := &Call{Op: ReplaceHead, Key: format.HeadKey, Data: format.EncodeHead(mine), Old: version}
	if n := len(m.began); n > 1 { // two that want the journal must not march in step
		c.After = m.pause(n - 2)
	}
	m.call(c)
	if m.take.keptDue {
		m.call(&Call{Op: ReadPart, Key: format.PartKey(old.Checkpoint, -1), part: -1})
	}
	m.call(&Call{Op: List, Key: format.LogPrefix, Cursor: format.SlotKey(start - 1)})
	m.readAhead()
}

// claimed takes the answer to R1.
func (m *Machine) claimed(r Result) {
	if r.Answer == Done {
		m.take.version = r.Version
		m.headIsMine()
		return
	}
	// Somebody was first, possibly our own attempt whose answer was lost: the nonce tells.
	m.call(&Call{Op: ReadHead, Key: format.HeadKey})
}

// headIsMine continues once HEAD is known to be what this attempt wrote.
func (m *Machine) headIsMine() {
	t := m.take
	if !t.confirmed {
		t.confirmed = true
		if t.doubt != nil {
			m.verify()
			return
		}
		m.advance()
		return
	}
	if t.doubt != nil {
		m.end(t.doubt)
		return
	}
	t.link = t.fence.Header.PutID
	m.own(t.At + uint64(t.fence.Header.Jump))
}

// verify reads HEAD once more.
func (m *Machine) verify() {
	m.take.verifying = true
	m.call(&Call{Op: ReadHead, Key: format.HeadKey})
}

// doubt handles what cannot be: an object that is missing, or of a later epoch. If HEAD is still
// ours, nobody has taken over and cleaned up, and it is an error; else the attempt begins again.
func (m *Machine) doubt(err error) {
	m.take.doubt = err
	if m.take.confirmed && !m.take.verifying {
		m.verify()
	}
}

func missing(key string) error { return &ObjectError{Key: key, Kind: ErrMissing} }
