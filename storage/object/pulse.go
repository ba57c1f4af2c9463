package object

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"

	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
)

// pulse is the content of a node's own object: what its newest heartbeat said. It is part of the
// node's row while the node is a member; see member.merge.
//
// Only its own process writes the object. Each write is conditional nevertheless: a heartbeat that
// arrives late or twice finds another content and is refused, as the sequence number demands.
type pulse struct {
	Seq               uint64    `json:"seq"`
	Heard             uint64    `json:"heard"`
	HeardAt           time.Time `json:"heard_at"`
	At                time.Time `json:"at"`
	HighestTerm       int64     `json:"highest_term,omitempty"`
	HighestGeneration int64     `json:"highest_generation,omitempty"`
	// ChangeTime is how long a change of the cluster object takes this node.
	ChangeTime time.Duration `json:"change_time,omitempty"`
	Nonce      uint64        `json:"nonce"` // makes each content unique
}

// merge adds the node's pulse to its row, except in three cases: the row already has this pulse or a newer one;
// the row is a tombstone, of which the process that wrote the pulse did not know; the node leads, so its
// heartbeats are in the cluster object.
func (m *member) merge(p pulse) {
	if !m.Present() || m.BeatsInCluster || p.Seq <= m.BeatSeq {
		return
	}
	m.Seq, m.BeatSeq = max(m.Seq, p.Seq), p.Seq
	m.LastHeartbeatAt, m.ConfirmedSeq, m.ConfirmedAt = p.At, p.Heard, p.HeardAt
	m.HighestTerm = max(m.HighestTerm, p.HighestTerm)
	m.HighestGeneration = max(m.HighestGeneration, p.HighestGeneration)
	m.ChangeTime = p.ChangeTime
}

// beat writes a heartbeat into the row.
func (m *member) beat(b storage.Heartbeat, change time.Duration, now time.Time) {
	m.Seq, m.BeatSeq = max(m.Seq, b.Seq), b.Seq
	m.LastHeartbeatAt, m.ChangeTime = now, change
	if b.ConfirmedSeq > m.ConfirmedSeq {
		m.ConfirmedSeq, m.ConfirmedAt = b.ConfirmedSeq, now
	}
	m.HighestTerm = max(m.HighestTerm, b.HighestTerm)
	m.HighestGeneration = max(m.HighestGeneration, b.HighestGeneration)
}

// pulse returns the part of the row that comes from heartbeats.
func (m *member) pulse() pulse {
	return pulse{
		Seq: m.BeatSeq, Heard: m.ConfirmedSeq, HeardAt: m.ConfirmedAt, At: m.LastHeartbeatAt, ChangeTime: m.ChangeTime,
		HighestTerm: m.HighestTerm, HighestGeneration: m.HighestGeneration, Nonce: rand.Uint64(),
	}
}

// pulses are the nodes' own objects as this process last saw them.
type pulses struct {
	mu sync.Mutex
	of map[node.Incarnation]knownPulse
}

// knownPulse is one such object.
type knownPulse struct {
	pulse   pulse
	version blob.Version // empty: there is no object
	own     bool         // this process writes it
}

func (ps *pulses) get(inc node.Incarnation) (knownPulse, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	k, ok := ps.of[inc]
	return k, ok
}

// put records what was read or written. Two reads may end in another order than they began, so the
// newer content counts.
func (ps *pulses) put(inc node.Incarnation, p pulse, v blob.Version, own bool) knownPulse {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	old := ps.of[inc]
	if p.Seq < old.pulse.Seq {
		p = old.pulse
	}
	k := knownPulse{p, v, own || old.own}
	ps.of[inc] = k
	return k
}

// dropDeparted drops the objects of processes that no longer have a row.
func (ps *pulses) dropDeparted(c *cluster) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for inc := range ps.of {
		if c.row(inc) == nil {
			delete(ps.of, inc)
		}
	}
}

var plainSegment = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// pulseKey is the key of a node's own object.
func pulseKey(inc node.Incarnation) string {
	name := string(inc)
	if !plainSegment.MatchString(name) {
		sum := sha256.Sum256([]byte(name))
		name = "x-" + hex.EncodeToString(sum[:16])
	}
	return "in/n/" + name
}

// readPulse reads a node's own object. It is no error if there is none. If the object is damaged, the error is
// blob.ErrCorrupt, and the result has what was known before, with the version that the object has now.
func (s *Store) readPulse(ctx context.Context, inc node.Incarnation) (knownPulse, error) {
	k, _ := s.pulses.get(inc)
	var o *blob.Object
	err := s.retry(ctx, func() (err error) {
		if o, err = s.readNewer(ctx, pulseKey(inc), k.version); err != nil || o == nil {
			return err
		}
		var p pulse
		if err = open(kindNode, o.Data, &p); err == nil {
			k = s.pulses.put(inc, p, o.Version, false)
		}
		return err
	})
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return s.pulses.put(inc, k.pulse, "", false), nil
	case err != nil:
		if errors.Is(err, blob.ErrCorrupt) && o != nil {
			k.version = o.Version
		}
		return k, fmt.Errorf("read the heartbeats of %s in %s: %w", inc, pulseKey(inc), err)
	}
	return k, nil
}

// writePulse writes a node's own object if it is still the known one. Otherwise it returns
// blob.ErrChanged.
func (s *Store) writePulse(ctx context.Context, inc node.Incarnation, old knownPulse, p pulse) error {
	data, err := seal(kindNode, p)
	if err != nil {
		return err
	}
	unknown := false
	return s.retry(ctx, func() error {
		v, err := s.put(ctx, pulseKey(inc), data, old.version)
		switch {
		case err == nil:
			s.pulses.put(inc, p, v, true)
			return nil
		case errors.Is(err, blob.ErrUnknownOutcome):
			unknown = true
		case !isConflict(err) || !unknown:
			return err
		}
		// The changed content may come from this very write.
		now, reread := s.readPulse(ctx, inc)
		switch {
		case reread != nil:
			return reread
		case now.pulse.Nonce == p.Nonce:
			s.pulses.put(inc, p, now.version, true)
			return nil
		case now.version != old.version:
			return blob.ErrChanged
		}
		return err // nothing has happened yet: send the same bytes again
	})
}

// refresh merges the pulses of the given processes into their rows. It reads several at once.
func (s *Store) refresh(ctx context.Context, c *cluster, of []node.Incarnation) error {
	errs := make([]error, len(of))
	gate := make(chan struct{}, parallel)
	var readers sync.WaitGroup
	for i, inc := range of {
		row := c.present(inc)
		if row == nil || row.BeatsInCluster {
			continue
		}
		gate <- struct{}{}
		readers.Go(func() {
			defer func() { <-gate }()
			var k knownPulse
			if k, errs[i] = s.readPulse(ctx, inc); errs[i] == nil {
				row.merge(k.pulse)
			}
		})
	}
	readers.Wait()
	return errors.Join(errs...)
}

// refreshOwn merges a node's pulse into its row. The process that writes the pulse knows it without
// a read. A read would take as long as the write that follows, and give other processes time to be
// first.
func (s *Store) refreshOwn(ctx context.Context, c *cluster, inc node.Incarnation) error {
	row := c.present(inc)
	if k, ok := s.pulses.get(inc); ok && k.own && row != nil {
		row.merge(k.pulse)
		return nil
	}
	return s.refresh(ctx, c, []node.Incarnation{inc})
}

// parallel bounds the requests that one call has in flight.
const parallel = 16
