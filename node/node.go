// Package node names the members of a cluster and the terms in which one of them leads.
//
// A node is one process. Its [Identity] has three parts, because people, the cluster and
// fencing each need another one: Name is for people (host or pod name, need not be unique),
// ID names the member (drawn per process unless the user fixes it), Incarnation names the
// process (always drawn anew, so two processes never share one).
//
// A [Term] is one reign. Its Number only grows, over resignation, expiry, restart and an
// asynchronous failover that lost the newest rows, and is what is compared:
//
//	Number = max(previous+1, unix milliseconds of the store, highest number any participant has seen + 1)
//
// Ordinal counts reigns from one and is what people see. Number orders (fencing); the triple
// (number, node, incarnation), a [TermRef], identifies (renewing, resigning).
//
// The package is pure: no clock, no I/O, no goroutine. Times in it were stamped by the store;
// they are facts for people and for arithmetic among themselves and are never compared with a
// local clock.
package node

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ID names a member of the cluster: a UUID in text form.
type ID string

// Incarnation names one process of a member: a UUID in text form, drawn at every start.
type Incarnation string

// Identity is who a node is.
type Identity struct {
	// Name is for people: host or pod name. Two nodes may share one; it is reported.
	Name string `json:"name"`
	// ID names the member. Empty means: draw a UUID v7 for this process.
	ID ID `json:"id"`
	// Incarnation names the process. It is always drawn; a value set by the user is ignored.
	Incarnation Incarnation `json:"incarnation"`
}

// State is what a member's row says of it, or what a judge made of it.
type State string

// The states of a member. Live, Draining and Removed stand in its row; Late, Deaf and Cordoned
// are judgements of the leader or an operator that the row also carries.
const (
	Live     State = "live"
	Late     State = "late"     // missed a heartbeat and its grace; not removed yet
	Draining State = "draining" // leaving: takes no new work
	Cordoned State = "cordoned" // takes no new work and keeps what it has; no command of this version sets it
	Deaf     State = "deaf"     // its heartbeats arrive but it hears no reply
	Removed  State = "removed"  // tombstone: deregistered or declared dead
)

// Traits is what a node tells about itself; it changes rarely.
type Traits struct {
	Version  string            `json:"version,omitempty"`
	Address  string            `json:"address,omitempty"` // host:port of its listener, if any
	Labels   map[string]string `json:"labels,omitempty"`
	Capacity int               `json:"capacity"` // load is weight ÷ capacity; 0 counts as 1
	// NeverLead keeps the node out of elections, NoDaemons out of placement.
	NeverLead bool `json:"never_lead,omitempty"`
	NoDaemons bool `json:"no_daemons,omitempty"`
	Host      Host `json:"host,omitzero"`
	// Cluster is the name of the cluster that the node means to join. The store refuses a node whose
	// name is not the one it remembers.
	Cluster string `json:"cluster,omitempty"`
	// Timing is what the node judges others by; all nodes of a cluster must have the same.
	Timing Timing `json:"timing,omitzero"`
	// FirstRegisteredAt is when this process registered for the first time, by the store's clock, as it
	// remembers when it registers again; zero before. Its member gives it.
	FirstRegisteredAt time.Time `json:"first_registered_at,omitzero"`
}

// Timing is what the nodes of a cluster must have in common, in nanoseconds; package lease says what each
// is.
type Timing struct {
	HeartbeatInterval   time.Duration `json:"heartbeat_interval"`
	QueryTimeout        time.Duration `json:"query_timeout"`
	LeaseDuration       time.Duration `json:"lease_duration"`
	NodeRegistrationTTL time.Duration `json:"node_registration_ttl"`
	StopTimeout         time.Duration `json:"stop_timeout"`
	Wakeup              time.Duration `json:"wakeup"`
	ClockStep           time.Duration `json:"clock_step"`
}

// Diff names what differs: "heartbeat_interval 1s, here 15s; …".
func (t Timing) Diff(other Timing) string {
	var out []string
	for _, f := range []struct {
		name         string
		mine, theirs time.Duration
	}{
		{"heartbeat_interval", t.HeartbeatInterval, other.HeartbeatInterval},
		{"query_timeout", t.QueryTimeout, other.QueryTimeout},
		{"lease_duration", t.LeaseDuration, other.LeaseDuration},
		{"node_registration_ttl", t.NodeRegistrationTTL, other.NodeRegistrationTTL},
		{"stop_timeout", t.StopTimeout, other.StopTimeout},
		{"wakeup", t.Wakeup, other.Wakeup},
		{"clock_step", t.ClockStep, other.ClockStep},
	} {
		if f.mine != f.theirs {
			out = append(out, fmt.Sprintf("%s %v, here %v", f.name, f.theirs, f.mine))
		}
	}
	return strings.Join(out, "; ")
}

