//go:build planted

package sim

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/planted"
)

// Each planted bug must be caught by some seed: a simulator that does not see a rule broken
// proves nothing about it.
func TestPlanted(t *testing.T) { //nolint:paralleltest // the switch is of the process
	defer planted.On("")
	limit := 400
	if n, err := strconv.Atoi(os.Getenv("EMITD_TEST_PLANTED_SEEDS")); err == nil {
		limit = n
	}
	only := os.Getenv("EMITD_TEST_PLANTED")
	for _, bug := range planted.Bugs() {
		if only != "" && bug.Name != only {
			continue
		}
		t.Run(bug.Name, func(t *testing.T) {
			planted.On(bug.Name)
			start := time.Now()
			for seed := range uint64(limit) {
				_, err := Run(storm(seed + 1))
				var v *Violation
				if errors.As(err, &v) {
					planted.On("")
					if _, err := Run(storm(seed + 1)); err != nil {
						t.Fatalf("seed %d fails without the bug too: %v", seed+1, err)
					}
					t.Logf("seed %d, %s: %s (%v)", seed+1, v.Rule, v.What, time.Since(start).Round(time.Millisecond))
					return
				}
			}
			t.Errorf("not caught by %d seeds (asked: %v): %s", limit, planted.Asked(), bug.Breaks)
		})
	}
}
