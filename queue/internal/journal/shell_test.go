package journal_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/storage/blob"
)

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := config(mem.New(mem.Config{}))
	for name, change := range map[string]func(*journal.Config){
		"no bucket":           func(c *journal.Config) { c.Bucket = nil },
		"no store":            func(c *journal.Config) { c.StoreID = "" },
		"no owner":            func(c *journal.Config) { c.Owner = "" },
		"no generation":       func(c *journal.Config) { c.Generation = 0 },
		"a slash at the end":  func(c *journal.Config) { c.Prefix += "/" },
		"no prefix":           func(c *journal.Config) { c.Prefix = "" },
		"too long a prefix":   func(c *journal.Config) { c.Prefix = strings.Repeat("a/", 240) + "a" },
		"a huge window":       func(c *journal.Config) { c.Window = 1 << 20 },
		"a negative gap":      func(c *journal.Config) { c.MinGap = -1 },
		"a huge part":         func(c *journal.Config) { c.PartSize = 1 << 30 },
		"a negative patience": func(c *journal.Config) { c.OpenTimeout = -1 },
	} {
		cfg := good
		change(&cfg)
		if l, err := journal.Open(t.Context(), cfg, &book{}); err == nil || l != nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestOpenReportsWhy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket := slowBucket()
		cfg := as(config(bucket), "one", 5)
		l, _ := open(t, cfg)
		closeLog(t, l)
		unrelated := as(cfg, "two", 9)
		unrelated.StoreID = "another"
		for name, c := range map[string]struct {
			cfg  journal.Config
			want error
		}{
			"a lower generation": {as(cfg, "two", 4), journal.ErrGeneration},
			"another store":      {unrelated, journal.ErrOtherStore},
		} {
			_, err := journal.Open(t.Context(), c.cfg, &book{})
			if !errors.Is(err, c.want) || !strings.HasPrefix(err.Error(), "open journal root/v1/ab/orders/1/0: ") {
				t.Errorf("%s: %v", name, err)
			}
			var g *journal.GenerationError
			if errors.As(err, &g) && (g.Held != 5 || g.Floor != 6) {
				t.Errorf("%+v", g)
			}
		}
		unrelated.Adopt = true
		l, _ = open(t, unrelated)
		closeLog(t, l)
		if _, err := journal.Open(t.Context(), cfg, &book{}); !errors.Is(err, journal.ErrOtherStore) {
			t.Errorf("after it was adopted: %v", err)
		}
	})
}

func TestOpenGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for kind, want := range map[mem.FaultKind]error{mem.Denied: blob.ErrDenied, mem.Unavailable: blob.ErrUnavailable} {
			cfg := config(mem.New(mem.Config{Faults: func(mem.Call) mem.Fault { return mem.Fault{Kind: kind} }}))
			cfg.OpenTimeout = 5 * time.Second
			begin := time.Now()
			_, err := journal.Open(t.Context(), cfg, &book{})
			if took := time.Since(begin); !errors.Is(err, want) || took > 5*time.Second || (kind == mem.Denied) != (took == 0) {
				t.Errorf("%v: %v after %v", kind, err, took)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		cfg := config(mem.New(mem.Config{Latency: mem.Constant(time.Hour)}))
		if _, err := journal.Open(ctx, cfg, &book{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

func TestAnErrorOfTheStateEndsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		l, _ := open(t, cfg)
		add(t, l, "a")
		closeLog(t, l)
		boom := errors.New("boom")
		if _, err := journal.Open(t.Context(), as(cfg, "two", 2), &book{refuse: boom}); !errors.Is(err, boom) || !strings.Contains(err.Error(), "slot 1") {
			t.Errorf("%v", err)
		}
		l, b := open(t, as(cfg, "two", 2)) // nothing is lost
		same(t, b, "a")
		closeLog(t, l)
	})
}

// TestReplayKeepsCallsAndTimes: calls of Append are replayed one by one, each with its time; times
// never go back.
func TestReplayKeepsCallsAndTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		l, _ := open(t, cfg)
		t0 := time.Now().Add(123 * time.Nanosecond)
		for _, at := range []time.Time{t0, t0.Add(time.Hour), t0.Add(-time.Hour)} {
			if _, err := l.Append(at, []byte("a"), []byte("b")); err != nil {
				t.Fatal(err)
			}
		}
		if now := l.Now(t0); !now.Equal(t0.Add(time.Hour).Truncate(time.Microsecond)) {
			t.Errorf("the journal is at %v", now)
		}
		closeLog(t, l)
		l, b := open(t, as(cfg, "two", 2))
		same(t, b, "a", "b", "a", "b", "a", "b")
		at := t0.Truncate(time.Microsecond)
		want := []time.Time{at, at.Add(time.Hour), at.Add(time.Hour)}
		if !slices.EqualFunc(b.times, want, time.Time.Equal) || !l.Now(time.Time{}).Equal(want[2]) {
			t.Errorf("times %v, and the journal is at %v", b.times, l.Now(time.Time{}))
		}
		closeLog(t, l)
	})
}

