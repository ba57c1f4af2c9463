package ledger

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// CheckpointWriter is a checkpoint that is being written: the state at the moment when Ledger.BeginCheckpoint was called. It
// is a sequence of length-delimited records: a header with their counts, the segments of the log that
// have payloads, the deduplication window from the oldest ID on, jobs in any order, and a trailer with the number of jobs.
//
// The checkpoint itself contains only the part of the window that is in no run. Runs are stored
// once, and checkpoints name them as long as they have an ID that is remembered. A new checkpoint drops
// the runs that have none. If many IDs are in no run, it writes all of them into new runs.
type CheckpointWriter struct {
	l            *Ledger
	buf          []byte    // written, not returned by Write yet
	entryRange   [2]uint64 // positions in the window: the next to write, and the end
	runs         bool      // the entries are written into runs
	run          []byte    // the run that is being written
	completeRuns [][]byte  // complete runs, not returned by Write yet
	ends         []uint64  // end positions of the new runs
	dropped      int       // number of the ledger's runs that are dropped
	next         uint64    // number of the next job to write
	limit        uint64
	jobs         int
	slots        []uint64 // see Slots
	done         bool
	rec          Record // the record that is being written
	save         checkpointFields
}

// BeginCheckpoint begins a checkpoint. An unfinished one is aborted: there is one at a time.
func (l *Ledger) BeginCheckpoint() *CheckpointWriter {
	if l.checkpoint != nil {
		l.checkpoint.Abort()
	}
	l.checkpointParity ^= phase
	w := &l.window
	dropped, from := w.unneededRuns()
	c := &CheckpointWriter{l: l, entryRange: [2]uint64{from, w.tail}, runs: w.worthRun(from), dropped: dropped, limit: l.next, jobs: l.Jobs()}
	l.checkpoint, w.beforeForget = c, c.writeBeforeForget
	t := l.totals
	h := Record{
		Kind: header, At: l.now, Numbers: []uint64{l.next, uint64(l.Jobs()), uint64(w.ids.n)}, Config: l.config,
		save: &checkpointFields{
			paused: l.paused, begun: l.imported,
			counts: [6]uint64{t.Enqueued, t.Completed, t.Failed, t.Expired, t.Cancelled, t.Died},
		},
	}
	switch {
	case c.runs:
		h.Numbers = append(h.Numbers, w.head, w.tail)
	case dropped < len(w.runs):
		h.Numbers = append(h.Numbers, w.head, from)
	}
	c.buf = put(c.buf, &h)
	c.writeSegments()
	return c
}

// writeSegments writes the segments that have payloads of the state's jobs.
func (c *CheckpointWriter) writeSegments() {
	r := Record{Kind: savedSegments, save: &checkpointFields{}}
	for _, s := range c.l.segments.all {
		if s.jobs == 0 {
			continue
		}
		c.slots = append(c.slots, s.slot)
		if r.Numbers = append(r.Numbers, s.slot, uint64(s.total)); len(r.Numbers) == 2*segmentsPerRecord {
			c.buf, r.Numbers = put(c.buf, &r), r.Numbers[:0]
		}
	}
	if len(r.Numbers) > 0 {
		c.buf = put(c.buf, &r)
	}
}

const segmentsPerRecord = 1024

// Slots returns the segments of the log that have payloads of the checkpoint's jobs, in no order.
func (c *CheckpointWriter) Slots() []uint64 { return c.slots }

// put appends a record to b, with its length before it.
func put(b []byte, r *Record) []byte {
	start := len(b)
	b = r.Append(append(b, 0, 0, 0, 0, 0))
	// Lengths are padded to five bytes, so that they can be written afterwards; such a varint
	// is valid.
	size := len(b) - start - 5
	for n := range 5 {
		b[start+n] = byte(size>>(7*n))&0x7f | 0x80
	}
	b[start+4] &= 0x7f
	return b
}

// saveBeforeChange writes a job to the checkpoint in progress, before the job changes.
func (l *Ledger) saveBeforeChange(i uint32) {
	j := l.jobs.at(i)
	if j.flags&phase == l.checkpointParity {
		return
	}
	j.flags = j.flags&^phase | l.checkpointParity
	if l.checkpoint != nil {
		l.checkpoint.job(i)
	}
}

