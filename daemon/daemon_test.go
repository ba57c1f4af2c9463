package daemon_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

func TestIDs(t *testing.T) {
	t.Parallel()
	for id, want := range map[daemon.ID]string{
		"acme:reports":                      "",
		"acme:reports@billing":              "",
		"emit:queue/mail":                   "",
		"0":                                 "",
		"a.b_c-d":                           "",
		"a/0":                               "", // its unit is a/0/0
		daemon.ID(strings.Repeat("a", 128)): "",

		"":                                  "daemon id is empty; use a name such as acme:reports",
		daemon.ID(strings.Repeat("a", 129)): `daemon id "aaaaaaaaaaaaaaaaaaaa"… has 129 characters, the limit is 128`,
		"Acme":                              `daemon id "Acme" does not match`,
		"-a":                                `daemon id "-a" does not match`,
		":a":                                `does not match`,
		"a b":                               `does not match`,
		"a\n":                               `does not match`, // $ must not match before a newline
		"a@1":                               "",               // of a group; fences end in another @
		"emit:outbox/a@my-shop.eu":          "",
		"a@":                                `group "" does not match`,
		"a@b@c":                             `group "b@c" does not match`,
		"a@B":                               `group "B" does not match`,
		"@a":                                "daemon id is empty",
		"ä":                                 `does not match`,
	} {
		err := id.Validate()
		switch {
		case want == "" && err != nil, want != "" && err == nil:
			t.Errorf("%q: %v", id, err)
		case err != nil && !strings.Contains(err.Error(), want):
			t.Errorf("%q: %v, want %s", id, err, want)
		}
	}
}

// FuzzID compares the pattern with the same rule in plain Go.
func FuzzID(f *testing.F) {
	for _, s := range []string{"", "a", "acme:reports", "acme:reports@billing", "a@", "a@b@c", "a\n", "A", strings.Repeat("x", 128), strings.Repeat("x", 129), "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		const first = "abcdefghijklmnopqrstuvwxyz0123456789"
		made := func(s, others string, longest int) bool {
			return len(s) >= 1 && len(s) <= longest && strings.IndexByte(first, s[0]) >= 0 && strings.Trim(s, first+others) == ""
		}
		name, group, grouped := strings.Cut(s, "@")
		ok := made(name, "._:/-", 128) && (!grouped || made(group, "._-", 63))
		if err := daemon.ID(s).Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	})
}

