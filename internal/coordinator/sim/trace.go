package sim

import (
	"fmt"
	"io"
	"time"
)

// trace keeps the newest lines of the history as plain values, which are formatted only when they
// are read. Its hash covers all lines.
type trace struct {
	ring [tail]line
	n    uint64
	hash uint64
	out  io.Writer
	name func(unit int) string
}

// tail is how many lines a violation shows.
const tail = 240

// line is one line of the history: what happened, to which process and unit, and up to two numbers
// whose meaning depends on what.
type line struct {
	at   time.Duration
	what string
	more string
	proc int32 // index of the process, or -1
	unit int32 // index of the unit, or -1
	a, b int64
}

func (t *trace) add(l line) {
	t.ring[t.n%tail] = l
	t.n++
	h := t.hash
	for _, x := range [...]uint64{uint64(l.at), uint64(len(l.what))<<32 | uint64(len(l.more)), uint64(uint32(l.proc))<<32 | uint64(uint32(l.unit)), uint64(l.a), uint64(l.b)} {
		h = (h ^ x) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	t.hash = h
	if t.out != nil {
		fmt.Fprintln(t.out, t.text(l))
	}
}

func (t *trace) text(l line) string {
	who := "  –"
	if l.proc >= 0 {
		who = fmt.Sprintf("p%02d", l.proc)
	}
	s := fmt.Sprintf("%14.4f %s %-18s", l.at.Seconds(), who, l.what)
	if l.unit >= 0 {
		s += " " + t.name(int(l.unit))
	}
	if l.a != 0 || l.b != 0 {
		s += fmt.Sprintf(" %d", l.a)
	}
	if l.b != 0 {
		s += fmt.Sprintf(" %d", l.b)
	}
	if l.more != "" {
		s += " " + l.more
	}
	return s
}

// lines returns the newest lines, oldest first.
func (t *trace) lines() []string {
	from := uint64(0)
	if t.n > tail {
		from = t.n - tail
	}
	var out []string
	for i := from; i < t.n; i++ {
		out = append(out, t.text(t.ring[i%tail]))
	}
	return out
}
