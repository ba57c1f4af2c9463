package sqlite

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Heartbeat implements [storage.Store]: one short write transaction that writes the own row,
// renews or stands for the term, and then reads what it is answered with.
func (s *Store) Heartbeat(ctx context.Context, beat storage.Heartbeat) (*storage.Reply, error) {
	var reply *storage.Reply
	err := s.call(ctx, "heartbeat", func(st *step) error {
		row, err := st.admit(beat)
		if err != nil {
			return err
		}
		st.beat(row, beat)
		verdict := st.claim(beat.Claim, row)
		st.flush() // the reply shows this call's own events
		reply = st.reply(beat, verdict)
		reply.StoreID = s.storeID(st.c, st.meta)
		return nil
	})
	if err != nil {
		return nil, attempted(err, "heartbeat of", beat.Node)
	}
	return reply, nil
}

// admit finds or makes the row that a heartbeat speaks for.
//
//	row                     with an advert             without
//	none                    inserted                   ErrNotRegistered
//	tombstone by leader     revived, if seq is newer   ErrNotRegistered
//	tombstone by itself     ErrStaleSeq                ErrNotRegistered
//	present                 advert renewed, no event   kept; both only if seq is newer
func (st *step) admit(beat storage.Heartbeat) (*member, error) {
	row := st.node(beat.Node.Incarnation)
	gone := row == nil || !row.Present()
	switch {
	case gone && beat.Advert == nil:
		return nil, storage.ErrNotRegistered
	case row != nil && (row.left || beat.Seq <= row.Seq):
		return nil, storage.ErrStaleSeq
	}
	if gone {
		if err := st.idInUse(beat); err != nil {
			return nil, err
		}
		return st.register(row, beat), nil
	}
	if beat.Advert != nil {
		st.advertise(row, beat.Advert)
	}
	return row, nil
}

// idInUse refuses a second process with the ID of one that beat within its TTL.
func (st *step) idInUse(beat storage.Heartbeat) error {
	var found error
	st.each(`SELECT incarnation, name, last_heartbeat_at FROM ~node
			WHERE id = ? AND incarnation <> ? AND state <> 'removed' ORDER BY incarnation`,
		[]any{beat.Node.ID, beat.Node.Incarnation}, func(scan func(...any) bool) {
			e := &storage.IDInUseError{ID: beat.Node.ID, Holder: node.Identity{ID: beat.Node.ID}}
			if scan(&e.Holder.Incarnation, &e.Holder.Name, at{&e.SeenAt}) && found == nil && storage.InUse(e.SeenAt, st.now, beat.TTL) {
				found = e
			}
		})
	return found
}

// register inserts the row, or revives the tombstone that a leader made of it. What the process
// heard and saw survives in the row; judgements do not.
func (st *step) register(row *member, beat storage.Heartbeat) *member {
	reason := "returned"
	if row == nil {
		reason = ""
		row = &member{}
		st.exec(`INSERT INTO ~node (incarnation, id, name, state, seq, registered_at, last_heartbeat_at, heard_at)
			VALUES (?, '', '', '', 0, 0, 0, 0)`, beat.Node.Incarnation)
	}
	row.Identity, row.State, row.HeardAt = beat.Node, node.Live, st.now
	st.exec(`UPDATE ~node SET id = ?, name = ?, state = ?, judged = '', witnessed = 0, registered_at = ?, heard_at = ?,
			ended_at = 0, end_reason = '' WHERE incarnation = ?`,
		row.ID, row.Name, row.State, nanos(st.now), nanos(st.now), row.Incarnation)
	st.advertise(row, beat.Advert)
	st.emit(nodeEvent(daemon.NodeRegistered, row.Identity, reason))
	st.wakeLeader()
	return row
}

// advertise writes what the node advertises. Equal texts are kept once.
func (st *step) advertise(row *member, advert *daemon.Advert) {
	text := advert.Encode()
	sum := sha256.Sum256(text)
	row.Traits, row.Advert = advert.Traits, hex.EncodeToString(sum[:16])
	st.exec(`INSERT OR IGNORE INTO ~advert (hash, text) VALUES (?, ?)`, row.Advert, string(text))
	st.exec(`UPDATE ~node SET advert = ?, traits = ? WHERE incarnation = ?`, row.Advert, toJSON(row.Traits), row.Incarnation)
}

