package house

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"
)

// TestOtherSystems: what a package uses of its own exists on Linux, macOS and Windows alike. A rename by a tool sees only
// the files of the system on which it runs, and leaves those of the others behind. Imports are not resolved here, so what
// is undefined on all systems does not count; make cross builds everything.
func TestOtherSystems(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, p := range list(t) {
		depends, files := false, map[string][]string{}
		for _, system := range []string{"linux", "darwin", "windows"} {
			names, others := filesOn(t, p.Dir, system)
			files[system], depends = names, depends || others
		}
		if !depends {
			continue
		}
		checked++
		linux := undefined(t, p.Dir, files["linux"])
		for _, system := range []string{"darwin", "windows"} {
			for problem, at := range undefined(t, p.Dir, files[system]) {
				if _, everywhere := linux[problem]; !everywhere {
					t.Errorf("%s: on %s, %s", at, system, problem)
				}
			}
		}
	}
	if checked < 10 {
		t.Fatalf("%d packages were checked", checked)
	}
}

// TestUndefinedFinds: functions, types and methods that a package lacks are found.
func TestUndefinedFinds(t *testing.T) {
	t.Parallel()
	const source = `package p

import "example.org/q"

type own struct{ q.Other }

type plain struct{}

func (o own) f(x lost) { o.Promoted(); q.Any(); missing(); plain{}.gone() }
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(check(fset, []*ast.File{f}))
	for _, name := range []string{"lost", "missing", "gone"} {
		if !strings.Contains(got, name) {
			t.Errorf("%s was not found in %q", name, got)
		}
	}
}

// filesOn returns the files of a package on a system, and whether it has others.
func filesOn(t *testing.T, dir, system string) (names []string, others bool) {
	t.Helper()
	target := build.Default
	target.GOOS, target.CgoEnabled = system, false
	p, err := target.ImportDir(dir, 0)
	var none *build.NoGoError
	if err != nil && !errors.As(err, &none) {
		t.Fatal(err)
	}
	return p.GoFiles, len(p.IgnoredGoFiles) > 0
}

// undefined returns the messages about names that the files of a package use and do not declare, with their places.
func undefined(t *testing.T, dir string, names []string) map[string]token.Position {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return check(fset, files)
}

// noImports is an importer that finds nothing, so that only the package's own names are resolved.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not resolved") }

// check returns the errors of the type check that are about undefined names.
func check(fset *token.FileSet, files []*ast.File) map[string]token.Position {
	problems := map[string]token.Position{}
	config := types.Config{Importer: noImports{}, Error: func(err error) {
		var e types.Error
		if errors.As(err, &e) && strings.Contains(e.Msg, "undefined") {
			problems[e.Msg] = fset.Position(e.Pos)
		}
	}}
	_, _ = config.Check("p", fset, files, nil) // every error was passed to Error
	return problems
}
