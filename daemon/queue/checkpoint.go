package queue

import (
	"time"

	"github.com/emitd/emitd/daemon/queue/journal"
	"github.com/emitd/emitd/daemon/queue/ledger"
)

// checkpoint is one under way, if there is one. It begins with a slot; the state is cut when all
// slots up to it, and no later one, are applied; then it is written a little in each round.
type checkpoint struct {
	log  *journal.Checkpoint
	upTo uint64
	cut  *ledger.Cut
	buf  []byte
}

const (
	checkpointStep    = 256 << 10
	checkpointBacklog = 16 << 20
)

// moved is signalled when there may be room to write more.
func (c *checkpoint) moved() <-chan struct{} {
	if c.log == nil {
		return nil
	}
	return c.log.Moved()
}

// eager reports whether more of it can be written now.
func (c *checkpoint) eager() bool {
	return c.log != nil && c.cut != nil && c.log.Backlog() < checkpointBacklog
}

func (c *checkpoint) abort() {
	if c.log == nil {
		return
	}
	c.log.Abort()
	if c.cut != nil {
		c.cut.Abort()
	}
	*c = checkpoint{}
}

const (
	// A successor has read so much in no time.
	partSlots = 256
	partBytes = 4 << 20
	// partWait is how long a drain waits for a checkpoint.
	partWait = 3 * time.Second
)

// part prepares a drain. If the successor would have much to replay, a checkpoint is written first,
// while everybody is served: what callers wait for is the successor.
func (s *shard) part() {
	s.leave = time.Now()
	if st := s.log.Stats(); st.Slots > partSlots || st.Bytes > max(partBytes, s.ledger.Bytes()/16) {
		s.leave = s.leave.Add(partWait)
		if s.ckpt.log == nil {
			s.beginCheckpoint()
		}
	}
}

// ready reports whether the drain is to begin: the checkpoint counts, or has failed, or is waited
// for too long.
func (s *shard) ready() bool {
	switch {
	case s.leave.IsZero():
		return false
	case !time.Now().Before(s.leave):
		return true
	case s.ckpt.log != nil:
		return false
	}
	select {
	case <-s.prepared():
		return true
	default:
		return s.written == nil
	}
}

// prepared is closed when the checkpoint that a drain waits for is complete.
func (s *shard) prepared() <-chan struct{} {
	if s.leave.IsZero() || s.ckpt.log != nil || s.written == nil {
		return nil
	}
	return s.written.Done()
}

// cutBefore cuts the state if all up to the checkpoint's slot is applied and the next slot to be
// applied lies behind it.
func (s *shard) cutBefore(next uint64) {
	if s.ckpt.log != nil && s.ckpt.cut == nil && next > s.ckpt.upTo {
		s.ckpt.cut = s.ledger.Cut()
	}
}

// checkpoint begins one when it pays, and writes a step of the one under way.
func (s *shard) checkpoint() {
	c := &s.ckpt
	switch {
	case s.drained:
	case c.log == nil:
		if s.b.due(s.log, s.ledger.Bytes()) {
			s.beginCheckpoint()
		}
	case c.log.Err() != nil:
		s.b.cfg.Logger.Warn("a checkpoint was given up", "unit", s.unit.String(), "error", c.log.Err())
		c.abort()
	case c.eager():
		var more bool
		if c.buf, more = c.cut.Write(c.buf[:0], checkpointStep); len(c.buf) > 0 {
			if err := c.log.Write(c.buf); err != nil {
				c.abort()
				return
			}
		}
		if !more {
			if err := c.log.Commit(nil); err != nil {
				c.abort()
				return
			}
			s.written = c.log
			*c = checkpoint{}
		}
	}
}

func (s *shard) beginCheckpoint() {
	log, upTo, err := s.log.Checkpoint()
	if err != nil {
		return // one is still being finished, or the log has ended
	}
	s.ckpt = checkpoint{log: log, upTo: upTo}
	s.cutBefore(s.log.Durable() + 1)
}
