package coordinator

import (
	"context"
	"slices"
	"testing"

	"github.com/emitd/emitd/daemon"
)

// TestAdvertStaysAsItWas: what a node has advertised does not change when its daemons do. It is no copy as long as they do not.
func TestAdvertStaysAsItWas(t *testing.T) {
	t.Parallel()
	agent := daemon.AgentFunc(func(context.Context, *daemon.Assignment) error { return nil })
	var d declared
	for _, id := range []daemon.ID{"d", "b", "f"} {
		d.put(daemon.Spec{ID: id}, agent)
	}
	for _, c := range []struct {
		what   string
		change func()
		then   []daemon.ID
	}{
		{"nothing", func() {}, []daemon.ID{"b", "d", "f"}},
		{"one more in the middle", func() { d.put(daemon.Spec{ID: "c"}, agent) }, []daemon.ID{"b", "c", "d", "f"}},
		{"one more at the end", func() { d.put(daemon.Spec{ID: "g"}, agent) }, []daemon.ID{"b", "c", "d", "f", "g"}},
		{"another spec", func() { d.put(daemon.Spec{ID: "c", Revision: 1}, agent) }, []daemon.ID{"b", "c", "d", "f", "g"}},
		{"one less", func() { d.remove("b") }, []daemon.ID{"c", "d", "f", "g"}},
		{"one that is not there", func() { d.remove("b") }, []daemon.ID{"c", "d", "f", "g"}},
	} {
		before := d.share()
		was := slices.Clone(before)
		c.change()
		after := d.share()
		same := func(a, b daemon.Spec) bool { return a.ID == b.ID && a.Revision == b.Revision }
		if !slices.EqualFunc(before, was, same) {
			t.Errorf("%s: the advert before has become %v, it was %v", c.what, before, was)
		}
		if copied := &before[0] != &after[0]; copied == slices.EqualFunc(before, after, same) {
			t.Errorf("%s: the specs were copied: %t", c.what, copied)
		}
		var ids []daemon.ID
		for _, s := range after {
			ids = append(ids, s.ID)
			if _, ok := d.agent(s.ID); !ok {
				t.Errorf("%s: %s has no agent", c.what, s.ID)
			}
		}
		if !slices.Equal(ids, c.then) || len(d.agents) != len(d.specs) {
			t.Errorf("%s: %v with %d agents, want %v", c.what, ids, len(d.agents), c.then)
		}
	}
}
