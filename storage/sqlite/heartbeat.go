package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// Heartbeat implements [storage.Store]: one short write transaction. It writes the own row, renews
// the lease or decides the election, and then reads the reply.
func (s *Store) Heartbeat(ctx context.Context, beat storage.Heartbeat) (*storage.Reply, error) {
	var reply *storage.Reply
	err := s.call(ctx, "heartbeat", func(st *step) error {
		row, err := st.admit(beat)
		if err != nil {
			return err
		}
		st.beat(row, beat)
		st.applyExitEvidence(beat)
		if rules.EndEmbargoes(st, beat) {
			st.wakeLeader()
		}
		verdict := rules.DecideTerm(st, rules.TermAndLease{Term: &st.term, Lease: &st.lease}, beat.TermRequest, &row.Member, st.now)
		st.putTermAndLease(verdict)
		st.flush() // the reply shows this call's own events
		reply = st.reply(beat, verdict)
		reply.StoreID, reply.StoreSince = s.storeID(st.c, st.meta), st.meta.since
		return nil
	})
	if err != nil {
		return nil, attempted(err, "heartbeat of", beat.Node)
	}
	return reply, nil
}

// applyExitEvidence applies the exit evidence of a heartbeat.
func (st *step) applyExitEvidence(beat storage.Heartbeat) {
	marked, vacated := rules.ApplyExitEvidence(st, &st.term, beat, st.now)
	if marked {
		st.wakeLeader()
	}
	if vacated {
		st.putTerm()
		st.woken = true // wakes every node: the candidates should campaign
	}
}

// admit finds or makes the row of a heartbeat.
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
	if beat.Advert != nil {
		if err := st.joinCluster(beat.Advert.Traits.Cluster); err != nil {
			return nil, err
		}
	}
	if gone {
		if err := st.idInUse(beat); err != nil {
			return nil, err
		}
		return st.register(row, beat), nil
	}
	if beat.Advert != nil {
		text := rules.Advertise(&row.Member, beat.Advert)
		st.storeAdvert(row, text)
	}
	return row, nil
}

// joinCluster compares the cluster name that a node advertises with the store's.
func (st *step) joinCluster(name string) error {
	name, err := storage.CheckClusterName(st.meta.cluster, name)
	if err == nil && name != st.meta.cluster {
		st.putCluster(name)
	}
	return err
}

func (st *step) putCluster(name string) {
	st.meta.cluster = name
	st.exec(`UPDATE ~meta SET cluster = ?`, name)
}

// RenameCluster implements [storage.Renamer].
func (s *Store) RenameCluster(ctx context.Context, from, to string, ttl time.Duration) error {
	err := s.call(ctx, "rename cluster", func(st *step) error {
		if st.meta.cluster != from {
			return &storage.OtherClusterError{Store: st.meta.cluster, Node: from}
		}
		for _, m := range st.members() {
			if m.Present() && storage.NodeIDInUse(m.LastHeartbeatAt, st.now, ttl) {
				return fmt.Errorf("%w: %s", storage.ErrNodesLive, m.Name)
			}
		}
		st.putCluster(to)
		return nil
	})
	if err != nil {
		return fmt.Errorf("rename the cluster: %w", err)
	}
	return nil
}

// idInUse refuses a second process with the same ID, if the first one has sent a heartbeat within
// its TTL and is not proven to have ended.
func (st *step) idInUse(beat storage.Heartbeat) error {
	for _, m := range st.membersWhere("id = ?", beat.Node.ID) {
		if m.Incarnation != beat.Node.Incarnation && m.Present() &&
			storage.NodeIDInUse(m.LastHeartbeatAt, st.now, cmp.Or(m.Timing.NodeRegistrationTTL, beat.TTL)) && !slices.Contains(beat.ExitEvidence, m.Incarnation) {
			return &storage.IDInUseError{ID: m.ID, Holder: m.Identity, SeenAt: m.LastHeartbeatAt, Host: m.Host}
		}
	}
	return nil
}

