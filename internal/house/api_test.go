package house

import (
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "accept the public API as it is now: write testdata/api.txt")

// The budgets of the public API. A name is an exported constant, variable, function, type or method; fields and the
// methods of interfaces belong to their type.
const (
	maxPackages     = 40
	maxNames        = 600
	maxNamesPackage = 40
)

// overBudget has what is above its budget, with the count as a ceiling. A count that falls lowers its ceiling in the same
// commit, and within the budget the entry goes. A feature that raises one is named in decision 0044.
var overBudget = map[string]int{
	allPackages:        42,
	allNames:           1145,
	"coordinator":      42,
	"daemon":           160,
	"outbox":           68,
	"outbox/postgres":  44,
	"queue":            81,
	"storage":          72,
	"storage/postgres": 45,
	"storage/sqlite":   46,
}

const (
	allPackages = "public packages"
	allNames    = "exported names"
)

// public reports whether a user of the library may import the package.
func public(pkg string, p listed) bool {
	return p.Name != "main" && !free(pkg) && !slices.Contains(strings.Split(pkg, "/"), "internal")
}

// TestAPI: the public API is the one in testdata/api.txt, so that a change of it is seen in the diff and made
// deliberately, and it is within its budgets.
func TestAPI(t *testing.T) {
	t.Parallel()
	var now []string
	counts := map[string]int{}
	for name, pkg := range publicPackages(t) {
		lines, names, hidden := declarations(pkg)
		for _, path := range hidden {
			t.Errorf("%s: an exported declaration has a type of %s, which a user of the library cannot read", name, path)
		}
		for _, line := range lines {
			now = append(now, name+", "+line)
		}
		counts[name] = names
		counts[allPackages]++
		counts[allNames] += names
	}
	slices.Sort(now)
	compareAPI(t, now)
	for what := range overBudget {
		counts[what] += 0 // a package that is gone has no names
	}
	for what, n := range counts {
		checkBudget(t, what, n)
	}
}

func compareAPI(t *testing.T, now []string) {
	t.Helper()
	golden := filepath.Join("testdata", "api.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	accepted := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	var diff strings.Builder
	for _, line := range accepted {
		if _, found := slices.BinarySearch(now, line); !found {
			diff.WriteString("\n- " + line)
		}
	}
	for _, line := range now {
		if !slices.Contains(accepted, line) {
			diff.WriteString("\n+ " + line)
		}
	}
	if diff.Len() > 0 {
		t.Errorf("the public API has changed. If it should, run: go test ./internal/house -run TestAPI -update%s", diff.String())
	}
}

func checkBudget(t *testing.T, what string, n int) {
	t.Helper()
	budget, of := maxNamesPackage, what+" has %d exported names"
	switch what {
	case allPackages:
		budget, of = maxPackages, "there are %d "+what
	case allNames:
		budget, of = maxNames, "there are %d "+what
	}
	of = fmt.Sprintf(of, n)
	ceiling, over := overBudget[what]
	switch {
	case !over && n > budget:
		t.Errorf("%s, the budget is %d", of, budget)
	case over && n > ceiling:
		t.Errorf("%s, and may have no more than the %d of overBudget", of, ceiling)
	case over && n <= budget:
		t.Errorf("%s, within the budget of %d: remove it from overBudget", of, budget)
	case over && n < ceiling:
		t.Errorf("%s: lower its ceiling in overBudget from %d to %d", of, ceiling, n)
	}
}

// publicPackages returns what the compiler knows about each public package.
func publicPackages(t *testing.T) map[string]*types.Package {
	t.Helper()
	args := []string{"-export", "-deps"}
	for name, p := range list(t) {
		if public(name, p) {
			args = append(args, p.ImportPath)
		}
	}
	pkgs := goList(t, args...)
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(pkgs[strings.TrimPrefix(path, module)].Export)
	})
	out := map[string]*types.Package{}
	for _, path := range args[2:] {
		pkg, err := from.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(path, module)] = pkg
	}
	return out
}

// declarations returns the exported declarations of a package, one a line, the number of exported names, and the
// internal packages whose types they contain.
func declarations(pkg *types.Package) (lines []string, names int, hidden []string) {
	qualifier := func(other *types.Package) string {
		if other == pkg {
			return ""
		}
		if strings.Contains(other.Path(), "/internal/") && !slices.Contains(hidden, other.Path()) {
			hidden = append(hidden, other.Path())
		}
		return other.Name()
	}
	text := func(typ types.Type) string { return types.TypeString(typ, qualifier) }
	signature := func(f *types.Func) string { return f.Name() + strings.TrimPrefix(text(f.Type()), "func") }
	for _, name := range pkg.Scope().Names() {
		obj := pkg.Scope().Lookup(name)
		if !obj.Exported() {
			continue
		}
		names++
		switch obj := obj.(type) {
		case *types.Const:
			typ, _, _ := strings.Cut(" "+text(obj.Type()), " untyped")
			lines = append(lines, fmt.Sprintf("const %s%s = %s", name, typ, obj.Val().ExactString()))
		case *types.Var:
			lines = append(lines, "var "+name+" "+text(obj.Type()))
		case *types.Func:
			lines = append(lines, "func "+signature(obj))
		case *types.TypeName:
			named, ok := obj.Type().(*types.Named)
			if !ok { // an alias
				lines = append(lines, "type "+name+" = "+text(types.Unalias(obj.Type())))
				continue
			}
			lines = append(lines, members(named, text, signature)...)
			for m := range named.Methods() {
				if m.Exported() {
					names++
					lines = append(lines, fmt.Sprintf("method (%s) %s", text(m.Signature().Recv().Type()), signature(m)))
				}
			}
		}
	}
	return lines, names, hidden
}

// members returns a type's declaration, and one line for each exported field or method of an interface.
func members(named *types.Named, text func(types.Type) string, signature func(*types.Func) string) []string {
	head := "type " + text(named)
	switch under := named.Underlying().(type) {
	case *types.Struct:
		lines := []string{head + " struct"}
		for f := range under.Fields() {
			switch {
			case f.Embedded() && f.Exported():
				lines = append(lines, head+" struct, embedded "+text(f.Type()))
			case f.Exported():
				lines = append(lines, head+" struct, "+f.Name()+" "+text(f.Type()))
			}
		}
		return lines
	case *types.Interface:
		lines := []string{head + " interface"}
		for m := range under.Methods() {
			if m.Exported() {
				lines = append(lines, head+" interface, "+signature(m))
			}
		}
		return lines
	default:
		return []string{head + " " + text(under)}
	}
}
