package ranges

import (
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Bounds of the messages that [outbox.Cursor].Due returns of one lane.
const (
	ParkedRows  = 100
	ParkedBytes = 1 << 20
)

// ParkedKey identifies what has a lane: a parked key, or a single message that is parked alone. A message
// is parked alone if it has no key, or if an operator put it back from the dead letters.
type ParkedKey struct {
	Shard int
	Key   string
	Seq   int64 // of the message that is parked alone; 0 for a parked key
}

// ParkedKeyOf returns the parked key to which a message of the log belongs while it is parked.
func ParkedKeyOf(r outbox.Row) ParkedKey {
	if r.Key == "" {
		return ParkedKey{r.Shard, "", r.Seq}
	}
	return ParkedKey{r.Shard, r.Key, 0}
}

// Resumes begins the stored cause of a key that is held but tried again by itself. Its lane is stored as one
// that waits: programs that know only lanes that are held or wait try it again, too.
const Resumes = "held, tried again by itself: "

// HeldCause returns what is stored of an outcome that leaves a message parked: whether its key is held until
// an operator acts, and the cause.
func HeldCause(o outbox.Outcome) (held bool, cause string) {
	cause = strings.TrimPrefix(o.Cause, Resumes)
	if o.Kind != outbox.Held {
		return false, Cause(cause)
	}
	if o.RetryIn > 0 {
		return false, Cause(Resumes + cause)
	}
	return true, Cause(cause)
}

// Missing reports whether a stored cause is that of an [outbox.ErrMissing].
func Missing(cause string) bool {
	return strings.HasPrefix(strings.TrimPrefix(cause, Resumes), outbox.ErrMissing.Error())
}

// SetCause sets cause and time of an entry of a list, given the stored cause and the time of the next attempt.
func SetCause(e *outbox.Entry, cause string, next time.Time) {
	cause, resumes := strings.CutPrefix(cause, Resumes)
	if e.Cause = cause; e.Kind == outbox.Waiting || e.Kind == outbox.Held && resumes {
		e.NextAt = next
	}
}

// maxCause is how many bytes of a cause are stored.
const maxCause = 2000

// Cause makes an error text storable: valid UTF-8 of bounded length without zero bytes.
func Cause(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", " "), "\uFFFD")
	if len(text) > maxCause {
		text = strings.ToValidUTF8(text[:maxCause], "")
	}
	return text
}