// TestCloseGivesUp: a close that cannot finish returns an error. What was acknowledged is there,
// and the next owner takes over as after a crash.
func TestCloseGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		cfg := config(mem.New(mem.Config{Latency: mem.Constant(latency), Faults: func(mem.Call) mem.Fault {
			if down.Load() {
				return mem.Fault{Kind: mem.Unavailable}
			}
			return mem.Fault{}
		}}))
		l, _ := open(t, cfg)
		await(t, l, add(t, l, "a"))
		down.Store(true)
		add(t, l, "b")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := l.Close(ctx); !errors.Is(err, journal.ErrClosed) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if err := l.Close(t.Context()); err == nil {
			t.Error("the second Close says that it was closed")
		}
		if _, err := l.Append(time.Now(), []byte("x")); !errors.Is(err, journal.ErrClosed) {
			t.Errorf("append: %v", err)
		}
		down.Store(false)
		l, b := open(t, as(cfg, "two", 2))
		same(t, b, "a")
		closeLog(t, l)
	})
}

// TestACheckpointIsStreamed: a checkpoint is streamed: its backlog grows, shrinks as parts are
// stored, and the log continues.
func TestACheckpointIsStreamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		cfg.PartSize = 10_000
		var reported []string
		cfg.Hooks.OnCheckpoint = func(upTo uint64, bytes int64) { reported = append(reported, fmt.Sprint(upTo, bytes > 0)) }
		l, _ := open(t, cfg)
		await(t, l, add(t, l, "a"))
		c, upTo, err := l.Checkpoint()
		if err != nil || upTo != 1 {
			t.Fatal(upTo, err)
		}
		if _, _, err := l.Checkpoint(); !errors.Is(err, journal.ErrBusy) {
			t.Errorf("a second one: %v", err)
		}
		moved := 0
		for i := range 100 {
			if err := c.Write([]byte(fmt.Sprint(i, " ", strings.Repeat("state ", 200)))); err != nil {
				t.Fatal(err)
			}
			for c.Backlog() > 20_000 {
				<-c.Progressed()
				moved++
			}
		}
		later := add(t, l, "after")
		if err := c.Commit(nil); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		await(t, l, later)
		if err := c.Write(nil); !errors.Is(err, journal.ErrClosed) || c.Err() != nil || moved == 0 || c.Backlog() != 0 {
			t.Errorf("after the end: %v, %v, moved %d, backlog %d", err, c.Err(), moved, c.Backlog())
		}
		closeLog(t, l)
		if !slices.Equal(reported, []string{"1 true"}) {
			t.Errorf("told %v", reported)
		}
		l, b := open(t, as(cfg, "two", 2))
		if b.restored != 100 || b.records[100] != "after" {
			t.Errorf("%d chunks, then %q", b.restored, b.records[100:])
		}
		closeLog(t, l)
	})
}

