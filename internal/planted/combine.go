package planted

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// bugVariable is the variable of the environment that names the bug that a program with many bugs has.
const bugVariable = "EMITD_PLANTED_BUG"

// combine returns the files below root that change if many bugs are built into one program, by their names in the module,
// and the names of these bugs. Each function that bugs change gets their bodies in front of its own, and bugVariable
// selects one of them. Bugs that change something else than bodies of functions are left out.
func combine(root string, all []bug) (files map[string]string, combined map[string]bool, err error) {
	sources := map[string]*source{}
	combined = map[string]bool{}
	for i := range all {
		changed, err := all[i].apply(root)
		if err != nil {
			return nil, nil, fmt.Errorf("%q: %w", all[i].name, err)
		}
		for name := range changed {
			if sources[name] == nil && isSource(name) {
				text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
				if err != nil {
					return nil, nil, err
				}
				if sources[name], err = parseSource(string(text)); err != nil {
					return nil, nil, err
				}
			}
		}
		combined[all[i].name] = addVariants(sources, all[i].name, changed)
	}
	files = map[string]string{}
	for name, s := range sources {
		files[name] = s.withVariants()
		files[path.Join(path.Dir(name), "planted_bug.go")] = fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar plantedBug = os.Getenv(%q)\n", s.pkg, bugVariable)
	}
	return files, combined, nil
}

// isSource reports whether a file is one of the product's, whose functions can have variants.
func isSource(name string) bool {
	return path.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go")
}

// addVariants adds the bodies of the functions that a bug changes. It returns false, and adds nothing, if it changes more than
// bodies.
func addVariants(sources map[string]*source, bug string, changed map[string]string) bool {
	type variant struct {
		of   *function
		body string
	}
	var found []variant
	for name, text := range changed {
		was := sources[name]
		if was == nil {
			return false
		}
		is, err := parseSource(text)
		if err != nil || is.skeleton() != was.skeleton() {
			return false
		}
		for i, f := range is.functions {
			if body := is.body(f); body == was.body(was.functions[i]) {
				continue
			} else if f.labels { // a label is there once in a function
				return false
			} else {
				found = append(found, variant{was.functions[i], body})
			}
		}
	}
	for _, v := range found {
		v.of.variants += "case " + strconv.Quote(bug) + ":\n" + v.body + "\n"
		if !v.of.results {
			v.of.variants += "return\n"
		}
	}
	return true
}

// source is a file of the product.
type source struct {
	pkg, text string
	functions []*function
}

// function is a declared function with a body.
type function struct {
	begin, end int // of the body, without its braces
	results    bool
	labels     bool
	variants   string // cases of a switch
}

func parseSource(text string) (*source, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{pkg: file.Name.Name, text: text}
	for _, d := range file.Decls {
		decl, is := d.(*ast.FuncDecl)
		if !is || decl.Body == nil {
			continue
		}
		f := &function{begin: set.Position(decl.Body.Lbrace).Offset + 1, end: set.Position(decl.Body.Rbrace).Offset, results: decl.Type.Results != nil}
		ast.Inspect(decl.Body, func(n ast.Node) bool {
			_, label := n.(*ast.LabeledStmt)
			f.labels = f.labels || label
			return true
		})
		s.functions = append(s.functions, f)
	}
	return s, nil
}

func (s *source) body(f *function) string { return s.text[f.begin:f.end] }

// skeleton is the text without the bodies of functions.
func (s *source) skeleton() string {
	var b strings.Builder
	from := 0
	for _, f := range s.functions {
		b.WriteString(s.text[from:f.begin])
		from = f.end
	}
	return b.String() + s.text[from:]
}

// withVariants is the text with the variants of its functions.
func (s *source) withVariants() string {
	var b strings.Builder
	from := 0
	for _, f := range s.functions {
		b.WriteString(s.text[from:f.begin])
		if from = f.begin; f.variants != "" {
			b.WriteString("\nswitch plantedBug {\n" + f.variants + "}\n")
		}
	}
	return b.String() + s.text[from:]
}
