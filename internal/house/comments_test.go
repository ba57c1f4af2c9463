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
)

// subject finds the lower-case subject of a sentence. Plain English begins with a capital, so the subject is a name.
var subject = regexp.MustCompile(`(?:^|[a-z)]\. )([a-z]\w*) (?:is|are|says|holds|counts|lists|returns|reports|creates|names) `)

// TestCommentsNameWhatExists: a sentence about a name is about one that its file has. A renamed field or function that
// kept its old name in a comment fails.
func TestCommentsNameWhatExists(t *testing.T) {
	t.Parallel()
	found := 0
	eachFile(t, func(_ string, fset *token.FileSet, file *ast.File) {
		known := identifiers(file)
		for _, group := range docs(file) {
			for _, name := range subjects(group) {
				found++
				if !known[name] {
					t.Errorf("%s: the comment is about %s, which the file does not have", fset.Position(group.Pos()), name)
				}
			}
		}
	})
	if found < 500 {
		t.Errorf("only %d sentences were found", found)
	}
}

// sourceFile finds the name of a Go file, and internalPath the path of an internal package.
var (
	sourceFile   = regexp.MustCompile(`\b\w+\.go\b`)
	internalPath = regexp.MustCompile(`\b(?:\w+/)*internal/[a-z]+(?:/[a-z]+)*`)
)

// TestCommentsNameFiles: a comment that leads to a file or an internal package leads to one that exists.
func TestCommentsNameFiles(t *testing.T) {
	t.Parallel()
	files, dirs := map[string]bool{}, map[string]bool{}
	comments := map[string][]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			dirs[name] = true
			return nil
		case !strings.HasSuffix(name, ".go"):
			return nil
		}
		files[d.Name()] = true
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, filepath.Join(root, filepath.FromSlash(name)), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		for _, group := range file.Comments {
			comments[name] = append(comments[name], group.Text())
		}
		return nil
	})
	if err != nil || len(files) < 500 {
		t.Fatalf("%d files were found: %v", len(files), err)
	}
	for name, texts := range comments {
		for _, text := range texts {
			for _, file := range sourceFile.FindAllString(text, -1) {
				if !files[file] {
					t.Errorf("%s: a comment names the file %s, which does not exist", name, file)
				}
			}
			for _, dir := range internalPath.FindAllString(text, -1) {
				if !dirs[dir] && !dirs[filepath.ToSlash(filepath.Join(filepath.Dir(name), dir))] {
					t.Errorf("%s: a comment names the package %s, which does not exist", name, dir)
				}
			}
		}
	}
}

// TestSubjects: sentences about a name are found, and no others.
func TestSubjects(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"// seen is a term. told is\n// the newest read.":   {"seen", "told"},
		"// The lock is held. It is short, so it is quick.": nil,
		"// 20 is the limit; there is none.":                nil,
	} {
		if got := subjects(&ast.CommentGroup{List: []*ast.Comment{{Text: text}}}); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// docs returns the comments before declarations and fields. A comment behind code begins in lower case, so its subject
// need not be a name.
func docs(file *ast.File) (groups []*ast.CommentGroup) {
	ast.Inspect(file, func(n ast.Node) bool {
		var doc *ast.CommentGroup
		switch n := n.(type) {
		case *ast.FuncDecl:
			doc = n.Doc
		case *ast.GenDecl:
			doc = n.Doc
		case *ast.TypeSpec:
			doc = n.Doc
		case *ast.ValueSpec:
			doc = n.Doc
		case *ast.Field:
			doc = n.Doc
		}
		if doc != nil {
			groups = append(groups, doc)
		}
		return true
	})
	return groups
}

// subjects returns the names with which the sentences of a comment begin.
func subjects(group *ast.CommentGroup) (names []string) {
	text := ""
	for _, c := range group.List {
		text += strings.TrimPrefix(strings.ReplaceAll(c.Text, "\n//", ""), "//") + " "
	}
	for _, m := range subject.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
		names = append(names, m[1])
	}
	return names
}

// identifiers returns the names in a file's code, and its strings, which may be names of a format or a benchmark.
func identifiers(file *ast.File) map[string]bool {
	known := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			known[n.Name] = true
		case *ast.BasicLit:
			known[strings.Trim(n.Value, "\"`")] = true
		}
		return true
	})
	return known
}
