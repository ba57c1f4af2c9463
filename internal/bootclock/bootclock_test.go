package bootclock_test

import (
	"testing"

	"github.com/emitd/emitd/internal/bootclock"
)

// The clock never goes back.
func TestNow(t *testing.T) {
	t.Parallel()
	a := bootclock.Now()
	if b := bootclock.Now(); a <= 0 || b < a {
		t.Errorf("%d, then %d", a, b)
	}
}
