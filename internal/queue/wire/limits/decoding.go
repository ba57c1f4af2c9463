package limits

import (
	"reflect"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/emitd/emitd/queue"
)

// A list with too many elements is refused before it is decoded, because an element of two bytes in
// the message may take hundreds in memory.

// Message refuses the bytes of a message whose lists, at any depth, have more than [queue.MaxCall]
// elements. Invalid bytes are left to the decoder.
func Message(b []byte, d protoreflect.MessageDescriptor) error {
	counts := map[protoreflect.FieldNumber]int{}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return nil
		}
		value := b[:n]
		b = b[n:]
		f := d.Fields().ByNumber(number)
		if f == nil {
			continue
		}
		if f.IsList() {
			if counts[number]++; counts[number] > queue.MaxCall {
				return tooMany(string(f.Name()))
			}
		}
		if f.Kind() == protoreflect.MessageKind && kind == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(value)
			if err := Message(inner, f.Message()); err != nil {
				return err
			}
		}
	}
	return nil
}

// JSONMessage is Message for a message in JSON. It checks all lists, whatever their names: no valid
// field has more elements, because bytes are strings in JSON.
func JSONMessage(b []byte) error { return jsonLists(b, nil) }

// JSONBody refuses a JSON object whose lists have more than [queue.MaxCall] elements, if they are
// decoded into lists of v, which points to a struct. A payload may have lists of any length.
func JSONBody(b []byte, v any) error {
	t := reflect.TypeOf(v).Elem()
	if t.Kind() != reflect.Struct {
		return nil
	}
	return jsonLists(b, listFields(t, nil))
}

// listFields returns the JSON names of the list fields, including those of embedded structs.
func listFields(t reflect.Type, names []string) []string {
	if names == nil {
		names = []string{}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			names = listFields(f.Type, names)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() != reflect.Uint8:
			names = append(names, name)
		}
	}
	return names
}

// jsonLists looks for lists that are too long: of the members of the outermost object that have one of these
// names, or, without names, at any depth. It knows of JSON only what ends a string and what nests.
func jsonLists(b []byte, names []string) error {
	type level struct {
		list     bool
		elements int
	}
	var (
		open      []level
		last      []byte // string at the outermost level
		name      []byte // of the member
		something bool   // has come since the last bracket or comma
	)
	count := func() error {
		top := &open[len(open)-1]
		if top.elements++; top.list && top.elements > queue.MaxCall && (names == nil || len(open) == 2 && named(names, name)) {
			return tooMany(string(name[:min(len(name), 80)]))
		}
		return nil
	}
	for i := 0; i < len(b); i++ {
		switch c := b[i]; c {
		case ' ', '\n', '\r', '\t':
			continue
		case '"':
			from := i + 1
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if len(open) == 1 {
				last = b[from:min(i, len(b))]
			}
			something = true
		case ':':
			if len(open) == 1 {
				name = last
			}
		case '{', '[':
			if len(open) > deepest {
				return nil // the decoder refuses it
			}
			open, something = append(open, level{list: c == '['}), false
		case ',', '}', ']':
			if len(open) == 0 {
				return nil
			}
			if c == ',' || something {
				if err := count(); err != nil {
					return err
				}
			}
			if something = c != ','; something {
				open = open[:len(open)-1]
			}
		default:
			something = true
		}
	}
	return nil
}

// deepest is the deepest nesting that the decoders accept.
const deepest = 10_000

// named reports whether a member has one of the names, compared as decoders do. A name with an
// escape counts as a match.
func named(names []string, name []byte) bool {
	for _, n := range names {
		if strings.EqualFold(n, string(name)) || strings.ContainsRune(string(name), '\\') {
			return true
		}
	}
	return false
}

func tooMany(field string) error {
	return queue.Refuse(queue.TooManyJobs, "%s: more than %d in one call", field, queue.MaxCall).WithHint("split the call")
}
