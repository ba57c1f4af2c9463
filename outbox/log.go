package outbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Log is where messages wait: the part of a backend, such as outbox/sqlitelog, that relays use.
// Publishing is each backend's own, because it happens in a transaction of the caller's driver.
//
// A log is append-only and has any number of subscriptions, each with cursors of its own. The
// cursors of a subscription are rows that together cover the shards 0 … Shards-1, none twice, from
// the moment on that the subscription is known. A cursor row has an epoch, the generation of the
// relay that owns it, and a rev that every write raises by one. It is written only by a statement
// that compares range, epoch *and* rev, and by [Log.Claim].
type Log interface {
	// Claim takes the cursors of a range, [RangeOf](Index, Instances), for an epoch, and returns what
	// reads from them. In one transaction it
	//
	//  1. makes the subscription, with cursors for all shards, when the log does not know it;
	//  2. refuses with a [*FencedError] when a cursor row that overlaps the range has a higher epoch, or
	//     has other bounds and the same epoch;
	//  3. refuses likewise, with Resized set, when the subscription was claimed with another number of
	//     instances at an equal or higher epoch; else notes this number, and as its epoch the highest
	//     one that it was ever claimed at: units have generations of their own, and one of a low
	//     generation must not make the log forget a higher one;
	//  4. cuts overlapping rows at the bounds of the range: what is outside keeps position and epoch
	//     (its owner is refused at its next write, because its bounds are gone, and claims again), what
	//     is inside gets this epoch. Rows inside at different positions stay apart until each has
	//     caught up, and are made one then; the caller does not notice;
	//  5. raises rev of what it took, so that earlier claims of the same run are refused too.
	//
	// Wherever a [*FencedError] is returned, its Floor is the maximum of all epochs that refused: those
	// of the overlapping rows and that of the number. A generation above it is not refused.
	//
	// The same epoch may claim the same range again, any number of times. A claim says whether the
	// server can be read from at all: not while it recovers, and after it turned out to be another
	// one than before (restored, failed over) only by the backend's own rules.
	Claim(ctx context.Context, c Claim) (Cursor, error)
	// Wake returns a channel that has something after messages were committed, until ctx ends. It is
	// a hint, may be late, lost or spurious; nil where there are none.
	Wake(ctx context.Context) <-chan struct{}
}

// Claim says which cursors a relay takes, and as whom.
type Claim struct {
	Subscription     string
	Index, Instances int   // the unit and how many there are
	Epoch            int64 // the generation of the assignment
	Node             string
	// Newest begins a subscription that is new behind what is in the log; otherwise it begins with
	// the oldest message that is still there.
	Newest bool
}

