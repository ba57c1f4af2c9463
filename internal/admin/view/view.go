// Package view turns one consistent snapshot of the store into what people and scripts are shown.
//
// Everything here is a pure function of a snapshot (or of events) and of what the reader knows
// ([Reader]). The clock is the store's, as of the snapshot. The JSON of the structs is an interface for
// scripts: a field never changes its name or meaning and is present even if it is empty. Times are RFC
// 3339 in UTC, or null if there is none yet.
//
// What a view adds to the rows:
//
//   - A node is shown as late or deaf if the leader has declared it so. It is also shown as late if its
//     last heartbeat is older than the cluster's timings allow, because without a leader nothing declares
//     it late. If no node states its timings, those of the reader are used; if they differ, the longest.
//   - A unit without a node is unassigned. Its reason is recomputed by the planner's code: why no node
//     can take it, or that the leader's next pass will place it. A unit that a node declares and that has
//     no row yet is shown as well.
//   - A unit whose runs fail again and again is crashing, not active ([Crashing]).
//   - [Status.Attention] lists what a person should look at, each with what to do.
package view

import (
	"cmp"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// Reader holds what the reader of a snapshot knows from its own configuration. Cluster is used only for a
// store that has no name yet, Timing only if no node states its timings.
type Reader struct {
	Cluster string
	Store   string // kind of store, for people
	Timing  lease.Timing
	// Queues says that the reader's configuration has an object store, so nodes should serve queues.
	Queues bool
	// All includes removed nodes, and units that are no longer declared.
	All bool
}

// Status is the state of a cluster at one moment.
type Status struct {
	Cluster   string    `json:"cluster"`
	At        Time      `json:"at"` // the store's clock
	Store     StoreRead `json:"store"`
	Leader    *Leader   `json:"leader"` // null if there is no leader
	Nodes     []Node    `json:"nodes"`
	Daemons   []Unit    `json:"daemons"`
	Outbox    *Outbox   `json:"outbox"`           // null if there is none
	Queues    *Queues   `json:"queues"`           // null if no node serves queues, or they were not read
	Orders    []Order   `json:"orders,omitempty"` // operators' standing commands, oldest first
	Attention []Notice  `json:"attention"`
}

// StoreRead says which store was read.
type StoreRead struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	Head int64  `json:"head"` // newest event
}

// Leader describes the leader.
type Leader struct {
	Node        string           `json:"node"`
	NodeID      node.ID          `json:"node_id"`
	Incarnation node.Incarnation `json:"incarnation"`
	Term        int64            `json:"term"`
	TermOrdinal int64            `json:"term_ordinal"`
	ElectedAt   Time             `json:"elected_at"`
	ExpiresAt   Time             `json:"expires_at"`
	LastPassAt  Time             `json:"last_pass_at"`
	PassSeq     uint64           `json:"pass_seq"`
	// Expired says that the lease has ended by the store's clock and there is no new leader yet.
	Expired bool `json:"expired"`
}

// Node describes a node.
type Node struct {
	Name            string            `json:"name"`
	ID              node.ID           `json:"id"`
	Incarnation     node.Incarnation  `json:"incarnation"`
	State           node.State        `json:"state"`
	Leader          bool              `json:"leader"`
	Group           string            `json:"group"` // runs only what nodes of this group declare; empty for none
	Version         string            `json:"version"`
	Address         string            `json:"address"`
	LastHeartbeatAt Time              `json:"last_heartbeat_at"`
	RegisteredAt    Time              `json:"registered_at"`
	Load            float64           `json:"load"` // sum of the weights of its units
	Capacity        int               `json:"capacity"`
	MaxWeight       int               `json:"max_weight"` // most that Load may become; 0 is no limit
	Units           int               `json:"units"`
	Labels          map[string]string `json:"labels"`
	NeverLead       bool              `json:"never_lead"`
	NoDaemons       bool              `json:"no_daemons"`
	Kinds           []daemon.Kind     `json:"kinds"`
	Reason          string            `json:"reason"` // why it ended, or why it is sick
	Orders          []Order           `json:"orders,omitempty"`
}

