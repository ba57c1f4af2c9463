package drill

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Full reports whether the drills run with the full counts, by which the promises are measured.
func Full() bool { return os.Getenv("EMITD_TEST_DRILLS") == "full" }

// Times returns n with EMITD_TEST_DRILLS=full, else 1.
func Times(n int) int {
	if Full() {
		return n
	}
	return 1
}

// ParallelUnlessMeasured lets drills run in parallel, unless their figures are recorded: other load would falsify them.
func ParallelUnlessMeasured(t *testing.T) {
	if !Full() {
		t.Parallel()
	}
}

// measured collects figures for docs/measurements.md.
var measured struct {
	sync.Mutex
	rows []string
}

// Bound is a promise about durations. A zero field promises nothing.
type Bound struct {
	P50, P99, Max time.Duration
	// Other says in words what else is promised, or the reason for the bound. The drill itself checks it.
	Other string
}

// String returns the promise as it appears in the document.
func (b Bound) String() string {
	var parts []string
	for _, p := range []struct {
		of   string
		most time.Duration
	}{{"p50 ≤ ", b.P50}, {"p99 ≤ ", b.P99}, {"≤ ", b.Max}} {
		if p.most > 0 {
			parts = append(parts, p.of+p.most.String())
		}
	}
	if b.Other != "" {
		parts = append(parts, b.Other)
	}
	return strings.Join(parts, ", ")
}

// Without the full counts a promised duration may be exceeded by the factor leeway, or up to least.
// Drills then run in parallel, on machines with other load.
const (
	leeway = 10
	least  = 10 * time.Second
)

// spread holds quantiles of durations.
type spread struct{ p50, p99, max time.Duration }

func spreadOf(took []time.Duration) spread {
	sorted := slices.Sorted(slices.Values(took))
	at := func(p float64) time.Duration {
		return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
	}
	return spread{at(0.5), at(0.99), at(1)}
}

// broken returns the figures that break a promise. full selects the exact bounds.
func (b Bound) broken(got spread, full bool) (bad []string) {
	for _, f := range []struct {
		name      string
		got, most time.Duration
	}{{"p50", got.p50, b.P50}, {"p99", got.p99, b.P99}, {"max", got.max, b.Max}} {
		most := f.most
		if !full {
			most = max(leeway*most, least)
		}
		if f.most > 0 && f.got > most {
			bad = append(bad, fmt.Sprintf("%s is %v, more than %v", f.name, f.got, most))
		}
	}
	return bad
}

// Measure records at least one duration of one kind with the promise, and fails the drill if they break
// it. The exact bounds apply only with the full counts.
func Measure(t testing.TB, what string, promised Bound, took []time.Duration) {
	t.Helper()
	got := spreadOf(took)
	for _, bad := range promised.broken(got, Full()) {
		t.Errorf("%s: %s (promised: %s): %v", what, bad, promised, took)
	}
	p50, p99, longest := got.p50.Round(time.Millisecond), got.p99.Round(time.Millisecond), got.max.Round(time.Millisecond)
	t.Logf("%s: n %d, p50 %v, p99 %v, max %v (promised: %s)", what, len(took), p50, p99, longest, promised)
	note("| %s | %d | %v | %v | %v | %s |", what, len(took), p50, p99, longest, promised)
}

// Never records how often something happened that must not happen, and fails the drill if it did.
func Never(t testing.TB, what string, got int) {
	t.Helper()
	if got != 0 {
		t.Errorf("%s: %d, and not 0", what, got)
	}
	Count(t, what, got, "0")
}

// Count records a number and what is promised of it in words; the drill itself checks that. For a number
// that must be 0 use [Never].
func Count(t testing.TB, what string, got int, promised string) {
	t.Helper()
	t.Logf("%s: %d (promised: %s)", what, got, promised)
	note("| %s | %d | | | | %s |", what, got, promised)
}

// Amount records an amount of a unit, with the promised maximum; 0 promises nothing. It fails the drill
// only with the full counts, because a short window or a busy machine gives no reliable figure.
func Amount(t testing.TB, what string, got float64, unit string, most float64) {
	t.Helper()
	promised := "reported"
	if most > 0 {
		promised = fmt.Sprintf("≤ %v %s", most, unit)
	}
	if Full() && most > 0 && got > most {
		t.Errorf("%s: %.3f %s (promised: %s)", what, got, unit, promised)
	}
	text := strconv.FormatFloat(got, 'g', 3, 64)
	t.Logf("%s: %s %s (promised: %s)", what, text, unit, promised)
	note("| %s | %s %s | | | | %s |", what, text, unit, promised)
}

// note adds a row to the document's table.
func note(format string, args ...any) {
	measured.Lock()
	defer measured.Unlock()
	measured.rows = append(measured.rows, fmt.Sprintf(format, args...))
}

// WriteMeasurements writes the figures of a full run into a part of the document.
func WriteMeasurements(path, part string) error {
	if !Full() || len(measured.rows) == 0 {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+part+": begin (make drills) -->", "<!-- "+part+": end -->"
	before, rest, ok1 := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no part for %s", path, part)
	}
	slices.Sort(measured.rows)
	table := "\n\n| what | n | p50 | p99 | max | promised |\n|---|---|---|---|---|---|\n" + strings.Join(measured.rows, "\n") + "\n\n"
	return os.WriteFile(path, []byte(before+begin+table+end+after), 0o644)
}