// Cursor reads one range of one subscription. It is used by one relay; Next is not called at once
// with itself, and neither is any other method, but Next may run beside one of the others.
//
// After any error the caller closes the cursor and claims anew: what the cursor has in memory may
// no longer be what is stored. [ErrFenced] says that the range is owned by a higher epoch.
type Cursor interface {
	// Next returns the page that follows the one it returned last, with at most limit.Rows messages
	// and about limit.Bytes of payload and headers, but at least one message if there is any. An
	// empty page with More unset says that nothing is to be delivered now. What a page may contain:
	//
	//  1. Every message whose transaction has committed is in exactly one page of an undisturbed
	//     cursor; one that was rolled back, or may still be, is in none.
	//  2. Messages of one key come in the order in which their transactions took the key's lock, over
	//     all pages.
	//  3. No open transaction, whoever's, holds back messages that others have committed.
	//  4. Messages of a range that was read by another cursor before follow the position stored by its
	//     last Advance.
	Next(ctx context.Context, limit Limit) (Page, error)
	// Advance stores the position behind a page, and with it, in the same atomic step, what became of
	// messages up to there that were not delivered: Waiting, Held and Behind messages are copied into
	// the lane of their key, Dead ones to the dead letters. A Behind message whose key has no lane (an
	// operator may have emptied it) makes one, due at once. Marks are passed in the order of their
	// pages; some may be left out, their outcomes may not.
	Advance(ctx context.Context, to Mark, outcomes []Outcome) error
	// Parked lists the keys of the range that have a lane, as of the claim. Their messages must not
	// be delivered from pages but be given to Advance as Behind. Lanes that stand for no key (see Due)
	// are not among them.
	Parked() []string
	// Due returns messages of lanes whose time has come, by the log's clock, those that are due
	// longest first: up to limit lanes, of each the first messages in log order (at most 100 and
	// 1 MiB, but one). Of a lane whose first message has failed before it is that one alone: it may well
	// fail again, and then nothing behind it is tried. A message of no key, and a dead message that an
	// operator put back, is a lane by itself and stands for no key: it has no order, neither against
	// messages of its key nor against their lane.
	//
	// Attempt of a lane's first message is the number of the attempt that is to be made now: one more
	// than the Attempts with which it was last stored as Waiting, 1 if it never was or if an operator
	// retried it. All others have Attempt 1.
	Due(ctx context.Context, limit int) ([][]Row, error)
	// Settle stores what became of messages that Due returned: Delivered and Dropped ones leave their
	// lane, Dead ones go to the dead letters, Waiting and Held change their lane (they must be its
	// first message), Behind ones stay as they are. When the first message of a lane leaves it, the next
	// one is due at once, its attempts counted anew. A message that is not in a lane any more, because
	// an operator took it out, is passed over. Outcomes of a lane come in the order in which Due returned
	// its messages. It returns the keys whose lanes are empty, and therefore
	// gone, afterwards; never that of a lane that stands for no key.
	Settle(ctx context.Context, outcomes []Outcome) (emptied []string, err error)
	// Promote moves delayed messages of the range whose time has come into the log, in the order of
	// their times, and returns how many. Fewer than limit says that no more are due.
	Promote(ctx context.Context, limit int) (int, error)
	// Trouble stores, for people ([CursorStats]), what keeps all of the range from being delivered; ""
	// says that nothing does any more. A claim begins without. It changes nothing else, and nothing at all
	// if the range has another owner by now: that is for the other methods to find out.
	Trouble(ctx context.Context, text string) error
	// Close lets go of connections. It does not change what is stored.
	Close()
}

// Limit bounds a page.
type Limit struct {
	Rows  int
	Bytes int
}

// Mark is a position behind a page; only the cursor that made it knows what is in it.
type Mark any

// Page is what follows in the log.
type Page struct {
	Rows []Row
	// Mark is the position behind the page. An empty page has one when its position is worth storing;
	// else it is nil.
	Mark Mark
	More bool // another page follows at once
	// Replayed is the end of the log when the subscription was replayed last: messages up to there may have
	// been delivered before.
	Replayed int64
	// What else the log has seen to: the subscription is paused (the page is empty then), a lane is
	// due, a delayed message is due.
	Paused, Due, Delayed bool
}

// Kind is what became of a message.
type Kind string

// What may become of a message.
const (
	Delivered Kind = "delivered"
	Waiting   Kind = "waiting" // failed; its key is tried again after a while
	Held      Kind = "held"    // failed; its key waits for an operator
	Behind    Kind = "behind"  // not tried, because an earlier message of its key waits
	Dead      Kind = "dead"    // given up and kept, with the cause; its key goes on
	Dropped   Kind = "dropped" // given up and gone; its key goes on
)

// Outcome is what became of one message.
type Outcome struct {
	Row      Row // Seq, Shard and Key count
	Kind     Kind
	Attempts int           // so far
	RetryIn  time.Duration // Waiting: added to the log's clock
	Cause    string        // Waiting, Held, Dead: the last error
}

// FencedError is an [ErrFenced] with what a higher generation must exceed.
type FencedError struct {
	Floor int64
	// Resized says that the subscription has another number of instances by now.
	Resized bool
	// Instances is that number.
	Instances int
}

// Error names the epoch.
func (e *FencedError) Error() string {
	if e.Resized {
		return fmt.Sprintf("%v: the subscription has %d instances since epoch %d", ErrFenced, e.Instances, e.Floor)
	}
	return fmt.Sprintf("%v: epoch %d owns the shards", ErrFenced, e.Floor)
}

// Is makes errors.Is(err, ErrFenced) true.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// What an operator may run into.
var (
	// ErrNotFound says that there is no such subscription or message.
	ErrNotFound = errors.New("not found")
	// ErrMoved, from a cursor, says that its rows were changed by an operator, by a claim of a
	// neighbouring range or by its own having caught up: claim again, nothing is wrong.
	ErrMoved = errors.New("the cursor was moved")
	// ErrSchema says that the log's tables are missing, or are not those that this program knows.
	ErrSchema = errors.New("schema does not fit")
)

