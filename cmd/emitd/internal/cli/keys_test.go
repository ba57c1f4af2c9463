package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
)

// TestNoKeysOnStandardInput checks that an empty list, as of a query that has failed, removes no key unless somebody want
// that it may.
func TestNoKeysOnStandardInput(t *testing.T) {
	t.Parallel()
	store := config.SQLiteURL(filepath.Join(t.TempDir(), "cluster.db"))
	run := func(in string, args ...string) (int, string) {
		var out bytes.Buffer
		code := Main(t.Context(), append(args, "--store", store, "--timeout", "1m"), Streams{In: strings.NewReader(in), Out: &out, Err: &out})
		return code, out.String()
	}
	if code, out := run("", "migrate", "up"); code != 0 {
		t.Fatal(out)
	}
	for _, c := range []struct {
		in   string
		args []string
		code int
		want string
	}{
		{"a\nb\n", []string{"add"}, 0, "2 added, 0 removed"},
		{"", []string{"set"}, fault.ExitUsage, "E2113"},
		{"\n\r\n", []string{"set", "--dry-run"}, fault.ExitUsage, "E2113"},
		{"b\n", []string{"set"}, 0, "0 added, 1 removed"}, // so both were there
		{"", []string{"set", "--allow-empty"}, 0, "0 added, 1 removed"},
	} {
		args := append([]string{"daemon", "keys", c.args[0], "acme:tenants", "-", "--undeclared"}, c.args[1:]...)
		if code, out := run(c.in, args...); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%q of %q: code %d, %s", c.args, c.in, code, out)
		}
	}
}
