package broker

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
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

// TestPollsAnsweredElsewhere: a shard without jobs forgets the long polls that other shards have answered, and no other.
func TestPollsAnsweredElsewhere(t *testing.T) {
	t.Parallel()
	w, polls := newPolls(10)
	for range 10_000 {
		c := &claimCall{call: call{taken: new(atomic.Bool)}}
		c.taken.Store(true)
		w.wait(c)
	}
	if len(w.waiting) > 2*leastPruned || !slices.Equal(w.waiting[:10], polls) {
		t.Errorf("%d polls wait", len(w.waiting))
	}
}

// TestCallAgainWhileItWaits: a worker whose connection broke repeats its waiting claim before the broker has noticed. The
// job that comes is for the repeated call.
func TestCallAgainWhileItWaits(t *testing.T) {
	for name, shards := range map[string]int{"one shard": 1, "two shards": 2} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, nil)
				w.declare(queue.Settings{Shards: shards})
				n := w.node("n1")
				for i := range shards {
					n.serve(queue.DefaultQueue, i)
				}
				var answers [3]chan []queue.Claimed
				for i, request := range []string{"call", "call", "another"} {
					answers[i] = make(chan []queue.Claimed, 1)
					go func() {
						answers[i] <- n.claim(queue.ClaimRequest{Worker: "w", RequestID: request, Wait: queue.MaxWait})
					}()
					synctest.Wait()
				}
				n.enqueue(jobsWithIDs(1)...)
				if got := <-answers[1]; len(got) != 1 {
					t.Errorf("the repeated call got %+v", got)
				}
				if got := <-answers[0]; len(got) != 0 {
					t.Errorf("the lost call got %+v", got)
				}
				n.enqueue(queue.Job{ID: "more"})
				if got := <-answers[2]; len(got) != 1 {
					t.Errorf("another call got %+v", got)
				}
				if len(n.polls.waiting) != 0 {
					t.Errorf("%d polls are left", len(n.polls.waiting))
				}
			})
		})
	}
}

// TestCallAgainWithoutWaiting: a worker whose waiting claim was lost looks for its jobs without waiting. From then on no job
// goes to the lost call, although the broker has not noticed that its caller has gone.
func TestCallAgainWithoutWaiting(t *testing.T) {
	for name, shards := range map[string]int{"one shard": 1, "two shards": 2} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, nil)
				w.declare(queue.Settings{Shards: shards})
				n := w.node("n1")
				for i := range shards {
					n.serve(queue.DefaultQueue, i)
				}
				lost := make(chan []queue.Claimed, 1)
				call := queue.ClaimRequest{Worker: "w", RequestID: "call", Wait: queue.MaxWait}
				go func() { lost <- n.claim(call) }()
				synctest.Wait()
				if got := n.claim(wire.ClaimedBefore(call)); len(got) != 0 {
					t.Errorf("the repeated call got %+v", got)
				}
				n.enqueue(jobsWithIDs(1)...)
				if got := n.claim(queue.ClaimRequest{Worker: "w", RequestID: "another"}); len(got) != 1 {
					t.Errorf("another call got %+v", got)
				}
				if got := <-lost; len(got) != 0 {
					t.Errorf("the lost call got %+v", got)
				}
			})
		})
	}
}

// TestRepeatedClaimWithoutMemory: a repeated call whose jobs are in several shards, and for whose payloads there is no memory now,
// gets none of them. It would not come again for the rest, which would stay claimed.
func TestRepeatedClaimWithoutMemory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.declare(queue.Settings{Shards: 2})
		n := w.node("n1")
		for i := range 2 {
			n.serve(queue.DefaultQueue, i)
		}
		jobs := jobsWithIDs(8)
		for i := range jobs {
			jobs[i].Payload = large()
		}
		n.enqueue(jobs...)
		req := queue.ClaimRequest{Worker: "w", RequestID: "call", Max: len(jobs)}
		n.claim(req)
		budget := inflight.New(int64(len(jobs)-1)*int64(len(large())), 1)
		call, _ := budget.Begin()
		defer call.End()
		got, err := n.Claim(inflight.NewContext(w.ctx, call), queue.DefaultQueue, req)
		if wantRefusal(t, err, queue.QueueFull); len(got) != 0 {
			t.Errorf("got %d jobs", len(got))
		}
		if got := n.claim(req); len(got) != len(jobs) {
			t.Errorf("got %d jobs", len(got))
		}
	})
}
