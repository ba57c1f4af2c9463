package plan

import (
	"fmt"
	"testing"

	"github.com/emitd/emitd/node"
)

func TestMassDeath(t *testing.T) {
	t.Parallel()
	proven := func(n Node) Node { n.Member.ExitProven = true; return n }
	for _, c := range []struct {
		name             string
		live, late, deaf int
		others           []Node
		percent          int
		dead, of         int
		mass             bool
	}{
		{"nobody", 5, 0, 0, nil, 50, 0, 5, false},
		{"half", 3, 3, 0, nil, 50, 3, 6, false},
		{"more than half", 2, 3, 0, nil, 50, 3, 5, true},
		{"two of three", 1, 2, 0, nil, 50, 2, 3, false},
		{"late and deaf", 2, 2, 1, nil, 50, 3, 5, true},
		{"nine of ten", 1, 9, 0, nil, 50, 9, 10, true},
		{"a larger share", 1, 4, 0, nil, 80, 4, 5, false},
		{"off", 1, 9, 0, nil, 100, 9, 10, false},
		{"all", 0, 4, 0, nil, 50, 4, 4, true},
		{"proven ends do not count", 3, 3, 0, []Node{proven(live("p", nil).being(node.Late))}, 50, 3, 6, false},
		{"tombstones do not count", 3, 3, 0, []Node{live("p", nil).gone(0, "shutdown")}, 50, 3, 6, false},
		{"judged as removed just now", 2, 2, 0, []Node{live("p", nil).being(node.Removed)}, 50, 3, 5, true},
		{"replaced by one with its name", 2, 2, 0, []Node{live("live0", nil).being(node.Late)}, 50, 2, 4, false},
	} {
		nodes := c.others
		add := func(n int, name string, s node.State) {
			for i := range n {
				nodes = append(nodes, live(fmt.Sprint(name, i), nil).being(s))
			}
		}
		add(c.live, "live", node.Live)
		add(c.late, "late", node.Late)
		add(c.deaf, "deaf", node.Deaf)
		if dead, of, mass := MassDeath(nodes, c.percent); dead != c.dead || of != c.of || mass != c.mass {
			t.Errorf("%s: %d of %d, %v; want %d of %d, %v", c.name, dead, of, mass, c.dead, c.of, c.mass)
		}
	}
}
