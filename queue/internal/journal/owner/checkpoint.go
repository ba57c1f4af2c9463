package owner

import (
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// checkpoint is the checkpoint that is being written.
type checkpoint struct {
	ref       format.Checkpoint
	upTo      uint64
	body      *format.Body // the part being gathered; nil if empty
	storing   int          // writes in flight
	backlog   int          // bytes not stored
	committed bool
	kept      []uint64
	inherited int // number of runs of ref that the previous checkpoint has, too
	slots     int // slots that were replayed or written before it, and their bytes
	bytes     int64
}

// change is a change of HEAD that is in flight.
type change struct {
	head    format.Head
	refused int // times that it was refused although HEAD had not changed
}

// Checkpoint begins a checkpoint of the state after all records appended so far, and returns the
// highest slot it covers.
func (m *Machine) Checkpoint(now time.Duration) (uint64, []Effect, error) {
	switch {
	case m.phase == ended && m.err != nil:
		return 0, nil, m.err
	case m.phase != owning:
		return 0, nil, ErrClosed
	case m.ckpt != nil:
		return 0, nil, ErrBusy
	}
	m.seal()
	upTo := m.newestSlot()
	m.ckpt = &checkpoint{
		ref: format.Checkpoint{
			Slot: upTo + 1, ID: m.cfg.Rand(), Time: max(m.time, 0), Runs: slices.Clone(m.head.Checkpoint.Runs),
		},
		upTo: upTo, inherited: len(m.head.Checkpoint.Runs),
		slots: m.stats.Slots + len(m.log.sealed), bytes: m.stats.Bytes,
	}
	if upTo < m.log.next {
		m.ckpt.ref.LastPutID = m.log.lastPutID // otherwise it is set when the slot is given to a segment
	}
	for _, o := range m.log.window {
		if !o.written { // Stats counts it when it is written
			m.ckpt.slots++
		}
	}
	m.writeSegments(now)
	return upTo, m.effects(), nil
}

// checkWritable returns why nothing can be added to the checkpoint; nil: it can.
func (m *Machine) checkWritable(size int) error {
	switch {
	case m.ckpt == nil || m.ckpt.committed || m.phase != owning:
		return ErrClosed
	case size+2*overhead > format.MaxRaw:
		return fmt.Errorf("%w: a chunk of %d bytes", ErrTooLarge, size)
	}
	return nil
}

// DropRuns excludes the first n of the previous checkpoint's runs; this checkpoint has the others.
func (m *Machine) DropRuns(n int) error {
	if err := m.checkWritable(0); err != nil {
		return err
	}
	c := m.ckpt
	if n < 0 || n > c.inherited {
		return fmt.Errorf("drop %d of %d runs", n, c.inherited)
	}
	c.ref.Runs, c.inherited = c.ref.Runs[n:], c.inherited-n
	return nil
}

// WriteRun writes a run as one part. This checkpoint names it behind the runs that it has, and later
// checkpoints do until they drop it.
func (m *Machine) WriteRun(run []byte) ([]Effect, error) {
	if err := m.checkWritable(len(run)); err != nil {
		return nil, err
	}
	c := m.ckpt
	body := format.NewBody(c.ref.Time)
	body.Add(c.ref.Time, run)
	c.backlog += len(run)
	c.ref.Runs = append(c.ref.Runs, format.Run{Slot: c.ref.Slot, ID: c.ref.ID, Part: c.ref.Parts})
	m.storeObject(c.ref.Parts, body)
	c.ref.Parts++
	return m.effects(), nil
}

// WriteChunk adds a chunk of the state to the checkpoint.
func (m *Machine) WriteChunk(chunk []byte) ([]Effect, error) {
	if err := m.checkWritable(len(chunk)); err != nil {
		return nil, err
	}
	c := m.ckpt
	if c.body != nil && c.body.Len()+len(chunk)+overhead > m.cfg.PartSize {
		m.storePart()
	}
	if c.body == nil {
		b := format.NewBody(c.ref.Time)
		c.body = &b
	}
	c.body.Add(c.ref.Time, chunk)
	c.backlog += len(chunk)
	if c.body.Len() >= m.cfg.PartSize {
		m.storePart()
	}
	return m.effects(), nil
}

func (m *Machine) storePart() {
	c := m.ckpt
	if c.body == nil {
		return
	}
	m.storeObject(c.ref.Parts, *c.body)
	c.ref.Parts++
	c.body = nil
}

// storeObject writes part n, or the list of kept slots if n < 0.
func (m *Machine) storeObject(n int, body format.Body) {
	c := m.ckpt
	c.storing++
	w := &Write{
		Header: format.Header{Slot: c.ref.Slot, Epoch: m.head.Epoch, PutID: c.ref.ID, Jump: uint32(max(n, 0)), Part: true},
		Body:   body,
	}
	m.call(&Call{Op: CreatePart, Key: format.PartKey(c.ref, n), Write: w, part: n})
}

// Commit completes the checkpoint. kept are the slots up to upTo to which the state refers.
func (m *Machine) Commit(kept []uint64) ([]Effect, error) {
	c := m.ckpt
	if c == nil || c.committed || m.phase != owning {
		return nil, ErrClosed
	}
	c.kept = slices.Compact(slices.Sorted(slices.Values(kept)))
	if n := len(c.kept); n > 0 && c.kept[n-1] > c.upTo {
		return nil, fmt.Errorf("kept slot %d is not among the first %d", c.kept[n-1], c.upTo)
	}
	m.storePart()
	if c.ref.Kept = len(c.kept); c.ref.Kept > 0 {
		body := format.NewBody(c.ref.Time)
		body.Add(c.ref.Time, format.EncodeKept(c.kept))
		m.storeObject(-1, body)
	}
	c.committed = true
	m.updateHead()
	return m.effects(), nil
}

// Abort gives up the checkpoint unless it is committed, and reports whether it did. A later garbage
// collection deletes its parts.
func (m *Machine) Abort() bool {
	if m.ckpt == nil || m.ckpt.committed {
		return false
	}
	m.ckpt = nil
	return true
}

// partStored continues once a part is stored.
func (m *Machine) partStored(call *Call) {
	c := m.ckpt
	if c == nil || call.Write.Header.PutID != c.ref.ID {
		return // of an aborted checkpoint
	}
	size := call.Write.Size()
	c.ref.Bytes += int64(size)
	if c.storing--; c.storing == 0 && c.body == nil {
		c.backlog = 0
	} else {
		c.backlog = max(c.backlog-int(call.Write.Header.Raw), 0)
	}
	m.emit(Progress{Moved: true})
	m.updateHead()
}

// updateHead changes HEAD when there is something to record: a complete checkpoint, or the clean
// close. There is one change at a time.
func (m *Machine) updateHead() {
	if !m.owns() || m.change != nil || m.head.Closed != 0 {
		return
	}
	c := m.ckpt
	head := m.head
	head.Window = m.cfg.Window // our fence exists, so no other owner's writes count any more
	switch {
	case c != nil && c.committed:
		// HEAD must not name a checkpoint with slots that are not acknowledged: nobody
		// would read those slots again.
		if c.storing > 0 || c.upTo > m.log.durable {
			return
		}
		head.Previous, head.Checkpoint = head.Checkpoint, c.ref
		head.AckedBelow = max(head.AckedBelow, m.log.durable+1)
	case m.phase == closing && m.nothingOutstanding():
		head.Closed, head.AckedBelow = m.log.next, m.log.next
		head.Repair = "" // only a repair closes the log while a repair is named
	default:
		return
	}
	head.Nonce, head.Serial = m.cfg.Rand(), head.Serial+1
	m.sendHead(head, m.version, 0)
}

// nothingOutstanding reports whether nothing is outstanding.
func (m *Machine) nothingOutstanding() bool {
	return len(m.log.window) == 0 && len(m.log.sealed) == 0 && m.log.gathering == nil
}

// sendHead replaces HEAD. Every attempt at a change has the same bytes, because one that timed out may
// still arrive as the last one.
func (m *Machine) sendHead(head format.Head, version string, refused int) {
	m.change = &change{head: head, refused: refused}
	c := &Call{Op: ReplaceHead, Key: format.HeadKey, Data: format.EncodeHead(head), Old: version}
	if refused > 0 {
		c.After = m.pause(refused - 1)
	}
	m.call(c)
}

// headChangeAnswered handles the answer to a change of HEAD, or the content of HEAD after a refusal.
func (m *Machine) headChangeAnswered(_ time.Duration, c *Call, r Result) {
	if c.Op == ReplaceHead {
		if r.Answer == Done {
			m.headChanged(r.Version)
			return
		}
		m.call(&Call{Op: ReadHead, Key: format.HeadKey})
		return
	}
	if r.Answer == NotFound {
		m.end(&ObjectError{Key: format.HeadKey, Kind: ErrMissing})
		return
	}
	head := r.head
	switch {
	case head.Epoch != m.head.Epoch:
		m.end(fmt.Errorf("HEAD: %w: epoch %d, ours is %d", ErrFenced, head.Epoch, m.head.Epoch))
	case head.Nonce == m.change.head.Nonce:
		m.headChanged(r.Version)
	case head.Nonce == m.head.Nonce: // refused although HEAD is unchanged: some stores do that
		m.sendHead(m.change.head, r.Version, m.change.refused+1)
	default:
		m.end(corrupt(format.HeadKey, "it was changed, but no other owner writes in epoch %d", head.Epoch))
	}
}

// headChanged continues once HEAD is what it was changed to.
func (m *Machine) headChanged(version string) {
	m.head, m.version = m.change.head, version
	m.change = nil
	if m.head.Closed != 0 {
		m.endClosed()
		return
	}
	c := m.ckpt
	m.ckpt = nil
	m.stats.Slots -= c.slots
	m.stats.Bytes -= c.bytes
	m.emit(Progress{Checkpointed: true, UpTo: c.upTo, Bytes: c.ref.Bytes})
	m.copyHead()
	m.collect(c.kept)
	m.updateHead()
}

// endClosed ends a journal whose HEAD says closed, once the copy of the HEAD before it is stored or has failed.
func (m *Machine) endClosed() {
	if !slices.ContainsFunc(m.calls, func(c *Call) bool { return c.Op == CopyHead }) {
		m.end(nil)
	}
}

// copyHead stores a copy of HEAD in an object that is never replaced. HEAD can be restored from it.
// A copy that is newer than HEAD proves that somebody restored an older HEAD.
func (m *Machine) copyHead() {
	m.call(&Call{Op: CopyHead, Key: format.CopyKey(m.head.Serial), Data: format.EncodeHead(m.head)})
}
