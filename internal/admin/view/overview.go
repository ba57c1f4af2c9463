package view

import (
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Overview is a status without its lists: how many nodes and units are in each state, and what needs attention. Its size
// does not depend on the size of the cluster.
type Overview struct {
	Cluster string `json:"cluster"`
	At      Time   `json:"at"` // the store's clock
	// Limited says that the caller may not read the whole cluster: this has the queues and subscriptions that the caller may
	// read, their totals and their notices, and nothing else.
	Limited bool                 `json:"limited"`
	Store   StoreRead            `json:"store"`
	Leader  *Leader              `json:"leader"` // null if there is no leader
	Nodes   map[node.State]int   `json:"nodes"`  // how many nodes are in each state
	Units   map[daemon.State]int `json:"units"`  // how many units are in each state
	Daemons int                  `json:"daemons"`
	Outbox  *Outbox              `json:"outbox"` // null if there is none
	Queues  *Queues              `json:"queues"` // null if no node serves queues, or they were not read
	Orders  int                  `json:"orders"` // operators' standing commands
	// Attention lists what a person should look at, the worst first, at most 100 of them. Notices counts them all.
	Attention []Notice `json:"attention"`
	Notices   int      `json:"notices"`
}

// mostNotices bounds the notices of an overview.
const mostNotices = 100

// Overview sums up the status.
func (s Status) Overview() Overview {
	out := Overview{
		Cluster: s.Cluster, At: s.At, Store: s.Store, Leader: s.Leader, Outbox: s.Outbox, Queues: s.Queues,
		Nodes: map[node.State]int{}, Units: map[daemon.State]int{}, Orders: len(s.Orders),
		Attention: s.Attention[:min(len(s.Attention), mostNotices)], Notices: len(s.Attention),
	}
	for _, n := range s.Nodes {
		out.Nodes[n.State]++
	}
	for i := range s.Daemons { // units are large, so they are not copied
		out.Units[s.Daemons[i].State]++
		if i == 0 || s.Daemons[i].Daemon != s.Daemons[i-1].Daemon {
			out.Daemons++
		}
	}
	return out
}

// Daemon sums up the units of a daemon.
type Daemon struct {
	ID     daemon.ID            `json:"daemon"`
	Units  int                  `json:"units"`
	States map[daemon.State]int `json:"states"` // how many units are in each state
	Nodes  int                  `json:"nodes"`  // how many nodes hold a unit
	// Failures are those in a row of the unit that has most of them.
	Failures int     `json:"failures"`
	Orders   []Order `json:"orders,omitempty"` // about the whole daemon
}

// ByDaemon sums up the units of each daemon, sorted by ID.
func (s Status) ByDaemon() []Daemon {
	out := []Daemon{}
	var nodes map[node.ID]bool
	for i := range s.Daemons { // sorted
		u := &s.Daemons[i]
		if len(out) == 0 || out[len(out)-1].ID != u.Daemon {
			nodes = map[node.ID]bool{}
			out = append(out, Daemon{ID: u.Daemon, States: map[daemon.State]int{}, Orders: s.ofDaemon(u.Daemon)})
		}
		d := &out[len(out)-1]
		d.Units++
		d.States[u.State]++
		d.Failures = max(d.Failures, u.Failures)
		if u.NodeID != "" && !nodes[u.NodeID] {
			nodes[u.NodeID] = true
			d.Nodes++
		}
	}
	return out
}

// ofDaemon returns the orders about a whole daemon.
func (s Status) ofDaemon(id daemon.ID) []Order {
	var out []Order
	for _, o := range s.Orders {
		if o.args.Daemon == id && o.args.Unit().IsZero() {
			out = append(out, o)
		}
	}
	return out
}
