package broker

import (
	"errors"

	"github.com/emitd/emitd/queue/internal/ledger"
)

// checkpoints writes the checkpoints of one shard, one after the other. A checkpoint begins with a
// slot. It holds the state in which all slots up to that one, and no later one, are applied to the ledger:
// the ledger's checkpoint is begun at that moment. Then each round writes a step of it. The shard's
// goroutine owns it.
type checkpoints struct {
	ledger    *ledger.Ledger
	host      checkpointHost
	current   checkpoint
	committed storedCheckpoint // the newest one that was committed; nil: none
	// committedUpTo is the newest slot that it covers.
	committedUpTo uint64
	next          uint64 // all slots before it are applied; 0: not known yet
}

// checkpointHost is what checkpoints needs of the shard and its journal.
type checkpointHost interface {
	checkpointDue() bool // whether a checkpoint is worth its cost
	beginCheckpoint() (c storedCheckpoint, upTo uint64, err error)
	checkpointFailed(err error)
}

// storedCheckpoint is a checkpoint in the journal; see journal.Checkpoint.
type storedCheckpoint interface {
	Write(chunk []byte) error
	WriteRun(run []byte) error
	DropRuns(n int) error
	Commit(keep []uint64) error
	Abort()
	Backlog() int
	Progressed() <-chan struct{}
	Done() <-chan struct{}
	Err() error
}

const (
	checkpointStep    = 256 << 10
	checkpointBacklog = 16 << 20
)

// step begins a checkpoint when one is worth its cost, or writes a step of the one in progress.
func (k *checkpoints) step() {
	c := &k.current
	switch {
	case c.log == nil:
		if k.host.checkpointDue() {
			k.begin()
		}
	case c.log.Err() != nil:
		k.host.checkpointFailed(c.log.Err())
		c.abort()
	case c.canWrite():
		more, err := c.write()
		switch {
		case err != nil:
			c.abort()
		case !more:
			k.committed, k.committedUpTo = c.log, c.upTo
			*c = checkpoint{}
		}
	}
}

// begin begins a checkpoint at the newest slot, if there is none and the journal allows one now. That slot may be durable
// already, but not yet applied.
func (k *checkpoints) begin() {
	if k.current.log != nil {
		return
	}
	log, upTo, err := k.host.beginCheckpoint()
	if err != nil {
		return // the last one is still being finished, or the log has ended
	}
	k.current = checkpoint{log: log, upTo: upTo}
	k.beforeSlot(k.next)
}

// beforeSlot begins the ledger's checkpoint if all slots up to the checkpoint's are applied and next, the next
// slot to apply, lies behind it.
func (k *checkpoints) beforeSlot(next uint64) {
	k.next = next
	if k.current.log != nil && k.current.writer == nil && next > k.current.upTo {
		k.current.writer = k.ledger.BeginCheckpoint()
	}
}

// inForce returns a channel that is closed when the newest committed checkpoint is in force or has
// failed; nil if there is none, or while another one is being written.
func (k *checkpoints) inForce() <-chan struct{} {
	if k.current.log != nil || k.committed == nil {
		return nil
	}
	return k.committed.Done()
}

// atRest reports whether no checkpoint is on its way into force.
func (k *checkpoints) atRest() bool {
	select {
	case <-k.inForce():
		return true
	default:
		return k.current.log == nil && k.committed == nil
	}
}

// checkpoint is a checkpoint that is being written.
type checkpoint struct {
	log    storedCheckpoint // nil: there is none
	upTo   uint64
	writer *ledger.CheckpointWriter // nil: the journal has not reached upTo yet
	buf    []byte
}

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
	return c.log != nil && c.writer != nil && c.log.Backlog() < checkpointBacklog
}

// abort gives up the checkpoint.
func (c *checkpoint) abort() {
	if c.log == nil {
		return
	}
	c.log.Abort()
	if c.writer != nil {
		c.writer.Abort()
	}
	*c = checkpoint{}
}

// write writes a step; more is false when the checkpoint is committed.
func (c *checkpoint) write() (more bool, err error) {
	var run bool
	c.buf, run, more = c.writer.Write(c.buf[:0], checkpointStep)
	switch {
	case run:
		err = c.log.WriteRun(c.buf)
	case len(c.buf) > 0:
		err = c.log.Write(c.buf)
	}
	if err != nil || more {
		return more, err
	}
	if err := errors.Join(c.log.DropRuns(c.writer.DroppedRuns()), c.log.Commit(c.writer.Slots())); err != nil {
		return false, err
	}
	c.writer.SetCurrentRuns() // the journal begins no other checkpoint before this one is in force
	return false, nil
}
