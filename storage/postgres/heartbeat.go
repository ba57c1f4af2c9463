package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// beat is a heartbeat and the answers of its statements.
type beat struct {
	storage.Heartbeat
	store        *Store
	reply        storage.Reply
	admitted     bool
	former       int64 // the sequence number that the row had before; missing = none
	apart        bool  // units, events and commands are read afterwards: they are large
	taken        storage.IDInUseError
	otherCluster storage.OtherClusterError
	state        state
	id           string // of the store
	before       heads  // newest events seen when the heartbeat began
	waiting      []command
	members      int64        // newest event when the member list was read
	sent         bool         // it got a connection, so the server may have carried it out
	listLater    bool         // the member list is read after the heartbeat, together with others
	known        known        // what an earlier reply brought
	answered     answered     // what the newest reply answered
	shared       sharedEvents // what it need not read
}

// known is what a node's newest reply said about the term and about all units. The revision changes with each of them, so
// a simple heartbeat that names the present one is answered without them. It is random: another state never has it,
// not even in a store that has lost its newest rows.
type known struct {
	revision string
	term     node.Term
	units    []daemon.Record // sorted; never written to
}

// answered is the newest heartbeat of a process that was answered. The row of the process has that number, or a higher one,
// unless the store has lost it.
type answered struct {
	store string // the store's identity
	seq   int64
}

// newestAnswered returns the newest heartbeat of a process that was answered, if it was by this store.
func (s *Store) newestAnswered(process node.Incarnation) (a answered) {
	if v, ok := s.answered.Load(process); ok {
		a = v.(answered)
	}
	return a
}

// seqIn returns the number that the row must have in a store, at least.
func (a answered) seqIn(store string) int64 {
	if a.store != store {
		return 0
	}
	return a.seq
}

// noRevision is what a heartbeat names that knows none.
const noRevision = "00000000-0000-0000-0000-000000000000"

// newestReply returns what the newest reply to a process said.
func (s *Store) newestReply(who node.Identity) known {
	if k, ok := s.known.Load(who.Incarnation); ok {
		return k.(known)
	}
	return known{revision: noRevision}
}

// Heartbeat implements [storage.Store]. The package comment describes its way. It takes locks in
// the order of the package comment, then writes the own row, then decides the term request, then reads
// the reply. Each is a statement of its own, so none answers with what was true before a wait.
//
// Example: a commit marks node A as live again and assigns it a unit. A's heartbeat waits for A's row,
// which the commit has locked. If one statement wrote the row and read the units, it would have taken
// its snapshot before that wait. The reply would lack the unit, and A would start it a heartbeat later.
func (s *Store) Heartbeat(ctx context.Context, hb storage.Heartbeat) (*storage.Reply, error) {
	b := &beat{Heartbeat: hb, store: s, shared: s.memberEvents.after(hb.EventsAfter), known: s.newestReply(hb.Node)}
	b.before = s.heads() // not before the shared events, which are then of a store that has not lost them
	b.answered, b.former = s.newestAnswered(hb.Node.Incarnation), math.MaxInt64
	r, err := s.heartbeat(ctx, b)
	s.noteRegistration(ctx, b, err)
	return r, err
}

// heartbeat is Heartbeat for a beat that knows what an earlier reply brought.
func (s *Store) heartbeat(ctx context.Context, b *beat) (*storage.Reply, error) {
	hb := b.Heartbeat
	var advert []byte
	if hb.Advert != nil {
		advert = hb.Advert.Encode()
	}
	var err error
	if b.WantMembers {
		b.listLater = s.lists.enter()
		defer s.lists.leave()
	}
	switch {
	case b.simple():
		err = s.callFunction(ctx, b.operation(), b.writeFunctionCall)
	case b.onlyRegisters():
		err = s.callFunction(ctx, b.operation(), func(m *message) { b.writeRegistration(m, advert) })
	default:
		err = s.call(ctx, b.operation(), writing, func(m *message) { b.writeStatements(m, advert) })
	}
	if err == nil && !b.admitted {
		s.known.Delete(hb.Node.Incarnation)
		err = s.refusedBeat(ctx, b)
	}
	if err == nil && b.apart {
		err = s.readApart(ctx, b)
	}
	if err == nil {
		err = s.identify(ctx, b)
	}
	if err != nil {
		return nil, s.fail(attempt("heartbeat of", hb.Node), err)
	}
	s.answered.Store(hb.Node.Incarnation, answered{b.id, number(hb.Seq)})
	s.readMemberEvents(ctx, b)
	if b.listLater {
		s.listMembers(ctx, b)
	}
	r := b.answer()
	if b.simple() && !b.state.unchanged && b.state.revision != noRevision {
		s.known.Store(hb.Node.Incarnation, known{b.state.revision, r.Term, slices.Clone(r.Units)})
	}
	return r, nil
}

