package plan

import "github.com/emitd/emitd/node"

// minBrake is how many nodes must look dead for the brake. Two of three may die together.
const minBrake = 3

// DefaultBrakePercent is the share of the nodes above which the brake holds if nothing else is configured.
const DefaultBrakePercent = 50

// MassDeath counts the nodes, and those that look dead: late or deaf, or judged as removed without proof of their end. It
// reports whether so many look dead at once that the cause is more likely between the nodes and the store than in the
// nodes: at least three, and more than that share of all. A node that another one with its name has replaced counts
// as neither.
func MassDeath(nodes []Node, percent int) (dead, of int, mass bool) {
	live := map[string]bool{}
	for i := range nodes {
		if n := &nodes[i]; n.present() && n.State != node.Late && n.State != node.Deaf {
			live[n.Member.Name] = true
		}
	}
	for i := range nodes {
		n := &nodes[i]
		looksDead := n.State == node.Late || n.State == node.Deaf || n.State == node.Removed
		switch {
		case !n.Member.Present() || n.Member.ExitProven || looksDead && live[n.Member.Name]:
			continue
		case looksDead:
			dead++
		}
		of++
	}
	return dead, of, dead >= minBrake && dead*100 > percent*of
}
