package sim

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
)

// check holds what was promised so far.
type check struct {
	settled []op             // every acknowledged or replayed record, in the order of the log
	hashes  []uint64         // hashes[i] is the hash of the first i records
	index   map[uint64]int   // index into settled, by record ID
	epoch   int64            // the latest epoch that owned the journal
	latest  *broker          // its owner
	closed  int64            // the latest epoch that closed cleanly
	byEpoch map[int64]bool   // epochs that owned the journal
	time    int64            // of the newest acknowledged record
	names   map[int64]string // owners by generation
}

func newCheck() check {
	return check{hashes: []uint64{0}, index: map[uint64]int{}, byEpoch: map[int64]bool{}, names: map[int64]string{}}
}

// owned checks S1 and S4 at the beginning of an ownership.
func (c *check) owned(w *world, b *broker) {
	e := b.m.View().Epoch
	if b.name == victimOwner && w.deletedKey != "" {
		w.violate("S8", "epoch %d owns the journal without %s", e, w.deletedKey)
		return
	}
	if c.byEpoch[e] {
		w.violate("S4", "two owners of epoch %d", e)
	}
	if name, ok := c.names[b.generation]; ok && name != b.name {
		w.violate("S4", "%s and %s own under generation %d", name, b.name, b.generation)
	}
	c.byEpoch[e], c.names[b.generation] = true, b.name
	if e < c.epoch { // a later owner was faster and has fenced this one
		return
	}
	if c.epoch > 0 {
		w.totals.Takeovers++
	}
	if c.closed == e-1 {
		w.totals.Clean++
	}
	c.epoch, c.latest = e, b
	if t := b.m.View().Time; len(c.settled) > 0 && t < c.time {
		w.violate("S6", "epoch %d begins at time %d, a record of time %d was acknowledged", e, t, c.time)
		return
	}
	if !c.begins(&b.state) {
		w.violate("S1", "epoch %d: the state of %d records does not begin with the %d that are settled (%d, %v)",
			e, b.state.before+len(b.state.tail), len(c.settled), b.state.before, b.state.tail)
		return
	}
	for _, o := range b.state.tail[len(c.settled)-b.state.before:] {
		if _, twice := c.index[o.id]; twice {
			w.violate("S1", "epoch %d: record %d is there twice", e, o.id)
			return
		}
		c.settle(o)
		w.totals.Unacked++
	}
	c.payloads(w)
}

// begins reports whether a state begins with all settled records.
func (c *check) begins(s *state) bool {
	n := len(c.settled)
	if s.before > n || s.before+len(s.tail) < n || s.hash != c.hashes[s.before] {
		return false
	}
	return slices.Equal(s.tail[:n-s.before], c.settled[s.before:])
}

func (c *check) settle(o op) {
	c.index[o.id] = len(c.settled)
	c.hashes = append(c.hashes, mix(c.hashes[len(c.settled)], o))
	c.settled = append(c.settled, o)
}

// acked checks S1 and S2 when an owner acknowledges.
func (c *check) acked(w *world, b *broker, slot uint64, ops []appended) {
	for _, o := range ops {
		c.time = max(c.time, o.at)
		if at, ok := c.index[o.id]; ok { // a later owner has it: the order was checked there
			if c.settled[at] != o.op {
				w.violate("S2", "record %d was acknowledged in slot %d and replayed in %d", o.id, o.slot, c.settled[at].slot)
			}
			continue
		}
		if b.m.View().Epoch < c.epoch {
			w.violate("S2", "epoch %d acknowledged record %d in slot %d, which epoch %d does not know", b.m.View().Epoch, o.id, o.slot, c.epoch)
			return
		}
		if n := len(c.settled); n > 0 && c.settled[n-1].slot > o.slot {
			w.violate("S1", "slot %d was acknowledged after slot %d", o.slot, c.settled[n-1].slot)
			return
		}
		c.settle(o.op)
	}
	if slot <= b.durable {
		w.violate("S1", "epoch %d acknowledged slot %d after %d", b.m.View().Epoch, slot, b.durable)
	}
}

// payloads checks S3: every durable slot to which the latest owner's state refers can be read.
func (c *check) payloads(w *world) {
	b := c.latest
	for _, o := range b.state.referencedOps() {
		if o.slot > b.durable {
			continue
		}
		raw, ok := w.bucket.Peek(prefix + "/" + format.SlotKey(o.slot))
		if !ok {
			w.violate("S3", "epoch %d refers to record %d in slot %d, which is gone", b.m.View().Epoch, o.id, o.slot)
			return
		}
		s, err := sharedCodec.Decode(raw)
		if err != nil || !holds(s, o.id) {
			w.violate("S3", "slot %d does not hold record %d: %v", o.slot, o.id, err)
			return
		}
	}
}

// objects checks S7: all objects that HEAD names, and all slots to which its checkpoints refer, exist,
// also those that only the previous checkpoint needs.
func (c *check) objects(w *world) {
	h := c.head(w)
	for _, checkpoint := range []format.Checkpoint{h.Checkpoint, h.Previous} {
		for _, o := range checkpoint.Objects() {
			if _, ok := w.bucket.Peek(prefix + "/" + o.Key()); !ok && o.Key() != w.deletedKey {
				w.violate("S7", "%s of checkpoint %d is gone", o.Key(), checkpoint.Slot)
				return
			}
		}
		for _, slot := range c.kept(w, checkpoint) {
			if _, ok := w.bucket.Peek(prefix + "/" + format.SlotKey(slot)); !ok {
				w.violate("S7", "slot %d, to which checkpoint %d refers, is gone", slot, checkpoint.Slot)
				return
			}
		}
	}
}

// kept returns the slots to which a checkpoint refers.
func (c *check) kept(w *world, checkpoint format.Checkpoint) []uint64 {
	if checkpoint.Kept == 0 {
		return nil
	}
	raw, _ := w.bucket.Peek(prefix + "/" + format.PartKey(checkpoint, -1))
	list, err := sharedCodec.Decode(raw)
	if err == nil {
		var slots []uint64
		if slots, err = owner.KeptSlots(list, checkpoint.Kept); err == nil {
			return slots
		}
	}
	w.violate("S7", "the kept slots of checkpoint %d: %v", checkpoint.Slot, err)
	return nil
}

func holds(s *format.Segment, id uint64) bool {
	want := binary.LittleEndian.AppendUint64(nil, id)
	for _, b := range s.Batches {
		for r := range b.Records() {
			if bytes.Equal(r[:8], want) {
				return true
			}
		}
	}
	return false
}

// head returns the current HEAD.
func (c *check) head(w *world) format.Head {
	raw, ok := w.bucket.Peek(prefix + "/" + format.HeadKey)
	if !ok {
		return format.Head{}
	}
	h, err := format.DecodeHead(raw)
	if err != nil {
		w.violate("S5", "HEAD: %v", err)
	}
	return h
}
