package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Limits of a message. What is beyond is refused when it is published, in the caller's
// transaction: nothing of it is kept.
const (
	MaxTopic   = 255     // bytes
	MaxType    = 255     // bytes
	MaxKey     = 1 << 10 // bytes
	MaxHeaders = 64      // how many; a name has at most 255 bytes, a value 4 KiB
	MaxPayload = 1 << 20 // bytes

	// Shards is how many virtual shards there are. A key always falls into the same one.
	Shards = 64
)

// Message is what the caller publishes.
type Message struct {
	// ID is what consumers may drop repetitions by; it goes along to every sink. Zero: one is drawn.
	ID uuid.UUID
	// Key orders: messages of one key are delivered in the order in which the transactions that
	// published them took the key's lock. Empty: no order.
	Key string
	// Topic says where to, in the words of the sink: a topic, a subject, a queue. Required.
	Topic string
	// Type says what it is, e.g. "order.placed". May be empty.
	Type    string
	Headers map[string]string
	Payload []byte
	// NotBefore holds the message back until the database's clock says so. A delayed message has
	// no order against undelayed ones of its key. A past time is none.
	NotBefore time.Time
	// TraceParent and TraceState link the delivery to the producer's span (W3C Trace Context).
	// Publish fills them from its context when they are empty.
	TraceParent, TraceState string
}

// Row is a message in the log.
type Row struct {
	Message
	Seq       int64 // position in the log; grows, has gaps
	Shard     int
	CreatedAt time.Time // of the database's clock
	Attempt   int       // of this delivery: 1, 2, …
}

// Delivery is what a sink is given at once: rows of one shard range and subscription in log order,
// so that rows of one key are in their order.
type Delivery struct {
	Subscription string
	// Epoch grows with every take-over of the shard range. A sink that can compare refuses a lower
	// one; others pass it on for receivers that can.
	Epoch int64
	// Range names the shards, e.g. "0-31". It is the same for all deliveries of one epoch.
	Range string
	Rows  []Row
}

// Sink is where messages go.
type Sink interface {
	// Deliver publishes the rows and returns when the receiver has taken them durably: nil, or an
	// error for each row that was not taken (index as in d.Rows; nil for a taken one), or a slice
	// of one error for all. It may publish rows of different keys at once, and must not publish a
	// row when an earlier one of the same key was not taken: that row has failed with [ErrSkipped].
	//
	// Which rows are published at all when ctx ends is unknown; they are delivered again. It must
	// return soon after that: the relay waits for it and cannot go on with these rows before. It is
	// called from many goroutines. It may keep the rows, and must not change them: observers get the
	// same.
	Deliver(ctx context.Context, d Delivery) []error
}

// SinkFunc is a function as a Sink.
type SinkFunc func(ctx context.Context, d Delivery) []error

// Deliver calls f.
func (f SinkFunc) Deliver(ctx context.Context, d Delivery) []error { return f(ctx, d) }

// Fencer is implemented by sinks whose receiver can refuse a deposed relay by itself.
type Fencer interface {
	// Fence makes the receiver refuse lower epochs of the range from now on. It is called after each
	// claim, before the first delivery; the same epoch may come again. The relay claims once more
	// afterwards: a relay that was paused in between and is deposed by now finds out there. If its late
	// call made the receiver refuse the new owner (some receivers cannot compare epochs, only the order
	// of calls), the new owner gets [ErrFenced], claims, and fences again.
	Fence(ctx context.Context, subscription, shards string, epoch int64) error
}

// The kinds of failure, which sinks wrap with what happened. An error of no kind is worth another
// attempt of that key, by the subscription's back-off.
var (
	// ErrPermanent says that another attempt of this message is useless: the [Policy] decides at once.
	ErrPermanent = errors.New("permanent")
	// errUnsendable is ErrPermanent of a message that no sink can send.
	errUnsendable = fmt.Errorf("no receiver can be sent this: %w", ErrPermanent)
	// ErrSinkDown says that no message can be delivered now: the sink is given a rest, no attempt
	// is counted, no key is parked. In a [RetryAfterError] it says how long a rest at least.
	ErrSinkDown = errors.New("sink is down")
	// ErrSkipped says that a row was not published, because an earlier one was not taken in the same
	// call. No attempt of it is counted: it waits behind that one if they are of one key, else it is
	// given to the sink again. It says so only beside another failure; alone it is one like any other.
	ErrSkipped = errors.New("not attempted: an earlier message was not delivered")
	// ErrFenced says that the receiver refused a deposed relay. The relay claims again, which tells
	// whether it is deposed; if it is not, it fences the receiver again. A receiver that knows the
	// epoch that refused returns a [FencedError]: if it is higher than the relay's own, which can be
	// only when the cluster's store has lost it, the unit gets a generation above it.
	ErrFenced = errors.New("fenced by a newer relay")
)

// RetryAfterError asks for another attempt of the message not before a while has passed, a day at
// most; around an [ErrSinkDown], for a rest of the sink so long, an hour at most.
type RetryAfterError struct {
	After time.Duration
	Err   error
}

// Error says both.
func (e *RetryAfterError) Error() string { return fmt.Sprintf("%v (retry after %v)", e.Err, e.After) }

// Unwrap returns what happened.
func (e *RetryAfterError) Unwrap() error { return e.Err }

// Policy says what follows a message that cannot be delivered.
type Policy string

// The policies.
const (
	Hold Policy = "hold" // the key waits for an operator
	Skip Policy = "skip" // the message is dead, kept with its cause; its key goes on
	Drop Policy = "drop" // the message is gone; its key goes on
)

// Retry says how a key that failed is tried again.
type Retry struct {
	MaxAttempts int           // default 10; negative: for ever
	Backoff     time.Duration // after the first failure; default 1 s
	MaxBackoff  time.Duration // default 5 min
	Factor      float64       // default 2
	Jitter      float64       // fraction to either side; default 0.2, negative none
}

// Hooks observe. Nil ones are skipped. Each has an ordered goroutine of its own; a slow one delays
// only itself, and misses what its buffer could not hold, which is counted. What was published is
// observed where it is: see OnPublished in the publisher's configuration.
type Hooks struct {
	OnDelivered    func(subscription string, rows []Row)            // the receiver has them
	OnFailed       func(subscription string, row Row, err error)    // one attempt
	OnDeadLettered func(subscription string, row Row, cause string) // given up
}
