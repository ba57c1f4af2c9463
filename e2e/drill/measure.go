package drill

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Full reports whether the drills run with the counts of the promises, and not with few.
func Full() bool { return os.Getenv("EMITD_TEST_DRILLS") == "full" }

// Times returns n with EMITD_TEST_DRILLS=full, else 1.
func Times(n int) int {
	if Full() {
		return n
	}
	return 1
}

// Aside lets drills run beside each other, unless their figures are noted: what else runs would be in them.
func Aside(t *testing.T) {
	if !Full() {
		t.Parallel()
	}
}

// measured collects figures for docs/measurements.md.
var measured struct {
	sync.Mutex
	rows []string
}

// Measure notes durations of one kind, with what was promised.
func Measure(t testing.TB, what, promised string, took []time.Duration) {
	t.Helper()
	sorted := slices.Sorted(slices.Values(took))
	at := func(p float64) time.Duration {
		return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)].Round(time.Millisecond)
	}
	t.Logf("%s: n %d, p50 %v, p99 %v, max %v (promised: %s)", what, len(took), at(0.5), at(0.99), at(1), promised)
	Note("| %s | %d | %v | %v | %v | %s |", what, len(took), at(0.5), at(0.99), at(1), promised)
}

// Count notes a number that must be what was promised.
func Count(t testing.TB, what string, got int, promised string) {
	t.Helper()
	t.Logf("%s: %d (promised: %s)", what, got, promised)
	Note("| %s | %d | | | | %s |", what, got, promised)
}

// Note adds a row to the table of the document.
func Note(format string, args ...any) {
	measured.Lock()
	defer measured.Unlock()
	measured.rows = append(measured.rows, fmt.Sprintf(format, args...))
}

// WriteMeasurements puts the figures of this run into a part of the document, if it was a full one.
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
