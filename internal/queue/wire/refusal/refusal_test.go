package refusal_test

import (
	"testing"

	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// TestEveryTagHasAHint: every refusal says what to do, and a refusal is the same after encoding and
// decoding.
func TestEveryTagHasAHint(t *testing.T) {
	t.Parallel()
	for _, tag := range refusal.Tags() {
		if p := refusal.ProblemOf(queue.Refuse(tag, "why")); p.Hint == "" || p.Refusal().Hint != "" {
			t.Errorf("%s: hint %q, and back %q", tag, p.Hint, p.Refusal().Hint)
		}
		if p := refusal.ProblemOf(queue.Refuse(tag, "why").WithHint("its own")); p.Hint != "its own" || p.Refusal().Hint != "its own" {
			t.Errorf("%s: the hint of the refusal is lost: %q, and back %q", tag, p.Hint, p.Refusal().Hint)
		}
	}
}
