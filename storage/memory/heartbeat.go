package memory

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// heartbeat writes first (the own row, then the term and its lease) and reads afterwards. The reply
// therefore shows what is true at its end, not what was true before the write.
func (s *state) heartbeat(beat storage.Heartbeat, now time.Time) (*storage.Reply, error) {
	row, err := s.admit(beat, now)
	if err != nil {
		return nil, err
	}
	row.Seq = beat.Seq
	row.LastHeartbeatAt = now
	if beat.ConfirmedSeq > row.ConfirmedSeq {
		row.ConfirmedSeq, row.ConfirmedAt = beat.ConfirmedSeq, now
	}
	row.HighestTerm = max(row.HighestTerm, beat.HighestTerm)
	row.HighestGeneration = max(row.HighestGeneration, beat.HighestGeneration)
	marked, vacated := rules.ApplyExitEvidence(s, &s.term, beat, now)
	if vacated {
		s.wakeAll() // wakes the candidates, which should campaign
	} else if marked {
		s.wakeLeader()
	}
	if rules.EndEmbargoes(s, beat) {
		s.wakeLeader()
	}
	verdict := rules.DecideTerm(s, rules.TermAndLease{Term: &s.term, Lease: &s.lease}, beat.TermRequest, &row.Member, now)
	return s.reply(beat, verdict, now), nil
}

// admit finds or makes the row of a heartbeat. It changes nothing if it refuses.
//
//	row                     with an advert             without
//	none                    inserted                   ErrNotRegistered
//	tombstone by leader     revived, if seq is newer   ErrNotRegistered
//	tombstone by itself     ErrStaleSeq                ErrNotRegistered
//	present                 advert renewed, no event   kept; both only if seq is newer
func (s *state) admit(beat storage.Heartbeat, now time.Time) (*member, error) {
	row := s.nodes[beat.Node.Incarnation]
	gone := row == nil || !row.Present()
	switch {
	case gone && beat.Advert == nil:
		return nil, storage.ErrNotRegistered
	case row != nil && (row.left || beat.Seq <= row.Seq):
		return nil, storage.ErrStaleSeq
	}
	cluster := s.cluster
	if beat.Advert != nil {
		var err error
		if cluster, err = storage.CheckClusterName(s.cluster, beat.Advert.Traits.Cluster); err != nil {
			return nil, err
		}
	}
	if !gone {
		s.cluster = cluster
		if beat.Advert != nil {
			text := rules.Advertise(&row.Member, beat.Advert)
			s.storeAdvert(row.Advert, text)
		}
		return row, nil
	}
	if err := s.idInUse(beat, now); err != nil {
		return nil, err
	}
	s.cluster = cluster
	return s.register(row, beat, now), nil
}

// idInUse refuses a second process with the same ID, if the first one has sent a heartbeat within
// its TTL and is not proven to have ended.
func (s *state) idInUse(beat storage.Heartbeat, now time.Time) error {
	for _, m := range s.order {
		if m.ID == beat.Node.ID && m.Incarnation != beat.Node.Incarnation && m.Present() &&
			storage.NodeIDInUse(m.LastHeartbeatAt, now, cmp.Or(m.Timing.NodeRegistrationTTL, beat.TTL)) && !slices.Contains(beat.ExitEvidence, m.Incarnation) {
			return &storage.IDInUseError{ID: m.ID, Holder: m.Identity, SeenAt: m.LastHeartbeatAt, Host: m.Host}
		}
	}
	return nil
}

// register inserts the row, or revives the tombstone that a leader made of it.
func (s *state) register(row *member, beat storage.Heartbeat, now time.Time) *member {
	if row == nil {
		row = s.addNode(beat.Node)
	}
	text := rules.Register(s, &row.Member, beat, now)
	s.storeAdvert(row.Advert, text)
	s.wakeLeader()
	return row
}

// storeAdvert stores what a node advertises; equal texts are stored once. It replaces the map,
// because snapshots hold the old one.
func (s *state) storeAdvert(hash string, text []byte) {
	if s.adverts[hash] != nil {
		return
	}
	kept := &daemon.Advert{}
	if err := json.Unmarshal(text, kept); err != nil {
		panic("memory: the text of an advert does not parse: " + err.Error())
	}
	adverts := maps.Clone(s.adverts)
	adverts[hash] = kept
	s.adverts = adverts
}

// maxRoll bounds the membership events of one reply; the next heartbeat asks for the rest.
const maxRoll = 500

// reply makes the answer to the heartbeat.
func (s *state) reply(beat storage.Heartbeat, verdict storage.ElectionResult, now time.Time) *storage.Reply {
	r := &storage.Reply{
		Seq: beat.Seq, Now: now, Verdict: verdict,
		Term: s.term, Lease: s.lease,
		Units: s.HeldBy(beat.Node.Incarnation),
		Head:  s.head,
	}
	if beat.EventsAfter >= 0 {
		r.Events, r.EventsMissing = s.memberEventsAfter(beat.EventsAfter)
	}
	if beat.WantMembers {
		r.Members = s.members()
	}
	r.Commands = rules.ForNodes(s.commands.Open())
	return r
}
