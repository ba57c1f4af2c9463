package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/emitd/emitd/outbox/internal/ranges"
)

// snapshot says which transactions had ended at a time, in the format of Postgres: xmin:xmax:xip,….
type snapshot string

// emptySnapshot is a snapshot that sees no transaction.
const emptySnapshot snapshot = "1:1:"

// parse returns the first transaction ID that had not been drawn, and those below it that were open.
func (s snapshot) parse() (xmax uint64, open []string, err error) {
	part := strings.SplitN(string(s), ":", 3)
	if len(part) != 3 {
		return 0, nil, fmt.Errorf("%q is no snapshot", s)
	}
	if part[2] != "" {
		open = strings.Split(part[2], ",")
	}
	xmax, err = strconv.ParseUint(part[1], 10, 64)
	return xmax, open, err
}

func (s snapshot) xmax() uint64 {
	xmax, _, _ := s.parse()
	return xmax
}

// view is a snapshot, and an id up to which every transaction counts as ended whatever its transaction
// ID.
type view struct {
	at   snapshot
	base int64
}

// position is the part of a cursor row that says what was delivered: everything that from sees, and, if
// to is set, what to sees up to the id last. A replay sets again (else it is -1): messages with ids above
// again are delivered once more, whatever from sees.
type position struct {
	from, to    view
	last        int64
	replayAfter int64
	floor       int64 // transactions that began after from have ids above it
}

const never = -1 // value of position.again: no replay

// cursorRow is a cursor row: the position of a range of shards, with its owner.
type cursorRow struct {
	ranges.CursorRow
	position
	drawn int64 // the last id that was drawn before the row was written
	era   int
}

// merge merges the next row into p if both stand at the same position, and reports whether it did.
func (p *cursorRow) merge(next cursorRow) bool {
	if p.position != next.position {
		return false
	}
	p.drawn = min(p.drawn, next.drawn)
	return true
}

// rewound returns the position after an operator or a new era has moved it back. Everything above again is
// delivered once more, and below it what was not delivered yet. A round in progress ends early: up to
// last, or again if that is less, its target snapshot counts as delivered.
func (p position) rewound(again int64) position {
	if p.replayAfter != never {
		again = min(again, p.replayAfter)
	}
	if p.to.at != "" {
		p.from, again = p.to, min(again, p.last)
	}
	p.to, p.last, p.replayAfter = view{}, 0, again
	return p
}

// undelivered is the condition that the message o is not delivered at the position of the cursor row c. It is
// null, not false, for most messages that are delivered.
const undelivered = `(o.id > c.again or not (o.id <= c.base_from or pg_visible_in_snapshot(o.tx, c.snap_from)))
	and not coalesce(o.id <= c.last and (o.id <= c.base_to or pg_visible_in_snapshot(o.tx, c.snap_to)), false)`
