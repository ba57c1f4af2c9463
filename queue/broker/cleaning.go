package broker

import (
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/queue/internal/ledger"
)

// cleaning bounds what a shard keeps of old segments. A segment stays as long as one job refers to it.
// When a checkpoint has come into force, the payloads of segments that are mostly garbage, or of many
// small ones, are written again, into new segments; Ledger.Sparse has the rule. The next two checkpoints
// do not refer to the old segments any more, and the journal deletes them.
type cleaning struct {
	busy   atomic.Bool
	rule   func(l *ledger.Ledger, below uint64, limit int64) []ledger.SparseSegment
	passed storedCheckpoint // the checkpoint after which the last cleaning began
}

const (
	cleaningBytes = 64 << 20 // live bytes that are written again after a checkpoint, at most
	cleaningRead  = 16 << 20 // bytes of payloads that wait for a write
	cleaningCalls = 8        // segments that are read concurrently
)

// clean begins a cleaning, on a goroutine, if a checkpoint has come into force since the last one.
func (s *shard) clean() {
	k := &s.checkpoints
	if k.committed == nil || k.committed == s.cleaning.passed || s.handOver.state != stateServing || s.cleaning.busy.Load() {
		return
	}
	select {
	case <-k.committed.Done():
	default:
		return
	}
	s.cleaning.passed = k.committed
	if sparse := s.cleaning.rule(s.ledger, k.committedUpTo, cleaningBytes); len(sparse) > 0 {
		s.cleaning.busy.Store(true)
		go s.movePayloads(sparse)
	}
}

// movePayloads writes the payloads of segments again, as far as jobs still need them. It ends when the
// run has ended, because then the shard refuses its calls.
func (s *shard) movePayloads(sparse []ledger.SparseSegment) {
	defer s.cleaning.busy.Store(false)
	for len(sparse) > 0 {
		n, size := 0, int64(0)
		for n < len(sparse) && (n == 0 || size+sparse[n].Total <= cleaningRead) {
			size += sparse[n].Total
			n++
		}
		c := &moveCall{moves: s.readSegments(sparse[:n])}
		c.call = newCall(c)
		if err := s.do(s.ctx, &c.call); err != nil {
			return // the shard is lost, or is being written to faster than the store allows
		}
		sparse = sparse[n:]
	}
}

// movedPayload is a payload that was read from a slot.
type movedPayload struct {
	segmentPayload
	slot uint64
}

// readSegments reads segments and returns their payloads. It leaves out a segment that cannot be read:
// it stays, and is tried again after a later checkpoint.
func (s *shard) readSegments(sparse []ledger.SparseSegment) []movedPayload {
	read := make([]*segment, len(sparse))
	var all errgroup.Group
	all.SetLimit(cleaningCalls)
	for i := range sparse {
		all.Go(func() error {
			g, err := s.b.segments.get(s.ctx, s, sparse[i].Slot)
			if err != nil && s.ctx.Err() == nil {
				s.b.cfg.Logger.WarnContext(s.ctx, "cannot read a segment whose payloads should move", "unit", s.unit.String(), "slot", sparse[i].Slot, "error", err)
			}
			if err == nil {
				read[i] = g
			}
			return nil
		})
	}
	_ = all.Wait()
	var moves []movedPayload
	for i, g := range read {
		if g == nil {
			continue
		}
		for _, p := range g.payloads {
			moves = append(moves, movedPayload{p, sparse[i].Slot})
		}
	}
	return moves
}

// moveCall writes payloads of old segments again.
type moveCall struct {
	call
	moves []movedPayload
}

// step records the payloads of those jobs that still refer to the segments they were read from. The
// jobs refer to the new segment once it is durable.
func (c *moveCall) step(s *shard) progress {
	for ; c.next < len(c.moves); c.next++ {
		m := &c.moves[c.next]
		j, ok := s.ledger.JobWithoutPayload(m.number)
		id, _ := s.ledger.IDAndPayload(m.number)
		switch {
		case !ok || j.Slot != m.slot || id != m.id || j.Size != len(m.payload):
			continue
		case s.commits.full():
			c.refuse(s.commits.refusal())
			return handled
		case s.commits.size() > roundBytes:
			return later
		}
		s.commits.recordPending(&c.call, pending{other: &ledger.Record{Kind: ledger.MovePayload, Numbers: []uint64{m.number}, PackedID: m.id, Payload: m.payload}})
	}
	return decided
}
