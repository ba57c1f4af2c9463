package journal

import "github.com/emitd/emitd/daemon/queue/journal/owner"

// Checkpoint is a checkpoint that is being written. Its methods never wait.
type Checkpoint struct {
	log   *Log
	moved chan struct{}
	done  chan struct{}
	ended bool // done is closed; guarded by the log's mu, as is err
	err   error
}

// Checkpoint begins a checkpoint of the state as it is after all records appended so far; upTo is
// the highest slot it covers (its segment is cut as soon as the window allows). The caller writes
// the state as of this moment, in steps if it likes, while the log goes on; it begins to count when
// upTo is durable and all parts are stored. Errors: ErrBusy, and Err once the log has ended.
func (l *Log) Checkpoint() (c *Checkpoint, upTo uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	upTo, effects, err := l.machine.Checkpoint(l.now())
	if err != nil {
		return nil, 0, l.because(err)
	}
	c = &Checkpoint{log: l, moved: make(chan struct{}, 1), done: make(chan struct{})}
	l.ckpt = c
	l.perform(effects)
	return c, upTo, nil
}

// DropRuns says that the first n of the runs that the newest checkpoint has are not part of this one,
// and not needed by any later one. The others are part of it: their bytes are not written again.
func (c *Checkpoint) DropRuns(n int) error {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.ended {
		return c.why()
	}
	return c.log.because(c.log.machine.DropRuns(n))
}

// WriteRun adds a run to the checkpoint, behind those that it has: a chunk that is stored once, as an
// object of its own, and that later checkpoints have, too, until one of them drops it. It is copied.
// Errors: as of Write.
func (c *Checkpoint) WriteRun(run []byte) error { return c.write(run, (*owner.Machine).Run) }

// Write adds a chunk to the checkpoint; Restore will be handed the same chunks. It is copied.
// Errors: ErrTooLarge (a chunk above 64 MiB), and Err once the checkpoint has ended.
func (c *Checkpoint) Write(chunk []byte) error { return c.write(chunk, (*owner.Machine).Chunk) }

func (c *Checkpoint) write(chunk []byte, add func(*owner.Machine, []byte) ([]owner.Effect, error)) error {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.ended {
		return c.why()
	}
	effects, err := add(c.log.machine, chunk)
	c.log.perform(effects)
	return c.log.because(err)
}

// Backlog returns how many bytes are not stored yet. Who bounds its memory stops writing above
// some 16 MiB until Moved says that it shrank. What does not fill a part stays until Commit.
func (c *Checkpoint) Backlog() int {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.ended {
		return 0
	}
	return c.log.machine.View().Backlog
}

// Moved receives a value when the backlog shrank, and when the checkpoint ended.
func (c *Checkpoint) Moved() <-chan struct{} { return c.moved }

// Commit says that the state is complete. keep lists the slots up to upTo that the state refers to
// (payloads read by Log.Read): they are not deleted while this checkpoint or the one before it is
// in use. Then parts are finished, HEAD is replaced and garbage collected, all in the background.
func (c *Checkpoint) Commit(keep []uint64) error {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.ended {
		return c.why()
	}
	effects, err := c.log.machine.Commit(keep)
	c.log.perform(effects)
	return c.log.because(err)
}

// Abort gives the checkpoint up, unless it is committed. What was stored of it is deleted by a
// later collection.
func (c *Checkpoint) Abort() {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if !c.ended && c.log.machine.Abort() {
		c.end(ErrAborted)
	}
}

// Done is closed when HEAD names the checkpoint, or when it has failed; Err says which.
func (c *Checkpoint) Done() <-chan struct{} { return c.done }

// Err says why the checkpoint has failed: ErrAborted, or why the log has ended; nil if it counts
// or is not done.
func (c *Checkpoint) Err() error {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	return c.err
}

// why says why nothing can be written to a checkpoint that has ended.
func (c *Checkpoint) why() error {
	if c.err != nil {
		return c.err
	}
	return ErrClosed
}

// end and signal are called with the log's mu.
func (c *Checkpoint) end(err error) {
	if c.ended {
		return
	}
	c.ended, c.err = true, err
	c.log.ckpt = nil
	close(c.done)
	c.signal()
}

func (c *Checkpoint) signal() {
	select {
	case c.moved <- struct{}{}:
	default:
	}
}
