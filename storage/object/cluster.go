package object

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// cluster is the content of the object of that name: everything that must change in one step. Its
// methods are the rules. Each applies one call at the time now. If it returns an error, which is the
// answer to the call, the changed clone is thrown away.
//
// A cluster that was read or written is never changed again, because readers share it. A step works
// on a clone. Records, events, commands and adverts are replaced, never changed in place.
type cluster struct {
	// N counts the contents of the object. Nonce distinguishes two contents with the same number.
	// EarlierNonces holds the nonces of the contents N-1, N-2, …, up to keepPast of them. Together they show
	// whether a write of unknown outcome has happened, and whether the present content continues
	// the one that was read before.
	N             uint64   `json:"n"`
	Nonce         uint64   `json:"nonce"`
	EarlierNonces []uint64 `json:"past,omitempty"`

	// StoreID names this history. The store identity also contains Config.Name, which tells a copy of
	// the bucket from the original. KnownID is the identity under which the newest heartbeat was written,
	// and IdentityChangedAt is when that last changed.
	StoreID           string    `json:"store_id"`
	KnownID           string    `json:"known_id,omitempty"`
	IdentityChangedAt time.Time `json:"since,omitzero"`

	// Name is the cluster's name, set by the first node that registers.
	Name string `json:"name,omitempty"`

	Term  node.Term  `json:"term"`
	Lease node.Lease `json:"lease"`

	Members []*member             `json:"members,omitempty"` // sorted by incarnation
	Units   []*daemon.Record      `json:"units,omitempty"`   // sorted by unit
	Fences  map[daemon.Unit]int64 `json:"fences,omitempty"`
	// UnitStates are what the runs of units leave for later ones. They need format 2.
	UnitStates map[daemon.Unit]daemon.UnitState `json:"unit_states,omitempty"`
	Adverts    map[string]*daemon.Advert        `json:"adverts,omitempty"`

	// The history is Segments and then Ring, without gaps, from Oldest to Head. The first segment
	// may still hold a few events before Oldest, which were swept.
	Segments []segment      `json:"segments,omitempty"`
	Ring     []daemon.Event `json:"ring,omitempty"`
	Oldest   int64          `json:"oldest"`
	Head     int64          `json:"head"`
	// LastMemberEvent is at least the number of the newest event about members. A reader whose cursor is at
	// or after it need not look.
	LastMemberEvent int64 `json:"rolled,omitempty"`

	Commands  rules.Commands          `json:"commands,omitempty"`
	Locks     map[string]storage.Lock `json:"locks,omitempty"`
	LockFloor int64                   `json:"lock_floor,omitempty"` // highest number whose row was swept
	// GenerationFloor is the highest generation of a unit whose row was swept. It needs format 3.
	GenerationFloor int64 `json:"generation_floor,omitempty"`
}

// member is a node's row. A follower's later heartbeats are in its own object; see pulse.
type member struct {
	node.Member
	// Left says that the process itself ended the row. It is never revived.
	Left bool `json:"left,omitempty"`
	// BeatSeq is the sequence number of the newest heartbeat that is part of the row.
	BeatSeq uint64 `json:"beat_seq"`
	// BeatsInCluster says that the node leads: each of its heartbeats is written here, and nobody reads its
	// own object.
	BeatsInCluster bool `json:"within,omitempty"`
	// Doubt is set while a leader tries to declare the node dead. It is the sequence number that
	// stayed unchanged while the leader watched it. A node that finds it removes it before its heartbeat is answered.
	Doubt *uint64 `json:"doubt,omitempty"`
}

// keepPast is how many nonces are kept. A writer whose reply was lost can learn the outcome of its
// write until this many contents have followed.
const keepPast = 64

// newHistory makes the first content of a new history, after number n.
func newHistory(n uint64) *cluster {
	return &cluster{N: n + 1, Nonce: rand.Uint64(), StoreID: fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()), Oldest: 1}
}

// clone returns a copy that may be changed.
func (c *cluster) clone() *cluster {
	d := *c
	d.Members = make([]*member, len(c.Members))
	for i, m := range c.Members {
		row := *m
		d.Members[i] = &row
	}
	d.EarlierNonces, d.Segments, d.Ring = slices.Clip(c.EarlierNonces), slices.Clip(c.Segments), slices.Clip(c.Ring)
	d.Units, d.Commands = slices.Clone(c.Units), slices.Clone(c.Commands)
	d.Fences, d.Locks, d.Adverts = cloned(c.Fences), cloned(c.Locks), cloned(c.Adverts)
	d.UnitStates = cloned(c.UnitStates)
	return &d
}

// cloned copies a map; the copy is never nil.
func cloned[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}

// advance turns the clone into the content after the one it was cloned from.
func (c *cluster) advance() {
	c.EarlierNonces = append([]uint64{c.Nonce}, c.EarlierNonces[:min(len(c.EarlierNonces), keepPast-1)]...)
	c.N++
	c.Nonce = rand.Uint64()
}

// nonceOf returns the nonce of the content with number n of this history, if it is still recorded.
func (c *cluster) nonceOf(n uint64) (uint64, bool) {
	if n == c.N {
		return c.Nonce, true
	}
	if back := c.N - n; n < c.N && back <= uint64(len(c.EarlierNonces)) {
		return c.EarlierNonces[back-1], true
	}
	return 0, false
}

