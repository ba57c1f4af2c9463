package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/admin/fault"
)

// TestGrantsOnly: the rights alone are printed, whatever the version of the schema is, so that they can be applied to a store
// whose tables are there.
func TestGrantsOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, begins string }{
		{"--store postgres:// --grant node=me", `grant usage on schema "emitd" to "me";`},
		{"--store postgres:// --outbox --grant relay=me", `grant usage on schema "emitd" to "me";`},
		{"--store postgres://", "\n-- The rights that the roles of programs need"},
		{"--store sqlite:///any.db", ""},
		{"--store postgres:// --from 3", ""},
	} {
		var out, refusal bytes.Buffer
		args := strings.Fields("migrate get --grants-only " + c.args)
		code := Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: &out, Err: &refusal})
		switch text := out.String(); {
		case c.begins == "" && (code != fault.ExitUsage || text != ""):
			t.Errorf("%s: exit code %d, %q", c.args, code, text)
		case c.begins != "" && (code != fault.ExitOK || !strings.HasPrefix(text, c.begins) || strings.Contains(strings.ToLower(text), "create table")):
			t.Errorf("%s: exit code %d, %s\n%s", c.args, code, refusal.String(), text)
		}
	}
}
