package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// Several real processes register, send heartbeats and replace each other as leader on one file.
// Numbers of terms and events never repeat, and the history matches the replies.
func TestProcessesShareOneFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db") // created and migrated by the first process
	const processes, beats = 4, 100
	begin := strconv.FormatInt(time.Now().Add(time.Second).UnixMilli(), 10)
	children := make([]*child, processes)
	for i := range children {
		children[i] = spawn(t, "beat", path, begin, strconv.Itoa(beats))
	}
	var won []int64
	for _, c := range children {
		for _, line := range c.rest() {
			won = append(won, int64(numbers(t, line)[0]))
		}
	}
	slices.Sort(won)
	if len(won) < processes || len(slices.Compact(slices.Clone(won))) != len(won) {
		t.Fatalf("%d terms were won, %d of them different", len(won), len(slices.Compact(slices.Clone(won))))
	}
	s := mustOpen(t, Config{Path: path})
	page, err := s.Events(context.Background(), 0, 100_000)
	ok(t, err)
	var elected []int64
	registered := 0
	for i, e := range page.Events {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d has number %d", i+1, e.Seq)
		}
		if i > 0 && e.At.Before(page.Events[i-1].At) {
			t.Errorf("event %d of %v comes after one of %v: it was not stamped inside its step", e.Seq, e.At, page.Events[i-1].At)
		}
		switch e.Kind {
		case daemon.LeaderElected:
			elected = append(elected, e.Term)
		case daemon.NodeRegistered:
			registered++
		}
	}
	if registered != processes {
		t.Errorf("%d nodes registered, want %d", registered, processes)
	}
	if !slices.Equal(elected, won) {
		t.Errorf("history tells of other terms, or in another order, than the processes were told:\n%v\n%v", elected, won)
	}
}

// A process is killed repeatedly while it writes. Every acknowledged command is there, the history
// has no gap, and the next process writes at once.
func TestKilledProcessLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, Config{Path: path})
	acked := 0
	for round := range 12 {
		c := spawn(t, "submit", path, fmt.Sprint("round", round))
		last := ""
		for range 5 + 17*round {
			last = c.line()
		}
		c.kill()
		acked += 5 + 17*round
		prefix, number, _ := strings.Cut(last, "-")
		n, err := strconv.Atoi(number)
		ok(t, err)
		for i := range n + 1 {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			got, err := s.Submit(ctx, storage.Command{ID: fmt.Sprint(prefix, "-", i), Kind: "again"})
			cancel()
			ok(t, err)
			if got.Kind != daemon.CommandResign {
				t.Fatalf("command %s-%d was acknowledged and is lost", prefix, i)
			}
		}
	}
	page, err := s.Events(context.Background(), 0, 100_000)
	ok(t, err)
	if len(page.Events) < acked || page.Head != int64(len(page.Events)) || page.Oldest != 1 {
		t.Errorf("%d events from %d to %d for %d acknowledged commands", len(page.Events), page.Oldest, page.Head, acked)
	}
}

// Three processes that write without any pause all make progress, and none waits for long.
func TestWritersAreFair(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	mustOpen(t, Config{Path: path})
	begin := time.Now().Add(1500 * time.Millisecond)
	children := make([]*child, 3)
	for i := range children {
		children[i] = spawn(t, "hammer", path, strconv.FormatInt(begin.UnixMilli(), 10), "1500")
	}
	total, least, longest := 0, 1<<30, 0
	for _, c := range children {
		n := numbers(t, c.line())
		t.Logf("%d stamps, the slowest in %d ms", n[0], n[1])
		total, least, longest = total+n[0], min(least, n[0]), max(longest, n[1])
		c.rest()
	}
	if least*12 < total {
		t.Errorf("the least of three made %d of %d stamps", least, total)
	}
	if longest > 1000 {
		t.Errorf("one stamp took %d ms", longest)
	}
}

// Processes take a unit from each other and add to a counter under its fence. Each reads the
// counter once, after its stamp, and then trusts its own arithmetic. A lost addition would be a
// late effect of an earlier run.
func TestFencedCounterLosesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	mustOpen(t, Config{Path: path})
	db := userDB(t, path)
	_, err := db.Exec("CREATE TABLE counter (n INTEGER); INSERT INTO counter VALUES (0)")
	ok(t, err)
	children := make([]*child, 3)
	for i := range children {
		children[i] = spawn(t, "count", path, "40")
	}
	acked := 0
	for _, c := range children {
		acked += numbers(t, c.line())[0]
		c.rest()
	}
	var count int
	ok(t, db.QueryRow("SELECT n FROM counter").Scan(&count))
	if count != acked || acked < 40 {
		t.Errorf("counter is %d after %d acknowledged additions", count, acked)
	}
}

// waitFor waits until a condition of another process holds.
func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