// Unit is one instance of a daemon.
type Unit struct {
	Daemon     daemon.ID    `json:"daemon"`
	Unit       daemon.Unit  `json:"unit"`
	State      daemon.State `json:"state"`
	Node       string       `json:"node"` // the node that holds it; empty if none does
	NodeID     node.ID      `json:"node_id"`
	Generation int64        `json:"generation"`
	Since      Time         `json:"since"`
	Reason     string       `json:"reason"`
	Failures   int          `json:"failures"` // in a row, on any nodes
	Error      string       `json:"error"`    // the last failure
	// FailingSince is when the first of these failures was reported, RetryAt when the run is started again.
	FailingSince Time `json:"failing_since"`
	RetryAt      Time `json:"retry_at"`
	Forced       bool `json:"forced"` // the holder did not confirm its last end
	// Deadline is by when the holder should have reported while the unit is assigning (that its run has begun; a backlog of
	// starts puts it off) or revoking (that
	// it has ended). ForcedAt is when the leader may take a unit that is revoking from a holder that has not. Null otherwise.
	Deadline Time    `json:"deadline"`
	ForcedAt Time    `json:"forced_at"`
	Orders   []Order `json:"orders,omitempty"`
	// Schedule is that of a periodic daemon; null if it has none, or has not run yet.
	Schedule *Schedule `json:"schedule"`

	record  *daemon.Record // in the snapshot
	nowhere bool           // no node can take it
}

// Crashing is the state shown for a unit if [daemon.Record.Crashing] reports true.
const Crashing daemon.State = "crashing"

// severity orders notices.
type severity string

// The severities.
const (
	warning severity = "warning" // the cluster works, but a person should look
	failing severity = "failing" // something that should run does not
)

// Notice is something a person should look at.
type Notice struct {
	Severity severity `json:"severity"`
	Subject  string   `json:"subject"` // a node, a daemon, "leader", "cluster"
	Text     string   `json:"text"`
	Action   string   `json:"do"` // a command that shows more, or what to do
}

// Failing reports whether something that should run does not.
func (n Notice) Failing() bool { return n.Severity == failing }

// Time is a time of the store in JSON: RFC 3339 in UTC, null for none.
type Time struct{ time.Time }

// MarshalJSON writes null for the zero time.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return t.UTC().MarshalJSON()
}

// withCluster returns the reader with the name and timings of the cluster, as the leader's row states them, or
// the row with the newest heartbeat if there is no leader. While nodes have different timings, the longest count.
func (r Reader) withCluster(s *daemon.Snapshot) Reader {
	var by *node.Member
	for i := range s.Nodes {
		m := &s.Nodes[i]
		switch {
		case !m.Present():
		case s.Term.Held() && m.Incarnation == s.Term.Leader.Incarnation:
			by = m
		case by == nil || by.Incarnation != s.Term.Leader.Incarnation && m.LastHeartbeatAt.After(by.LastHeartbeatAt):
			by = m
		}
	}
	if by != nil {
		r.Cluster, r.Timing = cmp.Or(by.Cluster, r.Cluster), r.Timing.With(by.Timing)
	}
	for i := range s.Nodes {
		if by != nil && s.Nodes[i].Present() {
			r.Timing = r.Timing.AtLeast(s.Nodes[i].Timing)
		}
	}
	r.Cluster = cmp.Or(s.Cluster, r.Cluster)
	return r
}

// Of returns the view of a snapshot.
func Of(s *daemon.Snapshot, r Reader) Status {
	v := &viewer{Snapshot: s, Reader: r.withCluster(s)}
	in := v.planInput()
	v.plan, v.planned = plan.Make(in), in.Nodes
	out := Status{
		Cluster: v.Reader.Cluster, At: Time{s.Now},
		Store:  StoreRead{Kind: r.Store, ID: s.StoreID, Head: s.Head},
		Leader: v.leader(),
	}
	v.inForce = v.orders()
	out.Orders = v.inForce
	out.Daemons = v.units(out.Leader)
	out.Nodes = v.nodes(out.Daemons)
	out.Attention = v.attention(out)
	return out
}

// Explain recomputes where a unit is placed, and why.
func Explain(s *daemon.Snapshot, r Reader, u daemon.Unit) plan.Explanation {
	v := &viewer{Snapshot: s, Reader: r.withCluster(s)}
	return plan.Explain(v.planInput(), u)
}

type viewer struct {
	*daemon.Snapshot
	Reader
	plan    plan.Plan
	planned []plan.Node // that the plan was made for
	inForce []Order
}

