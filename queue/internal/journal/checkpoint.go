package journal

import "github.com/emitd/emitd/queue/internal/journal/owner"

// Checkpoint is a checkpoint that is being written. Its methods never wait. They may be called from
// any goroutine.
type Checkpoint struct {
	log        *Log
	progressed chan struct{}
	done       chan struct{}
	ended      bool // done is closed; guarded by the log's mu, as is err
	err        error
}

// Checkpoint begins a checkpoint of the state after all records appended so far. upTo is the
// highest slot it covers; its segment is written as soon as the window allows. The caller writes the
// state as of this moment, in steps if it wants, while the log continues. The checkpoint comes into
// force when upTo is durable, all parts are stored, and HEAD names it. Errors: ErrBusy, and Err
// once the log has ended.
func (l *Log) Checkpoint() (c *Checkpoint, upTo uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	upTo, effects, err := l.machine.Checkpoint(l.now())
	if err != nil {
		return nil, 0, l.endError(err)
	}
	c = &Checkpoint{log: l, progressed: make(chan struct{}, 1), done: make(chan struct{})}
	l.ckpt = c
	l.carryOut(effects)
	return c, upTo, nil
}

// DropRuns excludes the first n runs of the newest checkpoint from this one; no later checkpoint
// can have them. The other runs are part of this checkpoint and are not written again.
func (c *Checkpoint) DropRuns(n int) error {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.ended {
		return c.endError()
	}
	return c.log.endError(c.log.machine.DropRuns(n))
}

// WriteRun adds a run to the checkpoint, behind the runs it has. A run is a chunk that is stored
// once, as an object of its own. Later checkpoints have it too, until one of them drops it. The run
// is copied. Errors: as for Write.
func (c *Checkpoint) WriteRun(run []byte) error { return c.write(run, (*owner.Machine).WriteRun) }

// Write adds a chunk to the checkpoint; Restore gets the same chunks. The chunk is copied. Errors:
// ErrTooLarge (a chunk above 64 MiB), and Err once the checkpoint has ended.
func (c *Checkpoint) Write(chunk []byte) error { return c.write(chunk, (*owner.Machine).WriteChunk) }

func (c *Checkpoint) write(chunk []byte, add func(*owner.Machine, []byte) ([]owner.Effect, error)) error {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.ended {
		return c.endError()
	}
	effects, err := add(c.log.machine, chunk)
	c.log.carryOut(effects)
	return c.log.endError(err)
}

// Backlog returns how many bytes are not stored yet. To bound memory, stop writing above about 16
// MiB until Progressed is signalled. Bytes that do not fill a part stay in the backlog until Commit.
func (c *Checkpoint) Backlog() int {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.ended {
		return 0
	}
	return c.log.machine.View().Backlog
}

// Progressed is signalled when the backlog shrank and when the checkpoint ended.
func (c *Checkpoint) Progressed() <-chan struct{} { return c.progressed }

// Commit declares the state complete. keep lists the slots up to upTo to which the state refers
// (payloads that Log.Read returns). They are not deleted while this checkpoint or the one before it
// is in use. The remaining work happens in the background: the last parts are written, HEAD is
// replaced, and garbage is collected.
func (c *Checkpoint) Commit(keep []uint64) error {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.ended {
		return c.endError()
	}
	effects, err := c.log.machine.Commit(keep)
	c.log.carryOut(effects)
	return c.log.endError(err)
}

// Abort gives up the checkpoint, unless it is committed. A later garbage collection deletes its
// stored parts.
func (c *Checkpoint) Abort() {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if !c.ended && c.log.machine.Abort() {
		c.end(ErrAborted)
	}
}

// Done is closed when HEAD names the checkpoint, or when it has failed; Err says which.
func (c *Checkpoint) Done() <-chan struct{} { return c.done }

// Err returns why the checkpoint has failed: ErrAborted, or why the log has ended. It returns nil
// if the checkpoint is in force or not done yet.
func (c *Checkpoint) Err() error {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	return c.err
}

// endError returns the error for calls on a checkpoint that has ended.
func (c *Checkpoint) endError() error {
	if c.err != nil {
		return c.err
	}
	return ErrClosed
}

// end marks the checkpoint as ended. The caller of end and of signal holds the log's mu.
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
	case c.progressed <- struct{}{}:
	default:
	}
}