// readApart reads what the function has left out of its answer. The heartbeat itself is done, and fails all the same if this
// does: a reply without the units, or with earlier ones, would tell the node that it holds others than it does. The node would
// confirm such a reply. So the rest needs its connection as badly as the heartbeat did (see ranks).
func (s *Store) readApart(ctx context.Context, b *beat) error {
	var then state
	err := s.call(ctx, b.operation()+" rest", reading, func(m *message) {
		m.query(then.scanSingle, "single")
		b.readLists(m)
	})
	switch {
	case err != nil:
		return err
	case !then.follows(&b.state):
		return errElsewhere
	case then.revision != b.state.revision:
		b.state.revision = noRevision // the units are of another moment than the term
	}
	return nil
}

// listMembers reads the member list in a second round trip, which several heartbeats share. The heartbeat itself is done.
// Its reply must not come too late because of the list: then it has none, and the next heartbeat asks for one.
//
// The list is of a later moment than the rest of the reply, so later replies repeat the events in between. That gives the
// same membership: the list is what these events lead to, and each is about one process.
func (s *Store) listMembers(ctx context.Context, b *beat) {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left-left/4)
		defer cancel()
	}
	read, err := s.sharedMembers(ctx)
	if err != nil || !read.at.follows(&b.state) {
		b.WantMembers = false
		return
	}
	b.reply.Members, b.members = read.rows, read.at.head
}

// maxMemberEvents bounds the membership events of one reply; the next heartbeat asks for the rest.
const maxMemberEvents = 500

