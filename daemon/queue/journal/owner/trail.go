package owner

import (
	"fmt"
	"slices"

	"github.com/emitd/emitd/daemon/queue/journal/format"
)

// Trail follows a log from a checkpoint to its end. A takeover and whoever looks at a journal without
// taking it over go by the same rules.
type Trail struct {
	At    uint64 // the next slot
	Known uint64 // every slot below it was acknowledged
	// Window is how far ahead of an empty slot segments may stand that were never acknowledged.
	Window uint64

	epoch int64
	link  uint64 // put ID of the segment before; 0: not known
}

// NewTrail returns a trail that begins behind a checkpoint of the journal.
func NewTrail(h *format.Head, c format.Checkpoint) *Trail {
	t := &Trail{At: c.Start(), Known: max(h.Known, h.Closed), Window: uint64(max(h.Window, 1)), link: c.Last}
	if c.Slot == 0 {
		t.link = h.Root()
	}
	return t
}

// Fits says why a segment, or a fence, does not belong into the slot At; nil: it does.
func (t *Trail) Fits(h format.Header) error {
	switch {
	case h.Slot != t.At || h.Part:
		return fmt.Errorf("it says slot %d, part %t", h.Slot, h.Part)
	case !h.Follows(t.link):
		return fmt.Errorf("it does not follow what is before it: one of the two is not what was written there")
	case h.Epoch < t.epoch:
		return fmt.Errorf("epoch %d follows epoch %d: an owner wrote beyond its window", h.Epoch, t.epoch)
	}
	return nil
}

// Take goes on behind a segment or a fence that fits.
func (t *Trail) Take(h format.Header) {
	t.epoch, t.link = h.Epoch, h.PutID
	if h.Fence {
		t.At += uint64(h.Jump)
	} else {
		t.At++
	}
}

// Skip goes on with a later slot, in front of which something is missing.
func (t *Trail) Skip(next uint64) { t.At, t.link = max(next, t.At+1), 0 }

// Next returns the first of the slots, which are in order, behind At.
func (t *Trail) Next(slots []uint64) (uint64, bool) {
	i, _ := slices.BinarySearch(slots, t.At+1)
	if i == len(slots) {
		return 0, false
	}
	return slots[i], true
}

// Filled says why the slot At, which is empty, was filled once; nil: nothing says so. slots are those
// that are there, in order; header returns what is known of one.
func (t *Trail) Filled(slots []uint64, header func(slot uint64) (format.Header, bool)) error {
	if t.At < t.Known {
		return fmt.Errorf("HEAD says that every slot below %d was written", t.Known)
	}
	i, _ := slices.BinarySearch(slots, t.At+1)
	for _, slot := range slots[i:] {
		if slot >= t.At+t.Window {
			return fmt.Errorf("slot %d is there, which nobody may fill before this one is acknowledged", slot)
		}
		if h, ok := header(slot); ok && h.Known >= t.At {
			return fmt.Errorf("slot %d says that every slot up to %d was there when it was written", slot, h.Known)
		}
	}
	return nil
}
