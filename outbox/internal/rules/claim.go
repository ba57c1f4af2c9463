package rules

import (
	"errors"
	"fmt"

	"github.com/emitd/emitd/outbox"
)

// Valid says what is wrong with a claim by itself.
func Valid(c outbox.Claim) error {
	switch {
	case c.Subscription == "" || len(c.Subscription) > 255:
		return fmt.Errorf("the subscription's name has %d bytes, want 1 to 255", len(c.Subscription))
	case c.Instances < 1 || c.Instances > outbox.Shards:
		return fmt.Errorf("there are %d instances, want 1 to %d", c.Instances, outbox.Shards)
	case c.Index < 0 || c.Index >= c.Instances:
		return fmt.Errorf("there is no unit %d of %d", c.Index, c.Instances)
	case c.Epoch < 1:
		return errors.New("the epoch is less than 1")
	}
	return nil
}

// Part is what every log keeps of a row of the cursors, which says where a range of shards stands. A
// log's own row embeds it, beside its position.
type Part struct {
	outbox.Range
	Claim outbox.Range // the bounds by which its owner claimed
	Epoch int64        // the generation of its owner
	Turn  int64        // raised by claims and operators: what a reader has in memory is void
	Rev   int64        // raised by every write
}

func (p *Part) part() *Part { return p }

// row is a log's own.
type row[R any] interface {
	*R
	part() *Part
}

// Overlap reports whether two ranges have shards in common.
func Overlap(a, b outbox.Range) bool { return a.Lo <= b.Hi && b.Lo <= a.Hi }

// Refuse returns the [*outbox.FencedError] of a claim of the range r, nil if it may be. Rows are those
// of the subscription, or of the range alone; instances is the number it is claimed by, since the epoch
// of that.
func Refuse[R any, P row[R]](rows []R, r outbox.Range, c outbox.Claim, instances int, since int64) error {
	fenced := &outbox.FencedError{Instances: instances}
	for i := range rows {
		p := P(&rows[i]).part()
		if Overlap(p.Range, r) && (p.Epoch > c.Epoch || p.Epoch == c.Epoch && p.Claim != r) {
			fenced.Floor = max(fenced.Floor, p.Epoch)
		}
	}
	if Resized(c, instances, since) {
		fenced.Floor, fenced.Resized = max(fenced.Floor, since), true
	}
	if fenced.Floor > 0 {
		return fenced
	}
	return nil
}

// Resized reports whether the subscription is claimed by another number of instances than this claim's,
// since an equal or higher epoch.
func Resized(c outbox.Claim, instances int, since int64) bool {
	return instances != c.Instances && since >= c.Epoch
}

// Carve cuts rows, in the order of the shards, at the bounds of a range and returns those outside, as
// they are but for their bounds, and those inside, of the epoch. Neighbours inside at one position are
// one row: join reports whether two are, and then writes into the first what is so of both, but for the
// bounds.
func Carve[R any, P row[R]](rows []R, r outbox.Range, epoch int64, join func(first *R, next R) bool) (rest, mine []R) {
	var turn, rev int64
	for _, whole := range rows {
		p := *P(&whole).part()
		if p.Lo < r.Lo {
			left := whole
			cut := P(&left).part()
			cut.Hi, cut.Claim.Hi = min(p.Hi, r.Lo-1), min(p.Claim.Hi, r.Lo-1)
			rest = append(rest, left)
		}
		if Overlap(p.Range, r) {
			turn, rev = max(turn, p.Turn), max(rev, p.Rev)
			mid := whole
			cut := P(&mid).part()
			cut.Lo, cut.Hi = max(p.Lo, r.Lo), min(p.Hi, r.Hi)
			if n := len(mine); n > 0 && join(&mine[n-1], mid) {
				P(&mine[n-1]).part().Hi = cut.Hi
			} else {
				mine = append(mine, mid)
			}
		}
		if p.Hi > r.Hi {
			right := whole
			cut := P(&right).part()
			cut.Lo, cut.Claim.Lo = max(p.Lo, r.Hi+1), max(p.Claim.Lo, r.Hi+1)
			rest = append(rest, right)
		}
	}
	for i := range mine {
		p := P(&mine[i]).part()
		p.Claim, p.Epoch, p.Turn, p.Rev = r, epoch, turn+1, rev+1
	}
	return rest, mine
}
