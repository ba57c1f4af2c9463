package ledger

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// cutAll writes a checkpoint at once.
func cutAll(l *Ledger) (runs [][]byte, rest []byte, c *CheckpointWriter) {
	c = l.BeginCheckpoint()
	for more := true; more; {
		var out []byte
		var run bool
		if out, run, more = c.Write(nil, 1<<16); run {
			runs = append(runs, out)
		} else {
			rest = append(rest, out...)
		}
	}
	return runs, rest, c
}

// ends completes this many jobs, with results of this size.
func ends(t testing.TB, l *Ledger, now int64, ids []string, result int) {
	t.Helper()
	for _, id := range ids {
		number := l.NextNumber()
		for _, r := range []Record{
			{Kind: Enqueue, Numbers: []uint64{number}, ID: id, Policy: DefaultPolicy},
			{Kind: Claim, Numbers: []uint64{number}, Deliveries: []uint64{1}, Epoch: 1, Until: now + 1, Worker: "w"},
			{Kind: Complete, Numbers: []uint64{number}, Result: make([]byte, result)},
		} {
			r.At = now
			if err := l.Apply(&r, now); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func named(from, to int) (ids []string) {
	for n := from; n < to; n++ {
		ids = append(ids, fmt.Sprint("job-", n))
	}
	return ids
}

func restoreAll(t testing.TB, runs [][]byte, rest []byte) *Ledger {
	t.Helper()
	r := NewCheckpointReader()
	for _, chunk := range append(slices.Clone(runs), rest) {
		if err := r.Add(chunk); err != nil {
			t.Fatal(err)
		}
	}
	l, err := r.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// knows checks which IDs a ledger remembers.
func knows(t *testing.T, l *Ledger, want []string, not ...string) {
	t.Helper()
	for _, id := range want {
		if e, ok := l.Ended(id); !ok || e.State != Completed {
			t.Errorf("%s is forgotten", id)
		}
	}
	for _, id := range not {
		if e, ok := l.Ended(id); ok {
			t.Errorf("%s is known: %+v", id, e)
		}
	}
	if n := l.Stats().DedupIDs; n != len(want) {
		t.Errorf("%d IDs are known, want %d", n, len(want))
	}
}

// withRuns returns a checkpoint with runs: two of an earlier one, one of its own, and entries
// behind them that are in no run.
func withRuns(t testing.TB) [][]byte {
	l := New(Config{})
	l.window.minRun, l.window.most = 1000, 1500
	ends(t, l, 1000, named(0, 60), 0)
	runs, _, c := cutAll(l)
	c.SetCurrentRuns()
	ends(t, l, 2000, named(60, 110), 3)
	more, _, c := cutAll(l)
	c.SetCurrentRuns()
	ends(t, l, 3000, named(110, 115), 3)
	none, rest, c := cutAll(l)
	if len(runs) != 2 || len(more) != 2 || len(none) != 0 || c.DroppedRuns() != 0 {
		t.Fatalf("%d runs, %d runs, %d runs, %d dropped", len(runs), len(more), len(none), c.DroppedRuns())
	}
	return slices.Concat(runs, more, [][]byte{rest})
}

// TestTheWindowIsWrittenOnce: entries in a run are not written again. Entries in no run are, until
// there are enough for one.
func TestTheWindowIsWrittenOnce(t *testing.T) {
	t.Parallel()
	l := New(Config{DedupIDs: 100_000})
	ends(t, l, 1000, named(0, 60_000), 0)
	runs, rest, c := cutAll(l)
	c.SetCurrentRuns()
	if len(runs) != 1 || len(runs[0]) < leastRun*3/4 || len(rest) > 200 {
		t.Fatalf("%d runs, then %d bytes", len(runs), len(rest))
	}
	ends(t, l, 2000, named(60_000, 61_000), 0)
	none, rest, c := cutAll(l)
	c.SetCurrentRuns()
	if len(none) != 0 || len(rest) < 20_000 || len(rest) > 50_000 || c.DroppedRuns() != 0 {
		t.Fatalf("%d runs, then %d bytes", len(none), len(rest))
	}
	next := restoreAll(t, runs, rest)
	knows(t, next, named(0, 61_000))
	ends(t, next, 3000, named(61_000, 62_000), 5000)
	more, rest, c := cutAll(next) // results count, too
	c.SetCurrentRuns()
	if len(more) != 2 || len(rest) > 200 {
		t.Fatalf("%d runs, then %d bytes", len(more), len(rest))
	}
	last := restoreAll(t, append(runs, more...), rest)
	knows(t, last, named(0, 62_000))
	if e, _ := last.Ended("job-61500"); len(e.Result) != 5000 {
		t.Errorf("%+v", e)
	}
}

// TestRunsAreDropped: a run is dropped when nothing in it is remembered any more: because its time
// is over, or because the window was made smaller.
func TestRunsAreDropped(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*Ledger) error{
		"by time": func(l *Ledger) error { l.Advance(11_001); return nil },
		"by settings": func(l *Ledger) error {
			return l.Apply(&Record{Kind: Configure, At: 2000, Config: Config{DedupWindow: 10_000, DedupIDs: 15}}, 2000)
		},
	} {
		l := New(Config{DedupWindow: 10_000})
		l.window.minRun, l.window.most = 400, 10_000
		var runs [][]byte
		for n := range 3 {
			ends(t, l, 1000+int64(n), named(10*n, 10*n+10), 0)
			made, _, c := cutAll(l)
			c.SetCurrentRuns()
			runs = append(runs, made...)
		}
		if err := forget(l); err != nil || len(runs) != 3 {
			t.Fatalf("%s: %d runs, %v", name, len(runs), err)
		}
		made, rest, c := cutAll(l)
		c.SetCurrentRuns()
		if len(made) != 0 || c.DroppedRuns() < 1 {
			t.Errorf("%s: %d runs, %d dropped", name, len(made), c.DroppedRuns())
		}
		left := restoreAll(t, runs[c.DroppedRuns():], rest)
		if left.Stats().DedupIDs != l.Stats().DedupIDs || left.Stats().DedupIDs > 20 {
			t.Errorf("%s: %+v, restored %+v", name, l.Stats(), left.Stats())
		}
	}
}

// TestRunsOfACheckpointGivenUp: an aborted checkpoint changes nothing: its runs do not belong to
// the next one.
func TestRunsOfACheckpointGivenUp(t *testing.T) {
	t.Parallel()
	l := New(Config{})
	l.window.minRun, l.window.most = 400, 1000
	ends(t, l, 1000, named(0, 30), 0)
	c := l.BeginCheckpoint()
	for run := false; !run; {
		_, run, _ = c.Write(nil, 100)
	}
	c.Abort()
	runs, rest, c := cutAll(l)
	if c.DroppedRuns() != 0 {
		t.Errorf("%d dropped", c.DroppedRuns())
	}
	knows(t, restoreAll(t, runs, rest), named(0, 30))
}

// TestACutKeepsWhatIsForgottenOutOfOrder: an ID ends again, in the middle of the window, while a
// checkpoint is written, because its time was shorter than that of older ones. Neither it nor the
// older ones are missing.
func TestACutKeepsWhatIsForgottenOutOfOrder(t *testing.T) {
	t.Parallel()
	for _, least := range []int{1, leastRun} {
		l := New(Config{DedupWindow: 10_000})
		l.window.minRun = least
		ends(t, l, 1000, named(0, 5), 0)
		if err := l.Apply(&Record{Kind: Configure, At: 1000, Config: Config{DedupWindow: 10}}, 1000); err != nil {
			t.Fatal(err)
		}
		ends(t, l, 1000, named(5, 7), 0)
		l.Advance(1020)
		c := l.BeginCheckpoint()
		ends(t, l, 1020, []string{"job-6"}, 0)
		var chunks [][]byte
		var rest []byte
		for more := true; more; {
			var out []byte
			var run bool
			if out, run, more = c.Write(nil, 1<<16); run {
				chunks = append(chunks, out)
			} else {
				rest = append(rest, out...)
			}
		}
		l = restoreAll(t, chunks, rest)
		l.Advance(1021)
		for n, id := range named(0, 7) {
			if _, ok := l.Ended(id); ok != (n < 5) {
				t.Errorf("%s is known: %t", id, ok)
			}
		}
	}
}

// TestARunWithoutAnEntry: a position whose entry was dropped before the cut is part of a run, so
// that later entries keep their positions.
func TestARunWithoutAnEntry(t *testing.T) {
	t.Parallel()
	l := New(Config{DedupWindow: 10_000})
	l.window.minRun = 1
	ends(t, l, 1000, named(0, 2), 0)
	if err := l.Apply(&Record{Kind: Configure, At: 1000, Config: Config{DedupWindow: 10}}, 1000); err != nil {
		t.Fatal(err)
	}
	ends(t, l, 1000, named(2, 4), 0)
	if err := l.Apply(&Record{Kind: Configure, At: 1020, Config: Config{DedupWindow: 10_000}}, 1020); err != nil {
		t.Fatal(err)
	}
	ends(t, l, 1020, named(2, 4), 0) // their first ends are over and dropped
	runs, rest, c := cutAll(l)
	c.SetCurrentRuns()
	ends(t, l, 1030, named(4, 6), 0)
	more, rest2, _ := cutAll(l)
	if len(runs) != 1 || len(more) != 1 {
		t.Fatalf("%d runs, %d runs", len(runs), len(more))
	}
	knows(t, restoreAll(t, runs, rest), named(0, 4))
	next := restoreAll(t, append(runs, more...), rest2)
	knows(t, next, named(0, 6))
	next.Advance(11_005) // the two oldest are over, and the places behind them
	knows(t, next, named(2, 6))
}

// TestACutKeepsWhatIsForgottenAtOnce: entries that are all forgotten at once while a checkpoint is
// written are in it, in runs of the usual size.
func TestACutKeepsWhatIsForgottenAtOnce(t *testing.T) {
	t.Parallel()
	l := New(Config{DedupWindow: 1000})
	l.window.minRun, l.window.most = 1000, 2000
	ends(t, l, 1000, named(0, 500), 0)
	c := l.BeginCheckpoint()
	l.Advance(5000)
	if l.Stats().DedupIDs != 0 {
		t.Fatal("nothing was forgotten")
	}
	var runs [][]byte
	var rest []byte
	for more := true; more; {
		var out []byte
		var run bool
		if out, run, more = c.Write(nil, 100); run {
			runs = append(runs, out)
			if len(out) > 2100 {
				t.Errorf("a run of %d bytes", len(out))
			}
		} else {
			rest = append(rest, out...)
		}
	}
	c.SetCurrentRuns()
	knows(t, restoreAll(t, runs, rest), named(0, 500))
	if made, _, c := cutAll(l); c.DroppedRuns() != len(runs) || len(made) != 0 {
		t.Errorf("%d of %d dropped, %d made", c.DroppedRuns(), len(runs), len(made))
	}
}

// TestRunsThatDoNotFit: a checkpoint without one of its runs, or with them in another order, is
// refused.
func TestRunsThatDoNotFit(t *testing.T) {
	t.Parallel()
	whole := withRuns(t)
	knows(t, restoreAll(t, whole[:len(whole)-1], whole[len(whole)-1]), named(0, 115))
	n := len(whole)
	for name, chunks := range map[string][][]byte{
		"no runs":        whole[n-1:],
		"no first run":   whole[1:],
		"no second run":  slices.Concat(whole[:1], whole[2:]),
		"no last run":    slices.Concat(whole[:n-2], whole[n-1:]),
		"one twice":      slices.Concat(whole[:1], whole),
		"two in turn":    slices.Concat(whole[:1], whole[2:3], whole[1:2], whole[3:]),
		"another order":  slices.Concat(whole[1:2], whole[:1], whole[2:]),
		"a run behind":   slices.Concat(whole[:n-2], whole[n-1:], whole[n-2:n-1]),
		"of no use":      slices.Concat([][]byte{run(0, 3)}, [][]byte{checkpointOf(t, 3)}),
		"endings before": slices.Concat([][]byte{put(nil, &Record{Kind: endedID, Numbers: nil, save: &checkpointFields{}})}, whole),
		"a position with no name behind": slices.Concat(whole[:n-1], [][]byte{slices.Concat(whole[n-1][:headerSize(whole[n-1])],
			put(nil, &Record{Kind: endedID, save: &checkpointFields{}}), whole[n-1][headerSize(whole[n-1]):])}),
	} {
		r := NewCheckpointReader()
		var err error
		for _, chunk := range chunks {
			err = errors.Join(err, r.Add(chunk))
		}
		if err == nil {
			_, err = r.Ledger()
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// run returns a run without IDs.
func run(from, n int) []byte {
	b := put(nil, &Record{Kind: runStart, Numbers: []uint64{uint64(from), 1}})
	for range n {
		b = put(b, &Record{Kind: endedID, save: &checkpointFields{}})
	}
	return b
}

// headerSize is the length of the first record of a checkpoint.
func headerSize(b []byte) int {
	return 5 + (int(b[0]&0x7f) | int(b[1]&0x7f)<<7 | int(b[2]&0x7f)<<14)
}

// TestCheckpointsBeforeRuns: a checkpoint from before there were runs can be read, and one without
// runs is written as before: an older version reads it.
func TestCheckpointsBeforeRuns(t *testing.T) {
	t.Parallel()
	old, err := base64.StdEncoding.DecodeString(beforeRuns)
	if err != nil {
		t.Fatal(err)
	}
	l := restoreAll(t, nil, old)
	knows(t, l, named(0, 3))
	if st := l.Stats(); st.Waiting != 1 || st.Totals.Completed != 3 {
		t.Errorf("%+v", st)
	}
	runs, again, _ := cutAll(l)
	if len(runs) != 0 || string(again) != string(old) {
		t.Errorf("written again: %d runs, %x, want %x", len(runs), again, old)
	}
}

const beforeRuns = "n4CAgACCApsACOgHEgMFAQPYAcDPJOABwIQ9qgIGBAMAAAAAloCAgACSApIACOgHIgVqb2ItMNgBwM8k6AEFmoCAgACSApYACOgHIgVqb2ItMbIB" +
	"AQDYAcDPJOgBBZuAgIAAkgKXAAjoByIFam9iLTKyAQIAANgBwM8k6AEFlICAgACKApAACOgHEgEEIgVqb2ItM+gBAY2AgIAAmgKJAKoCBgEAAAAAAA=="