// planInput returns the planner's input, with the nodes' states as far as a reader can know them.
func (v *viewer) planInput() plan.Input {
	in := plan.Input{Now: v.Now, SettleWindow: v.Timing.SettleWindow, Units: v.Units, Term: v.Term, Commands: v.Commands}
	in.Nodes = make([]plan.Node, 0, len(v.Nodes)) // a node is large, so the list does not grow in steps
	for _, m := range v.Nodes {
		in.Nodes = append(in.Nodes, plan.Node{Member: m, Advert: v.Advert(m), State: v.state(m)})
	}
	return in
}

// state returns the state of a node from its row and its age. A state that the node itself
// set takes precedence over lateness.
func (v *viewer) state(m node.Member) node.State {
	switch {
	case !m.Present():
		return node.Removed
	case m.State != node.Live:
		return m.State
	case m.LeaderState != "":
		return m.LeaderState
	case v.age(m.LastHeartbeatAt) > v.Timing.Late():
		return node.Late
	}
	return node.Live
}

// sick returns why a present node gets units last; "" if it does not.
func (v *viewer) sick(m node.Member) string {
	for _, verdict := range v.plan.Verdicts {
		if m.Present() && verdict.Node == m.Name {
			return "sick: " + verdict.Reason
		}
	}
	return ""
}

func (v *viewer) age(t time.Time) time.Duration { return max(v.Now.Sub(t), 0) }

func (v *viewer) leader() *Leader {
	t := v.Term
	if !t.Held() {
		return nil
	}
	return &Leader{
		Node: t.Leader.Name, NodeID: t.Leader.ID, Incarnation: t.Leader.Incarnation,
		Term: t.Number, TermOrdinal: t.Ordinal,
		ElectedAt: Time{t.ElectedAt}, ExpiresAt: Time{v.Lease.ExpiresAt},
		LastPassAt: Time{v.Lease.LastPassAt}, PassSeq: v.Lease.PassSeq,
		Expired: !v.Now.Before(v.Lease.ExpiresAt),
	}
}

