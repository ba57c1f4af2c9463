package runlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// texts returns the lines of a page, and what a reader is told about it.
func texts(p Page) string {
	var out []string
	if p.Dropped > 0 {
		out = append(out, fmt.Sprintf("(%d dropped)", p.Dropped))
	}
	for _, l := range p.Lines {
		out = append(out, l.Text)
	}
	if p.More {
		out = append(out, "(more)")
	}
	return strings.Join(append(out, "→"+p.Next.String()), " ")
}

func mustRead(t *testing.T, l *Log, q Query, want string) Page {
	t.Helper()
	p, err := l.Read("u", q)
	if got := texts(p); err != nil || got != want {
		t.Errorf("%+v: %s, %v, want %s", q, got, err, want)
	}
	return p
}

// TestRead reads a unit in every way while its runs come and go.
func TestRead(t *testing.T) {
	t.Parallel()
	l := New(1 << 10)
	if _, err := l.Read("u", Query{}); !errors.Is(err, ErrNoRun) {
		t.Errorf("nothing has run: %v", err)
	}
	r := l.Begin("u", "a", 7)
	p := mustRead(t, l, Query{}, "→7.1.0")
	r.Line("stdout", "one", false)
	r.Line("stderr", "two", true)
	if p = mustRead(t, l, Query{After: p.Next}, "one two →7.1.2"); p.Lines[1].Stream != "stderr" || !p.Lines[1].Truncated || p.Lines[1].Number != 2 {
		t.Errorf("line %+v", p.Lines[1])
	}
	mustRead(t, l, Query{Tail: 1}, "two →7.1.2")
	mustRead(t, l, Query{Tail: 9}, "one two →7.1.2")
	mustRead(t, l, Query{After: p.Next}, "→7.1.2")
	if _, err := l.Read("u", Query{Previous: true}); !errors.Is(err, ErrNoPrevious) {
		t.Errorf("no run before: %v", err)
	}
	r.End(errors.New("exit code 1"))
	if p = mustRead(t, l, Query{After: p.Next}, "→7.1.2.end"); p.Result != "exit code 1" || p.EndedAt.IsZero() {
		t.Errorf("the end: %+v", p.Run)
	}
	mustRead(t, l, Query{After: p.Next}, "→7.1.2.end")

	r = l.Begin("u", "a", 7)
	r.Line("stdout", "again", false)
	mustRead(t, l, Query{}, "again →7.2.1")
	mustRead(t, l, Query{Previous: true}, "one two →7.1.2.end")
	mustRead(t, l, Query{After: p.Next}, "again →7.2.1")
	mustRead(t, l, Query{After: Cursor{7, 1, 1, false}}, "two →7.1.2.end")

	l.Begin("u", "a", 9)
	mustRead(t, l, Query{Previous: true}, "again →7.2.1")
	mustRead(t, l, Query{After: p.Next}, "again →7.2.1")           // the run of the place is kept no longer
	mustRead(t, l, Query{After: Cursor{8, 40, 3, true}}, "→9.3.0") // of another node, earlier
	mustRead(t, l, Query{After: Cursor{10, 1, 3, true}}, "→10.1.3.end")
	if _, err := l.Read("other", Query{}); !errors.Is(err, ErrNoRun) {
		t.Errorf("another unit: %v", err)
	}
}

// TestBoundOfRun checks that a run that prints a lot keeps the end of it.
func TestBoundOfRun(t *testing.T) {
	t.Parallel()
	l := New(10 * (lineCost + 100))
	r := l.Begin("u", "a", 1)
	for i := range 1000 {
		r.Line("stdout", fmt.Sprintf("%0100d", i), false)
	}
	p, err := l.Read("u", Query{})
	if err != nil || len(p.Lines) != 10 || p.Dropped != 990 || p.Lines[0].Number != 991 || p.Next.Line != 1000 {
		t.Errorf("%d lines, %d dropped, next %v, %v", len(p.Lines), p.Dropped, p.Next, err)
	}
	if p, _ := l.Read("u", Query{After: Cursor{1, 1, 500, false}}); p.Dropped != 490 || len(p.Lines) != 10 {
		t.Errorf("after line 500: %d lines, %d dropped", len(p.Lines), p.Dropped)
	}
	r.Line("stdout", strings.Repeat("x", 5000), false)
	if p, _ := l.Read("u", Query{}); len(p.Lines) != 0 || p.Dropped != 1001 || p.Next.Line != 1001 {
		t.Errorf("a line that is too long: %d lines, %d dropped", len(p.Lines), p.Dropped)
	}
}

// TestPages checks that more than a page is read in parts, without a gap.
func TestPages(t *testing.T) {
	t.Parallel()
	l := New(4 << 20)
	r := l.Begin("u", "a", 1)
	const lines = 1000
	for i := range lines {
		r.Line("stdout", fmt.Sprintf("%01000d", i+1), false)
	}
	r.End(nil)
	p, _ := l.Read("u", Query{})
	seen, pages := int64(0), 0
	for ; ; pages++ {
		for _, line := range p.Lines {
			if seen++; line.Number != seen {
				t.Fatalf("line %d follows %d", line.Number, seen-1)
			}
		}
		if !p.More {
			break
		}
		p, _ = l.Read("u", Query{After: p.Next})
	}
	if seen != lines || pages != 4 || !p.Next.Ended {
		t.Errorf("%d lines, %d more pages, next %v", seen, pages, p.Next)
	}
}

