// Package runlog keeps the latest output of commands in memory, so that people can read it from any node.
//
// Of each unit, the newest run and the one before it are kept. A run that fails and is started again is a new
// run here, so the output of a crash is still there while the next attempt runs. Memory is bounded:
//
//   - A run keeps the last bytes of its output, as many as the setting says. Whole lines are dropped, the oldest first.
//   - All runs together keep at most [MaxRuns] times as much. The run that has been over for longest goes first. If
//     more runs than that are under way, they share the memory evenly.
//
// Lines have numbers, and runs are ordered by generation and start, on all nodes together. A [Cursor] names a place in
// this order, so a reader can go on where it has stopped, also when the unit has moved.
package runlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// MaxRuns is how many runs with the full size are kept.
const MaxRuns = 256

// lineCost is the memory that a line needs beside its text.
const lineCost = 96

// mostPage bounds the text of a page in bytes, beside its last line.
const mostPage = 256 << 10

// Line is a line of output.
type Line struct {
	Number    int64     `json:"number"` // within its run, from 1
	At        time.Time `json:"at"`     // by the node's clock
	Stream    string    `json:"stream"` // stdout or stderr
	Text      string    `json:"text"`
	Truncated bool      `json:"truncated,omitempty"` // the line was longer
}

// Run describes a run.
type Run struct {
	Unit       string    `json:"unit"`
	Node       string    `json:"node"`
	Generation int64     `json:"generation"`
	Number     int64     `json:"run"` // grows with each run of the process
	StartedAt  time.Time `json:"started_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	Result     string    `json:"result,omitempty"` // of an ended run: why it failed; empty if it did not
}

// Page is a part of the output of a run.
type Page struct {
	Run
	Dropped int64  `json:"dropped"` // lines before the first one that are kept no longer
	Lines   []Line `json:"lines"`
	More    bool   `json:"more"` // there are further lines now
	Next    Cursor `json:"next"`
}

// Cursor is a place in the output of a unit: after a line of a run, and after its end if Ended is set. The zero value is
// before everything.
type Cursor struct {
	Generation, Run, Line int64
	Ended                 bool
}

// String returns the text form, such as 7.3.140 or 7.3.140.end.
func (c Cursor) String() string {
	text := fmt.Sprintf("%d.%d.%d", c.Generation, c.Run, c.Line)
	if c.Ended {
		text += ".end"
	}
	return text
}

// MarshalText implements [encoding.TextMarshaler].
func (c Cursor) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *Cursor) UnmarshalText(text []byte) error {
	rest, ended := strings.CutSuffix(string(text), ".end")
	parts := strings.Split(rest, ".")
	if len(parts) != 3 {
		return fmt.Errorf("%.100q is not a place in the output of a unit", text)
	}
	var n [3]int64
	for i, part := range parts {
		var err error
		if n[i], err = strconv.ParseInt(part, 10, 64); err != nil || n[i] < 0 {
			return fmt.Errorf("%.100q is not a place in the output of a unit", text)
		}
	}
	*c = Cursor{n[0], n[1], n[2], ended}
	return nil
}

// The reasons why there is nothing to read.
var (
	ErrNoRun      = errors.New("no run of the unit is kept")
	ErrNoPrevious = errors.New("no earlier run of the unit is kept")
)

// Log keeps the output of runs. A nil Log keeps nothing.
type Log struct {
	size int // of a run, in bytes

	mu    sync.Mutex
	last  int64 // number of the newest run
	units map[string]*unit
	runs  []*Recording  // all that are kept, the oldest first
	begun chan struct{} // closed when the next run begins
}

// unit has the kept runs of a unit, the oldest first.
type unit struct {
	runs    []*Recording
	changed chan struct{} // closed at the next change
}

// keptRuns is how many runs of a unit are kept: the newest and the one before it.
const keptRuns = 2

// New returns a log that keeps size bytes of each run.
func New(size int) *Log {
	return &Log{size: size, units: map[string]*unit{}, begun: make(chan struct{})}
}

// Recording is a run whose output is being kept.
type Recording struct {
	log *Log // nil: nothing is kept

	// Held by log.mu.
	run     Run
	lines   []Line
	bytes   int
	count   int64 // lines so far
	dropped bool  // it is kept no longer
}

// Begin adds a run.
func (l *Log) Begin(unitName, node string, generation int64) *Recording {
	r := &Recording{log: l, run: Run{Unit: unitName, Node: node, Generation: generation, StartedAt: time.Now().UTC()}}
	if l == nil {
		return r
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	r.run.Number = l.last
	u := l.units[unitName]
	if u == nil {
		u = &unit{changed: make(chan struct{})}
		l.units[unitName] = u
	}
	u.runs = append(u.runs, r)
	l.runs = append(l.runs, r)
	if len(u.runs) > keptRuns {
		l.drop(u.runs[0])
	}
	l.bound()
	u.notify()
	close(l.begun)
	l.begun = make(chan struct{})
	return r
}

func (u *unit) notify() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// bound drops the runs that have been over for longest, while there are too many. If too many are under way, all of them
// get less.
func (l *Log) bound() {
	for len(l.runs) > MaxRuns {
		var oldest *Recording
		for _, r := range l.runs {
			if !r.run.EndedAt.IsZero() && (oldest == nil || r.run.EndedAt.Before(oldest.run.EndedAt)) {
				oldest = r
			}
		}
		if oldest == nil {
			for _, r := range l.runs {
				r.trim()
			}
			return
		}
		l.drop(oldest)
	}
}

// drop removes a run.
func (l *Log) drop(r *Recording) {
	is := func(other *Recording) bool { return other == r }
	l.runs = slices.DeleteFunc(l.runs, is)
	u := l.units[r.run.Unit]
	u.runs = slices.DeleteFunc(u.runs, is)
	if len(u.runs) == 0 {
		u.notify() // readers wait for the next run from now on
		delete(l.units, r.run.Unit)
	}
	r.lines, r.dropped = nil, true
}

// limit returns how many bytes a run may keep now.
func (l *Log) limit() int { return min(l.size, l.size*MaxRuns/max(len(l.runs), 1)) }

// trim drops the oldest lines of a run that keeps too much.
func (r *Recording) trim() {
	for limit := r.log.limit(); r.bytes > limit && len(r.lines) > 0; r.lines = r.lines[1:] {
		r.bytes -= len(r.lines[0].Text) + lineCost
		r.lines[0] = Line{} // the text may go
	}
}

// Line adds a line.
func (r *Recording) Line(stream, text string, truncated bool) {
	l := r.log
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.dropped {
		return
	}
	r.count++
	r.lines = append(r.lines, Line{Number: r.count, At: time.Now().UTC(), Stream: stream, Text: text, Truncated: truncated})
	r.bytes += len(text) + lineCost
	r.trim()
	l.units[r.run.Unit].notify()
}

// End records the end of a run.
func (r *Recording) End(err error) {
	l := r.log
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.dropped {
		return
	}
	r.run.EndedAt = time.Now().UTC()
	if err != nil {
		r.run.Result = err.Error()
	}
	l.units[r.run.Unit].notify()
	l.bound()
}

// Query says what to read of a unit.
type Query struct {
	Previous bool   // of the run before the newest one
	After    Cursor // what follows this place; the zero value: the newest run, from its first line that is kept
	Tail     int    // only so many lines of the end of a run; 0: all. Not with After
}

// Read returns the output of a unit.
func (l *Log) Read(unitName string, q Query) (Page, error) {
	if l == nil {
		return Page{}, ErrNoRun
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read(unitName, q)
}

func (l *Log) read(unitName string, q Query) (Page, error) {
	u := l.units[unitName]
	switch {
	case u == nil && q.After != Cursor{}:
		return Page{Run: Run{Unit: unitName}, Lines: []Line{}, Next: q.After}, nil
	case u == nil:
		return Page{}, ErrNoRun
	case q.After != Cursor{}:
		return u.after(q.After), nil
	}
	i := len(u.runs) - 1
	if q.Previous {
		i--
	}
	if i < 0 {
		return Page{}, ErrNoPrevious
	}
	from := int64(0)
	if q.Tail > 0 {
		from = max(u.runs[i].count-int64(q.Tail), 0)
	}
	p := u.runs[i].page(from)
	if q.Tail > 0 {
		p.Dropped = 0 // nobody has asked for them
	}
	return p, nil
}

// after returns what follows a place: the rest of its run, or the beginning of the next one.
func (u *unit) after(c Cursor) Page {
	for _, r := range u.runs {
		switch at := cmp.Or(cmp.Compare(r.run.Generation, c.Generation), cmp.Compare(r.run.Number, c.Run)); {
		case at > 0:
			return r.page(0)
		case at == 0:
			if p := r.page(c.Line); p.Next != c || r == u.runs[len(u.runs)-1] {
				return p
			}
		}
	}
	last := u.runs[len(u.runs)-1]
	return Page{Run: last.run, Lines: []Line{}, Next: c} // the place is on another node, and later
}

// page returns the lines after a number.
func (r *Recording) page(after int64) Page {
	p := Page{Run: r.run, Lines: []Line{}, Next: Cursor{r.run.Generation, r.run.Number, after, false}}
	first := r.count - int64(len(r.lines)) + 1 // number of the first line that is kept
	p.Dropped = max(first-1-after, 0)
	bytes := 0
	for _, line := range r.lines[min(max(after-first+1, 0), int64(len(r.lines))):] {
		if p.More = bytes >= mostPage; p.More {
			break
		}
		bytes += len(line.Text) + lineCost
		p.Lines = append(p.Lines, line)
	}
	p.Next.Line = max(after, p.Next.Line+p.Dropped+int64(len(p.Lines)))
	p.Next.Ended = !p.More && !r.run.EndedAt.IsZero()
	return p
}

// Wait is Read of what follows a place, once there is something: lines, an end or a newer run. When ctx ends before, the
// page is empty.
func (l *Log) Wait(ctx context.Context, unitName string, after Cursor) Page {
	if l == nil {
		<-ctx.Done()
		return Page{Run: Run{Unit: unitName}, Lines: []Line{}, Next: after}
	}
	for {
		l.mu.Lock()
		p, _ := l.read(unitName, Query{After: after}) // never fails with a place
		changed := l.begun
		if u := l.units[unitName]; u != nil {
			changed = u.changed
		}
		l.mu.Unlock()
		if p.Next != after || len(p.Lines) > 0 || ctx.Err() != nil {
			return p
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}