func (c *CheckpointWriter) job(i uint32) {
	c.l.saved(i, &c.rec, &c.save)
	c.buf = put(c.buf, &c.rec)
}

// saved fills in the record of a job as it is saved in a checkpoint.
func (l *Ledger) saved(i uint32, r *Record, s *checkpointFields) {
	j, t := l.jobs.at(i), l.times(i)
	*s = checkpointFields{state: j.state, attempts: j.attempts, delivers: j.deliveries, begun: j.flags&begun != 0}
	*r = Record{
		Kind: savedJob, At: j.created, Numbers: append(r.Numbers[:0], j.number), PackedID: j.packed(), Type: l.types.text[j.typ],
		Priority: j.priority, Policy: l.policy(j), Expires: t.expires, save: s,
	}
	if j.segment != 0 {
		r.Slot, r.Size = l.segments.all[j.segment].slot, int(j.size)
	} else {
		r.SharedPayload = j.payload()
	}
	switch j.state {
	case Delayed:
		r.RunAt = t.at
	case Active:
		r.Until = t.at
	case Dead:
		s.died = t.at
	}
	if m := j.more; m != nil {
		r.Group, r.Blob, r.Cause, s.base = m.group, m.blob, m.cause, m.uncountedDeliveries
		if m.blob != "" {
			r.Size = m.size
		}
		if j.flags&movedToEnd != 0 {
			s.place = m.place
		}
		if m.claim != nil {
			r.Worker, r.Request, r.Epoch, r.Nonce = m.claim.worker, m.claim.request, m.claim.epoch, m.claim.nonce
			r.Visibility, r.Tokenless = m.claim.visibility, m.claim.tokenless
		}
	}
}

// Write writes a step of about the given size. It appends to b what is complete: either a whole run,
// or whole records of the checkpoint itself, perhaps none. Runs come in the order in which CheckpointReader
// needs them, independent of the rest. more is false when the checkpoint is complete.
func (c *CheckpointWriter) Write(b []byte, bytes int) (out []byte, run, more bool) {
	for limit := len(c.run) + bytes; !c.done && len(c.completeRuns) == 0 && len(c.run) < limit && len(c.buf) < bytes; {
		switch {
		case c.entryRange[0] < c.entryRange[1]:
			c.writeEntry()
		case c.next < c.limit:
			c.next = c.l.writeJobs(c, bytes)
		default:
			c.buf = put(c.buf, &Record{Kind: trailer, save: &checkpointFields{counts: [6]uint64{uint64(c.jobs)}}})
			c.close()
		}
	}
	if len(c.completeRuns) > 0 {
		b = append(b, c.completeRuns[0]...)
		c.completeRuns = c.completeRuns[1:]
		return b, true, true
	}
	b = append(b, c.buf...)
	c.buf = c.buf[:0]
	return b, false, !c.done
}

// writeBeforeForget writes an ID that is about to be forgotten, and the IDs before it.
func (c *CheckpointWriter) writeBeforeForget(pos uint64) {
	for c.entryRange[0] <= pos && c.entryRange[0] < c.entryRange[1] {
		c.writeEntry()
	}
}

// writeEntry writes the entry at the next position of the window.
func (c *CheckpointWriter) writeEntry() {
	w := &c.l.window
	pos := c.entryRange[0]
	c.entryRange[0]++
	r, s := &c.rec, &c.save
	*s = checkpointFields{}
	*r = Record{Kind: endedID, Numbers: r.Numbers[:0], save: s}
	if pos >= w.head && w.at(pos).state != None { // otherwise it was forgotten before the checkpoint began: see writeBeforeForget
		e := w.at(pos)
		s.state = e.state
		r.At, r.PackedID, r.Nonce, r.Result, r.Config.DedupWindow = e.at, w.packed(pos), e.nonce, w.result[pos], w.spans[e.span]
	}
	if !c.runs {
		if s.state != None {
			c.buf = put(c.buf, r)
		}
		return
	}
	if len(c.run) == 0 {
		// The window's size lets the reader allocate the table at once; growing took longer
		// than everything else.
		c.run = put(c.run, &Record{Kind: runStart, Numbers: []uint64{pos, uint64(w.ids.n)}})
	}
	if c.run = put(c.run, r); len(c.run) >= w.most || c.entryRange[0] == c.entryRange[1] {
		c.completeRuns, c.run = append(c.completeRuns, c.run), nil
		c.ends = append(c.ends, c.entryRange[0])
	}
}

