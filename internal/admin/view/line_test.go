package view

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// odd are strings that JSON writes in a special way, and some that it does not.
var odd = []string{"", "plain", "a/b~c <&> 'd'", `"quoted" \ back`, "line\nfeed\ttab\x00\x1f\x7f", "größer 数 🙂", "\u2028\u2029", "not \xff\xfe UTF-8"}

// fill fills in a value: every field, list and map that JSON writes is sometimes empty and sometimes not.
func fill(r *rand.Rand, v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		if r.IntN(3) > 0 {
			at := time.Unix(r.Int64N(1<<33), r.Int64N(1e9)).In(time.FixedZone("", r.IntN(7200)))
			v.Set(reflect.ValueOf(at))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(r, v.Field(i))
			}
		}
	case reflect.Slice:
		if n := r.IntN(5) - 1; n >= 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(r, v.Index(i))
			}
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(r, key)
			fill(r, value)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		v.SetString(odd[r.IntN(len(odd))])
	case reflect.Bool:
		v.SetBool(r.IntN(2) > 0)
	case reflect.Int, reflect.Int64:
		v.SetInt(r.Int64N(1<<40) - r.Int64N(1<<40))
	case reflect.Uint64:
		v.SetUint(r.Uint64())
	case reflect.Float64:
		v.SetFloat(r.Float64() * 1e3)
	default:
		panic("fill: " + v.Type().String())
	}
}

// TestStatusOnOneLine: what is written field by field is what encoding/json writes, whatever the fields hold.
func TestStatusOnOneLine(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		var s Status
		fill(rand.New(rand.NewPCG(seed, 0)), reflect.ValueOf(&s).Elem())
		if seed%50 == 0 { // more than a block
			s.Daemons = make([]Unit, 500)
			for i := range s.Daemons {
				fill(rand.New(rand.NewPCG(seed, uint64(i))), reflect.ValueOf(&s.Daemons[i]).Elem())
			}
		}
		for i := range s.Nodes {
			if i > 0 && seed%2 == 0 { // nodes share the list of one program, or a part of it
				s.Nodes[i].Kinds = s.Nodes[i-1].Kinds[:max(0, len(s.Nodes[i-1].Kinds)-i/2)]
			}
		}
		var fast, plain bytes.Buffer
		if err := errors.Join(JSONLine(&fast, &s), encode(&plain, s, "")); err != nil {
			t.Fatal(err)
		}
		if fast.String() != plain.String() {
			at := 0
			for fast.Bytes()[at] == plain.Bytes()[at] {
				at++
			}
			around := func(b []byte) string { return fmt.Sprintf("%q", b[max(at-80, 0):min(at+80, len(b))]) }
			t.Fatalf("seed %d: written\n%s\nencoding/json writes\n%s", seed, around(fast.Bytes()), around(plain.Bytes()))
		}
	}
}

// TestStatusThatIsNoJSON: a time that JSON does not have is an error, as it is of encoding/json, and so is a reader that has gone.
func TestStatusThatIsNoJSON(t *testing.T) {
	t.Parallel()
	s := Status{Daemons: []Unit{{Since: Time{time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}}}}
	if err := JSONLine(new(bytes.Buffer), &s); err == nil {
		t.Error("a time in the year 10,000 is no error")
	}
	if err := JSONLine(gone{}, &Status{}); !errors.Is(err, errGone) {
		t.Errorf("the reader has gone: %v", err)
	}
}

var errGone = errors.New("gone")

type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, errGone }
