package broker

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/queue"
)

// defaultMetricQueues is how many queues have series of their own in metrics by default.
const defaultMetricQueues = 50

// otherQueues is the queue attribute of all queues that have no series of their own. No queue can have
// this name, because names have no upper case.
const otherQueues = "_OTHER"

// chooseEvery is how often the queues with series of their own are chosen at most.
const chooseEvery = time.Minute

// namedQueues says which queues have series of their own in metrics. The others are summed under
// otherQueues, so that the size of a scrape does not grow with the number of queues.
type namedQueues struct {
	most   int
	served func(name string) bool

	mu       sync.Mutex
	chosen   map[string]bool // queues whose state is shown
	chosenAt time.Time
	// counted is the queues that have counters and histograms. It only grows, up to twice most: a series
	// of OpenTelemetry that was recorded once is exported until the process ends.
	counted atomic.Pointer[map[string]bool]
}

func newNamedQueues(most int, served func(string) bool) *namedQueues {
	n := &namedQueues{most: most, served: served}
	n.counted.Store(&map[string]bool{})
	return n
}

// counter returns the queue attribute of counters and histograms. While there is room, a queue that this
// node serves gets its series at its first call.
func (n *namedQueues) counter(name string) string {
	counted := *n.counted.Load()
	if counted[name] {
		return name
	}
	if len(counted) >= n.most || !n.served(name) {
		return otherQueues
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.count(name, n.most) {
		return name
	}
	return otherQueues
}

// count gives a queue counters and histograms if fewer than limit have them. It reports whether the queue
// has them. mu is held.
func (n *namedQueues) count(name string, limit int) bool {
	counted := *n.counted.Load()
	if counted[name] {
		return true
	}
	if len(counted) >= limit {
		return false
	}
	counted = maps.Clone(counted)
	counted[name] = true
	n.counted.Store(&counted)
	return true
}

// measured is what the metrics show of a queue.
type measured struct {
	queue.Stats
	damaged int
}

// hasProblem reports whether somebody should look at the queue.
func (m *measured) hasProblem() bool {
	return m.damaged > 0 || m.Dead > 0 || m.OldestAge > 5*time.Minute
}

// choose returns the queues whose state is shown by name. It chooses anew at most once per chooseEvery, or if
// a chosen queue is gone.
func (n *namedQueues) choose(now time.Time, all map[string]*measured) map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(all) > n.most && len(n.chosen) == n.most && now.Sub(n.chosenAt) < chooseEvery && containsAll(all, n.chosen) {
		return n.chosen
	}
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return n.compare(all, a, b) })
	names = names[:min(n.most, len(names))]
	n.chosen, n.chosenAt = map[string]bool{}, now
	for _, name := range names {
		n.chosen[name] = true
		n.count(name, 2*n.most)
	}
	return n.chosen
}

func containsAll(all map[string]*measured, names map[string]bool) bool {
	for name := range names {
		if all[name] == nil {
			return false
		}
	}
	return true
}

// compare orders queues with a problem first, and then by the jobs per second. A queue that is shown keeps its
// place until another has more than twice its rate, so that series do not come and go.
func (n *namedQueues) compare(all map[string]*measured, a, b string) int {
	class := func(name string) int {
		if all[name].hasProblem() {
			return 1
		}
		return 0
	}
	rate := func(name string) float64 {
		r := all[name].EnqueueRate + all[name].CompleteRate
		if n.chosen[name] {
			r *= 2
		}
		return r
	}
	shown := func(name string) int {
		if n.chosen[name] {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(class(b), class(a)), cmp.Compare(rate(b), rate(a)), cmp.Compare(shown(b), shown(a)), cmp.Compare(a, b))
}

// series returns what is shown under each queue attribute. Nothing is left out: the sum of the values is that
// of all queues, and the age is the greatest.
func (n *namedQueues) series(now time.Time, all map[string]*measured) map[string]*measured {
	chosen := n.choose(now, all)
	out := map[string]*measured{}
	for name, m := range all {
		if !chosen[name] {
			name = otherQueues
		}
		if out[name] == nil {
			out[name] = &measured{Stats: queue.Stats{Queue: name}}
		}
		out[name].Add(&m.Stats)
		out[name].damaged += m.damaged
	}
	return out
}

// measure returns what the metrics show of each queue of which this node serves a shard, or should.
func (b *Broker) measure() map[string]*measured {
	out := map[string]*measured{}
	for name, st := range b.snapshots() {
		out[name] = &measured{Stats: st}
	}
	for name, n := range b.damagedCounts() {
		if out[name] == nil {
			out[name] = &measured{Stats: queue.Stats{Queue: name}}
		}
		out[name].damaged = n
	}
	return out
}

// serves reports whether this node serves a shard of the queue.
func (b *Broker) serves(name string) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.queues[name] != nil
}
