package config

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Key is one setting.
type Key struct {
	Path  string // coordinator.lease_duration
	Help  string
	Words []string // allowed values, if they are words
	Type  string   // for people
	index []int
}

// Env returns the variable of the key.
func (k Key) Env() string { return envName(k.Path) }

// Flag returns the flag of the key, without dashes.
func (k Key) Flag() string { return strings.ReplaceAll(k.Path, "_", "-") }

func envName(path string) string {
	return "EMITD_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// Keys returns every setting in the order of the struct.
func Keys() []Key { return keysOf(reflect.TypeFor[Config](), "", nil) }

// ItemKeys returns the settings of one entry of daemons.exec; their paths are relative.
func ItemKeys() []Key { return keysOf(reflect.TypeFor[Exec](), "", nil) }

func keysOf(t reflect.Type, prefix string, index []int) []Key {
	var out []Key
	for i := range t.NumField() {
		f := t.Field(i)
		path, at := join(prefix, f.Tag.Get("key")), append(slices.Clone(index), i)
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

var typeNames = map[reflect.Type]string{
	reflect.TypeFor[string]():            "text",
	reflect.TypeFor[bool]():              "true or false",
	reflect.TypeFor[int]():               "number",
	reflect.TypeFor[Duration]():          "duration",
	reflect.TypeFor[[]string]():          "list",
	reflect.TypeFor[map[string]string](): "map",
	reflect.TypeFor[[]Exec]():            "list of daemons",
}

func typeName(f reflect.StructField) string {
	if w := words(f); w != nil {
		return strings.Join(w, " or ")
	}
	return typeNames[f.Type]
}

// field finds the field of a struct that a key names.
func field(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("key") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func keyNames(t reflect.Type) []string {
	out := make([]string, t.NumField())
	for i := range out {
		out[i] = t.Field(i).Tag.Get("key")
	}
	return out
}

// Nearest returns the candidate that name was probably meant to be, or "": at most a third of
// its letters, and at least two, may be wrong.
func Nearest(name string, candidates []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := distance(name, c); d < least && d < len(c) {
			best, least = c, d
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with the next (optimal string
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
