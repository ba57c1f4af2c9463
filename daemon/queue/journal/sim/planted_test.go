//go:build planted

package sim

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon/queue/journal/owner"
)

// Each rule that is taken out must be missed by some seed: a simulator that does not see a rule
// broken proves nothing about it.
func TestPlanted(t *testing.T) { //nolint:paralleltest // the switch is of the process
	defer owner.Plant("")
	only := os.Getenv("EMITD_TEST_PLANTED")
	for _, bug := range owner.Bugs() {
		if only != "" && string(bug) != only {
			continue
		}
		t.Run(string(bug), func(t *testing.T) { //nolint:paralleltest // as above
			owner.Plant(bug)
			start := time.Now()
			for seed := range uint64(seeds(400)) {
				_, err := Run(Config{Seed: seed + 1, Takeovers: takeovers})
				var v *Violation
				if errors.As(err, &v) {
					owner.Plant("")
					if _, err := Run(Config{Seed: seed + 1, Takeovers: takeovers}); err != nil {
						t.Fatalf("seed %d fails without the bug too: %v", seed+1, err)
					}
					t.Logf("seed %d, %.200v (%v)", seed+1, v, time.Since(start).Round(time.Millisecond))
					return
				}
			}
			t.Errorf("not caught (asked: %v)", owner.Asked())
		})
	}
}
