package pgschema_test

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/pgschema"
)

// Statements contain the names, so invalid names, and names that Postgres would shorten, are
// refused.
func TestCheckNames(t *testing.T) {
	t.Parallel()
	const longest = "subscription"
	for _, tt := range []struct{ schema, prefix, message string }{
		{"emitd", "", ""},
		{"emitd", strings.Repeat("p", 63-len(longest)), ""},
		{"", "", "outbox.schema"},
		{`x"; drop`, "", "outbox.schema"},
		{"emitd", "A", "outbox.prefix"},
		{"emitd", strings.Repeat("p", 64-len(longest)), "longer than Postgres' 63"},
	} {
		err := pgschema.CheckNames("outbox", tt.schema, tt.prefix, longest)
		if (err == nil) != (tt.message == "") || err != nil && !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%q, %q: error %v, want one that says %q", tt.schema, tt.prefix, err, tt.message)
		}
	}
}

// Two scopes never share a channel, however long they are.
func TestChannel(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("s", 63)
	a, b := pgschema.Channel(long+"a"), pgschema.Channel(long+"b")
	if pgschema.Channel(long) != long || len(a) != 63 || len(b) != 63 || a == b {
		t.Errorf("channels %q and %q", a, b)
	}
}
