package storagetest

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

func TestSame(t *testing.T) {
	t.Parallel()
	now := time.Now()
	elsewhere := now.In(time.FixedZone("east", 3600)).Round(0)
	detail := func(text string) daemon.Event { return daemon.Event{Detail: json.RawMessage(text)} }
	for _, c := range []struct {
		name string
		a, b any
		want bool
	}{
		{"one instant in two places", now.Round(0), elsewhere, true},
		{"two instants", now, now.Add(1), false},
		{"an instant within a struct", node.Term{Number: 1, ElectedAt: now}, node.Term{Number: 1, ElectedAt: elsewhere}, true},
		{"another number", node.Term{Number: 1}, node.Term{Number: 2}, false},
		{"no slice and an empty one", []int(nil), []int{}, true},
		{"another length", []int{1}, []int{1, 2}, false},
		{"another order", []int{2, 1}, []int{1, 2}, false},
		{"no map and an empty one", node.Traits{}, node.Traits{Labels: map[string]string{}}, true},
		{"another key", map[string]int{"a": 1}, map[string]int{"b": 1}, false},
		{"another value", map[string]int{"a": 1}, map[string]int{"a": 2}, false},
		{"JSON in another order", detail(`{"a":1,"b":[2]}`), detail(`{ "b": [2], "a": 1 }`), true},
		{"other JSON", detail(`{"a":1}`), detail(`{"a":2}`), false},
		{"JSON and none", detail(`{}`), detail(``), false},
		{"pointers to equal values", &node.Term{ElectedAt: now}, &node.Term{ElectedAt: elsewhere}, true},
		{"a pointer and nil", &node.Term{}, (*node.Term)(nil), false},
		{"two types", int64(1), 1, false},
		{"nil and nil", nil, nil, true},
		{"nil and something", nil, 1, false},
	} {
		if got := same(c.a, c.b); got != c.want {
			t.Errorf("%s: same is %v, want %v", c.name, got, c.want)
		}
		if got := same(c.b, c.a); got != c.want {
			t.Errorf("%s, the other way: same is %v, want %v", c.name, got, c.want)
		}
	}
}

// Every field of a store's answers must count: a comparison that skips one proves nothing about it.
func TestSameSeesEveryField(t *testing.T) {
	t.Parallel()
	for _, zero := range []any{daemon.Record{}, daemon.Event{}, node.Member{}, node.Term{}, node.Lease{}, daemon.Embargo{}} {
		each(reflect.ValueOf(zero), func(path string, changed any) {
			if same(zero, changed) {
				t.Errorf("%T: a change of %s is not seen", zero, path)
			}
		})
	}
}

// each calls f with copies of v in which one field is different.
func each(v reflect.Value, f func(path string, changed any)) {
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		with := func(field reflect.Value) any {
			c := reflect.New(v.Type()).Elem()
			c.Set(v)
			c.Field(i).Set(field)
			return c.Interface()
		}
		field := v.Field(i)
		if field.Kind() == reflect.Struct && field.Type() != timeType {
			each(field, func(path string, changed any) { f(name+"."+path, with(reflect.ValueOf(changed))) })
			continue
		}
		f(name, with(other(field)))
	}
}

// other returns a value that is not the zero value.
func other(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch {
	case v.Type() == timeType:
		out.Set(reflect.ValueOf(time.Unix(1, 0)))
	case v.Type() == jsonType:
		out.SetBytes([]byte(`{}`))
	default:
		switch v.Kind() {
		case reflect.String:
			out.SetString("x")
		case reflect.Bool:
			out.SetBool(true)
		case reflect.Int, reflect.Int64:
			out.SetInt(1)
		case reflect.Uint64:
			out.SetUint(1)
		case reflect.Slice:
			out.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.Map:
			out.Set(reflect.MakeMap(v.Type()))
			out.SetMapIndex(reflect.ValueOf("x"), reflect.ValueOf("y"))
		default:
			panic("storagetest: no other value of " + v.Type().String())
		}
	}
	return out
}
