package broker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/queue"
)

// call is one request to one shard; a long poll has one call in each of the node's shards. The
// shard's goroutine owns it until it is answered; then the caller reads the results.
type call struct {
	// step decides as much of the call as it can. It is called again after busy or later.
	step func(s *shard, c *call) progress
	// taken is set by whoever ends the call: the shard that answers it, or the caller that
	// gives up. The calls of one long poll share taken and done, so that only one shard
	// answers.
	taken *atomic.Bool
	done  chan *call
	err   *queue.Error

	// Owned by the shard's goroutine.
	next         int    // position of the next item to decide
	number       uint64 // number of the next job to look at, for List and commands
	limit        uint64 // bound of number: later jobs are not meant
	complete     bool
	answered     bool // the answer was sent
	wrote        bool // records of the call were made: after a failure its outcome is unknown
	negative     bool // the answer refuses at least one item
	waits        int  // number of batches that must be durable before the answer
	longPoll     bool // for a claim: wait until there are jobs (long poll)
	onlyRepeated bool // for a claim: answer only if the same request ID was claimed before
	elsewhere    bool // for settlements: the shard is not the one that they name

	jobs          []validJob
	receipts      []queue.Receipt
	settle        []queue.Settlement
	tokens        []token // parallel to settle; zero: not a token of this shard for the job
	outcomes      []queue.Outcome
	claim         *queue.ClaimRequest
	claimed       []claimedJob
	undelivered   []undelivered
	abandoned     *call // for callerGoneStep: the claim call whose caller has gone
	payloadBudget int   // bytes that the answer's payloads may still take
	memory        *inflight.Call
	command       *queue.Command
	affected      int
	query         *queue.Query
	page          *queue.Page
	id            string
	info          *queue.Info
	payload       []byte
	blob          string
	place         payloadPlace // if a segment has the payload
	unread        []pagePayload
	moves         []movedPayload
	keys          []string
	stats         *queue.Stats
}

// progress is the result of a step.
type progress int

const (
	decided progress = iota
	waiting          // parked until a batch is durable
	later            // not complete: decide the call again in the next round, after others
	handled          // answered, refused, or added to the long polls
)

func newCall(step func(*shard, *call) progress) *call {
	return &call{step: step, done: make(chan *call, 1)}
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
	for !s.calls.put(c) {
		select {
		case <-s.calls.freed:
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
	for !s.calls.put(c) {
		select {
		case <-s.calls.freed:
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
