package view

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
)

// TestTermsOnPages: the pages of a history have exactly the terms that the whole history has, whatever happened between the
// elections and however long a page is.
func TestTermsOnPages(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		var events []daemon.Event
		at, term := now.Add(-time.Hour), int64(r.IntN(3))
		for seq := range int64(r.IntN(60)) {
			at = at.Add(time.Duration(r.IntN(20)) * time.Second)
			e := daemon.Event{Seq: seq + 1, At: at, Kind: daemon.LeaderLost, Term: term, Reason: "resigned"}
			switch r.IntN(4) {
			case 0, 1:
				term += 1 + int64(r.IntN(3))
				e = daemon.Event{Seq: seq + 1, At: at, Kind: daemon.LeaderElected, Term: term, Node: fmt.Sprint("n", term)}
			case 2:
				e.Detail = fmt.Appendf(nil, `{"lease_ended_at": %q}`, at.Add(-3*time.Second).Format(time.RFC3339Nano))
			}
			events = append(events, e)
		}
		all := Terms(events, now)
		limit := 1 + r.IntN(5)
		var paged []Term
		for before := term + 1; ; {
			page := TermsBefore(events, now, before, limit)
			if len(page) == 0 {
				break
			}
			if len(page) > limit {
				t.Fatalf("seed %d: %d terms on a page of %d", seed, len(page), limit)
			}
			paged = append(paged, page...)
			before = page[len(page)-1].Term
		}
		if len(all) != len(paged) || len(all) > 0 && !reflect.DeepEqual(all, paged) {
			t.Fatalf("seed %d, pages of %d:\n%+v\nthe whole history has\n%+v", seed, limit, paged, all)
		}
	}
}
