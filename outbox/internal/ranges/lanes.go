package ranges

import (
	"strings"

	"github.com/emitd/emitd/outbox"
)

// Bounds of the messages that Due returns of one lane.
const (
	LaneRows  = 100
	LaneBytes = 1 << 20
)

// Lane identifies the lane of a parked key, or of one message that is parked alone.
type Lane struct {
	Shard int
	Key   string
	Solo  int64 // the ID of a message that is parked alone; 0 for a key's lane
}

// LaneOf returns the lane in which a message of the log is parked.
func LaneOf(r outbox.Row) Lane {
	if r.Key == "" {
		return Lane{r.Shard, "", r.Seq}
	}
	return Lane{r.Shard, r.Key, 0}
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
