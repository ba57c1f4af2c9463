package sim

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// seeds returns how many seeds to run; EMITD_TEST_JOURNAL_SEEDS changes it.
func seeds(standard int) int {
	if n, err := strconv.Atoi(os.Getenv("EMITD_TEST_JOURNAL_SEEDS")); err == nil {
		return n
	}
	return standard
}

const takeovers = 60

// TestStorm: no acknowledged record is lost, whatever happens.
func TestStorm(t *testing.T) {
	t.Parallel()
	start := time.Now()
	var sum Totals
	for seed := range uint64(seeds(40)) {
		totals, err := Run(Config{Seed: seed + 1, Takeovers: takeovers})
		if err != nil {
			t.Fatalf("seed %d: %v", seed+1, err)
		}
		sum.Add(totals)
	}
	if sum.Acked < 10*sum.Takeovers || sum.Clean == 0 || sum.Recognised == 0 || sum.Deleted == 0 || sum.Runs < sum.Checkpoints/10 || sum.Fenced == 0 {
		t.Errorf("the storm is a calm: %+v", sum)
	}
	t.Logf("%+v in %v", sum, time.Since(start).Round(time.Millisecond))
}
