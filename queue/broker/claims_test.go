package broker

import (
	"slices"
	"sync/atomic"
	"testing"
)

func newPolls(n int) (w *claims, polls []*claimCall) {
	w = &claims{withdrawn: mailbox[*claimCall]{limit: inboxSize}}
	for range n {
		c := &claimCall{call: call{taken: new(atomic.Bool)}}
		polls = append(polls, c)
		w.wait(c)
	}
	return w, polls
}

// TestLongPollsAreServedInOrder: jobs go to the polls that came first. A poll stays if the jobs are not
// for it, and is forgotten if its caller has an answer already or has stopped waiting.
func TestLongPollsAreServedInOrder(t *testing.T) {
	t.Parallel()
	w, polls := newPolls(6)
	polls[1].taken.Store(true) // another shard has answered it
	w.withdraw(polls[2])
	w.removeWithdrawn()
	jobs := 2
	var offered []*claimCall
	w.serve(func() bool { return jobs > 0 }, func(c *claimCall) bool {
		offered = append(offered, c)
		if c == polls[3] { // it wants jobs of another type
			return false
		}
		jobs--
		return true
	})
	if want := []*claimCall{polls[0], polls[3], polls[4]}; !slices.Equal(offered, want) {
		t.Errorf("jobs were offered to %d polls", len(offered))
	}
	if want := []*claimCall{polls[3], polls[5]}; !slices.Equal(w.waiting, want) {
		t.Errorf("%d polls wait", len(w.waiting))
	}
	var released []*call
	if w.releaseWaiting(func(c *call) { released = append(released, c) }); len(released) != 2 || len(w.waiting) != 0 {
		t.Errorf("%d polls were released, %d wait", len(released), len(w.waiting))
	}
}

// TestRequestsOfABatch: the claims of a request are in its batch until that is durable.
func TestRequestsOfABatch(t *testing.T) {
	t.Parallel()
	w, _ := newPolls(0)
	first, second := &batch{}, &batch{}
	w.begin("", first)
	w.begin("r1", first)
	w.begin("r2", first)
	w.begin("r3", second)
	if w.batchOf("r2") != first || w.batchOf("r3") != second || w.batchOf("") != nil || w.batchOf("r4") != nil {
		t.Errorf("%v", w.requests)
	}
	if w.applied(first); w.batchOf("r1") != nil || w.batchOf("r2") != nil || w.batchOf("r3") != second {
		t.Errorf("the first batch is durable: %v", w.requests)
	}
}
