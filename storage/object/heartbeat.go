package object

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/internal/rules"
)

// heartbeat goes one of two ways. A heartbeat that seems to change nothing but its own row is
// written to the node's own object, and the cluster is read afterwards. That is always a
// follower's. Any other heartbeat is one step of the cluster object: a registration, a renewal, an
// election. If the read after the first way shows that the second is needed, the second follows.
func (s *Store) heartbeat(ctx context.Context, b storage.Heartbeat) (*storage.Reply, error) {
	if v := s.seen.Load(); v != nil && v.changesOnlyOwnRow(b, s.identity(v.cluster), s.now()) {
		written, err := s.beatToPulse(ctx, b, v.cluster)
		if err != nil {
			return nil, err
		}
		if written {
			c, err := s.readCluster(ctx)
			switch {
			case err != nil:
				return nil, err
			case c.present(b.Node.Incarnation) == nil:
				return nil, storage.ErrNotRegistered
			case c.changesOnlyOwnRow(b, s.identity(c), s.now()):
				return s.reply(ctx, c, b, storage.Refuse)
			}
			return s.beatToCluster(ctx, b, true)
		}
	}
	return s.beatToCluster(ctx, b, false)
}

// changesOnlyOwnRow reports whether a heartbeat changes nothing but its own row.
func (c *cluster) changesOnlyOwnRow(b storage.Heartbeat, identity string, now time.Time) bool {
	row := c.present(b.Node.Incarnation)
	return row != nil && !row.BeatsInCluster && row.Doubt == nil && b.Advert == nil && len(b.ExitEvidence) == 0 && len(b.ReturnedRuns) == 0 && c.KnownID == identity &&
		(row.NeverLead || storage.Decide(b.TermRequest, row.Identity, c.Term, c.Lease, now) == storage.Refuse)
}

// beatToPulse writes a heartbeat to the node's own object. It reports false, and has written nothing,
// if the sequence number is not newer than the known one.
func (s *Store) beatToPulse(ctx context.Context, b storage.Heartbeat, c *cluster) (bool, error) {
	inc := b.Node.Incarnation
	k, ok := s.pulses.get(inc)
	for round := 0; round < maxRounds; round++ {
		if !ok {
			var err error
			k, err = s.readPulse(ctx, inc)
			// This process replaces its own object even if it is damaged: it knows what the object said. Nobody else may,
			// because the node would seem to be silent.
			if err != nil && (!errors.Is(err, blob.ErrCorrupt) || !k.own) {
				return false, err
			}
		}
		row := *c.present(inc)
		row.merge(k.pulse)
		if b.Seq <= row.Seq {
			return false, nil
		}
		row.beat(b, s.bucket.changeTime(), s.now())
		if err := s.writePulse(ctx, inc, k, row.pulse()); !isConflict(err) {
			return err == nil, err
		}
		ok = false
	}
	return false, blob.ErrUnavailable
}

// beatToCluster is a heartbeat as a step of the cluster object. admitted says that the
// node's own row was already written.
func (s *Store) beatToCluster(ctx context.Context, b storage.Heartbeat, admitted bool) (*storage.Reply, error) {
	verdict, crowded := storage.Refuse, false
	c, err := s.run(ctx, step{
		guess: b.Advert == nil && !admitted,
		prepare: func(ctx context.Context, c *cluster, now time.Time) error {
			if crowded = s.mayExceedRoom(c, b); crowded {
				return s.refresh(ctx, c, c.memberIDs())
			}
			return s.refresh(ctx, c, s.rowsNeeded(c, b, now))
		},
		apply: func(c *cluster, now time.Time) (bool, error) {
			row, err := c.admit(b, admitted, s.silent, now)
			if err == nil && crowded {
				err = s.checkRoom(c, b, now)
			}
			if err != nil {
				return false, err
			}
			row.beat(b, s.bucket.changeTime(), now)
			c.identify(s.identity(c), now)
			rules.ApplyExitEvidence(c, &c.Term, b, now)
			rules.EndEmbargoes(c, b)
			verdict = rules.DecideTerm(c, rules.TermAndLease{Term: &c.Term, Lease: &c.Lease}, b.TermRequest, &row.Member, now)
			row.Doubt, row.BeatsInCluster = nil, verdict != storage.Refuse
			return true, nil
		},
	})
	if err != nil {
		return nil, err
	}
	if k, ok := s.pulses.get(b.Node.Incarnation); !ok || !k.own {
		s.pulses.put(b.Node.Incarnation, k.pulse, k.version, true)
	}
	return s.reply(ctx, c, b, verdict)
}