// continues reports whether c can be a later content of old's history. If it cannot, the bucket was
// restored.
func (c *cluster) continues(old *cluster) bool {
	if c.StoreID != old.StoreID {
		return true // another history that already has its own name
	}
	nonce, known := c.nonceOf(old.N)
	return c.N >= old.N && (!known || nonce == old.Nonce)
}

// valid returns what is wrong with a decoded content, or nil.
func (c *cluster) valid() error {
	first := c.Head - int64(len(c.Ring)) + 1
	switch {
	case c.N == 0 || c.StoreID == "":
		return errors.New("it has no number or no store id")
	case slices.Contains(c.Members, nil) || slices.Contains(c.Units, nil) || slices.Contains(c.Commands, nil):
		return errors.New("it has an empty row")
	case !slices.IsSortedFunc(c.Members, func(a, b *member) int { return distinct(cmp.Compare(a.Incarnation, b.Incarnation)) }):
		return errors.New("its members are not in order")
	case !slices.IsSortedFunc(c.Units, func(a, b *daemon.Record) int { return distinct(a.Unit.Compare(b.Unit)) }):
		return errors.New("its units are not in order")
	case c.Oldest < 1 || c.Oldest > c.Head+1:
		return errors.New("its history begins after its end")
	}
	for i, e := range c.Ring {
		if e.Seq != first+int64(i) {
			return errors.New("its newest events have a gap")
		}
	}
	return validSegments(c.Segments, c.Oldest, first)
}

// distinct makes equal neighbours count as out of order.
func distinct(order int) int {
	if order == 0 {
		return -1
	}
	return order
}

// validSegments checks that the segments lead without a gap from oldest to the event before ring.
func validSegments(segments []segment, oldest, ring int64) error {
	at := min(oldest, ring)
	if len(segments) > 0 {
		at = segments[0].First
	}
	for _, s := range segments {
		if s.First != at || s.Count < 1 || s.Count > maxSegment {
			return errors.New("its history has a gap")
		}
		at += int64(s.Count)
	}
	if at != ring || len(segments) > 0 && segments[0].First > oldest {
		return errors.New("its history has a gap")
	}
	return nil
}

// row returns a node's row, tombstones included, or nil.
func (c *cluster) row(inc node.Incarnation) *member {
	i, ok := slices.BinarySearchFunc(c.Members, inc, byIncarnation)
	if !ok {
		return nil
	}
	return c.Members[i]
}

// present returns the row of a process that is a member, or nil.
func (c *cluster) present(inc node.Incarnation) *member {
	if m := c.row(inc); m != nil && m.Present() {
		return m
	}
	return nil
}

func byIncarnation(m *member, inc node.Incarnation) int { return cmp.Compare(m.Incarnation, inc) }

// addRow inserts an empty row.
func (c *cluster) addRow(who node.Identity) *member {
	m := &member{Member: node.Member{Identity: who}}
	i, _ := slices.BinarySearchFunc(c.Members, who.Incarnation, byIncarnation)
	c.Members = slices.Insert(c.Members, i, m)
	return m
}

// memberIDs lists all processes that are members.
func (c *cluster) memberIDs() []node.Incarnation {
	var out []node.Incarnation
	for _, m := range c.Members {
		if m.Present() {
			out = append(out, m.Incarnation)
		}
	}
	return out
}

// list copies the rows for a reply.
func (c *cluster) list() []node.Member {
	out := make([]node.Member, len(c.Members))
	for i, m := range c.Members {
		out[i] = m.Member
	}
	return out
}

var _ rules.Rows = (*cluster)(nil)

// Node implements [rules.Rows].
func (c *cluster) Node(inc node.Incarnation) *node.Member {
	if m := c.row(inc); m != nil {
		return &m.Member
	}
	return nil
}

// PutNode implements [rules.Rows].
func (c *cluster) PutNode(m node.Member) { c.row(m.Incarnation).Member = m }

// Fence implements [rules.Rows].
func (c *cluster) Fence(u daemon.Unit) int64 { return c.Fences[u] }

// Highest implements [rules.Rows].
func (c *cluster) Highest() (term, generation int64) {
	generation = c.GenerationFloor
	for _, m := range c.Members {
		term, generation = max(term, m.HighestTerm), max(generation, m.HighestGeneration)
	}
	return term, generation
}

// Unit implements [rules.Rows].
func (c *cluster) Unit(u daemon.Unit) *daemon.Record {
	if i, ok := slices.BinarySearchFunc(c.Units, u, byUnit); ok {
		return c.Units[i]
	}
	return nil
}

func byUnit(r *daemon.Record, u daemon.Unit) int { return r.Unit.Compare(u) }

// Put writes a unit's row.
func (c *cluster) Put(r daemon.Record) {
	i, ok := slices.BinarySearchFunc(c.Units, r.Unit, byUnit)
	if ok {
		c.Units[i] = &r
		return
	}
	c.Units = slices.Insert(c.Units, i, &r)
}

// HeldBy returns the units that a process holds, sorted.
func (c *cluster) HeldBy(inc node.Incarnation) []daemon.Record {
	var out []daemon.Record
	for _, r := range c.Units {
		if r.HeldBy(inc) {
			out = append(out, *r)
		}
	}
	return out
}

// Emit appends an event. Its number is one more than the last, so numbers follow the order of
// contents.
func (c *cluster) Emit(e daemon.Event, now time.Time) {
	c.Head++
	e.Seq, e.At = c.Head, now
	if aboutMembers(e) {
		c.LastMemberEvent = e.Seq
	}
	c.Ring = append(c.Ring, e)
}