// TestRunsOutliveCheckpoints: runs are stored once, as objects of their own, and belong to every
// checkpoint until they are dropped.
func TestRunsOutliveCheckpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket := slowBucket()
		cfg := config(bucket)
		long := strings.Repeat("a run ", 1000)
		write := func(l *journal.Log, drop int, state string, runs ...string) {
			c, _, err := l.Checkpoint()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range runs {
				if err := c.WriteRun([]byte(r)); err != nil {
					t.Fatal(err)
				}
			}
			if c.Backlog() != len(strings.Join(runs, "")) {
				t.Errorf("a backlog of %d", c.Backlog())
			}
			if err := errors.Join(c.Write([]byte(state)), c.DropRuns(drop), c.Commit(nil)); err != nil {
				t.Fatal(err)
			}
			<-c.Done()
			if err := c.WriteRun(nil); !errors.Is(err, journal.ErrClosed) {
				t.Errorf("a run after the end: %v", err)
			}
			if err := c.DropRuns(0); !errors.Is(err, journal.ErrClosed) {
				t.Errorf("after the end: %v", err)
			}
		}
		l, _ := open(t, cfg)
		await(t, l, add(t, l, "x"))
		write(l, 0, "one", long, "second")
		write(l, 0, "two")
		closeLog(t, l)
		l, b := open(t, as(cfg, "two", 2))
		same(t, b, long, "second", "two")
		write(l, 1, "three", "third")
		closeLog(t, l)
		l, b = open(t, as(cfg, "three", 3))
		same(t, b, "second", "third", "three")
		closeLog(t, l)
	})
}

// TestHowACheckpointEnds: Done and Err report every end of a checkpoint.
func TestHowACheckpointEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		begin := func(l *journal.Log) *journal.Checkpoint {
			c, _, err := l.Checkpoint()
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		l, _ := open(t, cfg)
		c := begin(l)
		c.Abort()
		if <-c.Done(); !errors.Is(c.Err(), journal.ErrAborted) || !errors.Is(c.Commit(nil), journal.ErrAborted) {
			t.Errorf("given up: %v, %v", c.Err(), c.Commit(nil))
		}
		c = begin(l)
		closeLog(t, l)
		if <-c.Done(); !errors.Is(c.Err(), journal.ErrClosed) {
			t.Errorf("closed: %v", c.Err())
		}
		l, _ = open(t, as(cfg, "two", 2))
		c = begin(l)
		if err := c.Commit(nil); err != nil {
			t.Fatal(err)
		}
		closeLog(t, l) // finishes it
		if <-c.Done(); c.Err() != nil {
			t.Errorf("committed, then closed: %v", c.Err())
		}
		l, _ = open(t, as(cfg, "three", 3))
		c = begin(l)
		l2, _ := open(t, as(cfg, "four", 4))
		if err := c.Commit(nil); err != nil {
			t.Fatal(err)
		}
		if <-c.Done(); !errors.Is(c.Err(), journal.ErrFenced) {
			t.Errorf("fenced: %v", c.Err())
		}
		if _, _, err := l.Checkpoint(); !errors.Is(err, journal.ErrFenced) {
			t.Errorf("a checkpoint of a fenced log: %v", err)
		}
		closeLog(t, l2)
	})
}

func TestReadOfASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket := slowBucket()
		l, _ := open(t, config(bucket))
		add(t, l, "a", "b")
		await(t, l, add(t, l, "c"))
		var got []string
		for slot := uint64(1); slot <= l.Durable(); slot++ {
			for _, r := range recordsIn(t, l, slot) {
				got = append(got, fmt.Sprint(slot, " ", r))
			}
		}
		if !slices.Equal(got, []string{"1 a", "1 b", "2 c"}) {
			t.Errorf("%q", got)
		}
		if _, _, err := l.Read(t.Context(), 99); !errors.Is(err, journal.ErrMissing) {
			t.Errorf("a slot that is not there: %v", err)
		}
		bucket.Inject(mem.Read, "", mem.Fault{Kind: mem.TornRead})
		if _, _, err := l.Read(t.Context(), 1); !errors.Is(err, journal.ErrCorrupt) {
			t.Errorf("a torn read: %v", err)
		}
		closeLog(t, l)
	})
}

// slow is a state whose replay takes long. Open waits as long as there is progress.
type slow struct{ book }

func (s *slow) Replay(slot uint64, at time.Time, records iter.Seq[[]byte]) error {
	time.Sleep(20 * time.Second)
	return s.book.Replay(slot, at, records)
}

func TestOpenIsPatientWithProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		l, _ := open(t, cfg)
		for range 10 {
			await(t, l, add(t, l, "a"))
		}
		closeLog(t, l)
		s := &slow{}
		l, err := journal.Open(t.Context(), as(cfg, "two", 2), s)
		if err != nil || len(s.records) != 10 {
			t.Fatal(len(s.records), err)
		}
		closeLog(t, l)
	})
}
