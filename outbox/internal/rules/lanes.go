package rules

import (
	"strings"

	"github.com/emitd/emitd/outbox"
)

// Bounds of a lane in one answer of Due.
const (
	LaneRows  = 100
	LaneBytes = 1 << 20
)

// Lane names a key that waits, or one message alone: what waits and has no key.
type Lane struct {
	Shard int
	Key   string
	Solo  int64 // the message's id, 0 for a key
}

// LaneOf is the lane that a message of the log gets into.
func LaneOf(r outbox.Row) Lane {
	if r.Key == "" {
		return Lane{r.Shard, "", r.Seq}
	}
	return Lane{r.Shard, r.Key, 0}
}

// maxCause is how many bytes of a cause are kept.
const maxCause = 2000

// Cause makes an error storable: valid text of bounded length.
func Cause(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", " "), "\uFFFD")
	if len(text) > maxCause {
		text = strings.ToValidUTF8(text[:maxCause], "")
	}
	return text
}
