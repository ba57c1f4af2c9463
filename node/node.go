// Package node defines the members of a cluster and the terms in which one of them leads.
//
// A node is one process. Its [Identity] has three parts for three purposes. Name is for people: a host or pod
// name, which need not be unique. ID identifies the member in the cluster; it is drawn for each process unless
// the user fixes it. Incarnation identifies the process, for fencing; it is drawn at every start, so two
// processes never share one.
//
// A [Term] is one period of leadership. Its Number only grows, across resignation, expiry, restart, and an
// asynchronous failover that lost the newest rows. Terms are compared by it:
//
//	Number = max(previous+1, unix milliseconds of the store, highest number any participant has seen + 1)
//
// Ordinal counts the terms from one and is what people see. Number orders terms, for fencing. The triple (number,
// node, incarnation), a [TermRef], identifies a term, for renewing and resigning.
//
// The package is pure: it has no clock, no I/O and no goroutine. Times in it were stamped by the store. They are
// for people and may be compared with each other, but never with a local clock.
package node

import (
	"cmp"
	"slices"
	"time"
)

// ID identifies a member of the cluster: a UUID in text form.
type ID string

// Incarnation identifies one process of a member: a UUID in text form, drawn at every start.
type Incarnation string

// Identity identifies a node.
type Identity struct {
	// Name is for people: a host or pod name. Two nodes may have the same name; that is reported.
	Name string `json:"name"`
	// ID identifies the member. Empty means: draw a UUID v7 for this process.
	ID ID `json:"id"`
	// Incarnation identifies the process. It is always drawn; a value set by the user is ignored.
	Incarnation Incarnation `json:"incarnation"`
}

// State is a member's state: what its row says, or what the leader decided about it.
type State string

// The states of a member. Live, Draining and Removed are its own state. Late and Deaf are decisions of the leader,
// which the row carries too. A node in a state that a version does not know gets no new work and keeps what it has.
const (
	Live     State = "live"
	Late     State = "late"     // missed a heartbeat and the time allowed for it; not removed yet
	Draining State = "draining" // leaving: takes no new work
	Deaf     State = "deaf"     // its heartbeats arrive, but it receives no reply
	Removed  State = "removed"  // tombstone: deregistered or declared dead
)

// Traits is what a node declares about itself. It changes rarely.
type Traits struct {
	Version  string            `json:"version,omitempty"`
	Address  string            `json:"address,omitempty"` // host:port of its listener, if any
	Labels   map[string]string `json:"labels,omitempty"`
	Capacity int               `json:"capacity"` // load is weight ÷ capacity; 0 counts as 1
	// MaxWeight is the most weight of units that the node may be given in all; 0 is no limit.
	MaxWeight int `json:"max_weight,omitempty"`
	// NeverLead keeps the node out of elections; NoDaemons gives it no units.
	NeverLead bool `json:"never_lead,omitempty"`
	NoDaemons bool `json:"no_daemons,omitempty"`
	Host      Host `json:"host,omitzero"`
	// Group is the group of nodes that the node belongs to, if any. What it declares is run by nodes of that group only.
	Group string `json:"group,omitempty"`
	// Cluster is the name of the cluster that the node wants to join. The store refuses a node with a name other
	// than the stored one.
	Cluster string `json:"cluster,omitempty"`
	// Timing is the part of the node's timings by which the others judge it.
	Timing Timing `json:"timing,omitzero"`
	// FirstRegisteredAt is when this process registered for the first time, by the store's clock. The process
	// repeats it when it registers again. It is zero before; package member fills it in.
	FirstRegisteredAt time.Time `json:"first_registered_at,omitzero"`
	// Returns is how often this process has registered again because its row was removed, in the twenty
	// NodeRegistrationTTL (at least ten minutes) before it registered last. Package member fills it in.
	Returns int `json:"returns,omitempty"`
}

// Timing holds the durations of a node by which others judge it, in nanoseconds. A process never changes them.
// Package lease explains each.
type Timing struct {
	HeartbeatInterval   time.Duration `json:"heartbeat_interval"`
	QueryTimeout        time.Duration `json:"query_timeout"`
	LeaseDuration       time.Duration `json:"lease_duration"`
	NodeRegistrationTTL time.Duration `json:"node_registration_ttl"`
	StopTimeout         time.Duration `json:"stop_timeout"`
	Wakeup              time.Duration `json:"wakeup"`
	ClockStep           time.Duration `json:"clock_step"`
}

