package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Limits of a message. A message beyond them is refused when it is published, in the caller's
// transaction, and nothing of it is stored.
const (
	MaxTopic   = 255     // bytes
	MaxType    = 255     // bytes
	MaxKey     = 1 << 10 // bytes
	MaxHeaders = 64      // number of headers; a name has at most 255 bytes, a value 4 KiB
	MaxPayload = 1 << 20 // bytes

	// Shards is the number of virtual shards. A key always falls into the same one.
	Shards = 64
)

// Message is what the caller publishes.
type Message struct {
	// ID goes along to every sink, so that consumers can drop repetitions by it. If it is zero, Publish
	// generates one.
	ID uuid.UUID
	// Key orders messages: those of one key are delivered in the order in which the transactions that
	// published them took the key's lock. Messages without a key have no order.
	Key string
	// Topic is the destination, in the terms of the sink: a topic, a subject, a queue. Required.
	Topic string
	// Type names the kind of message, e.g. "order.placed". May be empty.
	Type    string
	Headers map[string]string
	Payload []byte
	// NotBefore delays the message until the database's clock has reached it. A delayed message has no order
	// relative to the undelayed ones of its key. A time in the past has no effect.
	NotBefore time.Time
	// TraceParent and TraceState link the delivery to the producer's span (W3C Trace Context).
	// Publish fills them from its context when they are empty, without a state of more than 4 KiB.
	TraceParent, TraceState string
}

// Row is a message in the log.
type Row struct {
	Message
	Seq       int64 // position in the log; grows, has gaps
	Shard     int
	CreatedAt time.Time // of the database's clock
	Attempt   int       // number of this attempt: 1, 2, …
	// Missing says of a message that is tried again that it failed by an [ErrMissing] last. Lists of messages do
	// not say it: there the cause does.
	Missing bool
}

// Delivery is the argument of one call of a sink: rows of one shard range and subscription in log order,
// so that rows of one key are in their order.
type Delivery struct {
	Subscription string
	// Epoch grows with every takeover of the shard range. A sink that can compare epochs refuses a lower
	// one. Other sinks pass it on for receivers that can compare it.
	Epoch int64
	// Range names the shards, e.g. "0-31". All deliveries of one epoch have the same range.
	Range string
	Rows  []Row
}

// Sink delivers messages to a receiver.
type Sink interface {
	// Deliver sends the rows and returns when the receiver has stored them durably. It returns nil if the
	// receiver has taken all rows. Otherwise it returns one entry per row of d.Rows, nil for a row that was
	// taken, or a slice of one error that holds for all rows. It may send rows of different keys at the same
	// time. The receiver must not take a row after an earlier row of the same key was not taken; that row fails
	// with [ErrSkipped]. So a sink waits for the answer to each row of a key, or sends the rows in a way in which
	// the receiver itself stops behind a row that it did not take.
	//
	// When ctx ends, it is unknown which rows were sent, and they are delivered again. Deliver must return
	// soon after ctx ends, because the relay waits for it and cannot go on with these rows before. Deliver
	// is called from many goroutines. It may retain the rows and must not change them, because the hooks get
	// the same rows.
	Deliver(ctx context.Context, d Delivery) []error
}

// SinkFunc makes a function a Sink.
type SinkFunc func(ctx context.Context, d Delivery) []error

// Deliver calls f.
func (f SinkFunc) Deliver(ctx context.Context, d Delivery) []error { return f(ctx, d) }

// Fencer is implemented by sinks whose receiver can itself reject a relay that was replaced.
type Fencer interface {
	// Fence makes the receiver reject lower epochs of the range from now on. It is called after each claim,
	// before the first delivery, possibly several times with the same epoch. Afterwards the relay claims
	// once more. The case behind that: a relay is paused between claim and Fence, is replaced meanwhile, and
	// its late Fence makes the receiver reject the new owner (some receivers cannot compare epochs, only the
	// order of calls). The old relay's second claim is refused, so it delivers nothing; the new owner gets
	// [ErrFenced], claims again and fences again.
	Fence(ctx context.Context, subscription, shards string, epoch int64) error
}

