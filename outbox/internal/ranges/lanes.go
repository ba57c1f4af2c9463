package ranges

import (
	"strings"

	"github.com/emitd/emitd/outbox"
)

// Bounds of the messages that Due returns of one parked key.
const (
	ParkedRows  = 100
	ParkedBytes = 1 << 20
)

// ParkedKey identifies a parked key, or one message without a key, which is parked alone.
type ParkedKey struct {
	Shard     int
	Key       string
	MessageID int64 // the ID of a message that is parked alone; 0 for a key
}

// ParkedKeyOf returns the parked key to which a message of the log belongs while it is parked.
func ParkedKeyOf(r outbox.Row) ParkedKey {
	if r.Key == "" {
		return ParkedKey{r.Shard, "", r.Seq}
	}
	return ParkedKey{r.Shard, r.Key, 0}
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
