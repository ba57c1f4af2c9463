package daemon_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"globex", "7", "a b", "a~b@c/d", "ünï→", strings.Repeat("k", daemon.MaxKey)} {
		u := daemon.Unit{Daemon: "acme:tenants", Key: good}
		if err := daemon.ValidateKey(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
		if back, err := daemon.ParseUnit(u.String()); err != nil || back != u {
			t.Errorf("%s comes back as %+v, %v", u, back, err)
		}
		text, err := json.Marshal(map[daemon.Unit]int{u: 1})
		var units map[daemon.Unit]int
		if err != nil || json.Unmarshal(text, &units) != nil || units[u] != 1 {
			t.Errorf("%s: %s, %v", u, text, err)
		}
		f := daemon.Fence{Unit: u, Generation: 7}
		var again daemon.Fence
		if text, err := f.MarshalText(); err != nil || again.UnmarshalText(text) != nil || again != f {
			t.Errorf("%s comes back as %s", f, again)
		}
		a := daemon.NewAssignment(f, 1, "n", nil)
		if a.Key != good || a.Index != 0 || a.Fence() != f {
			t.Errorf("%s: assignment of %q", f, a.Key)
		}
	}
	for bad, want := range map[string]string{
		"": "is empty", strings.Repeat("x", 1<<20): "has 1048576 bytes, the limit is 256", "a\nb": "at byte 1 that cannot be printed",
		"a\x00": "cannot be printed", "\xff": "not valid UTF-8", " a": "begins or ends with a space", "a ": "begins or ends with a space",
		"a\u200bb": "cannot be printed",
	} {
		if err := daemon.ValidateKey(bad); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 {
			t.Errorf("%.20q: %.500v, want %s", bad, err, want)
		}
		if u, err := daemon.ParseUnit("acme:tenants~" + bad); err == nil {
			t.Errorf("%.20q: %+v", bad, u)
		}
	}
	if u, err := daemon.ParseUnit("~a"); err == nil {
		t.Errorf("no daemon: %+v", u)
	}
}

func TestUnitsWithKeysAreInOrder(t *testing.T) {
	t.Parallel()
	want := []daemon.Unit{
		{Daemon: "a"},
		{Daemon: "a", Index: 2},
		{Daemon: "a", Index: 10},
		{Daemon: "a", Key: "0"},
		{Daemon: "a", Key: "b"},
		{Daemon: "a-b"},
		{Daemon: "a-b", Key: "a"},
		{Daemon: "b"},
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, daemon.Unit.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestArgumentsNameAUnit(t *testing.T) {
	t.Parallel()
	for _, u := range []daemon.Unit{{Daemon: "a"}, {Daemon: "a", Index: 3}, {Daemon: "a", Key: "k"}} {
		var args daemon.CommandArgs
		args.SetUnit(u)
		back, err := daemon.Command{Args: args.Encode()}.Arguments()
		if err != nil || back.Unit() != u || args.Unit() != u {
			t.Errorf("%s comes back as %s, %v", u, back.Unit(), err)
		}
	}
	if u := (daemon.CommandArgs{Daemon: "a"}).Unit(); !u.IsZero() {
		t.Errorf("a whole daemon is %s", u)
	}
}
