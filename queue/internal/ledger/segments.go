package ledger

import (
	"cmp"
	"fmt"
	"slices"
)

const (
	// SmallPayload is the size in bytes up to which a payload stays in memory and in checkpoints. A
	// larger one is in the segment of the log in which it was submitted, and the job refers to it. The
	// value may shrink, but never grow: PayloadOf leaves out what no job refers to.
	SmallPayload = 128
	// RecentBytes is the default of KeepRecent.
	RecentBytes = 32 << 20
)

// segments counts the payloads that the segments of the log have. A segment is needed as long as a job
// refers to it.
type segments struct {
	all  []segment         // by index; the first one stands for no segment
	free []uint32          // unused indexes
	of   map[uint64]uint32 // indexes by slot
	last uint32            // the one that was found last: it is likely the next one, too
}

// segment is one segment of the log with payloads, as far as they are more than SmallPayload bytes.
type segment struct {
	slot  uint64
	jobs  int   // jobs that refer to it
	live  int64 // bytes of their payloads
	total int64 // bytes of all payloads that it has or had
}

const segmentSize = 32 + 24 // bytes of memory, with the entry by slot

func (x *segments) init() { x.all = make([]segment, 1) }

func (x *segments) bytes() int64 { return int64(len(x.all)) * segmentSize }

// index returns the index of a slot's segment, and makes one if there is none.
func (x *segments) index(slot uint64) uint32 {
	if x.last != 0 && x.all[x.last].slot == slot {
		return x.last
	}
	i, ok := x.of[slot]
	if !ok {
		if n := len(x.free); n > 0 {
			i, x.free = x.free[n-1], x.free[:n-1]
		} else {
			i = uint32(len(x.all))
			x.all = append(x.all, segment{})
		}
		setEntry(&x.of, slot, i)
		x.all[i] = segment{slot: slot}
	}
	x.last = i
	return i
}

// add counts a payload of this many bytes that a job refers to, and returns the segment's index.
func (x *segments) add(slot uint64, size uint32) uint32 {
	i := x.index(slot)
	s := &x.all[i]
	s.jobs++
	s.live += int64(size)
	return i
}

// drop notes that a job no longer refers to its payload. The index may be 0.
func (x *segments) drop(i, size uint32) {
	if i == 0 {
		return
	}
	s := &x.all[i]
	s.jobs--
	if s.live -= int64(size); s.jobs > 0 {
		return
	}
	delete(x.of, s.slot)
	*s = segment{}
	x.free = append(x.free, i)
}

// restore adds the segments of a checkpoint; the jobs that refer to them follow.
func (x *segments) restore(pairs []uint64) bool {
	for at := 0; at < len(pairs); at += 2 {
		if _, twice := x.of[pairs[at]]; twice || pairs[at] == 0 {
			return false
		}
		x.all[x.index(pairs[at])].total = int64(pairs[at+1])
	}
	return true
}

// allUsed reports whether jobs refer to each segment.
func (x *segments) allUsed() bool {
	return !slices.ContainsFunc(x.all, func(s segment) bool { return s.slot != 0 && s.jobs == 0 })
}

// recentPayloads are payloads that are in segments and in memory, too: of the jobs that were submitted
// last. So a job that is claimed soon is not read. The oldest are forgotten first.
type recentPayloads struct {
	limit   int64
	bytes   int64
	jobs    int
	numbers []uint64 // the jobs in the order in which they were submitted; some have ended
	front   int      // numbers before it were taken out
}

// KeepRecent sets how many bytes of payloads that are in segments stay in memory as well.
func (l *Ledger) KeepRecent(limit int64) {
	l.recent.limit = limit
	l.forgetOldest()
}

// fillPayload sets the payload of a job from its record.
func (l *Ledger) fillPayload(j *job, r *Record) {
	switch size := len(r.SharedPayload) + len(r.Payload); {
	case r.Kind == savedJob && r.Slot != 0:
		j.size = uint32(r.Size)
		j.segment = l.segments.add(r.Slot, j.size)
	case size > SmallPayload && r.Slot != 0:
		j.size = uint32(size)
		j.segment = l.segments.add(r.Slot, j.size)
		l.segments.all[j.segment].total += int64(size)
		l.keepRecent(j, r)
	default:
		j.setPayload(r.payloadText())
		l.payloadBytes += int64(j.size)
	}
}

// payloadText returns the payload of a record as a text that may be kept.
func (r *Record) payloadText() string {
	if r.SharedPayload != "" {
		return r.SharedPayload
	}
	return string(r.Payload)
}

// keepRecent keeps the payload of a job in memory that is in a segment, too.
func (l *Ledger) keepRecent(j *job, r *Record) {
	c := &l.recent
	if int64(j.size) > c.limit {
		return
	}
	j.setPayload(r.payloadText())
	c.numbers = append(c.numbers, j.number)
	c.jobs++
	c.bytes += int64(j.size)
	l.payloadBytes += int64(j.size)
	l.forgetOldest()
}

