package outbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Log is the part of a backend, such as outbox/sqlite, that relays use: it stores the messages until
// they are delivered. Publishing is not part of it, because it happens in a transaction of the caller's
// driver and differs per backend.
//
// A log is append-only and has any number of subscriptions, each with its own cursor rows. The cursor
// rows of a subscription together cover the shards 0 … Shards-1 exactly once, from the moment the
// subscription is known. A cursor row has an epoch, the generation of the relay that owns it, and a rev
// that every write raises by one. It is written only by [Log.Claim] and by statements that compare range,
// epoch *and* rev.
type Log interface {
	// Claim takes the cursor rows of the range [RangeOf](Index, Instances) for an epoch, and returns a
	// Cursor that reads from them. In one transaction it
	//
	//  1. creates the subscription, with cursor rows for all shards, if the log does not know it;
	//  2. refuses with a [*FencedError] if a cursor row that overlaps the range has a higher epoch, or has
	//     other bounds and the same epoch;
	//  3. refuses likewise, with Resized set, if the subscription was claimed with another number of
	//     instances at an equal or higher epoch. Otherwise it stores this number, together with the highest
	//     epoch of any claim so far. The highest, because each unit has its own generations: a claim of a
	//     unit with a low generation must not make the log forget a higher one;
	//  4. splits overlapping rows at the bounds of the range. The part outside keeps position and epoch; its
	//     owner is refused at its next write, because its bounds have changed, and claims again. The part
	//     inside gets this epoch. Rows inside at different positions stay separate until each has caught up,
	//     and then become one; the caller does not notice;
	//  5. raises rev of the rows that it took, so that earlier claims of the same run are refused too.
	//
	// Wherever a [*FencedError] is returned, its Floor is the maximum of all epochs that caused the refusal:
	// those of the overlapping rows, and the one stored with the number of instances. A generation above it
	// is not refused.
	//
	// The same epoch may claim the same range any number of times. A claim also decides whether the server
	// may be read from at all: not while it recovers, and after it turned out to be another server than
	// before (restored, failed over) only by the backend's own rules.
	Claim(ctx context.Context, c ClaimRequest) (Cursor, error)
	// WakeUps returns a channel that receives a value after messages were committed, until ctx ends. It is a
	// wake-up: it may come late, be lost or be spurious. It is nil if the log has no wake-ups.
	WakeUps(ctx context.Context) <-chan struct{}
}

// ClaimRequest says which range a relay takes, and as whom.
type ClaimRequest struct {
	Subscription     string
	Index, Instances int   // the unit and the number of units
	Epoch            int64 // the generation of the assignment
	Node             string
	// Newest starts a new subscription after everything that is in the log. Otherwise it starts with the
	// oldest message that is still there.
	Newest bool
}