func (v *viewer) nodes(units []Unit) []Node {
	out := make([]Node, 0, len(v.Nodes))
	held := v.held(units)
	for _, m := range v.Nodes {
		state := v.state(m)
		if state == node.Removed && !v.All {
			continue
		}
		n := Node{
			Name: m.Name, ID: m.ID, Incarnation: m.Incarnation, State: state,
			Leader: v.Term.Held() && v.Term.Leader.Incarnation == m.Incarnation,
			Group:  m.Group, Version: m.Version, Address: m.Address,
			LastHeartbeatAt: Time{m.LastHeartbeatAt}, RegisteredAt: Time{m.RegisteredAt},
			Capacity: cmp.Or(m.Capacity, 1), MaxWeight: m.MaxWeight, Labels: m.Labels,
			NeverLead: m.NeverLead, NoDaemons: m.NoDaemons,
			Kinds: v.Advert(m).Kinds, Reason: cmp.Or(m.EndReason, v.sick(m)), Orders: ofNode(v.inForce, m.Name),
		}
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		if n.Kinds == nil {
			n.Kinds = []daemon.Kind{}
		}
		n.Units, n.Load = held[m.Incarnation].units, held[m.Incarnation].load
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.RegisteredAt.Compare(b.RegisteredAt.Time), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return out
}

// holding is what a process holds.
type holding struct {
	units int
	load  float64 // sum of the weights
}

// held returns what each process holds.
func (v *viewer) held(units []Unit) map[node.Incarnation]holding {
	out := make(map[node.Incarnation]holding, len(v.Nodes))
	for i := range units {
		r := units[i].record
		if by := r.Holder.Incarnation; r.HeldBy(by) {
			h := out[by]
			out[by] = holding{h.units + 1, h.load + float64(v.weight(r.Unit.Daemon))}
		}
	}
	return out
}

func (v *viewer) weight(id daemon.ID) int {
	spec, _ := v.plan.Specs.Of(id)
	return max(spec.Weight, 1)
}

// units lists the units with a row and those that are only declared.
func (v *viewer) units(leader *Leader) []Unit {
	out := make([]Unit, 0, len(v.Units)) // a unit is large, so the list does not grow in steps
	why := v.whyFree(leader)
	add := func(rec *daemon.Record) {
		if rec.Retired && rec.State.IsFree() && !v.All {
			return
		}
		u := Unit{
			Daemon: rec.Unit.Daemon, Unit: rec.Unit, State: rec.State,
			Generation: rec.Generation, Since: Time{rec.Since},
			Reason: rec.Reason, Failures: rec.Failures, Error: rec.Error, Forced: rec.Forced,
			FailingSince: Time{rec.FailingSince}, RetryAt: Time{rec.RetryAt},
			record: rec,
		}
		u.Deadline, u.ForcedAt = v.deadlines(rec)
		switch {
		case !rec.State.IsFree():
			u.Node, u.NodeID = rec.Holder.Name, rec.Holder.ID
		case !rec.Retired:
			u.State = daemon.Unassigned
			if w, ok := why[rec.Unit]; ok {
				u.Reason, u.nowhere = w.text, w.nowhere
			}
		}
		if rec.Crashing() {
			u.State = Crashing
		}
		u.Orders = ofUnit(v.inForce, rec.Unit)
		if paused := u.paused(); paused && rec.State.IsFree() && !rec.Retired {
			u.State, u.Reason, u.nowhere = Paused, texts(u.Orders, v.Now), false
			u.Since = Time{maxTime(rec.Since, u.pausedSince())}
		}
		out = append(out, u)
	}
	for i := range v.Units {
		add(&v.Units[i])
	}
	v.addDeclared(add)
	byUnit := func(a, b Unit) int { return a.Unit.Compare(b.Unit) }
	if !slices.IsSortedFunc(out, byUnit) {
		slices.SortFunc(out, byUnit)
	}
	return out
}

// deadlines returns by when the holder of a unit must have reported, and when the leader may take the unit from it.
func (v *viewer) deadlines(rec *daemon.Record) (report, forced Time) {
	switch rec.State {
	case daemon.Assigning:
		report.Time = rec.Since.Add(cmp.Or(rec.AcknowledgeTimeout, v.Timing.AcknowledgeTimeout))
	case daemon.Revoking:
		drain := cmp.Or(rec.DrainTimeout, v.Timing.DrainTimeout)
		report.Time, forced.Time = rec.Since.Add(drain), rec.Since.Add(v.Timing.ForceAfter(drain))
	}
	return report, forced
}

// addDeclared adds the units that the plan declares and that have no row yet.
func (v *viewer) addDeclared(add func(*daemon.Record)) {
	var rows map[daemon.Unit]bool
	for _, d := range v.plan.Decisions {
		if d.Generation != 0 || d.State != "" {
			continue
		}
		if rows == nil {
			rows = make(map[daemon.Unit]bool, len(v.Units))
			for i := range v.Units {
				rows[v.Units[i].Unit] = true
			}
		}
		if !rows[d.Unit] {
			add(&daemon.Record{Unit: d.Unit, State: daemon.Unassigned, Reason: "declared, no row yet"})
		}
	}
}

type whyFree struct {
	text    string
	nowhere bool
}

// whenRetiredGoes says what happens to a unit of a daemon that is no longer declared. It needs no action.
func (v *viewer) whenRetiredGoes(since time.Time) string {
	if left := v.Timing.RetireAfter() - v.age(since); left > 0 {
		return "it disappears from the list in " + Exact(left) + " unless a node that declares it returns"
	}
	return "it is about to disappear from the list"
}

// whyFree returns for each unassigned unit why it is unassigned.
func (v *viewer) whyFree(leader *Leader) map[daemon.Unit]whyFree {
	out := map[daemon.Unit]whyFree{}
	for i := range v.plan.Unplaced {
		u := &v.plan.Unplaced[i]
		text := u.String()
		if u.Why.Rule == plan.NotAdvertised {
			text += "; " + v.whenRetiredGoes(u.Since)
		}
		out[u.Unit] = whyFree{text, true}
	}
	next := "the next pass of the leader places it"
	switch {
	case leader == nil:
		next = "there is no leader to assign it"
	case leader.Expired:
		next = "the leader's lease has expired, so it is not assigned"
	case v.Lease.LastPassAt.IsZero():
		next = "the leader has not finished its first pass (it waits for nodes to join)"
	}
	for _, d := range v.plan.Decisions {
		if d.Step == daemon.Assign || d.Step == "" && !d.Retired {
			out[d.Unit] = whyFree{next, false}
		}
	}
	return out
}
