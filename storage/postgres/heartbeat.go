package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// beat is a heartbeat and what its statements answered.
type beat struct {
	storage.Heartbeat
	reply    storage.Reply
	admitted bool
	taken    storage.IDInUseError
	other    storage.OtherClusterError
	state    state
	id       string // of the store
	before   heads  // as of the beginning
	waiting  []command
	members  int64 // newest event as of the member list
}

// Heartbeat implements [storage.Store]. Locks are taken in the order of the package comment,
// then the own row is written, then the claim is decided, then all is read: each a statement of
// its own, so that none answers from before a wait.
func (s *Store) Heartbeat(ctx context.Context, hb storage.Heartbeat) (*storage.Reply, error) {
	b := &beat{Heartbeat: hb, before: s.heads()}
	var advert []byte
	if hb.Advert != nil {
		advert = hb.Advert.Encode()
	}
	var err error
	if b.simple() && s.quick.Load() {
		err = s.call(ctx, b.operation(), inFunction, b.sayQuickly)
		if c := pgerror.Code(err); c == codeNoPrivilege || c == codeNoFunction || c == codeIsolation {
			err = s.slowDown(ctx, b, err)
		}
	} else {
		err = s.call(ctx, b.operation(), writing, func(m *message) { b.say(m, advert) })
	}
	if err == nil && !b.admitted {
		err = s.refusedBeat(ctx, b)
	}
	if err == nil {
		err = s.identify(ctx, b)
	}
	if err == nil {
		err = s.catchUp(ctx, b)
	}
	if err != nil {
		return nil, s.fail(attempt("heartbeat of", hb.Node), err)
	}
	return b.answer(), nil
}

// maxRoll bounds the membership events of one reply; the next heartbeat asks for the rest.
const maxRoll = 500

// catchUp reads the events of a node that is further behind than the first look reached. It takes
// a second round trip, once.
func (s *Store) catchUp(ctx context.Context, b *beat) error {
	if b.EventsAfter < 0 || b.state.head <= b.EventsAfter+maxRoll {
		return nil
	}
	b.reply.Events = nil
	return s.call(ctx, "heartbeat events", reading, func(m *message) {
		m.ask(events(&b.reply.Events), "roll_rest", b.EventsAfter, b.state.head, maxRoll)
	})
}

// operation names the heartbeat by what it does besides: one that registers is many statements, and a
// thousand nodes may begin at once.
func (b *beat) operation() string {
	switch {
	case b.Advert != nil:
		return "register"
	case b.Claim.Stand:
		return "stand"
	case b.Claim.Holds != 0:
		return "renew"
	}
	return "heartbeat"
}

// simple reports whether it neither registers nor stands, asks for no members, proves no death and tells of no
// run that has returned.
func (b *beat) simple() bool {
	return b.Advert == nil && !b.Claim.Stand && !b.WantMembers && len(b.Ended) == 0 && len(b.Returned) == 0
}

// say says a heartbeat in statements.
func (b *beat) say(m *message, advert []byte) {
	claims := b.Claim.Stand || b.Claim.Holds != 0
	if advert != nil {
		m.do("register_lock", plain(string(b.Node.ID)))
	}
	if b.Claim.Stand || len(b.Ended) > 0 {
		m.do("term_lock")
	}
	if len(b.Ended) > 0 && advert == nil {
		m.do("nodes_lock", array(append(slices.Clone(b.Ended), b.Node.Incarnation)))
	}
	admitted := func(n int64) { b.admitted = n == 1 }
	own := []any{inc(b.Node), number(b.Seq), number(b.Heard), b.HighestTerm, b.HighestGeneration}
	switch {
	case advert != nil:
		b.register(m, advert)
	case claims || len(b.Ended) > 0 || len(b.Returned) > 0:
		m.count(admitted, "beat_marked", own...)
	default:
		m.count(admitted, "beat", own...)
	}
	if len(b.Returned) > 0 {
		returned := encode(returnedInput(b.Returned))
		m.do("units_lock", returned)
		m.do("returned", inc(b.Node), returned)
	}
	if len(b.Ended) > 0 {
		m.do("lease_lock")
		m.do("ended", inc(b.Node), array(b.Ended))
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
		out = append(out, stepInput{Daemon: string(u.Daemon), Index: u.Index, Generation: generation})
	}
	return out
}

