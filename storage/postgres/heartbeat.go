package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// beat is a heartbeat and what its statements answered.
type beat struct {
	storage.Heartbeat
	reply    storage.Reply
	admitted bool
	taken    storage.IDInUseError
	state    state
	members  int64 // newest event as of the member list
}

// Heartbeat implements [storage.Store]. Locks are taken in the order of the package comment,
// then the own row is written, then the claim is decided, then all is read: each a statement of
// its own, so that none answers from before a wait.
func (s *Store) Heartbeat(ctx context.Context, hb storage.Heartbeat) (*storage.Reply, error) {
	b := &beat{Heartbeat: hb}
	what := attempt("heartbeat of", hb.Node)
	var advert []byte
	if hb.Advert != nil {
		advert = hb.Advert.Encode()
	}
	err := s.call(ctx, "heartbeat", writing, func(q *query) {
		if advert != nil {
			q.add("register_lock", string(hb.Node.ID))
		}
		b.lock(q)
		if advert != nil {
			b.register(q, advert)
		} else {
			q.add("beat", inc(hb.Node), number(hb.Seq), number(hb.Heard), hb.HighestTerm, hb.HighestGeneration).
				Exec(func(tag pgconn.CommandTag) error {
					b.admitted = tag.RowsAffected() == 1
					return nil
				})
		}
		b.claim(q)
		b.read(q)
	})
	if err == nil && !b.admitted {
		err = s.refused(ctx, hb.Node, b.taken, func(present, departed bool) bool {
			return present || hb.Advert != nil
		})
	}
	if err != nil {
		return nil, s.fail(what, err)
	}
	if err := s.catchUp(ctx, b); err != nil {
		return nil, s.fail(what, err)
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
	return s.call(ctx, "heartbeat events", reading, func(q *query) {
		q.add("roll_rest", b.EventsAfter, b.state.head, maxRoll).Query(events(&b.reply.Events))
	})
}

// lock takes what the claim may change.
func (b *beat) lock(q *query) {
	if b.Claim.Stand {
		q.add("term_lock")
	}
	if b.Claim.Stand || b.Claim.Holds != 0 {
		q.add("lease_lock")
	}
}

// register writes the own row and what the node advertises.
func (b *beat) register(q *query, advert []byte) {
	hash := hashOf(advert)
	traits, err := json.Marshal(cleaned(b.Advert.Traits))
	if err != nil {
		panic("postgres: traits hold plain values only: " + err.Error())
	}
	q.add("advertise", hash, plain(string(advert)))
	q.add("node_lock", inc(b.Node))
	t := &b.taken
	var found bool
	var woken int
	q.add("register", inc(b.Node), string(b.Node.ID), plain(b.Node.Name), micros(b.TTL),
		number(b.Seq), number(b.Heard), b.HighestTerm, b.HighestGeneration, b.Advert.Traits.NeverLead, hash, string(traits)).
		Query(one(&found, &b.admitted, (*string)(&t.ID), &t.Holder.Name, (*string)(&t.Holder.Incarnation), stamp{&t.SeenAt}, &woken))
}

// claim decides about the term.
func (b *beat) claim(q *query) {
	c := b.Claim
	lease, pass := micros(c.Lease), number(c.PassSeq)
	switch {
	case c.Stand:
		var verdict, woken int
		var found bool
		q.add("stand", inc(b.Node), number(b.Seq), lease, c.LostThrough, c.SeenTerm, c.SeenRenewals, c.Unchanged, pass).
			Query(func(rows pgx.Rows) error {
				err := one(&found, &verdict, &woken)(rows)
				b.reply.Verdict = storage.Verdict(verdict)
				return err
			})
	case c.Holds != 0:
		q.add("renew", inc(b.Node), number(b.Seq), c.Holds, c.LostThrough, lease, pass).
			Exec(func(tag pgconn.CommandTag) error {
				if tag.RowsAffected() == 1 {
					b.reply.Verdict = storage.Renew
				}
				return nil
			})
	}
}

// read asks for the reply. The member list comes before the newest event, the newest event
// before the events: whatever happens in between is told by the next heartbeat, once.
func (b *beat) read(q *query) {
	if b.WantMembers {
		q.add("members").Query(members(&b.reply.Members, &b.members))
	}
	q.add("state").Query(b.state.read)
	q.add("held", inc(b.Node)).Query(records(&b.reply.Units))
	if b.EventsAfter >= 0 {
		q.add("roll", b.EventsAfter, b.EventsAfter+maxRoll).Query(events(&b.reply.Events))
	}
	q.add("waiting").Query(commands(&b.reply.Commands))
}

// answer puts the reply together.
func (b *beat) answer() *storage.Reply {
	r, st := &b.reply, &b.state
	r.Seq, r.Now, r.StoreID, r.Term, r.Lease = b.Seq, st.now, st.id, st.term, st.lease
	r.Head = st.head
	if b.WantMembers {
		r.Head = b.members
	}
	slices.SortFunc(r.Units, func(a, b daemon.Record) int { return a.Unit.Compare(b.Unit) })
	slices.SortFunc(r.Events, func(a, b daemon.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	for len(r.Events) > 0 && r.Events[len(r.Events)-1].Seq > r.Head {
		r.Events = r.Events[:len(r.Events)-1]
	}
	r.Behind = b.EventsAfter >= 0 && (b.EventsAfter+1 < st.oldest || b.EventsAfter > st.head)
	return r
}

// refused finds out why nothing was written: another process has the ID, the sequence number is
// not newer, or there is no row to speak for (registered says whether one such is enough).
func (s *Store) refused(ctx context.Context, who node.Identity, taken storage.IDInUseError, registered func(present, departed bool) bool) error {
	if taken.ID != "" {
		taken.Holder.ID = taken.ID
		return &taken
	}
	var found, present, departed bool
	var seq int64
	err := s.call(ctx, "standing", reading, func(q *query) {
		q.add("standing", inc(who)).Query(one(&found, &present, &departed, &seq))
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
	t.Version, t.Address = plain(t.Version), plain(t.Address)
	t.Host.BootID, t.Host.Start, t.Host.Lock = plain(t.Host.BootID), plain(t.Host.Start), plain(t.Host.Lock)
	return t
}

// parseAdvert reads the text of an advert.
func parseAdvert(hash, body string) (*daemon.Advert, error) {
	a := &daemon.Advert{}
	if err := json.Unmarshal([]byte(body), a); err != nil {
		return nil, fmt.Errorf("advert %s does not parse: %w", hash, err)
	}
	return a, nil
}

func inc(who node.Identity) string { return string(who.Incarnation) }

// number fits a sequence number into a bigint; no process ever sends so many.
func number(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// attempt says what was tried, for whom.
func attempt(what string, who node.Identity) string {
	return fmt.Sprintf("%s %q (incarnation %s)", what, who.Name, who.Incarnation)
}
