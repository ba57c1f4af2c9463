package admin

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/reference"
)

var update = flag.Bool("update", false, "write the OpenAPI document, and the table of docs/reference/admin-api.md")

// TestDocument: the document that is served, the one in docs/reference and the table of calls are those of the
// operations and their types.
func TestDocument(t *testing.T) {
	t.Parallel()
	g := &generator{schemas: map[string]any{}, types: map[string]reflect.Type{}, sources: map[string]*source{}}
	text := g.document(t)
	for _, file := range []string{"openapi.json", filepath.Join("..", "..", "docs", "reference", "admin-api.json")} {
		if *update {
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, text) {
			t.Errorf("%s differs from the code (%v); go test ./coordinator/admin -update writes it", file, err)
		}
	}
	reference.Check(t, filepath.Join("..", "..", "docs", "reference", "admin-api.md"), g.table(), *update)
}

// generator makes the document.
type generator struct {
	schemas map[string]any // components, by name
	types   map[string]reflect.Type
	sources map[string]*source // by package path
}

// source has the comments of a package.
type source struct {
	types  map[string]string // by name
	fields map[string]string // by type and field, as "Node.Name"
}

func (g *generator) document(t *testing.T) []byte {
	paths := map[string]any{}
	for _, o := range operations() {
		path := strings.ReplaceAll(o.path, "...}", "}")
		item, ok := paths[path].(map[string]any)
		if !ok {
			item = map[string]any{}
			paths[path] = item
		}
		item[strings.ToLower(o.method)] = g.operation(o)
	}
	doc := map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "emitd admin API", "version": "1",
			"description": "The state of a cluster, its history, and operators' commands. Every node serves it all. See docs/reference/admin-api.md.",
		},
		"servers":  []any{map[string]any{"url": "../v1", "description": "where this document is"}},
		"security": []any{map[string]any{}, map[string]any{"token": []any{}}, map[string]any{"session": []any{}}},
		"paths":    paths,
		"components": map[string]any{"schemas": g.schemas, "securitySchemes": map[string]any{
			"token":   map[string]any{"type": "http", "scheme": "bearer"},
			"session": map[string]any{"type": "apiKey", "in": "cookie", "name": "emitd_session", "description": "set by POST /session; over TLS its name is __Host-emitd_session"},
		}},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(doc); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (g *generator) operation(o operation) map[string]any {
	answer := map[string]any{"description": "the answer", "content": map[string]any{"application/json": map[string]any{"schema": map[string]any{"type": "object"}}}}
	if o.out != nil {
		answer["content"] = map[string]any{"application/json": map[string]any{"schema": g.schema(o.out)}}
	}
	if o.messages != nil {
		messages := map[string]any{}
		for kind, t := range o.messages {
			messages[kind] = g.schema(t)
		}
		answer["content"] = map[string]any{"text/event-stream": map[string]any{"schema": map[string]any{"type": "string"}, "x-messages": messages}}
	}
	refusal := map[string]any{"description": "a refusal", "content": map[string]any{"application/problem+json": map[string]any{"schema": g.schema(reflect.TypeFor[fault.Problem]())}}}
	out := map[string]any{
		"operationId": o.name, "summary": o.summary,
		"responses": map[string]any{"200": answer, "default": refusal},
	}
	if o.out != nil && o.out.Implements(reflect.TypeFor[statusCoder]()) || o.out != nil && reflect.PointerTo(o.out).Implements(reflect.TypeFor[statusCoder]()) {
		out["responses"].(map[string]any)["202"] = answer
	}
	var params []any
	for _, p := range parametersOf(o.in) {
		if p.in == "body" {
			out["requestBody"] = map[string]any{"required": true, "content": map[string]any{"application/json": map[string]any{"schema": g.schema(p.field.Type)}}}
			continue
		}
		params = append(params, g.parameter(o.in, p))
	}
	if params != nil {
		out["parameters"] = params
	}
	return out
}

func (g *generator) parameter(in reflect.Type, p parameter) map[string]any {
	schema := map[string]any{"type": "string"}
	switch kind := p.field.Type.Kind(); {
	case p.field.Type == reflect.TypeFor[time.Duration]():
		schema["examples"] = []string{"90s", "1h30m"}
	case p.field.Type == reflect.TypeFor[time.Time]():
		schema["format"] = "date-time"
	case kind == reflect.Bool:
		schema["type"] = "boolean"
	case kind == reflect.Slice:
		schema = map[string]any{"type": "array", "items": schema}
	case kind == reflect.Int || kind == reflect.Int64:
		low, high := p.limits()
		schema["type"] = "integer"
		schema["minimum"] = low
		if high < 1<<62 {
			schema["maximum"] = high
		}
	}
	if d, ok := p.field.Tag.Lookup("default"); ok {
		schema["default"] = d
		if schema["type"] == "integer" {
			schema["default"] = json.Number(d)
		}
	}
	if e, ok := p.field.Tag.Lookup("enum"); ok {
		schema["enum"] = strings.Split(e, ",")
	}
	return map[string]any{"name": p.name, "in": p.in, "required": p.in == "path", "schema": schema, "description": g.comment(p.owner(in), p.field)}
}