// rowsNeeded lists the processes whose rows a heartbeat depends on. Those are all processes for the
// number of a new term, the ones with the same ID for a registration, and otherwise its own, unless
// this process knows it.
func (s *Store) rowsNeeded(c *cluster, b storage.Heartbeat, now time.Time) []node.Incarnation {
	if b.TermRequest.Campaign && (len(b.ExitEvidence) > 0 || storage.Decide(b.TermRequest, b.Node, c.Term, c.Lease, now) == storage.Elect) {
		return c.memberIDs()
	}
	row := c.present(b.Node.Incarnation)
	if row == nil {
		return c.rivals(b.Node)
	}
	if k, ok := s.pulses.get(b.Node.Incarnation); ok && k.own {
		row.merge(k.pulse)
		return nil
	}
	return []node.Incarnation{b.Node.Incarnation}
}

// rivals lists other members with the same ID.
func (c *cluster) rivals(who node.Identity) []node.Incarnation {
	var out []node.Incarnation
	for _, m := range c.Members {
		if m.ID == who.ID && m.Incarnation != who.Incarnation && m.Present() {
			out = append(out, m.Incarnation)
		}
	}
	return out
}

// admit finds or makes the row of a heartbeat.
//
//	row                     with an advert             without
//	none                    inserted                   ErrNotRegistered
//	tombstone by leader     revived, if seq is newer   ErrNotRegistered
//	tombstone by itself     ErrStaleSeq                ErrNotRegistered
//	present                 advert renewed, no event   kept; both only if seq is newer
//
// A heartbeat that was admitted before finds its own sequence number in the row.
func (c *cluster) admit(b storage.Heartbeat, admitted bool, silent silentFunc, now time.Time) (*member, error) {
	row := c.row(b.Node.Incarnation)
	gone := row == nil || !row.Present()
	switch {
	case gone && (b.Advert == nil || admitted):
		return nil, storage.ErrNotRegistered
	case row != nil && (row.Left || b.Seq < row.Seq || b.Seq == row.Seq && !admitted):
		return nil, storage.ErrStaleSeq
	}
	if b.Advert != nil {
		var err error
		if c.Name, err = storage.CheckClusterName(c.Name, b.Advert.Traits.Cluster); err != nil {
			return nil, err
		}
	}
	if !gone {
		if b.Advert != nil {
			text := rules.Advertise(&row.Member, b.Advert)
			c.storeAdvert(row.Advert, text)
		}
		return row, nil
	}
	for _, inc := range c.rivals(b.Node) {
		if m := c.row(inc); !slices.Contains(b.ExitEvidence, inc) && !silent(m, cmp.Or(m.Timing.NodeRegistrationTTL, b.TTL), now) {
			return nil, &storage.IDInUseError{ID: m.ID, Holder: m.Identity, SeenAt: m.LastHeartbeatAt, Host: m.Host}
		}
	}
	return c.register(row, b, now), nil
}

// register inserts the row, or revives the tombstone that a leader made of it.
func (c *cluster) register(row *member, b storage.Heartbeat, now time.Time) *member {
	if row == nil {
		row = c.addRow(b.Node)
	}
	text := rules.Register(c, &row.Member, b, now)
	c.storeAdvert(row.Advert, text)
	return row
}

// storeAdvert stores what a node advertises; equal texts are stored once.
func (c *cluster) storeAdvert(hash string, text []byte) {
	if c.Adverts[hash] != nil {
		return
	}
	kept := &daemon.Advert{}
	if err := json.Unmarshal(text, kept); err != nil {
		panic("object: the text of an advert does not parse: " + err.Error())
	}
	c.Adverts[hash] = kept
}

// identify compares the store identity with the one that the previous heartbeat found.
func (c *cluster) identify(identity string, now time.Time) {
	if c.KnownID != "" && c.KnownID != identity {
		c.IdentityChangedAt = now
	}
	c.KnownID = identity
}

// reply makes the answer to a heartbeat.
func (s *Store) reply(ctx context.Context, c *cluster, b storage.Heartbeat, verdict storage.ElectionResult) (*storage.Reply, error) {
	r := &storage.Reply{
		Seq: b.Seq, Now: s.now(), StoreID: s.identity(c), StoreSince: c.IdentityChangedAt, Verdict: verdict,
		Term: c.Term, Lease: c.Lease,
		Units: c.HeldBy(b.Node.Incarnation),
		Head:  c.Head, Commands: rules.ForNodes(c.Commands.Open()), MinChangeTime: s.bucket.changeTime(),
	}
	var errs []error
	if b.EventsAfter >= 0 {
		errs = append(errs, s.addMemberEvents(ctx, c, b.EventsAfter, r))
	}
	if b.WantMembers {
		c = c.clone()
		errs = append(errs, s.refresh(ctx, c, c.memberIDs()))
		r.Members = c.list()
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}