// DroppedRuns returns how many of the previous checkpoint's oldest runs this one does not name.
func (c *CheckpointWriter) DroppedRuns() int { return c.dropped }

// SetCurrentRuns makes this checkpoint's runs the ones that the next checkpoint has, too. The caller
// guarantees that it begins no other checkpoint before this one is in force.
func (c *CheckpointWriter) SetCurrentRuns() {
	w := &c.l.window
	w.runs = append(w.runs[c.dropped:], c.ends...)
}

// writeJobs writes jobs until the buffer has about the given size. It returns the number from which to
// continue.
func (l *Ledger) writeJobs(c *CheckpointWriter, bytes int) uint64 {
	next := c.limit
	l.numbers.from(c.next, func(number uint64, i uint32) bool {
		if number >= c.limit || len(c.buf) >= bytes {
			next = number
			return false
		}
		if l.jobs.at(i).state != None {
			l.saveBeforeChange(i)
		}
		return true
	})
	return next
}

// Abort gives up the checkpoint.
func (c *CheckpointWriter) Abort() {
	if c.done {
		return
	}
	l := c.l
	c.close()
	// Mark all jobs as written, or the next checkpoint would leave some out.
	l.numbers.from(0, func(_ uint64, i uint32) bool {
		l.saveBeforeChange(i)
		return true
	})
}

func (c *CheckpointWriter) close() {
	c.done, c.l.checkpoint, c.l.window.beforeForget = true, nil, nil
}

// CheckpointReader builds a ledger from a checkpoint.
type CheckpointReader struct {
	l    *Ledger
	jobs uint64
	runs bool // a run was read; its end is not known yet
	open bool // the header was read
	done bool // the trailer was read
	// Records are decoded in groups, so that the lookups of their IDs begin for all of them
	// before the first one is needed (see index.prefetch).
	recs  [64]Record
	n     int
	memo  lastStrings
	touch uint32
}

// NewCheckpointReader returns an empty CheckpointReader.
func NewCheckpointReader() *CheckpointReader { return &CheckpointReader{l: New(Config{})} }

// Add reads what CheckpointWriter.Write appended: the runs and then the rest, each in order. b must end between
// two records.
func (r *CheckpointReader) Add(b []byte) error {
	for len(b) > 0 {
		record, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return fmt.Errorf("restore a checkpoint: %w", ErrCorrupt)
		}
		b = b[n:]
		rec := &r.recs[r.n]
		rec.memo = &r.memo
		if err := rec.decode(record); err != nil {
			return fmt.Errorf("restore a checkpoint: %w", err)
		}
		if r.n++; r.n == len(r.recs) || len(b) == 0 {
			if err := r.addAll(); err != nil {
				return err
			}
		}
	}
	return nil
}

// addAll adds the decoded records.
func (r *CheckpointReader) addAll() error {
	recs := r.recs[:r.n]
	r.n = 0
	for i := range recs {
		switch recs[i].Kind {
		case savedJob:
			r.touch += r.l.ids.prefetch(recs[i].packed())
		case endedID:
			r.touch += r.l.window.ids.prefetch(recs[i].packed())
		}
	}
	for i := range recs {
		if !r.add(&recs[i]) {
			return fmt.Errorf("restore a checkpoint: a record of kind %d is out of place: %w", recs[i].Kind, ErrCorrupt)
		}
	}
	return nil
}