// Host identifies the process to peers on the same machine, who can witness its death.
type Host struct {
	BootID string `json:"boot_id,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Start  string `json:"start,omitempty"` // start time of the process, in the kernel's own unit
	Lock   string `json:"lock,omitempty"`  // path of the file the process (and its guardian) keeps locked
}

// Member is a node's row in the store.
type Member struct {
	Identity
	Traits
	State State `json:"state"`
	// Judged is Late or Deaf when the leader said so, else empty.
	Judged State `json:"judged,omitempty"`
	// Seq is the sequence number of the newest accepted heartbeat, report or leave.
	Seq uint64 `json:"seq"`
	// Heard is the newest heartbeat sequence number whose reply the node says it received.
	Heard uint64 `json:"heard"`
	// Advert is the hash of what the node advertises; the text is in the snapshot, once.
	Advert string `json:"advert,omitempty"`
	// HighestTerm and HighestGeneration are the highest numbers the node has seen anywhere.
	HighestTerm       int64 `json:"highest_term,omitempty"`
	HighestGeneration int64 `json:"highest_generation,omitempty"`
	// ChangeTime is how long one change of the store takes the node, in a store that makes the changes of all
	// nodes one after the other; 0 in one that does not.
	ChangeTime time.Duration `json:"change_time,omitempty"`
	// Witnessed is set once another process on the same host has proof that this one has ended.
	Witnessed bool `json:"witnessed,omitempty"`

	RegisteredAt    time.Time `json:"registered_at"`
	LastHeartbeatAt time.Time `json:"last_heartbeat_at"`
	HeardAt         time.Time `json:"heard_at"` // when Heard last grew
	EndedAt         time.Time `json:"ended_at,omitzero"`
	EndReason       string    `json:"end_reason,omitempty"`
}

// Present reports whether the row is that of a member, not a tombstone.
func (m Member) Present() bool { return m.State != Removed }

// Term is one reign. The zero Term means that nobody has led yet.
type Term struct {
	Number    int64     `json:"term"`
	Ordinal   int64     `json:"term_ordinal"`
	Leader    Identity  `json:"leader"`
	ElectedAt time.Time `json:"elected_at"`
	// Vacant is set once the holder has resigned: the number is used, nobody leads.
	Vacant bool `json:"vacant,omitempty"`
}

// Ref returns what identifies the term.
func (t Term) Ref() TermRef {
	return TermRef{Number: t.Number, Node: t.Leader.ID, Incarnation: t.Leader.Incarnation}
}

// Held reports whether somebody holds the term: it exists and was not given up.
func (t Term) Held() bool { return t.Number != 0 && !t.Vacant }

// TermRef identifies a term exactly: its number and the process that holds it.
type TermRef struct {
	Number      int64       `json:"term"`
	Node        ID          `json:"node_id"`
	Incarnation Incarnation `json:"incarnation"`
}

// Lease is the part of a reign that renewals and passes write.
type Lease struct {
	ExpiresAt time.Time `json:"expires_at"`
	// Renewals counts renewals of this term; with the term's number it identifies one moment.
	Renewals int64 `json:"renewals"`
	// LastPassAt and PassSeq show that the leader's loop is alive.
	LastPassAt time.Time `json:"last_pass_at,omitzero"`
	PassSeq    uint64    `json:"pass_seq,omitempty"`
}

// LossReason says why a leadership ended, or why a transition happened.
type LossReason string

// The reasons of a loss.
const (
	Resigned     LossReason = "resigned"      // given up on request
	Expired      LossReason = "expired"       // the lease ran out and another node took over
	Replaced     LossReason = "replaced"      // the store names another holder or term
	TrustLost    LossReason = "trust_lost"    // no answered renewal within the trust window
	Shutdown     LossReason = "shutdown"      // the node stops
	PassesFailed LossReason = "passes_failed" // for a whole lease no pass succeeded, while heartbeats were answered
	ProcessEnded LossReason = "process_ended" // its process has ended: another on its host has proof
	StoreChanged LossReason = "store_changed" // the store is another one (failover, restore)
)

// ChangeKind says what happened to a member.
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

// Diff tells what changed from old to new: who left, then who joined, each sorted by
// incarnation. Tombstones count as absent. It is how an observer that fell behind catches up.
func Diff(old, new []Member) []Change {
	index := func(ms []Member) map[Incarnation]Member {
		out := make(map[Incarnation]Member, len(ms))
		for _, m := range ms {
			if m.Present() {
				out[m.Incarnation] = m
			}
		}
		return out
	}
	before, after := index(old), index(new)
	ended := map[Incarnation]Member{}
	for _, m := range new {
		if !m.Present() {
			ended[m.Incarnation] = m
		}
	}
	var out []Change
	for inc, m := range before {
		if _, ok := after[inc]; ok {
			continue
		}
		reason := "row gone"
		if t, ok := ended[inc]; ok {
			m, reason = t, t.EndReason
		}
		out = append(out, Change{Kind: Left, Member: m, Reason: reason})
	}
	for inc, m := range after {
		if _, ok := before[inc]; !ok {
			out = append(out, Change{Kind: Joined, Member: m})
		}
	}
	slices.SortFunc(out, func(a, b Change) int {
		return cmp.Or(-cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Member.Incarnation, b.Member.Incarnation))
	})
	return out
}
