package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestPublicPackagesHaveAnExample: whoever opens a package sees what to do with it first.
func TestPublicPackagesHaveAnExample(t *testing.T) {
	t.Parallel()
	for name, p := range list(t) {
		if public(name, p) && !hasExample(t, p.Dir) {
			t.Errorf("package %s has no example: write func Example in example_test.go", name)
		}
	}
}

func hasExample(t *testing.T, dir string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Example") {
				return true
			}
		}
	}
	return false
}
