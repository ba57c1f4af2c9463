// Package openapi makes OpenAPI documents from Go types and their comments, and compares JSON with them. It is used by
// tests, so no program contains it.
package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Generator makes the schemas of a document.
type Generator struct {
	// Root is the path of the module, from where the test runs.
	Root string
	// Special returns the schema of a type that writes its JSON by itself, or nil.
	Special func(reflect.Type) map[string]any

	schemas map[string]any // components, by name
	types   map[string]reflect.Type
	sources map[string]*source // by package path
}

// source has the comments of a package.
type source struct {
	types  map[string]string // by name
	fields map[string]string // by type and field, as "Node.Name"
}

// Schemas returns the schemas that others refer to, by name.
func (g *Generator) Schemas() map[string]any { return g.schemas }

// Encode returns the document as it is committed.
func Encode(document map[string]any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(document)
	return b.Bytes(), err
}

// Schema returns the schema of a type, as encoding/json writes it.
func (g *Generator) Schema(t reflect.Type) map[string]any {
	if g.Special != nil {
		if s := g.Special(t); s != nil {
			return s
		}
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "integer", "description": "in nanoseconds"}
	case reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	case reflect.TypeFor[[]byte]():
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": g.Schema(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": g.Schema(t.Elem())}
	case reflect.Pointer:
		elem := g.Schema(t.Elem())
		if kind, ok := elem["type"].(string); ok {
			elem["type"] = []string{kind, "null"}
			return elem
		}
		return map[string]any{"anyOf": []any{elem, map[string]any{"type": "null"}}}
	case reflect.Struct:
		return map[string]any{"$ref": "#/components/schemas/" + g.component(t)}
	}
	panic("no schema for " + t.String())
}

// component adds the schema of a struct and returns its name.
func (g *Generator) component(t reflect.Type) string {
	first, rest := t.Name()[:1], t.Name()[1:]
	name := strings.ToUpper(first) + rest
	if had, ok := g.types[name]; ok && had != t { // of another package
		pkg := filepath.Base(t.PkgPath())
		name = strings.ToUpper(pkg[:1]) + pkg[1:] + name
	}
	if had, ok := g.types[name]; ok {
		if had != t {
			panic(fmt.Sprintf("%v and %v have the same name in the document", had, t))
		}
		return name
	}
	if g.types == nil {
		g.schemas, g.types = map[string]any{}, map[string]reflect.Type{}
	}
	g.types[name] = t
	properties, required := map[string]any{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		tag, ok := f.Tag.Lookup("json")
		if !ok || tag == "-" {
			continue
		}
		key, options, _ := strings.Cut(tag, ",")
		optional, kind := strings.HasPrefix(options, "omit"), f.Type
		if optional && kind.Kind() == reflect.Pointer { // left out rather than null
			kind = kind.Elem()
		}
		s := g.Schema(kind)
		if text := g.Comment(Owner(t, f), f); text != "" {
			if unit, ok := s["description"].(string); ok {
				text += " " + Sentence(unit)
			}
			s["description"] = text
		}
		properties[key] = s
		if !optional {
			required = append(required, key)
		}
	}
	slices.Sort(required)
	schema := map[string]any{"type": "object", "properties": properties, "required": required}
	if text := g.source(t.PkgPath()).types[t.Name()]; text != "" {
		schema["description"] = text
	}
	g.schemas[name] = schema
	return name
}

// Comment returns the comment of a field of a struct.
func (g *Generator) Comment(owner reflect.Type, f reflect.StructField) string {
	return g.source(owner.PkgPath()).fields[owner.Name()+"."+f.Name]
}

// source reads the comments of a package of this module.
func (g *Generator) source(pkg string) *source {
	if s, ok := g.sources[pkg]; ok {
		return s
	}
	if g.sources == nil {
		g.sources = map[string]*source{}
	}
	s := &source{map[string]string{}, map[string]string{}}
	g.sources[pkg] = s
	dir, ok := strings.CutPrefix(pkg, "github.com/emitd/emitd/")
	if !ok {
		return s
	}
	files, _ := filepath.Glob(filepath.Join(g.Root, dir, "*.go"))
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			panic(err)
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.TYPE {
				for _, spec := range d.Specs {
					s.add(d, spec.(*ast.TypeSpec))
				}
			}
		}
	}
	return s
}

// add notes the comments of one type. A comment in front of a group of fields or behind a line belongs to these fields.
func (s *source) add(d *ast.GenDecl, spec *ast.TypeSpec) {
	text := func(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
	s.types[spec.Name.Name] = text(d.Doc)
	if spec.Doc != nil {
		s.types[spec.Name.Name] = text(spec.Doc)
	}
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range st.Fields.List {
		comment := strings.TrimSpace(text(f.Doc) + " " + Sentence(text(f.Comment)))
		for _, name := range f.Names {
			s.fields[spec.Name.Name+"."+name.Name] = withoutName(comment, name.Name)
		}
	}
}

// withoutName leaves out the name of the field with which a comment begins, because the document has another one.
func withoutName(comment, name string) string {
	rest, ok := strings.CutPrefix(comment, name+" ")
	if !ok {
		return comment
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, "is "), "are ")
	r := []rune(rest)
	return string(unicode.ToUpper(r[0])) + string(r[1:])
}

// Sentence makes a sentence of a comment behind a line.
func Sentence(s string) string {
	if s == "" {
		return ""
	}
	r := []rune(s)
	return string(unicode.ToUpper(r[0])) + string(r[1:]) + "."
}

// Owner returns the struct that declares a field of t, which may be embedded.
func Owner(t reflect.Type, f reflect.StructField) reflect.Type {
	for _, i := range f.Index[:len(f.Index)-1] {
		t = t.Field(i).Type
	}
	return t
}
