package fault

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/internal/reference"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var update = flag.Bool("update", false, "write docs/reference/errors.md")

const page = "../../../docs/reference/errors.md"

func TestReference(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("| code | exit | what | means | do |\n|---|---|---|---|---|\n")
	for _, e := range All() {
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |\n", e.Code, e.Exit, reference.Cell(e.Title), reference.Cell(e.Means), reference.Cell(e.Do))
	}
	reference.Check(t, page, b.String(), *update)
}

// TestEveryCodeIsInTheReference checks the codes in all of the program's sources.
func TestEveryCodeIsInTheReference(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile(`"(E[1-5][0-9]{3})"`)
	found := 0
	err = filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range code.FindAllStringSubmatch(string(source), -1) {
			found++
			if !strings.Contains(string(text), "| "+m[1]+" |") {
				t.Errorf("%s: %s is not in the reference", path, m[1])
			}
		}
		return err
	})
	if err != nil || found < len(All()) {
		t.Errorf("%d codes found in the sources: %v", found, err)
	}
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	all := All()
	if !slices.IsSortedFunc(all, func(a, b Entry) int { return strings.Compare(string(a.Code), string(b.Code)) }) {
		t.Error("the catalogue is not sorted")
	}
	for i, e := range all {
		if i > 0 && all[i-1].Code == e.Code {
			t.Errorf("%s is there twice", e.Code)
		}
		if !regexp.MustCompile(`^E[1-5][0-9]{3}$`).MatchString(string(e.Code)) || e.Title == "" || e.Means == "" || e.Do == "" {
			t.Errorf("%+v lacks something", e)
		}
		if e.Exit < ExitFailed || e.Exit > ExitDegraded {
			t.Errorf("%s has exit code %d", e.Code, e.Exit)
		}
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	list := List{
		New(UnknownKey, "x").Because("why it matters"),
		{Code: UnknownKey, What: "y", Excerpt: "  > 1 | y"},
		New(BadValue, "hunter2 is %w", os.ErrNotExist).Hint("two\nlines"),
	}
	var b strings.Builder
	Write(&b, fmt.Errorf("wrapped: %w", list), "hunter2", "")
	const want = `error E1203: x
  why it matters
error E1203: y
  > 1 | y
  do: correct or remove the key; all keys: emitd config show
error E1204: *** is file does not exist
  do: two
  lines
`
	if b.String() != want {
		t.Errorf("got:\n%swant:\n%s", b.String(), want)
	}
	if !errors.Is(list, os.ErrNotExist) {
		t.Error("the cause is lost")
	}
}

func TestFromAndExit(t *testing.T) {
	t.Parallel()
	inUse := &storage.IDInUseError{ID: "i", Holder: node.Identity{Name: "a"}}
	for _, c := range []struct {
		err  error
		code Code
		exit int
	}{
		{nil, "", ExitOK},
		{errors.New("x"), Internal, ExitFailed},
		{fmt.Errorf("w: %w", inUse), IDInUse, ExitConflict},
		{fmt.Errorf("w: %w", &coordinator.SlowStoreError{}), SlowStore, ExitConflict},
		{fmt.Errorf("w: %w", &storage.OtherClusterError{Store: "a", Node: "b"}), OtherCluster, ExitConflict},
		{fmt.Errorf("w: %w", storage.ErrNodesLive), NodesLive, ExitConflict},
		{storage.ErrUnavailable, Unreachable, ExitUnreachable},
		{fmt.Errorf("w: %w", storage.ErrFull), StoreFull, ExitFailed},
		{context.DeadlineExceeded, Unreachable, ExitUnreachable},
		{storage.ErrTermLost, NotLeader, ExitConflict},
		{&storage.SchemaError{Have: 0, Want: 2}, NotMigrated, ExitFailed},
		{&storage.SchemaError{Have: 1, Want: 2, Hint: "h"}, OldSchema, ExitFailed},
		{&storage.SchemaError{Have: 3, Want: 2}, NewSchema, ExitFailed},
		{errors.Join(nil, New(NoDaemon, "x")), NoDaemon, ExitNotFound},
		{New("E9999", "x"), "E9999", ExitFailed},
	} {
		if got := Exit(c.err); got != c.exit {
			t.Errorf("%v: exit %d, want %d", c.err, got, c.exit)
		}
		if fs := Of(c.err); len(fs) > 0 && fs[0].Code != c.code {
			t.Errorf("%v: code %s, want %s", c.err, fs[0].Code, c.code)
		}
	}
	if got := Of(&storage.SchemaError{Have: 1, Want: 2, Hint: "h"})[0].Advice(); got != "h" {
		t.Errorf("advice is %q, want the store's hint", got)
	}
}