// Host identifies the process to other processes on the same machine, which can find exit evidence of it.
type Host struct {
	BootID string `json:"boot_id,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Start  string `json:"start,omitempty"` // start time of the process, in the kernel's unit
	Lock   string `json:"lock,omitempty"`  // path of the file that the process and its guardian keep locked
}

// Member is a node's row in the store.
type Member struct {
	Identity
	Traits
	State State `json:"state"`
	// LeaderState is Late or Deaf if the leader decided so, else empty.
	LeaderState State `json:"judged,omitempty"`
	// Seq is the sequence number of the newest accepted heartbeat, report or leave.
	Seq uint64 `json:"seq"`
	// ConfirmedSeq is the sequence number of the newest heartbeat whose reply the node has received, as it reports.
	ConfirmedSeq uint64 `json:"heard"`
	// Advert is the hash of the node's advert. The snapshot has the text of each advert once.
	Advert string `json:"advert,omitempty"`
	// HighestTerm and HighestGeneration are the highest numbers the node has seen anywhere.
	HighestTerm       int64 `json:"highest_term,omitempty"`
	HighestGeneration int64 `json:"highest_generation,omitempty"`
	// ChangeTime is how long one change of the store takes the node, in a store that makes the changes of all
	// nodes one after another; 0 in other stores.
	ChangeTime time.Duration `json:"change_time,omitempty"`
	// ExitProven is set once another process on the same host has reported exit evidence of this one.
	ExitProven bool `json:"witnessed,omitempty"`

	RegisteredAt    time.Time `json:"registered_at"`
	LastHeartbeatAt time.Time `json:"last_heartbeat_at"`
	ConfirmedAt     time.Time `json:"heard_at"` // when ConfirmedSeq last grew, by the store's clock
	EndedAt         time.Time `json:"ended_at,omitzero"`
	EndReason       string    `json:"end_reason,omitempty"`
}

// Present reports whether the row belongs to a member and is not a tombstone.
func (m Member) Present() bool { return m.State != Removed }

// Term is one period of leadership. The zero Term means that no node has led yet.
type Term struct {
	Number    int64     `json:"term"`
	Ordinal   int64     `json:"term_ordinal"`
	Leader    Identity  `json:"leader"`
	ElectedAt time.Time `json:"elected_at"`
	// Vacant is set once the holder has given the term up: the number is used, and no node leads.
	Vacant bool `json:"vacant,omitempty"`
}

// Ref returns the term's identification.
func (t Term) Ref() TermRef {
	return TermRef{Number: t.Number, Node: t.Leader.ID, Incarnation: t.Leader.Incarnation}
}

// Held reports whether a node holds the term: there is one, and it was not given up.
func (t Term) Held() bool { return t.Number != 0 && !t.Vacant }

// TermRef identifies a term: its number and the process that holds it.
type TermRef struct {
	Number      int64       `json:"term"`
	Node        ID          `json:"node_id"`
	Incarnation Incarnation `json:"incarnation"`
}

// Lease is the part of a term that renewals and passes write.
type Lease struct {
	ExpiresAt time.Time `json:"expires_at"`
	// Renewals counts the renewals of this term. Together with the term's number it identifies one renewal.
	Renewals int64 `json:"renewals"`
	// LastPassAt and PassSeq show that the leader's passes succeed.
	LastPassAt time.Time `json:"last_pass_at,omitzero"`
	PassSeq    uint64    `json:"pass_seq,omitempty"`
}

// LossReason is why a leadership ended, or why a transition happened.
type LossReason string

// The reasons for the end of a leadership.
const (
	Resigned      LossReason = "resigned"      // given up on request
	Expired       LossReason = "expired"       // the lease ran out and another node took over
	Replaced      LossReason = "replaced"      // the store names another holder or term
	ValidityEnded LossReason = "trust_lost"    // no renewal was answered while the leader's validity lasted
	Shutdown      LossReason = "shutdown"      // the node stops
	PassesFailed  LossReason = "passes_failed" // no pass succeeded for a whole lease, while heartbeats were answered
	ProcessEnded  LossReason = "process_ended" // its process has ended: another one on its host has exit evidence
	StoreChanged  LossReason = "store_changed" // the store was replaced by another one (failover, restore)
)

// ChangeKind is what happened to a member.
type ChangeKind string

// The kinds of membership change.
const (
	Joined ChangeKind = "joined"
	Left   ChangeKind = "left"
)

// Change is one difference between two member lists.
type Change struct {
	Kind   ChangeKind
	Member Member
	Reason string
}

// Diff returns what changed from old to new: members that left, then members that joined, each sorted by
// incarnation. Tombstones count as absent. An observer that fell behind uses it to catch up.
func Diff(old, new []Member) []Change {
	before, after := positions(old), positions(new)
	// A list may have thousands of members, and every newcomer compares one. So their rows, which are large, are copied once.
	var left, joined []*Member
	reasons := map[Incarnation]string{}
	for inc, i := range before {
		at, listed := after[inc]
		switch {
		case !old[i].Present() || listed && new[at].Present():
		case listed:
			left, reasons[inc] = append(left, &new[at]), new[at].EndReason
		default:
			left, reasons[inc] = append(left, &old[i]), "row gone"
		}
	}
	for inc, i := range after {
		at, listed := before[inc]
		if new[i].Present() && (!listed || !old[at].Present()) {
			joined = append(joined, &new[i])
		}
	}
	if len(left)+len(joined) == 0 {
		return nil
	}
	byIncarnation := func(a, b *Member) int { return cmp.Compare(a.Incarnation, b.Incarnation) }
	slices.SortFunc(left, byIncarnation)
	slices.SortFunc(joined, byIncarnation)
	out := make([]Change, 0, len(left)+len(joined))
	for _, m := range left {
		out = append(out, Change{Kind: Left, Member: *m, Reason: reasons[m.Incarnation]})
	}
	for _, m := range joined {
		out = append(out, Change{Kind: Joined, Member: *m})
	}
	return out
}

// positions says where each process is in a list.
func positions(list []Member) map[Incarnation]int {
	out := make(map[Incarnation]int, len(list))
	for i := range list {
		out[list[i].Incarnation] = i
	}
	return out
}
