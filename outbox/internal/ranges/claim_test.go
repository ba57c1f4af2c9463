package ranges

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/emitd/emitd/outbox"
)

// place is a cursor row of a log whose positions are numbers.
type place struct {
	CursorRow
	last int64
}

func (p *place) join(next place) bool { return p.last == next.last }

// TestCarve claims ranges in random order and compares the rows with a plain model, an array of shards.
// The rows must cover all shards exactly once, each shard must keep its position, and the rows inside a
// claim must belong to it.
func TestCarve(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		all := outbox.Range{Lo: 0, Hi: outbox.Shards - 1}
		rows := []place{{CursorRow: CursorRow{Range: all, ClaimedRange: all}}}
		var last [outbox.Shards]int64
		var epochs [outbox.Shards]int64
		for epoch := int64(1); epoch < 20; epoch++ {
			n := 1 + rng.IntN(8)
			r := outbox.RangeOf(rng.IntN(n), n)
			rest, mine := SplitRows(rows, r, epoch, (*place).join)
			rows = slices.Concat(rest, mine)
			slices.SortFunc(rows, func(a, b place) int { return a.Lo - b.Lo }) // the order in which logs read them
			for i := range rows {
				if rng.IntN(3) == 0 { // the owner advances
					rows[i].last += rng.Int64N(3)
					for s := rows[i].Lo; s <= rows[i].Hi; s++ {
						last[s] = rows[i].last
					}
				}
			}
			for s := r.Lo; s <= r.Hi; s++ {
				epochs[s] = epoch
			}
			checkRows(t, seed, rows, last, epochs)
			for _, p := range rows {
				if Overlap(p.Range, r) && (p.ClaimedRange != r || p.Epoch != epoch) {
					t.Fatalf("seed %d: row %+v inside %v is not of the claim", seed, p, r)
				}
				if !Overlap(p.Range, r) && Overlap(p.ClaimedRange, r) {
					t.Fatalf("seed %d: row %+v outside of %v says that it was claimed with it", seed, p, r)
				}
			}
		}
	}
}

func checkRows(t *testing.T, seed uint64, rows []place, last, epochs [outbox.Shards]int64) {
	t.Helper()
	var covered [outbox.Shards]int
	for _, p := range rows {
		for s := p.Lo; s <= p.Hi; s++ {
			covered[s]++
			if p.last != last[s] || p.Epoch != epochs[s] {
				t.Fatalf("seed %d: shard %d stands at %d, epoch %d; want %d, %d", seed, s, p.last, p.Epoch, last[s], epochs[s])
			}
		}
	}
	for s, n := range covered {
		if n != 1 {
			t.Fatalf("seed %d: shard %d is in %d rows", seed, s, n)
		}
	}
}