// Operator is what people do with a log. Whatever it changes is noticed by relays without a
// restart.
type Operator interface {
	// Stats tells how a subscription is, or all are (""). Counting stops at 10,000 messages.
	Stats(ctx context.Context, subscription string) ([]Stats, error)
	// List returns messages that wait, are held or dead, in log order.
	List(ctx context.Context, f Filter) ([]Entry, error)
	// Retry makes lanes due at once, with attempts counted anew, and puts dead messages back, each as a
	// lane by itself that stands for no key: later messages of its key may have been delivered
	// meanwhile, so it has lost its order, and if it fails again nothing waits behind it. No seqs:
	// everything that is held or dead. It returns how many lanes and messages.
	Retry(ctx context.Context, subscription string, seqs ...int64) (int, error)
	// Skip makes messages dead that wait or are held; their key goes on. Those that are not there are
	// [ErrNotFound].
	Skip(ctx context.Context, subscription string, seqs ...int64) error
	// Replay delivers again whatever is in the log after a position, or since a time, in log order
	// and before what comes next. It returns the position used.
	Replay(ctx context.Context, subscription string, from Position) (int64, error)
	// Pause stops and resumes deliveries. What is under way is finished.
	Pause(ctx context.Context, subscription string, paused bool) error
	// Forget removes a subscription with its cursors, lanes and dead letters.
	Forget(ctx context.Context, subscription string) error
}

// Position is a place in the log: behind a message, or what was published since a time.
type Position struct {
	After int64
	Since time.Time // counts when it is not zero
}

// Filter says what to list.
type Filter struct {
	Subscription string // "" = all
	Kind         Kind   // Waiting, Held, Behind or Dead; "" = all
	Key          string // "" = all
	Seq          int64  // 0 = all
	After        int64  // only what is behind that message
	Limit        int    // default 100
}

// Entry is one message that waits, is held or dead.
type Entry struct {
	Row
	Subscription string
	Kind         Kind
	Cause        string
	NextAt       time.Time // Waiting
	ParkedAt     time.Time
}

// Stats is the state of one subscription.
type Stats struct {
	Subscription string
	Paused       bool
	Instances    int
	// Pending is how many messages are not delivered, lanes included and dead ones not; Exact is
	// false when counting stopped.
	Pending   int64
	Exact     bool
	OldestAt  time.Time // when the oldest of them was published; zero if there is none
	Now       time.Time // the log's clock
	Lanes     int64     // keys that wait or are held
	HeldLanes int64
	// Delayed is how many messages the log holds back until their time, of all subscriptions the same and
	// not among Pending: at most 10,000 are counted. NextAt is when the next of them is due; zero if there
	// is none.
	Delayed int64
	NextAt  time.Time
	Dead    int64
	Cursors []CursorStats
	// Retained is what the log takes on disk, in bytes; Ahead is how many partitions are ready to be
	// written, -1 where there are none.
	Retained int64
	Ahead    int
}

// CursorStats is the state of one cursor row.
type CursorStats struct {
	Range     Range
	Epoch     int64
	Node      string
	UpdatedAt time.Time
	Trouble   string // why nothing is delivered: the sink is down; "" = it is not
}

// Range is a range of shards, both ends included.
type Range struct{ Lo, Hi int }

// String is "0-31", or "7" for one shard.
func (r Range) String() string {
	if r.Lo == r.Hi {
		return fmt.Sprint(r.Lo)
	}
	return fmt.Sprintf("%d-%d", r.Lo, r.Hi)
}

// RangeOf returns the shards of a unit: the units 0 … instances-1 share them evenly.
func RangeOf(index, instances int) Range {
	return Range{index * Shards / instances, (index+1)*Shards/instances - 1}
}

// ShardOf returns the shard of a key: the first byte of its SHA-256, modulo Shards. Producers in
// other languages must come to the same result.
func ShardOf(key string) int { return int(sha256.Sum256([]byte(key))[0]) % Shards }

// LockOf returns the number by which a backend locks a key, its shard's independent twin: bytes 1
// to 4 of the same hash.
func LockOf(key string) int32 {
	sum := sha256.Sum256([]byte(key))
	return int32(binary.BigEndian.Uint32(sum[1:5])) //nolint:gosec // any number will do
}