// sayQuickly says a simple heartbeat as one call of a function that does the same. Nothing in
// a session is relied on: that the session has planned its statements before only makes it faster.
func (b *beat) sayQuickly(m *message) {
	args := []any{m.patience, inc(b.Node)}
	for _, n := range []int64{
		number(b.Seq), number(b.Heard), b.HighestTerm, b.HighestGeneration, b.Claim.Holds, b.Claim.LostThrough,
		micros(b.Claim.Lease), number(b.Claim.PassSeq), b.EventsAfter, b.EventsAfter + maxRoll,
	} {
		args = append(args, n)
	}
	m.ask(columns(func(c *composite) error {
		text, null := c.field()
		if b.admitted = !null; !b.admitted {
			return nil
		}
		single := rowOf(text)
		if single.bool() {
			b.reply.Verdict = storage.Renew
		}
		return cmp.Or(b.state.row(single), single.err,
			each(c.array(), &b.reply.Units, (*composite).record),
			each(c.array(), &b.reply.Events, (*composite).event),
			each(c.array(), &b.waiting, (*composite).command))
	}), "heartbeat", args...)
}

// slowDown repeats a heartbeat, of which nothing has happened, without the function, if that is
// what it failed for: a database may forbid its roles all routines, or begin their transactions in
// another isolation.
func (s *Store) slowDown(ctx context.Context, b *beat, cause error) error {
	*b = beat{Heartbeat: b.Heartbeat, before: b.before}
	err := s.call(ctx, b.operation(), writing, func(m *message) { b.say(m, nil) })
	if err == nil && s.quick.CompareAndSwap(true, false) {
		s.cfg.Logger.Warn("heartbeats cost the database more than they need to: the function heartbeat_1 may not be used, or is missing",
			"schema", s.cfg.Schema, "error", sentence(cause))
	}
	return err
}

// register writes the own row and what the node advertises.
func (b *beat) register(m *message, advert []byte) {
	hash := hashOf(advert)
	m.do("advertise", hash, plain(string(advert)))
	m.do("nodes_lock", array(append(slices.Clone(b.Ended), b.Node.Incarnation)))
	b.other.Node = plain(b.Advert.Traits.Cluster)
	m.do("name_cluster", b.other.Node)
	m.ask(columns(func(c *composite) error {
		b.admitted = c.bool()
		b.taken.ID, b.taken.Holder.Name = node.ID(c.text()), c.text()
		b.taken.Holder.Incarnation, b.taken.SeenAt = node.Incarnation(c.text()), c.time()
		c.json(&b.taken.Host)
		c.skip(2) // hints that went out, the mark
		b.other.Store = c.text()
		return nil
	}), "register", inc(b.Node), plain(string(b.Node.ID)), plain(b.Node.Name), micros(b.TTL), number(b.Seq), number(b.Heard),
		b.HighestTerm, b.HighestGeneration, b.Advert.Traits.NeverLead, hash, encode(cleaned(b.Advert.Traits)), b.other.Node, array(b.Ended))
}

// claim decides about the term.
func (b *beat) claim(m *message) {
	c := b.Claim
	lease, pass := micros(c.Lease), number(c.PassSeq)
	switch {
	case c.Stand:
		m.do("lease_lock")
		m.ask(columns(func(row *composite) error {
			b.reply.Verdict = storage.Verdict(row.int())
			return nil
		}), "stand", inc(b.Node), lease, c.LostThrough, c.SeenTerm, c.SeenRenewals, c.Unchanged, pass)
	case c.Holds != 0:
		m.count(func(n int64) {
			if n == 1 {
				b.reply.Verdict = storage.Renew
			}
		}, "renew", inc(b.Node), c.Holds, c.LostThrough, lease, pass)
	}
}

// read asks for the reply. The member list comes before the newest event, the newest event
// before the events: whatever happens in between is told by the next heartbeat, once.
func (b *beat) read(m *message) {
	if b.WantMembers {
		m.ask(members(&b.reply.Members, &b.members), "members")
	}
	m.ask(columns(b.state.row), "single")
	m.ask(records(&b.reply.Units), "held", inc(b.Node))
	if b.EventsAfter >= 0 {
		m.ask(events(&b.reply.Events), "roll", b.EventsAfter, b.EventsAfter+maxRoll)
	}
	m.ask(commands(&b.waiting), "waiting")
}

