package memory

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// state is everything that a store contains. Its methods are the specification. Each applies one
// call at now, or returns an answer (an error) and changes nothing.
type state struct {
	cluster string // the cluster's name; see storage.CheckClusterName
	term    node.Term
	lease   node.Lease

	// knownID is the store identity that the newest heartbeat found. since is when that last
	// changed.
	knownID string
	since   time.Time

	nodes map[node.Incarnation]*member
	order []*member // the same, sorted by incarnation

	units table                       // every unit
	held  map[node.Incarnation]*table // the units that each process holds

	fences       map[daemon.Unit]int64 // stamped generation of each unit
	unitStates   map[daemon.Unit]daemon.UnitState
	adverts      map[string]*daemon.Advert
	events       []daemon.Event // without gaps; events[0].Seq is oldest
	memberEvents []int64        // numbers of the events about members
	oldest       int64          // number of the first event not dropped, or head+1
	head         int64          // number of the newest event there was
	commands     rules.Commands
	locks        map[string]storage.Lock
	// lockFloor is the highest number of a lock whose row was swept.
	lockFloor int64
	// generationFloor is the highest generation of a unit whose row was swept.
	generationFloor int64

	wakeUps wakeUps // of the running step
}

// member is a node's row.
type member struct {
	node.Member
	// left says that the process itself ended the row. It has exited, so any message from it was
	// delayed on the way. The row is therefore never revived.
	left bool
}

func newState() *state {
	return &state{
		nodes:      map[node.Incarnation]*member{},
		held:       map[node.Incarnation]*table{},
		fences:     map[daemon.Unit]int64{},
		unitStates: map[daemon.Unit]daemon.UnitState{},
		adverts:    map[string]*daemon.Advert{},
		oldest:     1,
		locks:      map[string]storage.Lock{},
	}
}

// clone returns an independent copy. Records, commands, events and adverts are shared, because they
// are never changed in place. An append to a clipped slice copies it.
func (s *state) clone() *state {
	c := *s
	c.nodes = make(map[node.Incarnation]*member, len(s.nodes))
	c.order = make([]*member, len(s.order))
	for i, m := range s.order {
		row := *m
		c.order[i], c.nodes[row.Incarnation] = &row, &row
	}
	c.units = *s.units.clone()
	c.held = make(map[node.Incarnation]*table, len(s.held))
	for inc, t := range s.held {
		c.held[inc] = t.clone()
	}
	c.fences, c.unitStates, c.locks = maps.Clone(s.fences), maps.Clone(s.unitStates), maps.Clone(s.locks)
	c.events, c.memberEvents = slices.Clip(s.events), slices.Clip(s.memberEvents)
	c.commands = slices.Clone(s.commands)
	c.wakeUps = wakeUps{}
	return &c
}

// identify compares the store identity with the one that the rows record. It returns when they last
// differed: a failover brings the rows of the store that was copied.
func (s *state) identify(id string, now time.Time) time.Time {
	if s.knownID != "" && s.knownID != id {
		s.since = now
	}
	s.knownID = id
	return s.since
}

// present returns the row of a process that is a member, or nil.
func (s *state) present(inc node.Incarnation) *member {
	if m := s.nodes[inc]; m != nil && m.Present() {
		return m
	}
	return nil
}

// addNode inserts an empty row.
func (s *state) addNode(who node.Identity) *member {
	m := &member{Member: node.Member{Identity: who}}
	i, _ := slices.BinarySearchFunc(s.order, who.Incarnation, func(m *member, inc node.Incarnation) int {
		return cmp.Compare(m.Incarnation, inc)
	})
	s.order = slices.Insert(s.order, i, m)
	s.nodes[who.Incarnation] = m
	return m
}

// members copies the list of rows, tombstones included, sorted by incarnation.
func (s *state) members() []node.Member {
	out := make([]node.Member, len(s.order))
	for i, m := range s.order {
		out[i] = m.Member
	}
	return out
}

var _ rules.Rows = (*state)(nil)

// Node implements [rules.Rows].
func (s *state) Node(inc node.Incarnation) *node.Member {
	if m := s.nodes[inc]; m != nil {
		return &m.Member
	}
	return nil
}

// PutNode implements [rules.Rows].
func (s *state) PutNode(m node.Member) { s.nodes[m.Incarnation].Member = m }

// Unchanged implements [rules.Rows].
func (s *state) Unchanged(g storage.NodeVersion) bool {
	m := s.nodes[g.Incarnation]
	return m != nil && m.Seq == g.Seq
}

// Unit implements [rules.Rows].
func (s *state) Unit(u daemon.Unit) *daemon.Record { return s.units.get(u) }

// Fence implements [rules.Rows].
func (s *state) Fence(u daemon.Unit) int64 { return s.fences[u] }

// Highest implements [rules.Rows].
func (s *state) Highest() (term, generation int64) {
	generation = s.generationFloor
	for _, m := range s.order {
		term, generation = max(term, m.HighestTerm), max(generation, m.HighestGeneration)
	}
	return term, generation
}

// Put writes a unit's row and updates the index of holders.
func (s *state) Put(r daemon.Record) {
	if old := s.units.get(r.Unit); old != nil && !old.State.IsFree() && !r.HeldBy(old.Holder.Incarnation) {
		s.held[old.Holder.Incarnation].remove(r.Unit)
	}
	s.units.put(&r)
	if r.State.IsFree() {
		return
	}
	t := s.held[r.Holder.Incarnation]
	if t == nil {
		t = &table{}
		s.held[r.Holder.Incarnation] = t
	}
	t.put(&r)
}

// HeldBy returns the units that a process holds, sorted. The slice is shared.
func (s *state) HeldBy(inc node.Incarnation) []daemon.Record {
	if t := s.held[inc]; t != nil {
		return t.all()
	}
	return nil
}

// Emit appends an event. Its number is one more than the last, so numbers follow the order of
// commits.
func (s *state) Emit(e daemon.Event, now time.Time) {
	s.head++
	e.Seq, e.At = s.head, now
	s.events = append(s.events, e)
	if isMemberEvent(e.Kind) {
		s.memberEvents = append(s.memberEvents, e.Seq)
	}
}

// isMemberEvent reports whether an event is about membership.
func isMemberEvent(k daemon.EventKind) bool { return strings.HasPrefix(string(k), "node.") }