// The kinds of failure. A sink wraps one of them with the details. An error of no kind is retried for
// that key, by the subscription's back-off.
var (
	// ErrPermanent says that another attempt of this message is useless. The [Policy] decides at once.
	ErrPermanent = errors.New("permanent")
	// ErrMissing is an ErrPermanent that says why: the destination that the message names does not exist. It
	// may appear, so the message is tried again for [Retry].MissingFor before the [Policy] decides. A key that
	// is then held is tried every minute, and continues by itself when the destination is there.
	ErrMissing error = missingError{}
	// errUnsendable is the ErrPermanent of a message that no sink can send.
	errUnsendable = fmt.Errorf("this message cannot be sent to any receiver: %w", ErrPermanent)
	// ErrSinkDown says that no message can be delivered now. The circuit breaker stops calls to the sink for
	// a while, no attempt is counted and no key is parked. A [RetryAfterError] around it sets the shortest
	// pause.
	ErrSinkDown = errors.New("sink is down")
	// ErrSkipped says that a row was not sent, because an earlier one in the same call was not taken. No
	// attempt is counted: if both rows have the same key, the skipped one waits behind the earlier one;
	// otherwise it is given to the sink again. This holds only beside another failure; if all failures of a
	// call are ErrSkipped, each is a failure like any other.
	ErrSkipped = errors.New("not attempted: an earlier message was not delivered")
	// ErrFenced says that the receiver rejected the relay as replaced. The relay claims again: either the
	// log refuses, and the relay ends, or the relay fences the receiver again. A receiver that knows the
	// epoch that caused the rejection returns a [FencedError]. If that epoch is higher than the relay's own,
	// the cluster's store has lost it, and the unit gets a generation above it.
	ErrFenced = errors.New("fenced by a newer relay")
)

// missingError is the type of ErrMissing, so that it is also an ErrPermanent without repeating its text.
type missingError struct{}

func (missingError) Error() string { return "the destination is missing" }
func (missingError) Unwrap() error { return ErrPermanent }

// RetryAfterError asks for the next attempt of the message not before a pause of After, at most a day.
// Around an [ErrSinkDown] it asks for a pause of all calls to the sink, at most an hour.
type RetryAfterError struct {
	After time.Duration
	Err   error
}

// Error returns the cause and the pause.
func (e *RetryAfterError) Error() string { return fmt.Sprintf("%v (retry after %v)", e.Err, e.After) }

// Unwrap returns the cause.
func (e *RetryAfterError) Unwrap() error { return e.Err }

// Policy says what happens to a message that cannot be delivered.
type Policy string

// The policies.
const (
	Hold Policy = "hold" // the key waits for an operator
	Skip Policy = "skip" // the message is dead, kept with its cause; its key goes on
	Drop Policy = "drop" // the message is discarded; its key goes on
)

// Retry configures the back-off of a key whose message failed.
type Retry struct {
	MaxAttempts int           // default 10; negative: for ever. Attempts for an [ErrMissing] do not count
	Backoff     time.Duration // after the first failure; default 1 s
	MaxBackoff  time.Duration // default 5 min
	Factor      float64       // default 2
	Jitter      float64       // fraction to either side; default 0.2, negative none
	// MissingFor is how long a message is tried again because its destination is missing ([ErrMissing]),
	// whatever MaxAttempts says, before the policy decides. Default 15 min; negative: the policy decides at
	// once. Pauses are at most a minute.
	MissingFor time.Duration
}

// Hooks observe deliveries. Nil hooks are skipped. Each hook has its own goroutine and is called in
// order. A slow hook delays only itself; events that do not fit its buffer (1,024, of 64 MiB) are dropped and
// counted.
// Publishing is observed elsewhere: see OnPublished in the publisher's configuration.
type Hooks struct {
	OnDelivered    func(subscription string, rows []Row)            // the receiver has taken the rows
	OnFailed       func(subscription string, row Row, err error)    // one attempt failed
	OnDeadLettered func(subscription string, row Row, cause string) // the message was given up
}