func TestParseUnit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]daemon.Unit{
		"a/0":               {Daemon: "a"},
		"emit:queue/mail/7": {Daemon: "emit:queue/mail", Index: 7},
		"a/0/0":             {Daemon: "a/0"},
	} {
		if got, err := daemon.ParseUnit(text); err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v (%s), %v", text, got, got, err)
		}
	}
	// A unit has exactly one text: other spellings of an index do not parse.
	for _, text := range []string{"", "a", "/", "/0", "a/", "a/-1", "a/+1", "a/01", "a/1.0", "a/ 1", "a/0x1", "a/１", "a/99999999999999999999"} {
		if got, err := daemon.ParseUnit(text); err == nil || !got.IsZero() {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// FuzzParseUnit: every text that parses is written the same way, also through JSON.
func FuzzParseUnit(f *testing.F) {
	for _, s := range []string{"a/0", "emit:queue/mail/7", "a/01", "/0", "a/-0", "", "//1", "a/+0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := daemon.ParseUnit(s)
		if err != nil {
			if !u.IsZero() {
				t.Errorf("%q: %+v with %v", s, u, err)
			}
			return
		}
		if u.String() != s || u.Index < 0 || u.Daemon == "" {
			t.Errorf("%q was read as %+v", s, u)
		}
		text, err := u.MarshalText()
		var back daemon.Unit
		if err != nil || back.UnmarshalText(text) != nil || back != u {
			t.Errorf("%q: %s came back as %+v, %v", s, text, back, err)
		}
	})
}

func TestUnitsInJSON(t *testing.T) {
	t.Parallel()
	type row struct {
		Unit daemon.Unit            `json:"unit"`
		By   map[daemon.Unit]string `json:"by,omitempty"`
	}
	in := row{Unit: daemon.Unit{Daemon: "a", Index: 3}, By: map[daemon.Unit]string{{Daemon: "b"}: "x"}}
	text, err := json.Marshal(in)
	if err != nil || string(text) != `{"unit":"a/3","by":{"b/0":"x"}}` {
		t.Fatalf("%s, %v", text, err)
	}
	var out row
	if err := json.Unmarshal(text, &out); err != nil || out.Unit != in.Unit || out.By[daemon.Unit{Daemon: "b"}] != "x" {
		t.Errorf("%+v, %v", out, err)
	}
	// The zero unit is empty text, in both directions, and text that does not parse changes
	// nothing.
	if text, err = json.Marshal(row{}); err != nil || string(text) != `{"unit":""}` {
		t.Errorf("%s, %v", text, err)
	}
	if err := json.Unmarshal([]byte(`{"unit":""}`), &out); err != nil || !out.Unit.IsZero() {
		t.Errorf("%+v, %v", out, err)
	}
	out = in
	if err := json.Unmarshal([]byte(`{"unit":"nonsense"}`), &out); err == nil || out.Unit != in.Unit {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestUnitsSortByNumber: unit 10 comes after unit 9, and a daemon's units stay together.
func TestUnitsSortByNumber(t *testing.T) {
	t.Parallel()
	var units []daemon.Unit
	want := []string{"a/0", "a/9", "a/10", "a/1/0", "a:b/2", "b/0"}
	for _, s := range []string{"b/0", "a/10", "a:b/2", "a/9", "a/1/0", "a/0"} {
		u, err := daemon.ParseUnit(s)
		if err != nil {
			t.Fatal(err)
		}
		units = append(units, u)
	}
	slices.SortFunc(units, daemon.Unit.Compare)
	var got []string
	for _, u := range units {
		got = append(got, u.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestFences(t *testing.T) {
	t.Parallel()
	f := daemon.Fence{Unit: daemon.Unit{Daemon: "emit:queue/mail", Index: 2}, Generation: 1772366400123}
	text, err := json.Marshal(f)
	if err != nil || string(text) != `"emit:queue/mail/2@1772366400123"` {
		t.Fatalf("%s, %v", text, err)
	}
	var back daemon.Fence
	if err := json.Unmarshal(text, &back); err != nil || back != f {
		t.Errorf("%+v, %v", back, err)
	}
	for _, text := range []string{
		"a/0@+5", "a/0@05", "", "a/0", "@", "a/0@", "@5", "a@5", "a/0@x", "a/0@0", "a/0@-1", "a/0@1@2", "a/0@1.5", "a/0@99999999999999999999",
	} {
		got := f
		if err := got.UnmarshalText([]byte(text)); err == nil || got != f {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// FuzzFence: a fence that parses names a unit and a run, and is written as the same text.
func FuzzFence(f *testing.F) {
	for _, s := range []string{"a/0@1", "a/0@0", "a/0@-1", "a/0@", "@", "a@b/0@1", "a/0@9223372036854775807", "a/0@9223372036854775808"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var fence daemon.Fence
		if fence.UnmarshalText([]byte(s)) != nil {
			if fence != (daemon.Fence{}) {
				t.Errorf("%q: refused and changed to %v", s, fence)
			}
			return
		}
		if fence.Generation < 1 || fence.Unit.Daemon == "" {
			t.Errorf("%q was read as %+v", s, fence)
		}
		text, err := fence.MarshalText()
		var back daemon.Fence
		if err != nil || back.UnmarshalText(text) != nil || back != fence {
			t.Errorf("%q: %s came back as %v, %v", s, text, back, err)
		}
	})
}

func TestSpecDefaults(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(daemon.Spec{ID: "a"}.WithDefaults())
	if want := `{"id":"a","kind":"a","instances":1,"weight":1,"spread":"zone","max_failures":5}`; err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
	full := daemon.Spec{ID: "a", Kind: "k", Instances: 2, Weight: 3, Spread: "rack", MaxFailures: -1}
	if got := full.WithDefaults(); got.Kind != "k" || got.Instances != 2 || got.Weight != 3 || got.Spread != "rack" || got.MaxFailures != -1 {
		t.Errorf("a choice was overridden: %+v", got)
	}
	if got := full.WithDefaults().WithDefaults(); got.Instances != 2 || got.Weight != 3 {
		t.Errorf("defaults of defaults: %+v", got)
	}
}

func TestSpecsThatCannotBeDeclared(t *testing.T) {
	t.Parallel()
	for _, good := range []daemon.Spec{
		{ID: "a"}, {ID: "a", Instances: daemon.Keyed}, {ID: "a", Instances: daemon.MaxInstances, MaxFailures: -1, OnAbandoned: "exit", StallTimeout: time.Second},
	} {
		if err := good.Validate(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, tt := range []struct {
		spec daemon.Spec
		want string
	}{
		{daemon.Spec{}, "daemon id is empty"},
		{daemon.Spec{ID: "a", Instances: -2}, "daemon a: instances is -2, want 1 to 100000, or -1 for one unit for each key"},
		{daemon.Spec{ID: "a", Instances: daemon.MaxInstances + 1}, "instances is 100001"},
		{daemon.Spec{ID: "a", Weight: -2}, "weight is -2, want 1 to 1073741824"},
		{daemon.Spec{ID: "a", MaxFailures: -2}, "max_failures is -2"},
		{daemon.Spec{ID: "a", OnAbandoned: "retry"}, `on_abandoned is "retry", want "" or "exit"`},
		{daemon.Spec{ID: "a", AcknowledgeTimeout: -time.Second}, "acknowledge_timeout is -1s"},
		{daemon.Spec{ID: "a", DrainTimeout: -1}, "drain_timeout is -1ns"},
		{daemon.Spec{ID: "a", StallTimeout: -1}, "stall_timeout is -1ns"},
	} {
		if err := tt.spec.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %s", tt.spec, err, tt.want)
		}
	}
	// All problems are reported at once.
	err := daemon.Spec{ID: "a", Instances: -2, Weight: -1}.Validate()
	if err == nil || !strings.Contains(err.Error(), "instances") || !strings.Contains(err.Error(), "weight") {
		t.Errorf("%v", err)
	}
}

func TestUnitsOfASpec(t *testing.T) {
	t.Parallel()
	for instances, want := range map[int]string{0: "a/0", 1: "a/0", 3: "a/0 a/1 a/2"} {
		var got []string
		for _, u := range (daemon.Spec{ID: "a", Instances: instances}).Units() {
			got = append(got, u.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%d instances: %v", instances, got)
		}
	}
}

// TestEqualAdvertsHaveEqualText: replicas share one hash, whatever the order of registration and
// whatever their traits are.
func TestEqualAdvertsHaveEqualText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.SampledFrom([]daemon.ID{"a", "b", "c", "d", "e"}), 0, 5, func(id daemon.ID) daemon.ID { return id }).Draw(t, "ids")
		var a daemon.Advert
		for _, id := range ids {
			a.Kinds = append(a.Kinds, daemon.Kind(id))
			a.Specs = append(a.Specs, daemon.Spec{ID: id, Instances: rapid.IntRange(0, 3).Draw(t, "instances"), Requires: map[string]string{"x": "1", "y": string(id)}})
		}
		b := daemon.Advert{
			Kinds:  rapid.Permutation(a.Kinds).Draw(t, "kinds"),
			Specs:  rapid.Permutation(a.Specs).Draw(t, "specs"),
			Traits: node.Traits{Version: "other", Capacity: 7, Labels: map[string]string{"zone": "z"}},
		}
		order := slices.Clone(b.Kinds)
		if string(a.Encode()) != string(b.Encode()) {
			t.Fatalf("%s\nis not\n%s", a.Encode(), b.Encode())
		}
		if !slices.Equal(b.Kinds, order) || b.Traits.Version != "other" {
			t.Fatal("encoding has changed the advert")
		}
		var back daemon.Advert
		if err := json.Unmarshal(a.Encode(), &back); err != nil || string(back.Encode()) != string(a.Encode()) {
			t.Fatalf("came back as %s, %v", back.Encode(), err)
		}
		if len(a.Specs) > 0 {
			a.Specs[0].Weight++
			if string(a.Encode()) == string(b.Encode()) {
				t.Fatal("another spec has the same text")
			}
		}
	})
}

func TestWhatANodeRuns(t *testing.T) {
	t.Parallel()
	a := daemon.Advert{Kinds: []daemon.Kind{"emit:queue"}, Specs: []daemon.Spec{{ID: "a"}}}
	// A spec alone only declares; to run it, a node needs the kind.
	if !a.RunsKind("emit:queue") || a.RunsKind("a") || a.RunsKind("") {
		t.Errorf("%+v", a)
	}
}

// TestEventJSON fixes the names that scripts rely on.
func TestEventJSON(t *testing.T) {
	t.Parallel()
	e := daemon.Event{
		Seq: 7, At: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), Kind: daemon.AssignmentActive, Node: "n1", NodeID: "id", Incarnation: "inc",
		Daemon: "a", Unit: daemon.Unit{Daemon: "a"}, Term: 42, TermOrdinal: 3, Generation: 43, Reason: "acknowledged", Detail: json.RawMessage(`{"x":1}`),
	}
	got, err := json.Marshal(e)
	want := `{"seq":7,"at":"2026-05-01T12:00:00Z","kind":"assignment.active","node":"n1","node_id":"id","incarnation":"inc","daemon":"a","unit":"a/0",` +
		`"term":42,"term_ordinal":3,"generation":43,"reason":"acknowledged","detail":{"x":1}}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant\n%s", got, err, want)
	}
	got, err = json.Marshal(daemon.Event{Seq: 1, At: e.At, Kind: daemon.NodeLate, Node: "n1"})
	if want := `{"seq":1,"at":"2026-05-01T12:00:00Z","kind":"node.late","node":"n1"}`; err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}
