package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A reader sees a function on one screen and a file in one sitting.
const (
	maxFunction = 60  // lines, of functions outside of tests
	maxFile     = 650 // lines, of any file
)

// mixedCase finds names in mixed case, which prose has only if they are those of code.
var mixedCase = regexp.MustCompile(`\b[a-z]+[A-Z][A-Za-z0-9]*\b`)

// otherNames are names in mixed case that no code here has.
var otherNames = map[string]bool{
	"macOS": true, "gRPC": true,
	"objectUser": true, "ifGenerationMatch": true, // of Google Cloud Storage
}

// TestSizes: no function and no file is too long.
func TestSizes(t *testing.T) {
	t.Parallel()
	eachFile(t, func(name string, fset *token.FileSet, file *ast.File) {
		if n := fset.File(file.Pos()).LineCount(); n > maxFile {
			t.Errorf("%s has %d lines, the bound is %d", name, n, maxFile)
		}
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			if n := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1; n > maxFunction {
				t.Errorf("%s: %s has %d lines, the bound is %d", name, f.Name.Name, n, maxFunction)
			}
		}
	})
}

// TestCommentsNameCode: a name in mixed case in a comment is one that the code has. A rename by search and replace that
// changed a word of prose fails, and so does a name that is gone.
func TestCommentsNameCode(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	type mention struct{ at, name string }
	var mentions []mention
	eachFile(t, func(name string, _ *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				known[n.Name] = true
			case *ast.BasicLit: // names of benchmarks, keys of JSON
				for _, word := range mixedCase.FindAllString(n.Value, -1) {
					known[word] = true
				}
			}
			return true
		})
		for _, group := range file.Comments {
			for _, word := range mixedCase.FindAllString(group.Text(), -1) {
				mentions = append(mentions, mention{name, word})
			}
		}
	})
	if len(mentions) < 500 {
		t.Errorf("only %d names were found in comments", len(mentions))
	}
	for _, m := range mentions {
		if !known[m.name] && !otherNames[m.name] {
			t.Errorf("%s: a comment names %s, which no code has", m.at, m.name)
		}
	}
}

// eachFile calls visit for each Go file of the module and of e2e that a person wrote.
func eachFile(t *testing.T, visit func(name string, fset *token.FileSet, file *ast.File)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, filepath.Join(root, filepath.FromSlash(name)), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil && !ast.IsGenerated(file) {
			visit(name, fset, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
