package owner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// LogWalk follows a log from a checkpoint to its end, and checks that each segment belongs behind the
// one before it. Takeovers, verification and repairs use the same rules.
//
// The log ends at the first empty slot. But a slot whose segment was deleted is empty, too. So
// before an empty slot counts as the end, the slots behind it are examined. An empty slot that was
// acknowledged is a lost segment, and not the end. It was acknowledged if one of these is true:
//
//   - HEAD says so.
//   - A segment exists a whole window or more behind it. No owner may write that far ahead before the empty slot is
//     acknowledged.
//   - A segment behind it says so.
//
// Slots behind the end are void.
type LogWalk struct {
	At uint64 // the next slot
	// AckedBelow is from HEAD: every slot below it was acknowledged.
	AckedBelow uint64
	// Window is how many slots an owner may write ahead. A segment less than a window behind an empty slot may exist
	// although the empty slot was never acknowledged.
	Window uint64
	// Slots are the listed slots of the log, in order.
	Slots []uint64

	last          int64  // the highest epoch that the log may have, from HEAD
	closed        uint64 // the first slot that was not written when the owner closed; 0: it did not close
	epoch         int64
	previousPutID uint64 // put ID of the segment before At; 0: not known
}

// NewLogWalk returns a LogWalk that begins behind a checkpoint of the journal.
func NewLogWalk(h *format.Head, c format.Checkpoint) LogWalk {
	t := LogWalk{
		At: c.Start(), AckedBelow: max(h.AckedBelow, h.Closed, h.Checkpoint.Slot), Window: uint64(max(h.Window, 1)),
		last: h.Epoch, closed: h.Closed, previousPutID: c.LastPutID,
	}
	if c.Slot == 0 {
		t.previousPutID = h.FirstLink()
	}
	return t
}

// CheckHead returns an error if the segment or fence in slot At proves that HEAD is outdated.
func (t *LogWalk) CheckHead(h format.Header) error {
	if h.Epoch <= t.last {
		return nil
	}
	return corrupt(format.HeadKey, "%s is of epoch %d, HEAD of epoch %d", format.SlotKey(t.At), h.Epoch, t.last)
}

// CheckSegment returns why a segment or fence does not belong into slot At; nil: it does.
func (t *LogWalk) CheckSegment(h format.Header) error {
	key := format.SlotKey(t.At)
	switch {
	case h.Slot != t.At || h.Part:
		return corrupt(key, "it says slot %d, part %t", h.Slot, h.Part)
	case !h.CanFollow(t.previousPutID):
		return corrupt(key, "it does not follow what is before it: one of the two is not what was written there")
	case h.Epoch < t.epoch:
		// There is another possible cause: the slots between were deleted after a checkpoint, and the fence of an
		// interrupted takeover fills the gap.
		return corrupt(key, "epoch %d follows epoch %d: an owner wrote beyond its window", h.Epoch, t.epoch)
	}
	return nil
}

// Advance moves behind a segment or fence that fits.
func (t *LogWalk) Advance(h format.Header) {
	t.epoch, t.previousPutID = h.Epoch, h.PutID
	if h.Fence {
		t.At += uint64(h.Jump)
	} else {
		t.At++
	}
}

// Skip moves behind slot At although its segment is missing or does not fit. until is what ProveAcked has returned:
// Skip passes empty slots only below it, because nobody can fill a slot any more that was acknowledged.
func (t *LogWalk) Skip(until uint64) {
	next := max(until, t.At+1)
	if listed := t.behind(); len(listed) > 0 {
		next = min(next, listed[0])
	}
	t.At, t.previousPutID = next, 0
}

// Closed reports whether the log ends at slot At because its owner closed it. The error is set if a
// later slot exists, which proves that HEAD is an older copy.
func (t *LogWalk) Closed() (bool, error) {
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
func (t *LogWalk) behind() []uint64 {
	i, _ := slices.BinarySearch(t.Slots, t.At+1)
	return t.Slots[i:]
}

// ProveAcked decides whether the empty slot At was acknowledged. It returns until, the slot below which everything
// was acknowledged. If until is above At, slot At is a lost segment, and the error says how this is known. header
// returns the header of a listed slot, or nothing if the slot is empty now. If until equals At and the error is set,
// a segment that cannot be read might have the proof; the error is the one of reading it.
func (t *LogWalk) ProveAcked(header func(slot uint64) (format.Header, error)) (until uint64, why error) {
	until = t.At
	if t.AckedBelow > until {
		until, why = t.AckedBelow, fmt.Errorf("HEAD says that every slot below %d was written", t.AckedBelow)
	}
	var unread error
	listed := t.behind()
	for _, slot := range listed {
		if until >= listed[0] { // a single call of Skip cannot pass more
			break
		}
		if slot >= until+t.Window {
			until = slot - t.Window + 1
			if why == nil {
				why = fmt.Errorf("slot %d is filled, which no owner may do before slot %d is acknowledged", slot, until-1)
			}
			continue
		}
		h, err := header(slot)
		if h.AckedUpTo >= until {
			until = h.AckedUpTo + 1
			if why == nil {
				why = fmt.Errorf("slot %d says that every slot up to %d was there when it was written", slot, h.AckedUpTo)
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
