package ledger

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Cut is a checkpoint that is being written: the state as it was when Ledger.Cut was called. It is
// a sequence of length-delimited records: one header, which says how many there are, the dedup window from the oldest ID on, jobs
// in any order, one trailer with their number.
type Cut struct {
	l     *Ledger
	buf   []byte // written, not yet taken
	ended [2]uint64
	next  uint64 // number of the next job to be written
	limit uint64
	jobs  int
	done  bool
	rec   Record // of the job that is being written
	save  saving
}

// Cut begins a checkpoint. There is one at a time.
func (l *Ledger) Cut() *Cut {
	if l.cut != nil {
		l.cut.Abort()
	}
	l.phase ^= phase
	c := &Cut{l: l, ended: [2]uint64{l.window.head, l.window.tail}, limit: l.next, jobs: l.Jobs()}
	l.cut, l.window.leaving = c, c.leaving
	t := l.totals
	c.put(&Record{
		Kind: header, At: l.now, Numbers: []uint64{l.next, uint64(l.Jobs()), uint64(l.window.ids.n)}, Config: l.config,
		save: &saving{
			paused: l.paused,
			counts: [6]uint64{t.Enqueued, t.Completed, t.Failed, t.Expired, t.Cancelled, t.Died},
		},
	})
	return c
}

func (c *Cut) put(r *Record) {
	start := len(c.buf)
	c.buf = r.Append(append(c.buf, 0, 0, 0, 0, 0))
	// Lengths have five bytes here, so that they can be written afterwards. It is a valid varint.
	size := len(c.buf) - start - 5
	for n := range 5 {
		c.buf[start+n] = byte(size>>(7*n))&0x7f | 0x80
	}
	c.buf[start+4] &= 0x7f
}

// save writes a job to the checkpoint under way, before it changes.
func (l *Ledger) save(i uint32) {
	j := l.jobs.at(i)
	if j.flags&phase == l.phase {
		return
	}
	j.flags = j.flags&^phase | l.phase
	if l.cut != nil {
		l.cut.job(i)
	}
}

func (c *Cut) job(i uint32) {
	l := c.l
	j, t := l.jobs.at(i), l.times(i)
	r, s := &c.rec, &c.save
	*s = saving{state: j.state, attempts: j.attempts, delivers: j.delivers, begun: j.flags&begun != 0}
	*r = Record{
		Kind: saved, At: j.created, Numbers: append(r.Numbers[:0], j.number), Packed: j.packed(), Type: l.types.text[j.typ],
		Text: j.payload, Priority: j.priority, Policy: l.policy(j), Expires: t.expires, save: s,
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
		r.Group, r.Blob, r.Size, r.Cause, s.base = m.group, m.blob, m.size, m.cause, m.base
		if j.flags&back != 0 {
			s.place = m.place
		}
		if m.claim != nil {
			r.Worker, r.Request, r.Epoch, r.Nonce = m.claim.worker, m.claim.request, m.claim.epoch, m.claim.nonce
			r.Visibility, r.Tokenless = m.claim.visibility, m.claim.tokenless
		}
	}
	c.put(r)
}

// Write appends about so many bytes of the checkpoint to b, whole records only. more is false when
// it is complete.
func (c *Cut) Write(b []byte, bytes int) (out []byte, more bool) {
	l := c.l
	for !c.done && len(c.buf) < bytes {
		switch {
		case c.ended[0] < c.ended[1]:
			c.remembered(max(c.ended[0], l.window.head))
		case c.next < c.limit:
			c.next = l.step(c, bytes)
		default:
			c.put(&Record{Kind: trailer, save: &saving{counts: [6]uint64{uint64(c.jobs)}}})
			c.close()
		}
	}
	b = append(b, c.buf...)
	c.buf = c.buf[:0]
	return b, !c.done
}

// leaving writes an ID before it is forgotten: IDs leave in the order in which they are written.
func (c *Cut) leaving(pos uint64) {
	if pos >= c.ended[0] {
		c.remembered(pos)
	}
}

// remembered writes an ID of the dedup window, unless it came after the cut.
func (c *Cut) remembered(pos uint64) {
	w := &c.l.window
	c.ended[0] = pos + 1
	if pos >= c.ended[1] || w.at(pos).state == None {
		return
	}
	e := w.at(pos)
	c.put(&Record{
		Kind: ending, At: e.at, Packed: w.packed(pos), Nonce: e.nonce, Result: w.result[pos],
		Config: Config{DedupWindow: w.spans[e.span]},
		save:   &saving{state: e.state},
	})
}

