package pglog

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/emitd/emitd/outbox/internal/rules"
)

// snapshot says which transactions had ended at a time, as Postgres writes it: xmin:xmax:xip,….
type snapshot string

// nothing is a snapshot that sees no transaction.
const nothing snapshot = "1:1:"

// parse returns the first number that had not begun, and those below it that were open.
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

// view is a snapshot, and the id up to which everything has ended whatever its number.
type view struct {
	at   snapshot
	base int64
}

// position is what a row of the cursors says was seen to: what from sees, but for ids above again
// (a replay, -1 for none); and what to sees up to the id last, if to is set.
type position struct {
	from, to view
	last     int64
	again    int64
	floor    int64 // transactions that began after from have ids above it
}

const never = -1 // of position.again

// part is a row of the cursors: where a range of shards stands.
type part struct {
	rules.Part
	position
	drawn int64 // the last id that was drawn before it was written
	era   int
}

// join makes two neighbours one, if they stand at one position.
func (p *part) join(next part) bool {
	if p.position != next.position {
		return false
	}
	p.drawn = min(p.drawn, next.drawn)
	return true
}

// moved is a position that an operator or another era moves back: everything after again comes anew,
// and of what is before it that which was not seen to. A tick under way is cut: up to last, or again,
// its snapshot is what was seen to.
func (p position) moved(again int64) position {
	if p.again != never {
		again = min(again, p.again)
	}
	if p.to.at != "" {
		p.from, again = p.to, min(again, p.last)
	}
	p.to, p.last, p.again = view{}, 0, again
	return p
}