// Cursor reads one range of one subscription for one relay. Next may run beside one other method. Neither
// Next nor the other methods may run concurrently with themselves or, for the others, with each other.
//
// After any error the caller closes the cursor and claims again, because what the cursor has in memory
// may differ from what is stored. [ErrFenced] says that a higher epoch owns the range.
type Cursor interface {
	// Next returns the page after the one that it returned last. A page has at most limit.Rows messages and
	// about limit.Bytes of payload and headers, but at least one message if there is any. An empty page with
	// More unset says that nothing is to be delivered now. A page obeys these rules:
	//
	//  1. Every message whose transaction has committed is in exactly one page of an undisturbed cursor. A
	//     message that was rolled back, or may still be, is in none.
	//  2. Messages of one key come in the order in which their transactions took the key's lock, across all
	//     pages.
	//  3. No open transaction holds back messages that other transactions have committed.
	//  4. If another cursor read the range before, messages follow the position that its last Advance
	//     stored.
	Next(ctx context.Context, limit Limit) (Page, error)
	// Advance stores the position after a page. In the same atomic step it stores the outcomes of messages up
	// to there that were not delivered: Waiting, Held and Behind messages are copied into the lane of their
	// key, Dead ones to the dead letters. A Behind message whose key has no lane (an operator may have emptied
	// it) creates one that is due at once. One that comes before all messages of the lane, as after a replay,
	// makes the lane due at once, with its attempts counted from zero. Marks are passed in the order of their
	// pages. Some marks may be left out, but no outcomes.
	Advance(ctx context.Context, to Mark, outcomes []Outcome) error
	// Parked lists the keys of the range that have a lane, as of the claim. Their messages must not be
	// delivered from pages; they are given to Advance as Behind. Lanes of a single message (see Due) are not
	// listed, because they stand for no key.
	Parked() []string
	// Due returns messages of lanes whose next attempt is due by the log's clock, the longest due first. It
	// returns up to limit lanes, and of each the first messages in log order: at most 100 messages and 1 MiB,
	// but at least one. It returns none while the subscription is paused. If the first message of a lane has
	// failed before, Due returns that message alone: it may well fail again, and then nothing behind it is
	// tried. A message without a key has a lane of its own, and so has a dead message that an operator put
	// back. Such a lane stands for no key: its message has no order relative to messages of its key or to their
	// lane.
	//
	// Attempt of a lane's first message is the number of the attempt to make now. It is one more than the
	// Attempts with which the message was last stored as Waiting, or 1 if it never was or if an operator
	// retried it. All other messages have Attempt 1. Missing of a lane's first message is set if the stored
	// cause begins with the text of [ErrMissing].
	Due(ctx context.Context, limit int) ([][]Row, error)
	// StoreParked stores the outcomes of messages that Due returned. Delivered and Dropped messages leave their
	// lane, and Dead ones go to the dead letters. Waiting and Held change the state of their lane if they are
	// its first message; an Advance may have put others before them meanwhile. A Delivered message stays, too, if
	// a replay has put others before it, so that it comes once more after them. Behind messages stay as they are. When the first message of a lane leaves it, the next one is due at once and its attempts count from
	// zero. A message that is no longer in a lane, because an operator took it out, is ignored. Outcomes of a
	// lane come in the order in which Due returned its messages. StoreParked returns the keys whose lanes are
	// now empty and therefore deleted. It never returns the key of a lane that stands for no key.
	StoreParked(ctx context.Context, outcomes []Outcome) (emptied []string, err error)
	// Promote moves delayed messages of the range that are due into the log, in the order of their times,
	// and returns how many it moved. Fewer than limit says that no more are due.
	Promote(ctx context.Context, limit int) (int, error)
	// SetProblem stores, for operators ([CursorStats]), why nothing of the range is delivered; "" says that the
	// reason has ended. A claim clears it. It changes nothing else. If the range has another owner by now,
	// it does nothing and returns no error; the other methods find that out.
	SetProblem(ctx context.Context, text string) error
	// Close releases connections. It does not change what is stored.
	Close()
}

// Limit bounds a page.
type Limit struct {
	Rows  int
	Bytes int
}

// Mark is a position after a page. Only the cursor that made it knows its content.
type Mark any

// Page is the result of one read of the log.
type Page struct {
	Rows []Row
	// Mark is the position after the page. An empty page has a mark only if its position is worth storing;
	// otherwise it is nil.
	Mark Mark
	More bool // another page follows at once
	// Replayed is the end of the log at the time of the last replay. Messages up to there may have been
	// delivered before.
	Replayed int64
	// Paused says that the subscription is paused (the page is empty then), Due that a lane is due, Delayed
	// that a delayed message is due.
	Paused, Due, Delayed bool
}

// Kind is the outcome of one message.
type Kind string

// The kinds of outcome.
const (
	Delivered Kind = "delivered"
	Waiting   Kind = "waiting" // failed; its key is tried again after a pause
	// Held: failed; its key waits for an operator. If the outcome has a pause, the key does not wait for ever:
	// its lane is due after the pause, like one that waits.
	Held    Kind = "held"
	Behind  Kind = "behind"  // not tried, because an earlier message of its key is parked
	Dead    Kind = "dead"    // given up and kept with the cause; its key goes on
	Dropped Kind = "dropped" // given up and discarded; its key goes on
)

