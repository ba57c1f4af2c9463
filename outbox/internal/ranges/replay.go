package ranges

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Bounds of a replay that parks copies: it is one transaction, for which relays of the subscription, and on
// SQLite all writers, wait.
const (
	ReplayRows  = 100_000
	ReplayBytes = 128 << 20
)

// Replay collects what a replay selects.
type Replay struct {
	outbox.ReplayRequest
	// IDs lists the messages to deliver again, in log order.
	IDs    []int64
	bytes  int64
	shards map[int]bool // of IDs
	passed int          // messages to deliver again,
	coming int          // and selected ones that are delivered anyway
}

// NewReplay validates a request.
func NewReplay(r outbox.ReplayRequest) (*Replay, error) {
	switch {
	case r.Subscription == "":
		return nil, errors.New("no subscription is named")
	case r.After < 0 || r.UpTo < 0:
		return nil, fmt.Errorf("there is no position %d", min(r.After, r.UpTo))
	case r.UpTo > 0 && r.UpTo <= r.After:
		return nil, fmt.Errorf("no message is after number %d and up to number %d", r.After, r.UpTo)
	case !r.Until.IsZero() && !r.Since.Before(r.Until):
		return nil, fmt.Errorf("no time is between since %s and until %s", stamp(r.Since), stamp(r.Until))
	}
	for _, t := range r.Topics {
		if t == "" || strings.Contains(strings.TrimSuffix(t, "*"), "*") {
			return nil, fmt.Errorf("the topic is %.80q, want a topic, or a prefix followed by *", t)
		}
	}
	if len(r.Topics) == 0 {
		r.Topics = nil // an empty list selects all, too
	}
	return &Replay{ReplayRequest: r, shards: map[int]bool{}}, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// MovesBack reports whether everything from a position on is selected, so that the cursors can move back.
func (r *Replay) MovesBack() bool {
	return r.Key == "" && len(r.Topics) == 0 && r.UpTo == 0 && r.Until.IsZero()
}

// LogState says which messages a log has.
type LogState struct {
	First, End int64     // the first message that is in the log, 0 if there is none, and the last id that was drawn
	FirstAt    time.Time // when the first message was published
	Now        time.Time // the log's clock
}

// CheckRange checks the request against the log.
func (r *Replay) CheckRange(e LogState) error {
	for _, at := range []int64{r.After, r.UpTo} {
		if at > e.End {
			return fmt.Errorf("position %d is %w: the log ends at %d", at, outbox.ErrNotFound, e.End)
		}
	}
	for _, at := range []time.Time{r.Since, r.Until} {
		if at.After(e.Now) {
			return fmt.Errorf("a message of %s is %w: by the log's clock it is %s", stamp(at), outbox.ErrNotFound, stamp(e.Now))
		}
	}
	switch {
	case e.First == 0 && (r.UpTo > 0 || !r.Until.IsZero()):
		return fmt.Errorf("the range is %w: the log has no message; those that are delivered are removed after the retention", outbox.ErrNotFound)
	case r.UpTo > 0 && r.UpTo < e.First, !r.Until.IsZero() && !r.Until.After(e.FirstAt):
		return fmt.Errorf("the range is %w: the log begins with message %d of %s; earlier ones were removed after the retention",
			outbox.ErrNotFound, e.First, stamp(e.FirstAt))
	}
	return nil
}

// Add adds a selected message. coming says that it is delivered anyway. It returns false if the rest need not
// be read.
func (r *Replay) Add(id int64, shard int, bytes int64, coming bool) bool {
	if coming {
		r.coming++
	} else {
		r.passed++
		r.bytes += bytes
		if !r.MovesBack() && r.passed <= ReplayRows {
			r.IDs = append(r.IDs, id)
			r.shards[shard] = true
		}
	}
	if r.MovesBack() {
		return r.passed <= ReplayRows && r.coming <= ReplayRows
	}
	return r.passed <= ReplayRows && r.bytes <= ReplayBytes
}

// CheckSize returns the error of a replay that is too large to be parked.
func (r *Replay) CheckSize() error {
	if r.MovesBack() || r.passed <= ReplayRows && r.bytes <= ReplayBytes {
		return nil
	}
	return fmt.Errorf("more than %d messages or %d MiB are selected, which one replay of a part of the log cannot have: "+
		"narrow the range, or replay everything after a position", ReplayRows, ReplayBytes>>20)
}

// Counts returns the number of selected messages by kind.
func (r *Replay) Counts() map[outbox.Kind]int {
	counts := map[outbox.Kind]int{}
	if r.passed > 0 {
		counts[outbox.Delivered] = r.passed
	}
	if r.coming > 0 {
		counts[outbox.Waiting] = r.coming
	}
	return counts
}

// Parked corrects the counts: of the messages to deliver again, only n were parked. The others have been
// removed from the log meanwhile, or are delivered anyway.
func (r *Replay) Parked(n int) { r.passed = n }

// Shards returns the shards of the messages to deliver again.
func (r *Replay) Shards() []int { return slices.Sorted(maps.Keys(r.shards)) }
