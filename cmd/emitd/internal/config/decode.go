package config

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/emitd/emitd/cmd/emitd/internal/sinks"
	"github.com/emitd/emitd/internal/admin/fault"
)

// decoder fills a Config from one YAML document. It walks the syntax tree, so that every value keeps its
// position. A value that does not fit is a fault and changes nothing.
type decoder struct {
	doc    *document
	found  func(path string, p pos, v reflect.Value)
	faults fault.List
}

func (d *decoder) complain(code fault.Code, n ast.Node, remark, format string, args ...any) {
	d.faults = append(d.faults, d.doc.fault(code, at(d.doc, n), fmt.Sprintf(format, args...), remark))
}

// plain resolves anchors, aliases and tags.
func (d *decoder) plain(n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.AnchorNode:
		v := d.plain(n.Value)
		d.doc.anchors[n.Name.GetToken().Value] = v
		return v
	case *ast.AliasNode:
		if v, ok := d.doc.anchors[n.Value.GetToken().Value]; ok {
			return v
		}
		d.complain(fault.ConfigSyntax, n, "", "alias *%s has no anchor before it", n.Value.GetToken().Value)
		return nil
	case *ast.TagNode:
		return d.plain(n.Value)
	case *ast.NullNode:
		return nil
	}
	return n
}

// pairs returns the entries of a mapping; ok is false if n is not a mapping.
func pairs(n ast.Node) (entries []*ast.MappingValueNode, ok bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// section fills the struct v from a mapping. A null changes nothing.
func (d *decoder) section(n ast.Node, v reflect.Value, path string) {
	if n = d.plain(n); n == nil {
		return
	}
	entries, ok := pairs(n)
	if !ok {
		d.complain(fault.BadValue, n, "", "%s is %s, want keys and values", cmp.Or(path, "the file"), kindOf(n))
		return
	}
	d.entries(entries, v, path)
}

// entries fills the struct v from the entries of a mapping.
func (d *decoder) entries(entries []*ast.MappingValueNode, v reflect.Value, path string) {
	for _, e := range entries {
		name := e.Key.GetToken().Value
		if _, merge := e.Key.(*ast.MergeKeyNode); merge {
			d.complain(fault.UnknownKey, e.Key, "", "merge keys (<<) are not supported")
			continue
		}
		f, ok := field(v.Type(), name)
		if !ok {
			d.unknown(e.Key, name, path, v.Type())
			continue
		}
		to := v.FieldByIndex(f.Index)
		switch {
		case f.Type.Kind() == reflect.Struct:
			d.section(e.Value, to, join(path, name))
		case optional(f.Type):
			if d.plain(e.Value) != nil {
				to.Set(reflect.New(f.Type.Elem()))
				d.section(e.Value, to.Elem(), join(path, name))
			}
		default:
			d.leaf(e.Value, to, f, join(path, name))
		}
	}
}

// optional reports whether a setting is a section that has an effect even if it is empty.
func optional(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer && t != reflect.TypeFor[*Sink]()
}

func (d *decoder) unknown(n ast.Node, name, path string, t reflect.Type) {
	d.complain(fault.UnknownKey, n, suggestion(name, path, t), "unknown key %q", name)
}

// suggestion guesses what an unknown key was meant to be: a key of this section, or a key with that name
// elsewhere.
func suggestion(name, path string, t reflect.Type) string {
	if path != "" && !strings.Contains(path, "[") {
		for _, k := range Keys() {
			if strings.HasSuffix(k.Path, "."+name) {
				return fmt.Sprintf("did you mean %s?", k.Path)
			}
		}
	}
	names := keyNames(t)
	if near := Nearest(name, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	for _, k := range Keys() {
		if strings.HasSuffix(k.Path, "."+name) && !strings.HasPrefix(path, subscriptionPath) { // a sink has its own url
			return fmt.Sprintf("did you mean %s?", k.Path)
		}
	}
	return "known keys: " + strings.Join(names, ", ")
}

// leaf sets one setting.
func (d *decoder) leaf(n ast.Node, v reflect.Value, f reflect.StructField, path string) {
	whole := n
	if n = d.plain(n); n == nil {
		return
	}
	before := len(d.faults)
	switch to := v.Addr().Interface().(type) {
	case **Sink:
		*to = d.sink(n, path)
	case *[]Exec:
		*to = blocksOf[Exec](d, n, path, "daemon")
	case *[]Subscription:
		*to = blocksOf[Subscription](d, n, path, "subscription")
	default:
		d.value(n, v, f, path)
	}
	if len(d.faults) == before || v.Kind() == reflect.Slice && v.Len() > 0 { // valid entries of a list are checked
		d.found(path, at(d.doc, whole), v)
	}
}

// value sets a value that is not a block.
func (d *decoder) value(n ast.Node, v reflect.Value, f reflect.StructField, path string) {
	switch v.Kind() {
	case reflect.Slice:
		d.list(n, v, path)
	case reflect.Map:
		d.mapOf(n, v, path)
	default:
		d.scalar(n, v, f, path)
	}
}

func (d *decoder) scalar(n ast.Node, v reflect.Value, f reflect.StructField, path string) {
	text, ok := textOf(n)
	if !ok {
		d.complain(fault.BadValue, n, "", "%s is %s, want %s", path, kindOf(n), article(typeName(f)))
		return
	}
	if err := setText(v, f, text); err != nil {
		d.complain(fault.BadValue, n, "", "%s %v", path, err)
	}
}

// article puts "a" before countable nouns.
func article(kind string) string {
	if kind == "number" || kind == "duration" {
		return "a " + kind
	}
	return kind
}

func (d *decoder) list(n ast.Node, v reflect.Value, path string) {
	v.SetZero()
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.complain(fault.BadValue, n, "write it as a list: [a, b]", "%s is %s, want a list", path, kindOf(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), 0, len(seq.Values))
	for i, e := range seq.Values {
		if one := reflect.New(v.Type().Elem()).Elem(); d.element(e, one, item(path, i)) {
			out = reflect.Append(out, one)
		}
	}
	v.Set(out)
}

func (d *decoder) mapOf(n ast.Node, v reflect.Value, path string) {
	v.SetZero()
	entries, ok := pairs(n)
	if !ok {
		d.complain(fault.BadValue, n, "write it as {name: value}", "%s is %s, want names and values", path, kindOf(n))
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(entries))
	for _, e := range entries {
		name := e.Key.GetToken().Value
		if one := reflect.New(v.Type().Elem()).Elem(); d.element(e.Value, one, join(path, name)) {
			out.SetMapIndex(reflect.ValueOf(name), one)
		}
	}
	v.Set(out)
}

// element sets one value of a list or map, and reports whether it fits.
func (d *decoder) element(n ast.Node, v reflect.Value, path string) bool {
	f := reflect.StructField{Type: v.Type()}
	text, ok := textOf(d.plain(n))
	if !ok {
		d.complain(fault.BadValue, n, "", "%s is %s, want %s", path, kindOf(n), article(typeName(f)))
		return false
	}
	if err := setText(v, f, text); err != nil {
		d.complain(fault.BadValue, n, "", "%s %v", path, err)
		return false
	}
	return true
}

// blocksOf decodes a list of blocks. noun is the name of a block in faults.
func blocksOf[T any](d *decoder, n ast.Node, path, noun string) []T {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.complain(fault.BadValue, n, "begin each "+noun+" with a dash", "%s is %s, want a list of %ss", path, kindOf(n), noun)
		return nil
	}
	out := make([]T, len(seq.Values))
	for i, e := range seq.Values {
		d.section(e, reflect.ValueOf(&out[i]).Elem(), item(path, i))
		d.found(item(path, i), at(d.doc, e), reflect.Value{})
	}
	return out
}

// sink decodes the destination of a subscription: a kind, an address that implies the kind, or a block
// with a kind and its settings. It returns nil if it is none of these.
func (d *decoder) sink(n ast.Node, path string) *Sink {
	if text, ok := textOf(n); ok {
		if kind, settings, ok := sinks.Address(text); ok {
			return &Sink{Kind: kind, Settings: settings}
		}
		return d.kind(n, text, path)
	}
	entries, ok := pairs(n)
	if !ok {
		d.complain(fault.BadValue, n, "write it as {kind: webhook, url: …}", "%s is %s, want a kind, a URL or a block with both", path, kindOf(n))
		return nil
	}
	i := slices.IndexFunc(entries, func(e *ast.MappingValueNode) bool { return e.Key.GetToken().Value == "kind" })
	if i < 0 {
		d.complain(fault.BadValue, n, "add kind: one of "+strings.Join(sinks.Kinds(), ", "), "%s has no kind", path)
		return nil
	}
	kind := entries[i].Value
	text, ok := textOf(d.plain(kind))
	if !ok {
		d.complain(fault.BadValue, kind, "", "%s is %s, want text", join(path, "kind"), kindOf(kind))
		return nil
	}
	to := d.kind(kind, text, join(path, "kind"))
	if to != nil {
		d.entries(slices.Delete(slices.Clone(entries), i, i+1), reflect.ValueOf(to.Settings).Elem(), path)
	}
	return to
}

// kind returns a sink of a kind without settings.
func (d *decoder) kind(n ast.Node, text, path string) *Sink {
	if settings, ok := sinks.Settings(text); ok {
		return &Sink{Kind: text, Settings: settings}
	}
	if scheme, _, address := strings.Cut(text, "://"); address { // the rest may hold a password
		d.complain(fault.BadOutbox, n, "", "%s is an address with the scheme %.20q; only http, https, nats, tls, amqp, amqps and postgres imply the kind: write {kind: …}", path, scheme)
		return nil
	}
	remark := "known are " + strings.Join(sinks.Kinds(), ", ")
	if near := Nearest(text, sinks.Kinds()); near != "" {
		remark = fmt.Sprintf("did you mean %q?", near)
	}
	d.complain(fault.BadOutbox, n, remark, "%s is %.40q, which is not a known sink", path, text)
	return nil
}

// textOf returns the text of a scalar other than null.
func textOf(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	}
	return "not a plain value"
}