// register inserts the row, or revives the tombstone that a leader made of it.
func (st *step) register(row *member, beat storage.Heartbeat) *member {
	if row == nil {
		row = &member{}
		st.exec(`INSERT INTO ~node (incarnation, id, name, state, seq, registered_at, last_heartbeat_at, heard_at)
			VALUES (?, '', '', '', 0, 0, 0, 0)`, beat.Node.Incarnation)
	}
	text := rules.Register(st, &row.Member, beat, st.now)
	st.exec(`UPDATE ~node SET id = ?, name = ?, witnessed = ?, registered_at = ?, heard_at = ? WHERE incarnation = ?`,
		row.ID, row.Name, row.ExitProven, nanos(row.RegisteredAt), nanos(row.ConfirmedAt), row.Incarnation)
	st.PutNode(row.Member)
	st.storeAdvert(row, text)
	st.wakeLeader()
	return row
}

// storeAdvert stores what the node of a row advertises; equal texts are stored once.
func (st *step) storeAdvert(row *member, text []byte) {
	st.exec(`INSERT OR IGNORE INTO ~advert (hash, text) VALUES (?, ?)`, row.Advert, string(text))
	st.exec(`UPDATE ~node SET advert = ?, traits = ? WHERE incarnation = ?`, row.Advert, toJSON(row.Traits), row.Incarnation)
}

// beat writes what every heartbeat writes: the own row and nothing else.
func (st *step) beat(row *member, beat storage.Heartbeat) {
	if beat.ConfirmedSeq > row.ConfirmedSeq {
		row.ConfirmedSeq, row.ConfirmedAt = beat.ConfirmedSeq, st.now
	}
	st.exec(`UPDATE ~node SET seq = ?, last_heartbeat_at = ?, heard = ?, heard_at = ?,
			highest_term = max(highest_term, ?), highest_generation = max(highest_generation, ?) WHERE incarnation = ?`,
		int64(beat.Seq), nanos(st.now), int64(row.ConfirmedSeq), nanos(row.ConfirmedAt), beat.HighestTerm, beat.HighestGeneration, row.Incarnation)
}

// putTermAndLease writes the changed term and lease.
func (st *step) putTermAndLease(verdict storage.ElectionResult) {
	if verdict == storage.Elect {
		st.putTerm()
	}
	if verdict == storage.Elect || verdict == storage.Renew {
		l := st.lease
		st.exec(`UPDATE ~lease SET expires_at = ?, renewals = ?, last_pass_at = ?, pass_seq = ?`,
			nanos(l.ExpiresAt), l.Renewals, nanos(l.LastPassAt), int64(l.PassSeq))
	}
}

func (st *step) putTerm() {
	t := st.term
	st.exec(`UPDATE ~term SET number = ?, ordinal = ?, name = ?, id = ?, incarnation = ?, elected_at = ?, vacant = ?`,
		t.Number, t.Ordinal, t.Leader.Name, t.Leader.ID, t.Leader.Incarnation, nanos(t.ElectedAt), t.Vacant)
}

// maxRoll bounds the membership events of one reply; the next heartbeat asks for the rest.
const maxRoll = 500

// reply makes the answer to the heartbeat.
func (st *step) reply(beat storage.Heartbeat, verdict storage.ElectionResult) *storage.Reply {
	r := &storage.Reply{
		Seq: beat.Seq, Now: st.now, Verdict: verdict,
		Term: st.term, Lease: st.lease,
		Units:    st.HeldBy(beat.Node.Incarnation),
		Head:     st.meta.head,
		Commands: rules.ForNodes(st.openCommands()),
	}
	if beat.EventsAfter >= 0 {
		r.Events, r.EventsMissing = st.memberEventsAfter(beat.EventsAfter)
	}
	if beat.WantMembers {
		r.Members = st.members()
	}
	return r
}

// memberEventsAfter returns the membership events after a number. The reader is behind if an event after
// that number is gone, or if it has seen events that this store never had. Either way it reads the
// member list.
func (st *step) memberEventsAfter(after int64) (out []daemon.Event, behind bool) {
	head := st.meta.head
	if after >= head {
		return nil, after > head
	}
	out = st.history(`WHERE kind GLOB 'node.*' AND seq > ? ORDER BY seq LIMIT ?`, after, maxRoll)
	oldest := st.oldest()
	return out, oldest == 0 || after+1 < oldest
}