func (r *CheckpointReader) add(rec *Record) bool {
	switch {
	case r.done:
	case !r.open:
		return r.before(rec)
	case rec.Kind == endedID:
		if _, known := r.l.window.get(rec.packed(), r.l.now); known || rec.save.state == None {
			return false
		}
		r.remember(rec)
		return true
	case rec.Kind == savedSegments:
		return r.l.segments.restore(rec.Numbers)
	case rec.Kind == savedJob:
		r.jobs++
		return r.l.restore(rec)
	case rec.Kind == trailer:
		r.done = true
		return rec.save.counts[0] == r.jobs && r.l.segments.allUsed()
	}
	return false
}

// before adds a record of a run, or the header, which comes after the runs.
func (r *CheckpointReader) before(rec *Record) bool {
	w := &r.l.window
	switch {
	case rec.Kind == runStart && !r.runs:
		r.runs, w.base, w.head, w.tail = true, rec.Numbers[0], rec.Numbers[0], rec.Numbers[0]
		w.ids.reserve(rec.Numbers[1])
	case rec.Kind == runStart:
		w.runs = append(w.runs, w.tail)
		return rec.Numbers[0] == w.tail
	case rec.Kind == endedID && r.runs:
		r.remember(rec)
	default:
		return rec.Kind == header && r.header(rec)
	}
	return true
}

func (r *CheckpointReader) header(rec *Record) bool {
	l, w := r.l, &r.l.window
	r.open = true
	c := rec.save.counts
	l.config, l.now, l.next, l.paused = rec.Config.withDefaults(), rec.At, max(1, rec.Numbers[0]), rec.save.paused
	l.imported = rec.save.begun
	l.totals = Totals{c[0], c[1], c[2], c[3], c[4], c[5]}
	l.ids.reserve(rec.Numbers[1])
	w.ids.reserve(rec.Numbers[2])
	if r.runs != (len(rec.Numbers) == 5) {
		return false
	}
	if !r.runs {
		return true
	}
	w.runs = append(w.runs, w.tail)
	oldest, end := rec.Numbers[3], rec.Numbers[4]
	if end != w.tail || oldest < w.head || oldest >= w.runs[0] {
		return false
	}
	for w.head < oldest {
		w.dropOldest()
	}
	return true
}

// remember adds an ID to the deduplication window, or a position without one.
func (r *CheckpointReader) remember(rec *Record) {
	w := &r.l.window
	if rec.save.state == None {
		w.addEmpty()
		return
	}
	var result []byte
	if len(rec.Result) > 0 {
		result = append(result, rec.Result...)
	}
	w.add(rec.packed(), ended{at: rec.At, nonce: rec.Nonce, state: rec.save.state}, rec.Config.DedupWindow, result)
}

func (l *Ledger) restore(r *Record) bool {
	id := r.packed()
	if _, live := l.ids.get(id); live {
		return false
	}
	if _, taken := l.numbers.get(r.Numbers[0]); taken || r.Numbers[0] >= l.next {
		return false
	}
	if _, known := l.segments.of[r.Slot]; r.Kind == savedJob && r.Slot != 0 && !known {
		return false
	}
	i := l.addJob(r.Numbers[0], id)
	l.fill(i, r)
	j := l.jobs.at(i)
	s := r.save
	j.attempts, j.deliveries = s.attempts, s.delivers
	if s.begun {
		j.flags |= begun
	}
	if r.Cause != "" || s.base != 0 || s.place != 0 {
		l.updateExtras(j, func(m *extras) { m.cause, m.uncountedDeliveries, m.place = r.Cause, s.base, s.place })
		if s.place != 0 {
			j.flags |= movedToEnd
		}
	}
	if s.state == Active || r.Worker != "" || r.Epoch != 0 {
		l.setClaim(j, r)
	}
	t := times{expires: r.Expires}
	switch s.state {
	case Delayed:
		t.at = r.RunAt
	case Active:
		t.at = r.Until
		l.indexRequest(j)
	case Dead:
		t.at = s.died
	}
	l.attach(i, s.state, t)
	return true
}

// Ledger returns the state after the trailer was read.
func (r *CheckpointReader) Ledger() (*Ledger, error) {
	if !r.done {
		return nil, fmt.Errorf("restore a checkpoint without its end: %w", ErrCorrupt)
	}
	r.l.readyDue() // jobs that became due while they were held
	return r.l, nil
}