// beat writes what every heartbeat writes: the own row and nothing else.
func (st *step) beat(row *member, beat storage.Heartbeat) {
	if beat.Heard > row.Heard {
		row.Heard, row.HeardAt = beat.Heard, st.now
	}
	st.exec(`UPDATE ~node SET seq = ?, last_heartbeat_at = ?, heard = ?, heard_at = ?,
			highest_term = max(highest_term, ?), highest_generation = max(highest_generation, ?) WHERE incarnation = ?`,
		int64(beat.Seq), nanos(st.now), int64(row.Heard), nanos(row.HeardAt), beat.HighestTerm, beat.HighestGeneration, row.Incarnation)
}

// claim decides about the term by [storage.Decide], after the own row was written. A node that
// never leads is refused whatever it claims.
func (st *step) claim(c storage.Claim, row *member) storage.Verdict {
	if row.NeverLead {
		return storage.Refuse
	}
	verdict := storage.Decide(c, row.Identity, st.term, st.lease, st.now)
	switch verdict {
	case storage.Renew:
		st.lease.ExpiresAt = st.now.Add(c.Lease)
		st.lease.Renewals++
		if c.PassSeq > st.lease.PassSeq {
			st.lease.PassSeq, st.lease.LastPassAt = c.PassSeq, st.now
		}
		st.putLease()
	case storage.Elect:
		st.elect(c, row)
	}
	return verdict
}

// elect begins a new term. A holder that is replaced is named first: expired, or replaced when
// it is the claimant itself (it had published Lost for that term).
func (st *step) elect(c storage.Claim, row *member) {
	old := st.term
	if old.Held() {
		reason := node.Expired
		if old.Leader.Incarnation == row.Incarnation {
			reason = node.Replaced
		}
		e := termEvent(daemon.LeaderLost, old, string(reason))
		e.Detail = storage.Lost(st.lease, st.now)
		st.emit(e)
	}
	st.term = node.Term{
		// The own row carries what the claim's heartbeat has seen.
		Number:    storage.NextNumber(old.Number, st.now, st.highestTerm()),
		Ordinal:   old.Ordinal + 1,
		Leader:    row.Identity,
		ElectedAt: st.now,
	}
	st.lease = node.Lease{ExpiresAt: st.now.Add(c.Lease)}
	t := st.term
	st.exec(`UPDATE ~term SET number = ?, ordinal = ?, name = ?, id = ?, incarnation = ?, elected_at = ?, vacant = 0`,
		t.Number, t.Ordinal, t.Leader.Name, t.Leader.ID, t.Leader.Incarnation, nanos(t.ElectedAt))
	st.putLease()
	st.emit(termEvent(daemon.LeaderElected, t, ""))
}

func (st *step) putLease() {
	l := st.lease
	st.exec(`UPDATE ~lease SET expires_at = ?, renewals = ?, last_pass_at = ?, pass_seq = ?`,
		nanos(l.ExpiresAt), l.Renewals, nanos(l.LastPassAt), int64(l.PassSeq))
}

// maxRoll bounds the membership events of one reply; the next heartbeat asks for the rest.
const maxRoll = 500

// reply reads what the heartbeat is answered with.
func (st *step) reply(beat storage.Heartbeat, verdict storage.Verdict) *storage.Reply {
	r := &storage.Reply{
		Seq: beat.Seq, Now: st.now, Verdict: verdict,
		Term: st.term, Lease: st.lease,
		Units:    st.heldBy(beat.Node.Incarnation),
		Head:     st.meta.head,
		Commands: st.waiting(),
	}
	if beat.EventsAfter >= 0 {
		r.Events, r.Behind = st.rollAfter(beat.EventsAfter)
	}
	if beat.WantMembers {
		r.Members = st.members()
	}
	return r
}

// rollAfter returns the membership events after a number. The reader is behind if an event after
// that number is gone, or if it knows of events that this store never had: either way it reads
// the member list.
func (st *step) rollAfter(after int64) (out []daemon.Event, behind bool) {
	head := st.meta.head
	if after >= head {
		return nil, after > head
	}
	out = st.history(`WHERE kind GLOB 'node.*' AND seq > ? ORDER BY seq LIMIT ?`, after, maxRoll)
	oldest := st.oldest()
	return out, oldest == 0 || after+1 < oldest
}
