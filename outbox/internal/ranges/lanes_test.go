package ranges

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/outbox"
)

// TestParkedKeyOf checks that messages of a key share a parked key, and that each message without a key has its own.
func TestParkedKeyOf(t *testing.T) {
	t.Parallel()
	row := func(seq int64, key string) outbox.Row {
		return outbox.Row{Message: outbox.Message{Key: key}, Seq: seq, Shard: 7}
	}
	for _, c := range []struct {
		a, b outbox.Row
		same bool
	}{
		{row(1, "k"), row(2, "k"), true},
		{row(1, "k"), row(1, "l"), false},
		{row(1, ""), row(2, ""), false},
		{row(1, ""), row(1, ""), true},
		{row(1, "k"), row(1, ""), false},
	} {
		if a, b := ParkedKeyOf(c.a), ParkedKeyOf(c.b); (a == b) != c.same || a.Shard != 7 {
			t.Errorf("%v and %v", a, b)
		}
	}
}

// TestCause checks that causes are stored as valid text of bounded length.
func TestCause(t *testing.T) {
	t.Parallel()
	for cause, want := range map[string]string{"plain": "plain", "a\x00b": "a b", "a\xffb": "a\uFFFDb"} {
		if got := Cause(cause); got != want {
			t.Errorf("%q is kept as %q", cause, got)
		}
	}
	if got := Cause(strings.Repeat("ü", maxCause)); len(got) > maxCause || !strings.HasSuffix(got, "ü") {
		t.Errorf("a long cause has %d bytes and ends with %q", len(got), got[len(got)-2:])
	}
}
