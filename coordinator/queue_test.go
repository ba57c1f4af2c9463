package coordinator

import (
	"slices"
	"sync"
	"testing"

	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Every item comes out once and in order, however pushes and pops are mixed.
func TestQueueKeepsOrder(t *testing.T) {
	t.Parallel()
	q := newQueue[int]()
	var got []int
	next := 0
	for round := range 200 {
		for range round % 7 * 13 {
			q.push(next)
			next++
		}
		for range round % 5 * 11 {
			if v, ok := q.pop(); ok {
				got = append(got, v)
			}
		}
	}
	for {
		v, ok := q.pop()
		if !ok {
			break
		}
		got = append(got, v)
	}
	if len(got) != next || !slices.IsSorted(got) {
		t.Errorf("%d of %d came out, sorted: %v", len(got), next, slices.IsSorted(got))
	}
	if cap(q.items) > 4096 {
		t.Errorf("an empty queue keeps room for %d items", cap(q.items))
	}
}

// A queue that is never quite empty does not grow.
func TestQueueForgetsWhatWasTaken(t *testing.T) {
	t.Parallel()
	q := newQueue[int]()
	q.push(-1)
	for i := range 100_000 {
		q.push(i)
		q.pop()
	}
	if cap(q.items) > 1024 {
		t.Errorf("one item in room for %d", cap(q.items))
	}
}

// After close, items in the queue can still be popped, and no more can be pushed.
func TestQueueClose(t *testing.T) {
	t.Parallel()
	q := newQueue[string]()
	q.push("a")
	q.close()
	if q.push("b") || q.done() {
		t.Error("a closed queue takes items, or calls itself done with one inside")
	}
	if v, ok := q.pop(); !ok || v != "a" || !q.done() {
		t.Errorf("got %q, %v, done %v", v, ok, q.done())
	}
}

// A consumer that waits for ready receives everything that many producers push.
func TestQueueWakesItsConsumer(t *testing.T) {
	t.Parallel()
	q := newQueue[int]()
	const producers, each = 8, 1000
	var sum sync.WaitGroup
	for range producers {
		sum.Go(func() {
			for i := range each {
				q.push(i)
			}
		})
	}
	go func() { sum.Wait(); q.close() }()
	n := 0
	for !q.done() {
		if _, ok := q.pop(); ok {
			n++
			continue
		}
		<-q.ready
	}
	if n != producers*each {
		t.Errorf("%d of %d", n, producers*each)
	}
}

// Wake-ups are coalesced, and none for this node gets lost. There are never more than two to take, and the
// leader's comes first. If several groups are woken, the smallest is named.
func TestWakesMerge(t *testing.T) {
	t.Parallel()
	self, other, third := node.Incarnation("self"), node.Incarnation("other"), node.Incarnation("third")
	list := func(nodes ...node.Incarnation) []node.Incarnation { return nodes }
	leader, all := storage.WakeUp{Leader: true, Nodes: list(self)}, storage.WakeUp{}
	for _, tc := range []struct{ wakeUps, want []storage.WakeUp }{
		{nil, nil},
		{[]storage.WakeUp{{Nodes: list(other)}}, nil},
		{[]storage.WakeUp{{Nodes: list(other), Leader: true}}, nil},
		{[]storage.WakeUp{all}, []storage.WakeUp{all}},
		{[]storage.WakeUp{{Nodes: list(self)}}, []storage.WakeUp{{Nodes: list(self)}}},
		{[]storage.WakeUp{{Leader: true}}, []storage.WakeUp{leader, all}},
		{[]storage.WakeUp{leader}, []storage.WakeUp{leader}},
		{[]storage.WakeUp{leader, leader, leader}, []storage.WakeUp{leader}},
		{[]storage.WakeUp{leader, {Nodes: list(other, self)}}, []storage.WakeUp{leader, {Nodes: list(other, self)}}},
		{[]storage.WakeUp{{Nodes: list(self, other, third)}, {Nodes: list(other, self)}, all}, []storage.WakeUp{{Nodes: list(other, self)}}},
		{[]storage.WakeUp{all, {Nodes: list(self, other)}, {Nodes: list(self, other, third)}}, []storage.WakeUp{{Nodes: list(self, other)}}},
	} {
		w := &wakes{self: self, ready: make(chan struct{}, 1)}
		for _, h := range tc.wakeUps {
			w.add(h)
		}
		if (len(w.ready) == 1) != (len(tc.want) > 0) {
			t.Errorf("%v: ready %d", tc.wakeUps, len(w.ready))
		}
		var got []storage.WakeUp
		for h, some := w.take(); some; h, some = w.take() {
			got = append(got, h)
		}
		same := func(a, b storage.WakeUp) bool { return a.Leader == b.Leader && slices.Equal(a.Nodes, b.Nodes) }
		if !slices.EqualFunc(got, tc.want, same) {
			t.Errorf("%v: got %v, want %v", tc.wakeUps, got, tc.want)
		}
	}
}
