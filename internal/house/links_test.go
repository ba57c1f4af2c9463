package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docLink finds the links of a comment to declarations of its own package: [Name] and [Type.Member].
var docLink = regexp.MustCompile(`\[\*?([A-Z]\w*(?:\.\w+)?)\](?:[^(]|$)`)

// TestDocLinks: a link in a comment leads to a declaration. go doc shows a wrong one as plain text, without a word.
func TestDocLinks(t *testing.T) {
	t.Parallel()
	found := 0
	for pkg, p := range list(t) {
		fset := token.NewFileSet()
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		known, open := targets(files)
		for _, f := range files {
			for _, link := range links(f) {
				found++
				first, _, _ := strings.Cut(link.name, ".")
				if known[link.name] || known[first] && open[first] {
					continue
				}
				t.Errorf("%s: package %s does not declare %s, to which the comment links", fset.Position(link.pos), pkg, link.name)
			}
		}
	}
	if found < 200 {
		t.Fatalf("%d links were found", found)
	}
}

// TestDocLinksFinds: the links of a comment are found; code and the links of Markdown are none.
func TestDocLinksFinds(t *testing.T) {
	t.Parallel()
	const source = "package p\n\n// See [A], [*B.C] and [D](https://x).\n//\n//\tcode [E]\ntype A struct{}\n"
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if got := links(f); len(got) != 2 || got[0].name != "A" || got[1].name != "B.C" {
		t.Errorf("found %v, want A and B.C", got)
	}
}

type docReference struct {
	name string
	pos  token.Pos
}

// links returns the links in a file's comments, without those in code blocks.
func links(f *ast.File) (out []docReference) {
	for _, group := range f.Comments {
		for _, line := range strings.Split(group.Text(), "\n") {
			if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "  ") && !strings.HasPrefix(strings.TrimSpace(line), "-") {
				continue
			}
			for _, m := range docLink.FindAllStringSubmatch(line, -1) {
				out = append(out, docReference{m[1], group.Pos()})
			}
		}
	}
	return out
}

// targets returns what comments of a package can link to, and the types that may have further members, because they
// embed others or are another name of one.
func targets(files []*ast.File) (known, open map[string]bool) {
	known, open = map[string]bool{}, map[string]bool{}
	for _, f := range files {
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				known[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					addTargets(known, open, spec)
				}
			}
		}
	}
	return known, open
}

func addTargets(known, open map[string]bool, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			known[name.Name] = true
		}
	case *ast.TypeSpec:
		known[s.Name.Name] = true
		var fields *ast.FieldList
		switch x := s.Type.(type) {
		case *ast.StructType:
			fields = x.Fields
		case *ast.InterfaceType:
			fields = x.Methods
		default:
			open[s.Name.Name] = true
			return
		}
		for _, field := range fields.List {
			open[s.Name.Name] = open[s.Name.Name] || len(field.Names) == 0
			for _, name := range field.Names {
				known[s.Name.Name+"."+name.Name] = true
			}
		}
	}
}

// receiver returns the type of a method with a dot behind it, "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	x := d.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.IndexListExpr:
			x = y.X
		case *ast.Ident:
			return y.Name + "."
		default:
			return ""
		}
	}
}
