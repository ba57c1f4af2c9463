package queue

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/internal/inflight"
)

// call is one request to one shard (a long poll: to all local shards). The shard's goroutine works
// on it until it has ended; then the caller reads the answer.
type call struct {
	// step decides as much of the call as it can. It may be called again after busy or later.
	step func(s *shard, c *call) progress
	// taken is set by the shard that answers, or by the caller who gave up; several calls that are
	// one long poll share it, and done.
	taken *atomic.Bool
	done  chan *call
	err   *Error

	// Of the shard's goroutine.
	next     int    // position of what is to be decided
	number   uint64 // or the job's number
	limit    uint64 // of numbers
	decided  bool
	over     bool // answered
	wrote    bool // records of it are on their way: a failure has an unknown outcome
	negative bool // part of the answer is a no
	waits    int  // for so many segments
	wait     bool // of a claim: until there are jobs
	retried  bool // of a claim: only if it was made before

	jobs     []prepared
	receipts []Receipt
	settle   []Settlement
	tokens   []token // of settle; a zero one is none that this shard made for the job
	outcomes []Outcome
	claim    *ClaimRequest
	claims   []handed
	back     []undelivered
	gone     *call // the claim of a caller who has gone
	room     int   // bytes that the payloads of its answer may still take
	memory   *inflight.Call
	command  *Command
	met      int
	query    *Query
	page     *Page
	id       string
	info     *Info
	payload  []byte
	blob     string
	keys     []string
	stats    *Stats
}

// progress says how a step ended.
type progress int

const (
	decided progress = iota
	busy             // parked until a segment is durable
	later            // there is more to do: give others a turn
	placed           // answered already, or among the long polls
)

func newCall(step func(*shard, *call) progress) *call {
	return &call{step: step, done: make(chan *call, 1)}
}

// answer ends the call, once. Only the shard that took it may.
func (c *call) answer() {
	if !c.over {
		c.over = true
		c.done <- c
	}
}

// take reports whether this shard may answer the call: another one has not, and somebody waits.
func (c *call) take() bool { return c.taken == nil || !c.taken.Swap(true) }

// refuse ends the call with an error.
func (c *call) refuse(err *Error) {
	if !c.over {
		c.err = err
		c.answer()
	}
}

// do hands the call to a shard and waits for the answer.
func (s *shard) do(ctx context.Context, c *call) error {
	if err := s.submit(ctx, c); err != nil {
		return err
	}
	return s.wait(ctx, c)
}

// fullWait is how long a call waits for a place in the shard's inbox.
const fullWait = time.Second

func (s *shard) submit(ctx context.Context, c *call) error {
	if s.calls.put(c) {
		return nil
	}
	patience := time.NewTimer(fullWait)
	defer patience.Stop()
	for !s.calls.put(c) {
		select {
		case <-s.calls.room:
		case <-s.gone:
			return s.notOwner()
		case <-ctx.Done():
			return canceled(ctx, Unavailable)
		case <-patience.C:
			return full("the broker has more calls than it can take")
		}
	}
	return nil
}

// post hands the call to a shard however long that takes, and does not wait for the answer.
func (s *shard) post(c *call) {
	for !s.calls.put(c) {
		select {
		case <-s.calls.room:
		case <-s.gone:
			return
		}
	}
}

func (s *shard) wait(ctx context.Context, c *call) error {
	select {
	case <-c.done:
	case <-s.gone: // it answered everything that it had taken
		select {
		case <-c.done:
		default:
			return s.notOwner()
		}
	case <-ctx.Done():
		return canceled(ctx, UnknownOutcome)
	}
	if c.err != nil {
		return c.err
	}
	return nil
}

func canceled(ctx context.Context, tag Tag) *Error {
	return Refuse(tag, "the caller gave up: %w", context.Cause(ctx))
}

func full(why string) *Error {
	e := Refuse(QueueFull, "%s", why).WithHint("try again later, or let workers catch up")
	e.RetryAfter = time.Second
	return e
}

// crowded refuses a call whose answer would be more than the process may hold for its callers.
func crowded() *Error {
	e := Refuse(QueueFull, "too many large payloads are on their way to clients").WithHint("try again later")
	e.RetryAfter = time.Second
	return e
}