// answer puts the reply together.
func (b *beat) answer() *storage.Reply {
	r, st := &b.reply, &b.state
	r.Seq, r.Now, r.StoreID, r.StoreSince, r.Term, r.Lease = b.Seq, st.now, b.id, st.since, st.term, st.lease
	r.Head = st.head
	if b.WantMembers {
		r.Head = b.members
	}
	slices.SortFunc(r.Units, func(a, b daemon.Record) int { return a.Unit.Compare(b.Unit) })
	slices.SortFunc(r.Events, func(a, b daemon.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	r.Commands = inTurn(b.waiting)
	for len(r.Events) > 0 && r.Events[len(r.Events)-1].Seq > r.Head {
		r.Events = r.Events[:len(r.Events)-1]
	}
	r.Behind = b.EventsAfter >= 0 && (b.EventsAfter+1 < st.oldest || b.EventsAfter > st.head)
	return r
}

// refusedBeat finds out why a heartbeat was refused.
func (s *Store) refusedBeat(ctx context.Context, b *beat) error {
	if b.other.Store != "" {
		return &b.other
	}
	return s.refused(ctx, b.Node, b.taken, func(present, _ bool) bool { return present || b.Advert != nil })
}

// RenameCluster implements [storage.Renamer].
func (s *Store) RenameCluster(ctx context.Context, from, to string, ttl time.Duration) error {
	const what = "rename the cluster"
	var stored, name string
	var live bool
	err := s.call(ctx, what, writing, func(m *message) {
		m.do("counter_lock")
		m.ask(columns(func(c *composite) error {
			stored, live, name = c.text(), c.bool(), c.text()
			return nil
		}), "rename_cluster", plain(from), plain(to), micros(ttl))
	})
	switch {
	case err != nil:
	case stored != plain(from):
		err = &storage.OtherClusterError{Store: stored, Node: from}
	case live:
		err = fmt.Errorf("%w: %s", storage.ErrNodesLive, name)
	}
	if err != nil {
		return s.fail(what, err)
	}
	return nil
}

// refused finds out why nothing was written: another process has the ID, the sequence number is
// not newer, or there is no row to speak for (registered says whether one such is enough).
func (s *Store) refused(ctx context.Context, who node.Identity, taken storage.IDInUseError, registered func(present, departed bool) bool) error {
	if taken.ID != "" {
		taken.Holder.ID = taken.ID
		return &taken
	}
	var found, present, departed bool
	err := s.call(ctx, "standing", reading, func(m *message) {
		m.ask(columns(func(c *composite) error {
			found, present, departed = true, c.bool(), c.bool()
			return nil
		}), "standing", inc(who))
	})
	switch {
	case err != nil:
		return err
	case !found || !registered(present, departed):
		return storage.ErrNotRegistered
	}
	return storage.ErrStaleSeq
}

// hashOf names what a node advertises.
func hashOf(advert []byte) string {
	sum := sha256.Sum256(advert)
	return hex.EncodeToString(sum[:16])
}

// cleaned makes traits that Postgres can hold.
func cleaned(t node.Traits) node.Traits {
	labels := make(map[string]string, len(t.Labels))
	for k, v := range t.Labels {
		labels[plain(k)] = plain(v)
	}
	if t.Labels != nil {
		t.Labels = labels
	}
	t.Version, t.Address, t.Cluster = plain(t.Version), plain(t.Address), plain(t.Cluster)
	t.Host.BootID, t.Host.Start, t.Host.Lock = plain(t.Host.BootID), plain(t.Host.Start), plain(t.Host.Lock)
	return t
}

func inc(who node.Identity) string { return plain(string(who.Incarnation)) }

// number fits a sequence number into a bigint; no process ever sends so many.
func number(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// attempt says what was tried, for whom.
func attempt(what string, who node.Identity) string {
	return fmt.Sprintf("%s %q (incarnation %s)", what, who.Name, who.Incarnation)
}
