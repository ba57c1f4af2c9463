package sink

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/emitd/emitd/outbox"
)

// Range parses the name of a shard range, "0-31" or "7", as in [outbox.Delivery].
func Range(name string) (outbox.Range, error) {
	lo, hi, two := strings.Cut(name, "-")
	if !two {
		hi = lo
	}
	var r outbox.Range
	var err error
	if r.Lo, err = strconv.Atoi(lo); err == nil {
		r.Hi, err = strconv.Atoi(hi)
	}
	if err != nil || r.Lo < 0 || r.Hi < r.Lo || r.Hi >= outbox.Shards {
		return outbox.Range{}, fmt.Errorf("%q is not a range of the shards 0-%d", name, outbox.Shards-1)
	}
	return r, nil
}

// Overlaps reports whether two ranges have a shard in common.
func Overlaps(a, b outbox.Range) bool { return a.Lo <= b.Hi && b.Lo <= a.Hi }
