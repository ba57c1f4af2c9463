package admin

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/openapi"
	"github.com/emitd/emitd/internal/reference"
)

var update = flag.Bool("update", false, "write the OpenAPI document, and the table of docs/reference/admin-api.md")

// TestDocument: the document that is served, the one in docs/reference and the table of calls are those of the
// operations and their types.
func TestDocument(t *testing.T) {
	t.Parallel()
	g := newGenerator()
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
	table := g.table()
	if i := strings.Index(table, "`: \n"); i >= 0 {
		t.Errorf("a field or parameter has no comment: …%s", table[max(0, i-80):i+2])
	}
	reference.Check(t, filepath.Join("..", "..", "docs", "reference", "admin-api.md"), table, *update)
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
		"components": map[string]any{"schemas": g.Schemas(), "securitySchemes": map[string]any{
			"token":   map[string]any{"type": "http", "scheme": "bearer"},
			"session": map[string]any{"type": "apiKey", "in": "cookie", "name": "emitd_session", "description": "set by POST /session; over TLS its name is __Host-emitd_session"},
		}},
	}
	text, err := openapi.Encode(doc)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (g *generator) operation(o operation) map[string]any {
	answer := map[string]any{"description": "the answer", "content": map[string]any{"application/json": map[string]any{"schema": map[string]any{"type": "object"}}}}
	if o.out != nil {
		answer["content"] = map[string]any{"application/json": map[string]any{"schema": g.Schema(o.out)}}
	}
	if o.messages != nil {
		messages := map[string]any{}
		for kind, t := range o.messages {
			messages[kind] = g.Schema(t)
		}
		answer["content"] = map[string]any{"text/event-stream": map[string]any{"schema": map[string]any{"type": "string"}, "x-messages": messages}}
	}
	refusal := map[string]any{"description": "a refusal", "content": map[string]any{"application/problem+json": map[string]any{"schema": g.Schema(reflect.TypeFor[fault.Problem]())}}}
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
			out["requestBody"] = map[string]any{"required": true, "content": map[string]any{"application/json": map[string]any{"schema": g.Schema(p.field.Type)}}}
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
	t := p.field.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch kind := t.Kind(); {
	case t == reflect.TypeFor[time.Duration]():
		schema["examples"] = []string{"90s", "1h30m"}
	case t == reflect.TypeFor[time.Time]():
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
	return map[string]any{"name": p.name, "in": p.in, "required": p.in == "path", "schema": schema, "description": g.Comment(openapi.Owner(in, p.field), p.field)}
}

// generator makes the document of this API.
type generator struct{ openapi.Generator }

func newGenerator() *generator {
	return &generator{openapi.Generator{Root: filepath.Join("..", ".."), Special: func(t reflect.Type) map[string]any {
		switch t {
		case reflect.TypeFor[view.Time]():
			return map[string]any{"type": []string{"string", "null"}, "format": "date-time"}
		case reflect.TypeFor[daemon.Unit]():
			return map[string]any{"type": "string"}
		}
		return nil
	}}}
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
	g.parameters(&b)
	for _, o := range operations() {
		for _, p := range parametersOf(o.in) {
			if p.in == "body" {
				g.body(&b, o, p.field.Type)
			}
		}
	}
	return b.String() + "\n"
}

// parameters says what each parameter is. If it is not the same in all calls that have one of this name, the calls are named.
func (g *generator) parameters(b *strings.Builder) {
	type meaning struct{ name, text string }
	var all []meaning
	calls, meanings := map[meaning][]string{}, map[string]int{}
	for _, o := range operations() {
		for _, p := range parametersOf(o.in) {
			if p.in == "body" || p.in == "path" {
				continue
			}
			m := meaning{p.name, g.Comment(openapi.Owner(o.in, p.field), p.field)}
			if d, ok := p.field.Tag.Lookup("default"); ok {
				m.text += " Default: " + d + "."
			}
			if calls[m] == nil {
				all = append(all, m)
				meanings[p.name]++
			}
			calls[m] = append(calls[m], "`"+o.method+" "+strings.ReplaceAll(o.path, "...}", "}")+"`")
		}
	}
	slices.SortStableFunc(all, func(x, y meaning) int { return strings.Compare(x.name, y.name) })
	b.WriteString("\nParameters:\n\n")
	for _, m := range all {
		where := ""
		if meanings[m.name] > 1 {
			where = " of " + strings.Join(calls[m], ", ")
		}
		fmt.Fprintf(b, "- `%s`%s: %s\n", m.name, where, m.text)
	}
}

// body lists the fields of a body.
func (g *generator) body(b *strings.Builder, o operation, t reflect.Type) {
	fmt.Fprintf(b, "\nThe body of `%s %s` is a JSON object:\n\n", o.method, o.path)
	for _, f := range reflect.VisibleFields(t) {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fmt.Fprintf(b, "- `%s`: %s\n", key, g.Comment(t, f))
		if kind := f.Type; kind.Kind() == reflect.Pointer && kind.Elem().Kind() == reflect.Struct {
			for _, inner := range reflect.VisibleFields(kind.Elem()) {
				key, _, _ := strings.Cut(inner.Tag.Get("json"), ",")
				fmt.Fprintf(b, "  - `%s`: %s\n", key, g.Comment(kind.Elem(), inner))
			}
		}
	}
}
