package schema_test

import (
	"slices"
	"testing"
	"testing/fstest"

	"github.com/emitd/emitd/internal/schema"
)

func files(names ...string) fstest.MapFS {
	out := fstest.MapFS{}
	for _, name := range names {
		out["migrations/"+name] = &fstest.MapFile{Data: []byte("text of " + name)}
	}
	return out
}

// Steps are read in order, with or without a way back. Other files are ignored.
func TestSteps(t *testing.T) {
	t.Parallel()
	got := schema.Load(files("002_more_columns.up.sql", "001_first.up.sql", "001_first.down.sql", "001_part.sql"), 2)
	want := []schema.Step{
		{Version: 1, Name: "first", Up: "text of 001_first.up.sql", Down: "text of 001_first.down.sql"},
		{Version: 2, Name: "more_columns", Up: "text of 002_more_columns.up.sql"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
}

// A gap, two files with one number, a name without a number, and a step too many or too few panic.
func TestStepsThatAreNot(t *testing.T) {
	t.Parallel()
	for _, bad := range [][]string{
		{"001_a.up.sql", "003_c.up.sql"},
		{"001_a.up.sql", "001_b.up.sql"},
		{"a.up.sql", "b.up.sql"},
		{"001_a.up.sql"},
		{"001_a.up.sql", "002_b.up.sql", "003_c.up.sql"},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v were read", bad)
				}
			}()
			schema.Load(files(bad...), 2)
		}()
	}
}
