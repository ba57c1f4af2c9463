package member_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// BenchmarkPass measures a leader's pass over a hundred thousand units that run on ten nodes: while nothing changes, and
// with another slice of the same units each time.
func BenchmarkPass(b *testing.B) {
	for _, bb := range []struct {
		name   string
		copied bool
	}{{name: "same"}, {name: "copied", copied: true}} {
		b.Run(bb.name, func(b *testing.B) {
			const units = 100_000
			c := newCluster(b, 1, daemon.Advert{Traits: node.Traits{Capacity: 1, NoDaemons: true}, Kinds: []daemon.Kind{"acme:row"}, Specs: []daemon.Spec{{ID: "acme:row", Instances: units}}})
			p := c.nodes[0]
			members, rows := holders(10, units)
			p.show = func(s *daemon.Snapshot) {
				for i := range members {
					members[i].LastHeartbeatAt, members[i].ConfirmedAt, members[i].Advert = s.Now, s.Now, s.Nodes[0].Advert
					members[i].Seq, members[i].ConfirmedSeq = members[i].Seq+1, members[i].Seq
				}
				s.Nodes, s.Units = append(s.Nodes, members...), rows
				if bb.copied {
					s.Units = append([]daemon.Record(nil), rows...)
				}
			}
			c.run(10 * time.Second) // the membership settles
			b.ReportAllocs()
			for b.Loop() {
				before := p.m.View().PassSeq
				p.step(member.WakeUp{Wake: storage.WakeUp{Leader: true, Nodes: []node.Incarnation{p.id.Incarnation}}})
				c.until(time.Minute, "a pass", func() bool { return p.m.View().PassSeq > before })
			}
		})
	}
}

// holders returns the rows of nodes, and of units that run on them.
func holders(nodes, units int) (members []node.Member, rows []daemon.Record) {
	at := time.Unix(1_800_000_000, 0)
	for i := range nodes {
		who := node.Identity{Name: fmt.Sprint("h", i), ID: node.ID(fmt.Sprint("h", i)), Incarnation: node.Incarnation(fmt.Sprint("h", i))}
		members = append(members, node.Member{Identity: who, State: node.Live, RegisteredAt: at, Traits: node.Traits{Capacity: 1}})
	}
	for i := range units {
		rows = append(rows, daemon.Record{
			Unit: daemon.Unit{Daemon: "acme:row", Index: i}, State: daemon.Active, Holder: members[i%nodes].Identity,
			Generation: 1, Term: 1, Since: at, AssignedAt: at, AcknowledgeTimeout: time.Second, DrainTimeout: time.Second,
		})
	}
	return members, rows
}