// step writes jobs until so many bytes wait, and returns from which number to go on.
func (l *Ledger) step(c *Cut, bytes int) uint64 {
	next := c.limit
	l.numbers.from(c.next, func(number uint64, i uint32) bool {
		if number >= c.limit || len(c.buf) >= bytes {
			next = number
			return false
		}
		if l.jobs.at(i).state != None {
			l.save(i)
		}
		return true
	})
	return next
}

// Abort gives the checkpoint up.
func (c *Cut) Abort() {
	if c.done {
		return
	}
	l := c.l
	c.close()
	// All jobs count as written, or the next checkpoint would leave some out.
	l.numbers.from(0, func(_ uint64, i uint32) bool {
		l.save(i)
		return true
	})
}

func (c *Cut) close() {
	c.done, c.l.cut, c.l.window.leaving = true, nil, nil
}

// Restore is a ledger that is being read from a checkpoint.
type Restore struct {
	l    *Ledger
	jobs uint64
	open bool // header was read, trailer not
	done bool
	// Records are decoded some at a time, so that looking for their IDs can be begun for all of them
	// before the first is waited for.
	recs  [64]Record
	n     int
	memo  memo
	touch uint32
}

// NewRestore begins with nothing.
func NewRestore() *Restore { return &Restore{l: New(Config{})} }

// Add reads what Cut.Write appended, in order; b may end between two records only.
func (r *Restore) Add(b []byte) error {
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

// addAll adds what was decoded.
func (r *Restore) addAll() error {
	recs := r.recs[:r.n]
	r.n = 0
	for i := range recs {
		switch recs[i].Kind {
		case saved:
			r.touch += r.l.ids.touch(recs[i].packed())
		case ending:
			r.touch += r.l.window.ids.touch(recs[i].packed())
		}
	}
	for i := range recs {
		if !r.add(&recs[i]) {
			return fmt.Errorf("restore a checkpoint: a record of kind %d is out of place: %w", recs[i].Kind, ErrCorrupt)
		}
	}
	return nil
}

func (r *Restore) add(rec *Record) bool {
	l := r.l
	switch {
	case r.done || r.open == (rec.Kind == header):
		return false
	case rec.Kind == header:
		r.open = true
		c := rec.save.counts
		l.config, l.now, l.next, l.paused = rec.Config.withDefaults(), rec.At, max(1, rec.Numbers[0]), rec.save.paused
		l.totals = Totals{c[0], c[1], c[2], c[3], c[4], c[5]}
		l.ids.reserve(rec.Numbers[1])
		l.window.ids.reserve(rec.Numbers[2])
	case rec.Kind == ending:
		p := rec.packed()
		if _, known := l.window.get(p, l.now); known {
			return false
		}
		var result []byte
		if len(rec.Result) > 0 {
			result = append(result, rec.Result...)
		}
		l.window.add(p, ended{at: rec.At, nonce: rec.Nonce, state: rec.save.state}, rec.Config.DedupWindow, result)
	case rec.Kind == saved:
		r.jobs++
		return l.restore(rec)
	case rec.Kind == trailer:
		r.done = true
		return rec.save.counts[0] == r.jobs
	default:
		return false
	}
	return true
}

func (l *Ledger) restore(r *Record) bool {
	id := r.packed()
	if _, live := l.ids.get(id); live {
		return false
	}
	if _, taken := l.numbers.get(r.Numbers[0]); taken || r.Numbers[0] >= l.next {
		return false
	}
	i := l.admit(r.Numbers[0], id)
	l.fill(i, r)
	j := l.jobs.at(i)
	s := r.save
	j.attempts, j.delivers = s.attempts, s.delivers
	if s.begun {
		j.flags |= begun
	}
	if r.Cause != "" || s.base != 0 || s.place != 0 {
		l.change(j, func(m *more) { m.cause, m.base, m.place = r.Cause, s.base, s.place })
		if s.place != 0 {
			j.flags |= back
		}
	}
	if s.state == Active || r.Worker != "" || r.Epoch != 0 {
		l.grant(j, r)
	}
	t := times{expires: r.Expires}
	switch s.state {
	case Delayed:
		t.at = r.RunAt
	case Active:
		t.at = r.Until
		l.remember(j)
	case Dead:
		t.at = s.died
	}
	l.attach(i, s.state, t)
	return true
}

// Ledger returns the state, once the trailer was read.
func (r *Restore) Ledger() (*Ledger, error) {
	if !r.done {
		return nil, fmt.Errorf("restore a checkpoint without its end: %w", ErrCorrupt)
	}
	return r.l, nil
}
