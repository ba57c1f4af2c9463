package view

import (
	"cmp"
	"slices"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/node"
)

// FindNode returns the node with an ID or a name. Of several processes with that ID or name it is one that is still
// there, and of several of these the one that registered last.
func (s Status) FindNode(name string) (*Node, error) {
	var found []Node
	for _, n := range s.Nodes {
		if n.Name == name || string(n.ID) == name {
			found = append(found, n)
		}
	}
	if len(found) == 0 {
		return nil, fault.New(fault.NoNode, "there is no node %.200q", name)
	}
	best := slices.MaxFunc(found, func(a, b Node) int {
		present := func(n Node) int {
			if n.State == node.Removed {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(present(a), present(b)), a.RegisteredAt.Compare(b.RegisteredAt.Time))
	})
	return &best, nil
}
