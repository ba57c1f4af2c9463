package broker

import (
	"errors"

	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// checkpoint is the checkpoint in progress, if there is one. It begins with a slot, upTo. The state
// is cut when all slots up to upTo, and no later one, are applied to the ledger. Then each round
// writes a step of it.
type checkpoint struct {
	log  *journal.Checkpoint
	upTo uint64
	cut  *ledger.CheckpointWriter
	buf  []byte
}

const (
	checkpointStep    = 256 << 10
	checkpointBacklog = 16 << 20
)

// progressed returns a channel that is signalled when there may be room to write more; nil without a
// checkpoint.
func (c *checkpoint) progressed() <-chan struct{} {
	if c.log == nil {
		return nil
	}
	return c.log.Progressed()
}

// canWrite reports whether a step can be written now.
func (c *checkpoint) canWrite() bool {
	return c.log != nil && c.cut != nil && c.log.Backlog() < checkpointBacklog
}

// abort gives up the checkpoint in progress.
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

// beforeSlot cuts the state if all slots up to the checkpoint's are applied and next, the next slot
// to apply, lies behind it.
func (s *shard) beforeSlot(next uint64) {
	if s.ckpt.log != nil && s.ckpt.cut == nil && next > s.ckpt.upTo {
		s.ckpt.cut = s.ledger.BeginCheckpoint()
	}
}

// checkpoint begins a checkpoint when one is worth its cost, or writes a step of the one in
// progress.
func (s *shard) checkpoint() {
	c := &s.ckpt
	switch {
	case s.drained:
	case c.log == nil:
		if s.b.checkpointDue(s.log, s.ledger.Bytes()) {
			s.beginCheckpoint()
		}
	case c.log.Err() != nil:
		s.b.cfg.Logger.Warn("a checkpoint was given up", "unit", s.unit.String(), "error", c.log.Err())
		c.abort()
	case c.canWrite():
		more, err := c.write()
		switch {
		case err != nil:
			c.abort()
		case !more:
			s.written = c.log
			*c = checkpoint{}
		}
	}
}

// write writes a step; more is false when the checkpoint is committed.
func (c *checkpoint) write() (more bool, err error) {
	var run bool
	c.buf, run, more = c.cut.Write(c.buf[:0], checkpointStep)
	switch {
	case run:
		err = c.log.WriteRun(c.buf)
	case len(c.buf) > 0:
		err = c.log.Write(c.buf)
	}
	if err != nil || more {
		return more, err
	}
	if err := errors.Join(c.log.DropRuns(c.cut.DroppedRuns()), c.log.Commit(nil)); err != nil {
		return false, err
	}
	c.cut.SetCurrentRuns() // the journal begins no other checkpoint before this one is in force
	return false, nil
}

// beginCheckpoint begins a checkpoint at the newest slot, if the journal allows one now.
func (s *shard) beginCheckpoint() {
	log, upTo, err := s.log.Checkpoint()
	if err != nil {
		return // the last one is still being finished, or the log has ended
	}
	s.ckpt = checkpoint{log: log, upTo: upTo}
	s.beforeSlot(s.log.Durable() + 1)
}
