package ranges

import (
	"errors"
	"fmt"

	"github.com/emitd/emitd/outbox"
)

// Valid returns what is wrong with the fields of a claim, or nil.
func Valid(c outbox.ClaimRequest) error {
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

// CursorRow is the part of a cursor row that all logs have: a range of shards with its owner. A log's own row
// type embeds it and adds the position.
type CursorRow struct {
	outbox.Range
	ClaimedRange outbox.Range // the bounds that its owner claimed
	Epoch        int64        // the generation of its owner
	ReadRev      int64        // raised by claims and operators, so that what a reader has in memory becomes invalid
	Rev          int64        // raised by every write
}

func (p *CursorRow) part() *CursorRow { return p }

// row is satisfied by a pointer to a log's own row type.
type row[R any] interface {
	*R
	part() *CursorRow
}

// Overlap reports whether two ranges have shards in common.
func Overlap(a, b outbox.Range) bool { return a.Lo <= b.Hi && b.Lo <= a.Hi }

// CheckClaim returns the [*outbox.FencedError] of a claim of the range r, or nil if the claim is allowed.
// rows are the cursor rows of the whole subscription, or only of the range. instances is the number of
// instances that the subscription is claimed with, and since is the epoch stored with it.
func CheckClaim[R any, P row[R]](rows []R, r outbox.Range, c outbox.ClaimRequest, instances int, since int64) error {
	fenced := &outbox.FencedError{Instances: instances}
	for i := range rows {
		p := P(&rows[i]).part()
		if Overlap(p.Range, r) && (p.Epoch > c.Epoch || p.Epoch == c.Epoch && p.ClaimedRange != r) {
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

// Resized reports whether the subscription has been claimed with another number of instances than this
// claim's, at an equal or higher epoch.
func Resized(c outbox.ClaimRequest, instances int, since int64) bool {
	return instances != c.Instances && since >= c.Epoch
}

// SplitRows splits cursor rows at the bounds of a range. The rows must be ordered by shard. rest are the
// parts outside, unchanged but for their bounds. mine are the parts inside, with the new epoch. Adjacent
// parts inside that stand at the same position become one row: join reports whether two do, and then
// updates first to represent both; SplitRows sets the bounds.
func SplitRows[R any, P row[R]](rows []R, r outbox.Range, epoch int64, join func(first *R, next R) bool) (rest, mine []R) {
	var read, rev int64
	for _, whole := range rows {
		p := *P(&whole).part()
		if p.Lo < r.Lo {
			left := whole
			cut := P(&left).part()
			cut.Hi, cut.ClaimedRange.Hi = min(p.Hi, r.Lo-1), min(p.ClaimedRange.Hi, r.Lo-1)
			rest = append(rest, left)
		}
		if Overlap(p.Range, r) {
			read, rev = max(read, p.ReadRev), max(rev, p.Rev)
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
			cut.Lo, cut.ClaimedRange.Lo = max(p.Lo, r.Hi+1), max(p.ClaimedRange.Lo, r.Hi+1)
			rest = append(rest, right)
		}
	}
	for i := range mine {
		p := P(&mine[i]).part()
		p.ClaimedRange, p.Epoch, p.ReadRev, p.Rev = r, epoch, read+1, rev+1
	}
	return rest, mine
}
