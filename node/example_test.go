package node_test

import (
	"fmt"

	"github.com/emitd/emitd/node"
)

// Who came and who went between two lists of a cluster's members.
func Example() {
	member := func(name string, id node.ID) node.Member {
		return node.Member{Identity: node.Identity{Name: name, ID: id, Incarnation: node.Incarnation(id)}, State: node.Live}
	}
	before := []node.Member{member("alpha", "1")}
	after := []node.Member{member("alpha", "1"), member("beta", "2")}
	for _, c := range node.Diff(before, after) {
		fmt.Println(c.Kind, c.Member.Name)
	}
	// Output: joined beta
}