// TestBoundOfAll checks that all runs together keep no more than their share: those that are over go first, and runs
// that are under way share what is there.
func TestBoundOfAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(2 * (lineCost + 4))
		total := func() (bytes int) {
			for _, r := range l.runs {
				bytes += r.bytes
			}
			return bytes
		}
		var under []*Recording
		for i := range MaxRuns {
			r := l.Begin(fmt.Sprint("ended", i), "a", 1)
			r.Line("stdout", "text", false)
			r.Line("stdout", "text", false)
			r.End(nil)
			time.Sleep(time.Second)
		}
		for i := range MaxRuns {
			r := l.Begin(fmt.Sprint("live", i), "a", 1)
			r.Line("stdout", "text", false)
			r.Line("stdout", "text", false)
			under = append(under, r)
			_, first := l.Read(fmt.Sprint("ended", i), Query{})
			if i < MaxRuns-1 {
				if _, next := l.Read(fmt.Sprint("ended", i+1), Query{}); !errors.Is(first, ErrNoRun) || next != nil {
					t.Fatalf("after %d runs: %v, %v", i, first, next)
				}
			}
		}
		if most := l.size * MaxRuns; total() != most {
			t.Errorf("%d bytes, want %d", total(), most)
		}
		for i := range MaxRuns {
			l.Begin(fmt.Sprint("more", i), "a", 1)
			if most := l.size * MaxRuns; total() > most {
				t.Fatalf("%d bytes, want %d at most", total(), most)
			}
		}
		if p, err := l.Read("live7", Query{}); err != nil || len(p.Lines) != 1 || p.Dropped != 1 {
			t.Errorf("a run that shares: %d lines, %d dropped, %v", len(p.Lines), p.Dropped, err)
		}
		for _, r := range under {
			r.Line("stdout", "more", false)
			r.End(nil)
		}
		if len(l.runs) != MaxRuns || len(l.units) != MaxRuns {
			t.Errorf("%d runs and %d units are kept", len(l.runs), len(l.units))
		}
		under[0].Line("stdout", "late", false) // kept no longer
		under[0].End(nil)
	})
}

// TestWait checks what wakes a reader: a line, an end, a new run, and the end of its patience; and that reading unknown
// units keeps nothing.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(1 << 10)
		wait := func(after Cursor, act func()) string {
			got := make(chan string, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go func() { got <- texts(l.Wait(ctx, "u", after)) }()
			synctest.Wait()
			if len(got) > 0 {
				return "at once: " + <-got
			}
			act()
			return <-got
		}
		var r *Recording
		for _, tt := range []struct {
			after Cursor
			act   func()
			want  string
		}{
			{Cursor{1, 1, 1, true}, func() {}, "→1.1.1.end"},
			{Cursor{1, 1, 1, true}, func() { r = l.Begin("u", "a", 2) }, "→2.1.0"},
			{Cursor{2, 1, 0, false}, func() { r.Line("stdout", "x", false) }, "x →2.1.1"},
			{Cursor{2, 1, 0, false}, nil, "at once: x →2.1.1"},
			{Cursor{2, 1, 1, false}, func() { r.End(nil) }, "→2.1.1.end"},
			{Cursor{2, 1, 1, true}, func() { l.Begin("u", "a", 2) }, "→2.2.0"},
			{Cursor{2, 2, 0, false}, func() {}, "→2.2.0"},
		} {
			if got := wait(tt.after, tt.act); got != tt.want {
				t.Errorf("after %v: %s, want %s", tt.after, got, tt.want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		l.Wait(ctx, "unknown", Cursor{})
		if len(l.units) != 1 {
			t.Errorf("%d units are known", len(l.units))
		}
	})
}

// TestNone checks a log that keeps nothing.
func TestNone(t *testing.T) {
	t.Parallel()
	var l *Log
	r := l.Begin("u", "a", 1)
	r.Line("stdout", "x", false)
	r.End(nil)
	if _, err := l.Read("u", Query{}); !errors.Is(err, ErrNoRun) {
		t.Errorf("read: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p := l.Wait(ctx, "u", Cursor{1, 2, 3, false}); texts(p) != "→1.2.3" {
		t.Errorf("wait: %s", texts(p))
	}
}

// TestCursor checks the text of places, also of what is none.
func TestCursor(t *testing.T) {
	t.Parallel()
	for _, c := range []Cursor{{}, {1, 2, 3, false}, {9, 8, 7, true}} {
		var got Cursor
		if err := got.UnmarshalText([]byte(c.String())); err != nil || got != c {
			t.Errorf("%v: %v, %v", c, got, err)
		}
	}
	for _, text := range []string{"", "1.2", "1.2.3.4", "a.b.c", "1.2.-3", "1.2.3.END", ".end", "99999999999999999999.1.1"} {
		if err := new(Cursor).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestConcurrent writes and reads at once, for the race detector.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	l := New(1 << 10)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 100 {
				r := l.Begin(fmt.Sprint("u", i%2), "a", int64(n))
				r.Line("stdout", "x", false)
				_, _ = l.Read("u0", Query{Previous: n%2 == 0})
				r.End(nil)
			}
		})
	}
	all.Wait()
}