// forgetOldest takes payloads out of the recent ones until these have room.
func (l *Ledger) forgetOldest() {
	c := &l.recent
	for c.bytes > c.limit {
		i, live := l.numbers.get(c.numbers[c.front])
		c.front++
		if live {
			l.forgetRecent(l.jobs.at(i))
		}
	}
	if waste := len(c.numbers) - c.jobs; waste > max(c.jobs, shortRecent) {
		kept := c.numbers[:0]
		for _, n := range c.numbers[c.front:] {
			if i, live := l.numbers.get(n); live && l.jobs.at(i).isRecent() {
				kept = append(kept, n)
			}
		}
		c.numbers, c.front = slices.Clip(slices.Clone(kept)), 0
	}
}

// shortRecent is how many numbers of ended jobs the list of recent payloads may always have.
const shortRecent = 1024

// isRecent reports whether the job's payload is in a segment and in memory.
func (j *job) isRecent() bool { return j.segment != 0 && j.text != nil }

// forgetRecent takes a job's payload out of the recent ones, if it is there.
func (l *Ledger) forgetRecent(j *job) {
	if j.isRecent() {
		l.recent.jobs--
		l.recent.bytes -= int64(j.size)
		l.payloadBytes -= int64(j.size)
		j.text = nil
	}
}

// forgetPayload takes a job's payload out of memory.
func (l *Ledger) forgetPayload(j *job) {
	l.forgetRecent(j)
	if j.text != nil {
		l.payloadBytes -= int64(j.size)
		j.text = nil
	}
}

// movePayload makes a job refer to the segment that has the record. It ignores a job that has ended.
func (l *Ledger) movePayload(r *Record) error {
	i, live := l.liveIndex(r.Numbers[0])
	if !live {
		return nil
	}
	j := l.jobs.at(i)
	if !j.has(r.packed()) || int(j.size) != len(r.Payload) || j.segment == 0 || r.Slot == 0 {
		return fmt.Errorf("move the payload of job %d: %w", r.Numbers[0], ErrVoid)
	}
	l.saveBeforeChange(i)
	l.segments.drop(j.segment, j.size)
	j.segment = l.segments.add(r.Slot, j.size)
	l.segments.all[j.segment].total += int64(j.size)
	return nil
}

// The rule by which segments are rewritten: see Sparse.
const (
	// sparseShare: a segment is sparse if less than one part in this many of its payloads is live.
	sparseShare = 4
	// smallSegment: a segment is small if its live payloads have fewer bytes than this. Small ones are
	// rewritten together, when there are at least manySmall.
	smallSegment = 64 << 10
	manySmall    = 64
)

// SparseSegment is a segment whose payloads should move.
type SparseSegment struct {
	Slot  uint64
	Total int64 // bytes of all payloads that it has
}

// Sparse returns segments below a slot whose payloads should move into a new segment, so that the old
// ones can be deleted: those of which less than a quarter is live, and, if there are many, those with
// little in them. Together they have about as many live bytes as the limit at most.
func (l *Ledger) Sparse(below uint64, limit int64) []SparseSegment {
	var sparse, small []SparseSegment
	for i := range l.segments.all {
		s := &l.segments.all[i]
		switch {
		case s.jobs == 0 || s.slot >= below || limit <= 0:
			continue
		case s.live*sparseShare < s.total:
			sparse = append(sparse, SparseSegment{s.slot, s.total})
		case s.live < smallSegment:
			small = append(small, SparseSegment{s.slot, s.total})
		default:
			continue
		}
		limit -= s.live
	}
	if len(small) >= manySmall {
		sparse = append(sparse, small...)
	}
	slices.SortFunc(sparse, func(x, y SparseSegment) int { return cmp.Compare(x.Slot, y.Slot) })
	return sparse
}

// JobsBySlot returns the jobs whose payloads are in segments of the log, by slot.
func (l *Ledger) JobsBySlot() map[uint64][]uint64 {
	all := map[uint64][]uint64{}
	l.numbers.from(0, func(number uint64, i uint32) bool {
		if slot := l.segments.all[l.jobs.at(i).segment].slot; slot != 0 {
			all[slot] = append(all[slot], number)
		}
		return true
	})
	return all
}

// PayloadOf decodes a record of the log. ok is false if it has no payload to which a job may refer.
// The payload points into b.
func PayloadOf(b []byte) (number uint64, id ID, payload []byte, ok bool) {
	var r Record
	if len(b) == 0 || r.decode(b) != nil || r.Kind != Enqueue && r.Kind != MovePayload && r.Kind != ImportJob || len(r.Payload) <= SmallPayload {
		return 0, ID{}, nil, false
	}
	return r.Numbers[0], r.packed(), r.Payload, true
}