// readMemberEvents completes the events of the reply. If the newest event about members is more than maxMemberEvents ahead, it
// reads the next ones in a second round trip. The heartbeat itself is done: if the reading fails, the reply has no further
// events, as if there were none yet, and the next heartbeat asks for them again.
func (s *Store) readMemberEvents(ctx context.Context, b *beat) {
	if b.EventsAfter < 0 {
		return
	}
	r, after, through := &b.reply, b.shared.after, b.state.head
	if b.state.rolled > after+maxMemberEvents {
		r.Events = nil
		var then state
		err := s.call(ctx, "heartbeat events", reading, func(m *message) {
			m.query(then.scanSingle, "single")
			m.query(events(&r.Events), "roll_rest", after, through, maxMemberEvents)
		})
		switch n := len(r.Events); {
		case err != nil || !then.follows(&b.state):
			r.Events, b.state.head, through = nil, max(after, b.EventsAfter), after
		case n == maxMemberEvents:
			through = r.Events[n-1].Seq
		}
	}
	slices.SortFunc(r.Events, func(a, b daemon.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	s.memberEvents.add(b.id, b.state.oldest, after, through, r.Events)
	if after > b.EventsAfter && b.shared.store != b.id { // the events in between are those of another store
		r.Events, b.state.head = nil, min(b.state.head, b.EventsAfter)
		return
	}
	// Those that were swept are missing, as if they had been read now.
	r.Events = laterThan(max(b.EventsAfter, b.state.oldest-1), slices.Concat(b.shared.events, r.Events))
	r.Events = r.Events[:min(len(r.Events), maxMemberEvents)]
}

// operation names the heartbeat by what else it does. The name decides its share of the connections
// (see ranks): registering takes many statements, and a thousand nodes may start at once.
func (b *beat) operation() string {
	switch {
	case b.Advert != nil:
		if _, unknown := b.store.unanswered.Load(b.Node.Incarnation); unknown {
			return "register again"
		}
		return "register"
	case b.TermRequest.Campaign:
		return "stand"
	case b.TermRequest.Renew != 0:
		return "renew"
	}
	return "heartbeat"
}

// simple reports whether the function heartbeat_8 can serve the heartbeat. It must not register or
// campaign, report exit evidence or returned runs, or ask for members in the same round trip.
func (b *beat) simple() bool {
	return b.Advert == nil && !b.TermRequest.Campaign && (!b.WantMembers || b.listLater) && len(b.ExitEvidence) == 0 && len(b.ReturnedRuns) == 0
}

// writeStatements writes a heartbeat as statements into a message.
func (b *beat) writeStatements(m *message, advert []byte) {
	b.sent = true
	if advert != nil {
		m.do("register_lock", cleanText(string(b.Node.ID)))
	}
	if c := b.TermRequest; c.Campaign {
		m.do("stand_lock", inc(b.Node), c.SeenTerm, c.SeenRenewals, c.Unchanged, len(b.ExitEvidence) > 0)
	} else if len(b.ExitEvidence) > 0 {
		m.do("term_lock")
	}
	if len(b.ExitEvidence) > 0 && advert == nil {
		m.do("nodes_lock", array(append(slices.Clone(b.ExitEvidence), b.Node.Incarnation)))
	}
	if advert != nil {
		b.advertise(m, advert)
	} else {
		m.query(func(c *composite) error {
			b.admitted = true
			c.skip(1) // the mark
			b.former = c.int()
			return nil
		}, "beat", inc(b.Node), number(b.Seq), number(b.ConfirmedSeq), b.HighestTerm, b.HighestGeneration)
	}
	var returned string
	if len(b.ReturnedRuns) > 0 {
		returned = encode(returnedInput(b.ReturnedRuns))
		m.do("units_lock", returned)
	}
	// Before the statements that lock the counter: a registration, and a change of the units.
	if c := b.TermRequest; c.Campaign || c.Renew != 0 || len(b.ExitEvidence) > 0 {
		m.do("lease_lock", inc(b.Node), !c.Campaign || len(b.ExitEvidence) > 0)
	}
	if advert != nil {
		b.register(m, advert)
	}
	if len(b.ReturnedRuns) > 0 {
		m.do("returned", inc(b.Node), returned)
	}
	if len(b.ExitEvidence) > 0 {
		m.do("ended", inc(b.Node), array(b.ExitEvidence))
	}
	b.claim(m)
	b.read(m)
}

// returnedInput makes the input of returned.sql: one element for each unit.
func returnedInput(runs []daemon.Fence) []stepInput {
	highest := map[daemon.Unit]int64{}
	for _, r := range runs {
		highest[r.Unit] = max(highest[r.Unit], r.Generation)
	}
	out := make([]stepInput, 0, len(highest))
	for u, generation := range highest {
		name, index := columns(u)
		out = append(out, stepInput{Daemon: name, Index: index, Generation: generation})
	}
	return out
}

// writeFunctionCall writes a simple heartbeat as one call of the function heartbeat_8, which does the
// same. It depends on nothing in the session. A session that has planned the function's statements
// before only makes it faster.
func (b *beat) writeFunctionCall(m *message) {
	args := []any{m.serverTimeout, inc(b.Node)}
	for _, n := range []int64{
		number(b.Seq), number(b.ConfirmedSeq), b.HighestTerm, b.HighestGeneration, b.TermRequest.Renew, b.TermRequest.LostThrough,
		micros(b.TermRequest.Lease), number(b.TermRequest.PassSeq), b.shared.after, b.shared.after + maxMemberEvents,
	} {
		args = append(args, strconv.FormatInt(n, 10)) // a quoted number needs no cast: the function has one form
	}
	args = append(args, b.known.revision)
	m.query(func(answer *composite) error {
		text, refused := answer.field()
		if b.admitted = !refused; refused {
			return nil
		}
		c := rowOf(text)
		if c.bool() {
			b.reply.Verdict = storage.Renew
		}
		return b.scanReply(c)
	}, "heartbeat", args...)
}

// scanReply reads what both functions answer about the cluster.
func (b *beat) scanReply(c *composite) error {
	b.scanFormer(c)
	b.apart = c.bool()
	return cmp.Or(b.state.scanSingle(c),
		each(c.array(), &b.reply.Units, (*composite).record),
		each(c.array(), &b.reply.Events, (*composite).event),
		each(c.array(), &b.waiting, (*composite).command), c.err)
}

// scanFormer reads the sequence number that the row had before; null if there was none.
func (b *beat) scanFormer(c *composite) {
	if former, null := c.intOrNull(); !null {
		b.former = former
	}
}

// callFunction calls one of the functions. They refuse any isolation but READ COMMITTED, and do nothing then.
// If transactions begin in another one, this heartbeat and all later ones set their isolation first.
func (s *Store) callFunction(ctx context.Context, op string, fill func(*message)) error {
	if !s.isolates.Load() {
		err := s.call(ctx, op, inFunction, fill)
		if pgerror.Code(err) != codeIsolation {
			return s.ofSchema(ctx, err)
		}
		s.isolates.Store(true)
	}
	return s.ofSchema(ctx, s.call(ctx, op, writing, fill))
}

// ofSchema returns the error of a function's call, or which version the schema has if that lacks the function.
func (s *Store) ofSchema(ctx context.Context, err error) error {
	if pgerror.Code(err) == codeNoFunction {
		if older := s.checkSchema(ctx); errors.Is(older, storage.ErrSchema) {
			return older
		}
	}
	return err
}

// claim decides the claim: an election or a renewal.
func (b *beat) claim(m *message) {
	c := b.TermRequest
	lease, pass := micros(c.Lease), number(c.PassSeq)
	switch {
	case c.Campaign:
		m.query(func(row *composite) error {
			b.reply.Verdict = storage.ElectionResult(row.int())
			return nil
		}, "stand", inc(b.Node), lease, c.LostThrough, c.SeenTerm, c.SeenRenewals, c.Unchanged, pass)
	case c.Renew != 0:
		m.count(func(n int64) {
			if n == 1 {
				b.reply.Verdict = storage.Renew
			}
		}, "renew", inc(b.Node), c.Renew, c.LostThrough, lease, pass)
	}
}

// read asks for the reply. The term is that of the transaction, and so fits its verdict. Everything that can be large is
// read after it. The newest event is read before the events. A change that happens in between is then reported by the next
// heartbeat, once.
func (b *beat) read(m *message) {
	m.query(b.state.scanSingle, "single")
	m.commit()
	b.readMembers(m)
	b.readLists(m)
}

// readMembers reads the member list, unless it is read afterwards. It is of a later moment than the newest event of the
// reply, as if it had been read afterwards, together with others.
func (b *beat) readMembers(m *message) {
	if b.WantMembers && !b.listLater {
		m.query(b.store.members(&b.reply.Members, &b.members), "members")
	}
}

// readLists reads the units, the events and the commands of a reply.
func (b *beat) readLists(m *message) {
	m.query(records(&b.reply.Units), "held", inc(b.Node))
	if b.EventsAfter >= 0 {
		m.query(events(&b.reply.Events), "roll", b.shared.after, b.shared.after+maxMemberEvents)
	}
	m.query(commands(&b.waiting), "waiting")
}

// answer puts the reply together.
func (b *beat) answer() *storage.Reply {
	r, st := &b.reply, &b.state
	r.Seq, r.Now, r.StoreID, r.StoreSince, r.Term, r.Lease = b.Seq, st.now, b.id, st.since, st.term, st.lease
	r.Head = st.head
	if st.unchanged {
		r.Term, r.Units = b.known.term, slices.Clone(b.known.units)
	}
	if b.WantMembers {
		r.Head = b.members
	}
	slices.SortFunc(r.Units, func(a, b daemon.Record) int { return a.Unit.Compare(b.Unit) })
	r.Commands = slices.DeleteFunc(sortedCommands(b.waiting), func(c storage.Command) bool { return !c.Kind.ForNodes() })
	for len(r.Events) > 0 && r.Events[len(r.Events)-1].Seq > r.Head {
		r.Events = r.Events[:len(r.Events)-1]
	}
	r.EventsMissing = b.EventsAfter >= 0 && (b.EventsAfter+1 < st.oldest || b.EventsAfter > st.head)
	return r
}

// refusedBeat finds out why a heartbeat was refused.
func (s *Store) refusedBeat(ctx context.Context, b *beat) error {
	if b.otherCluster.Store != "" {
		return &b.otherCluster
	}
	return s.refused(ctx, b.Node, b.taken, func(present, _ bool) bool { return present || b.Advert != nil })
}

// RenameCluster implements [storage.Renamer].
func (s *Store) RenameCluster(ctx context.Context, from, to string, ttl time.Duration) error {
	const what = "rename the cluster"
	var stored, name string
	var live bool
	// Heartbeats wait behind a lock that has to wait itself, so it is given up soon.
	err := s.callWithin(ctx, what, writing, time.Second, func(m *message) {
		m.do("registrations_lock")
		m.do("counter_lock")
		m.query(func(c *composite) error {
			stored, live, name = c.text(), c.bool(), c.text()
			return nil
		}, "rename_cluster", cleanText(from), cleanText(to), micros(ttl))
	})
	switch {
	case err != nil:
	case stored != cleanText(from):
		err = &storage.OtherClusterError{Store: stored, Node: from}
	case live:
		err = fmt.Errorf("%w: %s", storage.ErrNodesLive, name)
	}
	if err != nil {
		return s.fail(what, err)
	}
	return nil
}

// refused finds out why nothing was written: another process has the ID, the sequence number is not
// newer, or the node has no row that suffices. registered says whether a row with these flags does.
func (s *Store) refused(ctx context.Context, who node.Identity, taken storage.IDInUseError, registered func(present, departed bool) bool) error {
	if taken.ID != "" {
		taken.Holder.ID = taken.ID
		return &taken
	}
	var found, present, departed bool
	err := s.call(ctx, "standing", reading, func(m *message) {
		m.query(func(c *composite) error {
			found, present, departed = true, c.bool(), c.bool()
			return nil
		}, "standing", inc(who))
	})
	switch {
	case err != nil:
		return err
	case !found || !registered(present, departed):
		return storage.ErrNotRegistered
	}
	return storage.ErrStaleSeq
}

func inc(who node.Identity) string { return cleanText(string(who.Incarnation)) }

// number fits a sequence number into a bigint. No process ever sends that many.
func number(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// attempt says for an error what was tried, and for which node.
func attempt(what string, who node.Identity) string {
	return fmt.Sprintf("%s %q (incarnation %s)", what, who.Name, who.Incarnation)
}
