package broker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/queue"
)

// call is one request to one shard; a long poll has one call in each of the node's shards. The
// shard's goroutine owns it until it is answered; then the caller reads the results.
type call struct {
	work work // the call itself, with what its kind asks for and is answered
	// taken is set by whoever ends the call: the shard that answers it, or the caller that
	// gives up. The calls of one long poll share taken and done, so that only one shard
	// answers.
	taken *atomic.Bool
	done  chan *call
	err   *queue.Error

	// Owned by the shard's goroutine.
	next     int // position of the next item to decide
	complete bool
	answered bool // the answer was sent
	wrote    bool // records of the call were made: after a failure its outcome is unknown
	negative bool // the answer refuses at least one item
	waits    int  // number of batches that must be durable before the answer
}

// work is a call of one kind: enqueueCall, claimCall, settleCall, releaseCall, commandCall, getCall, pageCall,
// moveCall or inquiry. Each embeds call. Its fields belong to the shard's goroutine until the answer.
type work interface {
	// step decides as much of the call as it can. It is called again after waiting or later.
	step(s *shard) progress
}

// progress is the result of a step.
type progress int

const (
	decided progress = iota
	waiting          // parked until a batch is durable
	later            // not complete: decide the call again in the next round, after others
	handled          // answered, refused, or added to the long polls
)

func newCall(w work) call { return call{work: w, done: make(chan *call, 1)} }

// inquiry is a call that reads what the shard has, without waiting for anything.
type inquiry struct {
	call
	read func(s *shard)
}

// inquire runs read on the shard's goroutine, and waits until it has. If it returns an error, read may still run
// later: the caller must not use what it writes.
func (s *shard) inquire(ctx context.Context, read func(s *shard)) error {
	c := &inquiry{read: read}
	c.call = newCall(c)
	return s.do(ctx, &c.call)
}

func (c *inquiry) step(s *shard) progress {
	c.read(s)
	return decided
}

// answer sends the answer to the caller, once. Only the shard for which take returned true may call
// it.
func (c *call) answer() {
	if !c.answered {
		c.answered = true
		c.done <- c
	}
}

// claimAnswer claims the right to answer the call. It returns false if another shard has answered, or the
// caller has given up.
func (c *call) claimAnswer() bool { return c.taken == nil || !c.taken.Swap(true) }

// refuse answers the call with an error.
func (c *call) refuse(err *queue.Error) {
	if !c.answered {
		c.err = err
		c.answer()
	}
}

// do submits the call to the shard and waits for the answer.
func (s *shard) do(ctx context.Context, c *call) error {
	if err := s.submit(ctx, c); err != nil {
		return err
	}
	return s.wait(ctx, c)
}

// inboxTimeout is how long a call waits for room in the shard's inbox.
const inboxTimeout = time.Second

// submit puts the call into the shard's inbox. If the inbox is full for inboxTimeout, it returns
// QueueFull.
func (s *shard) submit(ctx context.Context, c *call) error {
	if s.calls.put(c) {
		return nil
	}
	timer := time.NewTimer(inboxTimeout)
	defer timer.Stop()
	for room := s.calls.room(); !s.calls.put(c); {
		select {
		case <-room:
		case <-s.runEnded:
			return s.notOwner()
		case <-ctx.Done():
			return canceled(ctx, queue.Unavailable)
		case <-timer.C:
			return queueFull("the broker has more calls than it can handle")
		}
	}
	return nil
}

// post puts the call into the shard's inbox, however long that takes, and does not wait for the
// answer. It gives up when the shard's run has ended.
func (s *shard) post(c *call) {
	if s.calls.put(c) {
		return
	}
	for room := s.calls.room(); !s.calls.put(c); {
		select {
		case <-room:
		case <-s.runEnded:
			return
		}
	}
}

// wait waits for the call's answer. If the context ends first, the outcome is unknown.
func (s *shard) wait(ctx context.Context, c *call) error {
	select {
	case <-c.done:
	case <-s.runEnded: // the shard answered every call that it had taken
		select {
		case <-c.done:
		default:
			return s.notOwner()
		}
	case <-ctx.Done():
		return canceled(ctx, queue.UnknownOutcome)
	}
	if c.err != nil {
		return c.err
	}
	return nil
}

func canceled(ctx context.Context, tag queue.Tag) *queue.Error {
	return queue.Refuse(tag, "the caller cancelled: %w", context.Cause(ctx))
}

// queueFull returns a QueueFull refusal with a hint to try again after a second.
func queueFull(why string) *queue.Error {
	e := queue.Refuse(queue.QueueFull, "%s", why).WithHint("try again later, or let workers catch up")
	e.RetryAfter = time.Second
	return e
}

// memoryFull refuses a call whose answer would exceed the memory that the process may hold for its
// callers.
func memoryFull() *queue.Error {
	e := queue.Refuse(queue.QueueFull, "too many large payloads are in flight to clients").WithHint("try again later")
	e.RetryAfter = time.Second
	return e
}
