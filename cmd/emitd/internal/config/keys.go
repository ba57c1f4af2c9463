package config

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Key is one setting.
type Key struct {
	Path  string // coordinator.lease_duration
	Help  string
	Words []string // allowed values, if they are words
	Type  string   // for help texts and documentation
	index []int
}

// Env returns the name of the key's variable.
func (k Key) Env() string { return envName(k.Path) }

// Flag returns the name of the key's flag, without dashes.
func (k Key) Flag() string { return strings.ReplaceAll(k.Path, "_", "-") }

func envName(path string) string {
	return "EMITD_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// Keys returns every setting in the order of the struct.
func Keys() []Key { return keysOf(reflect.TypeFor[Config](), "", nil) }

// The settings that are lists of blocks.
const (
	execPath         = "daemons.exec"
	subscriptionPath = "outbox.subscriptions"
)

// blocks maps these settings to the types of their entries.
var blocks = map[string]reflect.Type{
	execPath:         reflect.TypeFor[Exec](),
	subscriptionPath: reflect.TypeFor[Subscription](),
}

// ItemKeys returns the settings of one entry of a list of blocks, with relative paths.
func ItemKeys(list string) []Key { return keysOf(blocks[list], "", nil) }

func keysOf(t reflect.Type, prefix string, index []int) []Key {
	var out []Key
	for _, f := range fields(t) {
		path, at := join(prefix, keyOf(f)), append(slices.Clone(index), f.Index...)
		if f.Type.Kind() == reflect.Struct {
			out = append(out, keysOf(f.Type, path, at)...)
			continue
		}
		out = append(out, Key{
			Path: path, Help: f.Tag.Get("help"),
			Words: words(f), Type: typeName(f), index: at,
		})
	}
	return out
}

func words(f reflect.StructField) []string {
	if w := f.Tag.Get("words"); w != "" {
		return strings.Split(w, ",")
	}
	return nil
}

func join(prefix, key string) string {
	if prefix == "" {
		return key
	}
	return prefix + "." + key
}

func item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// typeName describes the type of a setting for users.
func typeName(f reflect.StructField) string {
	if w := words(f); w != nil {
		return strings.Join(w, " or ")
	}
	switch f.Type {
	case reflect.TypeFor[Duration](), reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[[]Exec]():
		return "list of daemons"
	case reflect.TypeFor[[]Subscription]():
		return "list of subscriptions"
	case reflect.TypeFor[*Sink]():
		return "a kind, a URL or a block"
	}
	return map[reflect.Kind]string{
		reflect.String: "text", reflect.Bool: "true or false", reflect.Int: "number", reflect.Slice: "list", reflect.Map: "map",
	}[f.Type.Kind()]
}

// keyOf returns the key of a field, or "" if it has none. It is in the struct tag "key" in this package, and in the
// struct tag "yaml" in a sink's settings.
func keyOf(f reflect.StructField) string {
	if key, ok := f.Tag.Lookup("key"); ok {
		return key
	}
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return strings.TrimPrefix(name, "-")
}

// fields returns the fields that have a key, including those of embedded structs.
func fields(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return keyOf(f) == "" })
}

// field returns the field of a struct with a key.
func field(t reflect.Type, key string) (reflect.StructField, bool) {
	for _, f := range fields(t) {
		if keyOf(f) == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func keyNames(t reflect.Type) []string {
	var out []string
	for _, f := range fields(t) {
		out = append(out, keyOf(f))
	}
	return out
}

// Nearest returns the candidate that name was probably meant to be, or "". Up to a third of the letters of name may
// be wrong, and two in a short name.
func Nearest(name string, candidates []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := distance(name, c); d < least && d < len(c) {
			best, least = c, d
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with the next one (optimal string
// alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