// owner returns the struct that declares the field, which may be embedded.
func (p parameter) owner(t reflect.Type) reflect.Type {
	for _, i := range p.field.Index[:len(p.field.Index)-1] {
		t = t.Field(i).Type
	}
	return t
}

// schema returns the schema of a type as encoding/json writes it.
func (g *generator) schema(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[view.Time]():
		return map[string]any{"type": []string{"string", "null"}, "format": "date-time"}
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[daemon.Unit]():
		return map[string]any{"type": "string"}
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
		return map[string]any{"type": "array", "items": g.schema(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": g.schema(t.Elem())}
	case reflect.Pointer:
		elem := g.schema(t.Elem())
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
func (g *generator) component(t reflect.Type) string {
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
		s := g.schema(kind)
		if text := g.comment(parameter{field: f}.owner(t), f); text != "" {
			if unit, ok := s["description"].(string); ok {
				text += " " + sentence(unit)
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

// comment returns the comment of a field.
func (g *generator) comment(owner reflect.Type, f reflect.StructField) string {
	return g.source(owner.PkgPath()).fields[owner.Name()+"."+f.Name]
}

// source reads the comments of a package of this module.
func (g *generator) source(pkg string) *source {
	if s, ok := g.sources[pkg]; ok {
		return s
	}
	s := &source{map[string]string{}, map[string]string{}}
	g.sources[pkg] = s
	dir, ok := strings.CutPrefix(pkg, "github.com/emitd/emitd/")
	if !ok {
		return s
	}
	files, _ := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
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
		comment := strings.TrimSpace(text(f.Doc) + " " + sentence(text(f.Comment)))
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

// sentence makes a sentence of a comment behind a line.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	r := []rune(s)
	return string(unicode.ToUpper(r[0])) + string(r[1:]) + "."
}

// table lists the operations for the page in docs/reference.
func (g *generator) table() string {
	var b strings.Builder
	b.WriteString("| call | what | parameters |\n|---|---|---|\n")
	for _, o := range operations() {
		var params []string
		for _, p := range parametersOf(o.in) {
			switch p.in {
			case "query":
				params = append(params, "`"+p.name+"`")
			case "header":
				params = append(params, "header `"+p.name+"`")
			}
		}
		fmt.Fprintf(&b, "| `%s %s` | %s | %s |\n", o.method, strings.ReplaceAll(o.path, "...}", "}"), reference.Cell(o.summary), strings.Join(params, ", "))
	}
	b.WriteString("\nParameters:\n\n")
	seen := map[string]bool{}
	for _, o := range operations() {
		for _, p := range parametersOf(o.in) {
			text := g.comment(p.owner(o.in), p.field)
			if p.in == "body" || p.in == "path" || seen[p.name+text] {
				continue
			}
			seen[p.name+text] = true
			if d, ok := p.field.Tag.Lookup("default"); ok {
				text += " Default: " + d + "."
			}
			fmt.Fprintf(&b, "- `%s`: %s\n", p.name, text)
		}
	}
	for _, o := range operations() {
		for _, p := range parametersOf(o.in) {
			if p.in == "body" {
				g.body(&b, o, p.field.Type)
			}
		}
	}
	return b.String() + "\n"
}

// body lists the fields of a body.
func (g *generator) body(b *strings.Builder, o operation, t reflect.Type) {
	fmt.Fprintf(b, "\nThe body of `%s %s` is a JSON object:\n\n", o.method, o.path)
	for _, f := range reflect.VisibleFields(t) {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fmt.Fprintf(b, "- `%s`: %s\n", key, g.comment(t, f))
		if kind := f.Type; kind.Kind() == reflect.Pointer && kind.Elem().Kind() == reflect.Struct {
			for _, inner := range reflect.VisibleFields(kind.Elem()) {
				key, _, _ := strings.Cut(inner.Tag.Get("json"), ",")
				fmt.Fprintf(b, "  - `%s`: %s\n", key, g.comment(kind.Elem(), inner))
			}
		}
	}
}
