package pglog

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/emitd/emitd/outbox"
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
	outbox.Range
	claim outbox.Range // the bounds by which its owner claimed
	position
	drawn int64 // the last id that was drawn before it was written
	epoch int64
	turn  int64
	rev   int64
	era   int
}

func overlap(a, b outbox.Range) bool { return a.Lo <= b.Hi && b.Lo <= a.Hi }

// carve cuts rows, in the order of the shards, at the bounds of a range and returns those outside, as
// they are but for their bounds, and those inside, of the epoch. Neighbours inside at one position are
// one row.
func carve(rows []part, r outbox.Range, epoch int64) (rest, mine []part) {
	var turn, rev int64
	for _, p := range rows {
		if overlap(p.Range, r) {
			turn, rev = max(turn, p.turn), max(rev, p.rev)
		}
		if p.Lo < r.Lo {
			left := p
			left.Hi = min(p.Hi, r.Lo-1)
			left.claim.Hi = min(p.claim.Hi, r.Lo-1)
			rest = append(rest, left)
		}
		if overlap(p.Range, r) {
			mid := p
			mid.Lo, mid.Hi = max(p.Lo, r.Lo), min(p.Hi, r.Hi)
			if n := len(mine); n > 0 && mine[n-1].position == mid.position {
				mine[n-1].Hi, mine[n-1].drawn = mid.Hi, min(mine[n-1].drawn, mid.drawn)
			} else {
				mine = append(mine, mid)
			}
		}
		if p.Hi > r.Hi {
			right := p
			right.Lo = max(p.Lo, r.Hi+1)
			right.claim.Lo = max(p.claim.Lo, r.Hi+1)
			rest = append(rest, right)
		}
	}
	for i := range mine {
		mine[i].claim, mine[i].epoch, mine[i].turn, mine[i].rev = r, epoch, turn+1, rev+1
	}
	return rest, mine
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