// Outcome says what happened to one message.
type Outcome struct {
	Row      Row // only Seq, Shard and Key are used
	Kind     Kind
	Attempts int           // so far
	RetryIn  time.Duration // Waiting: the pause from now, by the log's clock. Held: the same, if it is not 0
	Cause    string        // Waiting, Held, Dead: the last error
}

// FencedError is an [ErrFenced] that carries the epoch a new generation must exceed.
type FencedError struct {
	Floor int64
	// Resized says that the subscription was claimed with another number of instances.
	Resized bool
	// Instances is that other number.
	Instances int
}

// Error names the epoch that owns the range.
func (e *FencedError) Error() string {
	if e.Resized {
		return fmt.Sprintf("%v: the subscription has %d instances since epoch %d", ErrFenced, e.Instances, e.Floor)
	}
	return fmt.Sprintf("%v: epoch %d owns the shards", ErrFenced, e.Floor)
}

// Is makes errors.Is(err, ErrFenced) true.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// Errors that operators may see.
var (
	// ErrNotFound says that the subscription or message does not exist.
	ErrNotFound = errors.New("not found")
	// ErrMoved is returned by a cursor whose rows were changed by an operator, by a claim of a neighbouring
	// range, or because its own rows were merged after they caught up. Nothing is wrong: claim again.
	ErrMoved = errors.New("the cursor was moved")
	// ErrSchema says that the log's tables are missing, or have a version that this program does not know.
	ErrSchema = errors.New("schema does not fit")
)

// Operator is the set of commands by which people inspect and change a log. Relays notice the changes
// without a restart.
type Operator interface {
	// Stats returns the state of a subscription, or of all for "". Counting stops at 10,000 messages of a
	// cursor row; the rest is estimated.
	Stats(ctx context.Context, subscription string) ([]Stats, error)
	// List returns messages that are waiting, behind, held or dead, in log order.
	List(ctx context.Context, f Filter) ([]Entry, error)
	// Retry makes lanes due at once, with their attempts counted from zero. It puts each dead message back
	// as a lane of its own that stands for no key: later messages of its key may have been delivered
	// meanwhile, so it has lost its order. If it fails again, nothing waits behind it. Without seqs it
	// retries everything that is held or dead. It returns the number of lanes and messages.
	Retry(ctx context.Context, subscription string, seqs ...int64) (int, error)
	// Skip makes parked messages dead; their key goes on. A message that is not parked gives [ErrNotFound].
	Skip(ctx context.Context, subscription string, seqs ...int64) error
	// SettleAll does the same to all messages that a filter selects. It moves them to Waiting (they are
	// retried; by default those that are held or dead), Dead (they are skipped; by default those that are
	// held) or Dropped (dead letters are deleted for ever). The filter's Kind selects others. It returns how
	// many messages of each kind it changed, or, with dryRun, would change. A transaction has at most 1,000
	// messages, so after an error some of them may be changed. Messages that become parked or dead meanwhile
	// are left alone. The filter must name a subscription that exists.
	SettleAll(ctx context.Context, f Filter, to Kind, dryRun bool) (map[Kind]int, error)
	// Replay delivers messages of the log again that the subscription has delivered, given up or never been
	// interested in. It returns the position after which they begin and their number, by kind: Delivered
	// messages are, or would be, delivered once more; Waiting ones will be delivered anyway, because the
	// subscription has not passed them or because they are parked. Counting may stop beyond 100,000.
	//
	// A replay of everything from a position on moves the cursors back: the messages are delivered in log
	// order, before later ones. Any other replay parks copies of what it selects: in the lane of their key,
	// or alone if they have no key. They are due at once, in log order, and before all messages of the key
	// that were not delivered yet. So the key waits for them, and no other key does. A lane that waited or
	// was held is due, too, with its attempts counted from zero. Such a replay is one transaction. It is refused
	// if it selects more than 100,000 messages or 128 MiB.
	//
	// Either way a relay that owns shards of the messages must claim again before it stores anything, so
	// what it had in flight may come again. A position or time after the end of the log gives [ErrNotFound],
	// and so does a range of which the log has nothing any more. Nothing is changed then.
	Replay(ctx context.Context, r ReplayRequest) (after int64, counts map[Kind]int, err error)
	// Pause stops deliveries (true) or resumes them (false). Deliveries in flight are finished.
	Pause(ctx context.Context, subscription string, paused bool) error
	// Delete deletes a subscription with its cursors, lanes and dead letters. It first pauses it, and then
	// deletes messages in parts, 1,000 or as many as take a tenth of a second. So after an error some of them
	// may be deleted, and the subscription is paused: delete it again, or resume what is left.
	Delete(ctx context.Context, subscription string) error
}