// setText sets a scalar from its text. Its errors are phrased to follow the setting's name, and do not
// contain the value of a secret.
func setText(v reflect.Value, f reflect.StructField, text string) error {
	if w := words(f); w != nil && !slices.Contains(w, text) {
		near := ""
		if n := Nearest(text, w); n != "" {
			near = fmt.Sprintf("; did you mean %q?", n)
		}
		return fmt.Errorf("is %q, want %s%s", text, strings.Join(w, " or "), near)
	}
	switch to := v.Addr().Interface().(type) {
	case *string:
		*to = text
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("is %q, want true or false", text)
		}
		*to = b
	case *int:
		i, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("is %q, want a whole number", text)
		}
		*to = i
	case *Duration:
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		*to = d
	case *time.Duration:
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		*to = time.Duration(d)
	default:
		if v.Kind() != reflect.String {
			return fmt.Errorf("cannot be set from plain text")
		}
		v.SetString(text)
	}
	return nil
}

// parseDuration parses a duration with its unit.
func parseDuration(text string) (Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil {
		return Duration(d), nil
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
		return 0, fmt.Errorf("is %s without a unit, write %ss for seconds or %sms for milliseconds", text, text, text)
	}
	return 0, fmt.Errorf("is %q, want a duration such as 15s, 1m30s or 250ms", text)
}
