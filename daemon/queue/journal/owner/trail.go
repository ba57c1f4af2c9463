package owner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/emitd/emitd/daemon/queue/journal/format"
)

// Trail follows a log from a checkpoint to its end: it holds what follows what. Takeovers, whoever looks
// at a journal without taking it over, and repairs go by the same rules.
//
// The log ends at the first slot that is empty; but a slot whose segment was deleted is empty, too. So
// before an empty slot counts as the end, one looks at what stands behind it. Everything below a slot was
// acknowledged, and an empty slot below it is a missing one, if
//
//   - HEAD says so,
//   - a segment stands there which no owner may write before: a window further, or
//   - a segment behind it says so.
//
// What is in the slots behind the end is void, as ever.
type Trail struct {
	At uint64 // the next slot
	// Known: every slot below it was acknowledged, says HEAD.
	Known uint64
	// Window is how far ahead of an empty slot segments may stand that were never acknowledged.
	Window uint64
	// Slots are those of the log that are listed, in order.
	Slots []uint64

	last   int64  // the highest epoch that the log may have, says HEAD
	closed uint64 // the first slot that was not written when the owner closed; 0: it did not
	epoch  int64
	link   uint64 // put ID of the segment before; 0: not known
}

// NewTrail returns a trail that begins behind a checkpoint of the journal.
func NewTrail(h *format.Head, c format.Checkpoint) Trail {
	t := Trail{
		At: c.Start(), Known: max(h.Known, h.Closed, h.Checkpoint.Slot), Window: uint64(max(h.Window, 1)),
		last: h.Epoch, closed: h.Closed, link: c.Last,
	}
	if c.Slot == 0 {
		t.link = h.Root()
	}
	return t
}

// Later says why HEAD is an older one, if a segment, or a fence, at the slot At says so; nil: it does not.
func (t *Trail) Later(h format.Header) error {
	if h.Epoch <= t.last {
		return nil
	}
	return corrupt(format.HeadKey, "%s is of epoch %d, HEAD of epoch %d", format.SlotKey(t.At), h.Epoch, t.last)
}

// Fits says why a segment, or a fence, does not belong into the slot At; nil: it does.
func (t *Trail) Fits(h format.Header) error {
	key := format.SlotKey(t.At)
	switch {
	case h.Slot != t.At || h.Part:
		return corrupt(key, "it says slot %d, part %t", h.Slot, h.Part)
	case !h.Follows(t.link):
		return corrupt(key, "it does not follow what is before it: one of the two is not what was written there")
	case h.Epoch < t.epoch:
		// Or the slots between were collected, and an interrupted starter's fence fills the gap.
		return corrupt(key, "epoch %d follows epoch %d: an owner wrote beyond its window", h.Epoch, t.epoch)
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

// Pass goes on behind the slot At, without what is missing there or does not fit. Empty slots are passed
// only if they were acknowledged, so that nobody can fill them any more: until is what Acknowledged says.
func (t *Trail) Pass(until uint64) {
	next := max(until, t.At+1)
	if listed := t.behind(); len(listed) > 0 {
		next = min(next, listed[0])
	}
	t.At, t.link = next, 0
}

// Closed reports whether the log ends at the slot At because its owner closed it, and then why HEAD is an
// older one, if it is.
func (t *Trail) Closed() (bool, error) {
	if t.closed == 0 || t.At < t.closed {
		return false, nil
	}
	last := t.At - 1
	if n := len(t.Slots); n > 0 {
		last = max(last, t.Slots[n-1])
	}
	if last >= t.closed {
		return true, corrupt(format.HeadKey, "closed at slot %d, but slot %d is there: HEAD is an older copy", t.closed, last)
	}
	return true, nil
}

// behind returns the listed slots behind At.
func (t *Trail) behind() []uint64 {
	i, _ := slices.BinarySearch(t.Slots, t.At+1)
	return t.Slots[i:]
}

// Acknowledged is asked when the slot At is empty. It returns below which slot everything was acknowledged,
// and, if At is, why it is a missing one. header returns what is known of a listed slot: nothing, if it is
// empty now. An object that cannot be read might say that At was acknowledged: until is At then, and the
// error is of that object.
func (t *Trail) Acknowledged(header func(slot uint64) (format.Header, error)) (until uint64, why error) {
	until = t.At
	if t.Known > until {
		until, why = t.Known, fmt.Errorf("HEAD says that every slot below %d was written", t.Known)
	}
	var unread error
	listed := t.behind()
	for _, slot := range listed {
		if until >= listed[0] { // farther than anybody passes at once
			break
		}
		if slot >= until+t.Window {
			until = slot - t.Window + 1
			if why == nil {
				why = fmt.Errorf("slot %d is there, which nobody may fill before slot %d is acknowledged", slot, until-1)
			}
			continue
		}
		h, err := header(slot)
		if h.Known >= until {
			until = h.Known + 1
			if why == nil {
				why = fmt.Errorf("slot %d says that every slot up to %d was there when it was written", slot, h.Known)
			}
		}
		if err != nil && (unread == nil || errors.Is(err, ErrNewer)) {
			unread = err
		}
	}
	if why != nil {
		return until, &ObjectError{Key: format.SlotKey(t.At), Kind: ErrMissing, Err: why}
	}
	return until, unread
}