// ReplayRequest selects messages that a subscription is to deliver again. The fields restrict the selection;
// the zero value of each selects all.
type ReplayRequest struct {
	Subscription string
	Key          string
	Topics       []string // topics, or prefixes followed by *
	After, UpTo  int64    // only messages after the one, and up to the other
	// Since and Until begin with the first message published at or after Since, and end with the last one
	// published before Until, in log order. A clock that was set back must not hide messages.
	Since, Until time.Time
	DryRun       bool // only count
}

// Filter selects entries of a list.
type Filter struct {
	Subscription string // "" = all
	Kind         Kind   // Waiting, Held, Behind or Dead; "" = all
	Key          string // "" = all
	Seq          int64  // 0 = all
	Topic        string // a topic, or a prefix followed by *; "" = all
	Cause        string // a part of the cause; "" = all
	After        int64  // only messages after this one
	Limit        int    // default 100; SettleAll: default all
	// Since and Until select messages that were parked, or died, at or after Since and before Until. The zero
	// time is no bound.
	Since, Until time.Time
}

// Entry is one message that is waiting, behind, held or dead.
type Entry struct {
	Row
	Subscription string
	Kind         Kind
	Cause        string
	NextAt       time.Time // Waiting, and Held if the key is tried again by itself
	ParkedAt     time.Time
}

// Stats is the state of one subscription.
type Stats struct {
	Subscription string
	Paused       bool
	Instances    int
	// Pending counts undelivered messages: parked ones are included, dead ones not. PendingExact is false if
	// it is an estimate, from the ids in the log: it is wrong where transactions were rolled back, or where
	// shards have unequal shares. OldestAt is exact in either case.
	Pending      int64
	PendingExact bool
	OldestAt     time.Time // when the oldest pending message was published; zero if there is none
	Now          time.Time // the log's clock
	ParkedKeys   int64     // keys that are waiting or held
	HeldKeys     int64
	// Delayed counts the messages that the log holds back until their time, at most 10,000. It is the same
	// for all subscriptions and not part of Pending. NextAt is when the next of them is due; zero if there
	// is none.
	Delayed int64
	NextAt  time.Time
	Dead    int64
	Cursors []CursorStats
	// Retained is the size of the log on disk, in bytes. PartitionsAhead is the number of partitions that are
	// ready to be written, -1 for a log without partitions.
	Retained        int64
	PartitionsAhead int
}

// CursorStats is the state of one cursor row.
type CursorStats struct {
	Range     Range
	Epoch     int64
	Node      string
	UpdatedAt time.Time
	Problem   string // why nothing is delivered, e.g. the sink is down; "" if deliveries go on
}

// Range is a range of shards, both ends included.
type Range struct{ Lo, Hi int }

// String returns "0-31", or "7" for one shard.
func (r Range) String() string {
	if r.Lo == r.Hi {
		return fmt.Sprint(r.Lo)
	}
	return fmt.Sprintf("%d-%d", r.Lo, r.Hi)
}

// RangeOf returns the shards of a unit. The units 0 … instances-1 share the shards evenly.
func RangeOf(index, instances int) Range {
	return Range{index * Shards / instances, (index+1)*Shards/instances - 1}
}

// ShardOf returns the shard of a key: the first byte of its SHA-256, modulo Shards. Producers in other
// languages must compute the same.
func ShardOf(key string) int { return int(sha256.Sum256([]byte(key))[0]) % Shards }

// LockOf returns the number by which a backend locks a key: bytes 1 to 4 of the same hash, so that it is
// independent of the shard.
func LockOf(key string) int32 {
	sum := sha256.Sum256([]byte(key))
	return int32(binary.BigEndian.Uint32(sum[1:5]))
}
