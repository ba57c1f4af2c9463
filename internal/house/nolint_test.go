package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// standard are the linters that golangci-lint enables by default.
var standard = []string{"errcheck", "govet", "ineffassign", "staticcheck", "unused"}

var directive = regexp.MustCompile(`^//nolint(?::([a-z,]+) // .+)?`)

// TestNolintNamesALinterThatRuns: a directive names the linters that it silences, all of which .golangci.yml enables,
// and gives the reason. golangci-lint itself says nothing about a linter that does not run.
func TestNolintNamesALinterThatRuns(t *testing.T) {
	t.Parallel()
	var config struct {
		Linters struct {
			Enable []string `yaml:"enable"`
		} `yaml:"linters"`
	}
	if err := yaml.Unmarshal([]byte(read(t, ".golangci.yml")), &config); err != nil {
		t.Fatal(err)
	}
	enabled := slices.Concat(standard, config.Linters.Enable)
	found := 0
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, filepath.Join(root, filepath.FromSlash(name)), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for c := range comments(file) {
			m := directive.FindStringSubmatch(c.Text)
			if m == nil {
				continue
			}
			found++
			for _, linter := range strings.Split(m[1], ",") {
				switch {
				case linter == "":
					t.Errorf("%s: %s: write //nolint:LINTER // the reason", fset.Position(c.Pos()), c.Text)
				case !slices.Contains(enabled, linter):
					t.Errorf("%s: .golangci.yml does not enable %s: remove the directive", fset.Position(c.Pos()), linter)
				}
			}
		}
		return nil
	})
	if err != nil || found < 10 {
		t.Fatalf("%d directives were found: %v", found, err)
	}
}

// comments yields each comment of a file.
func comments(file *ast.File) func(func(*ast.Comment) bool) {
	return func(yield func(*ast.Comment) bool) {
		for _, group := range file.Comments {
			for _, c := range group.List {
				if !yield(c) {
					return
				}
			}
		}
	}
}
