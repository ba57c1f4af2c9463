//go:build planted

package sim

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/planted"
)

// Each planted bug must be caught by some seed: a simulator that does not see a rule broken
// proves nothing about it. The seeds that catch one are played without it as well.
func TestPlanted(t *testing.T) { //nolint:paralleltest // the switch is of the process
	defer planted.On("")
	limit := uint64(400)
	if n, err := strconv.ParseUint(os.Getenv("EMITD_TEST_PLANTED_SEEDS"), 10, 64); err == nil {
		limit = n
	}
	caughtBy := map[uint64][]string{}
	only := os.Getenv("EMITD_TEST_PLANTED")
	for _, bug := range planted.Bugs() {
		if only != "" && bug.Name != only {
			continue
		}
		t.Run(bug.Name, func(t *testing.T) {
			planted.On(bug.Name)
			start := time.Now()
			seed, v := firstBroken(limit)
			if v == nil {
				t.Fatalf("not caught by %d seeds (asked: %v): %s", limit, planted.Asked(), bug.Breaks)
			}
			t.Logf("seed %d, %s: %s (%v)", seed, v.Rule, v.What, time.Since(start).Round(time.Millisecond))
			caughtBy[seed] = append(caughtBy[seed], bug.Name)
		})
	}
	planted.On("")
	for seed, bugs := range caughtBy {
		t.Run(fmt.Sprint("without any, seed ", seed), func(t *testing.T) {
			t.Parallel()
			if _, err := Run(storm(seed)); err != nil {
				t.Errorf("it fails without %s too: %v", strings.Join(bugs, ", "), err)
			}
		})
	}
}

// firstBroken plays seeds, several at once, and returns the first that breaks a rule.
func firstBroken(limit uint64) (first uint64, v *Violation) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var begun atomic.Uint64
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for seed := begun.Add(1); seed <= limit; seed = begun.Add(1) {
				_, err := Run(storm(seed))
				var found *Violation
				if !errors.As(err, &found) {
					continue
				}
				begun.Store(limit) // those before it come to their end
				mu.Lock()
				if v == nil || seed < first {
					first, v = seed, found
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return first, v
}
