package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// TestDrillReshard changes the number of a queue's shards from 2 to 8 to 3 while jobs are submitted and worked
// off. In the second case nodes are killed meanwhile.
func TestDrillReshard(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("killed=", killed), func(t *testing.T) {
			drill.ParallelUnlessMeasured(t)
			reshard(t, killed)
		})
	}
}

// resharding is a queue that is used while its number of shards changes. Each submitter has a group.
type resharding struct {
	*testing.T
	c      *drill.Cluster
	q      *client.Client
	killed bool

	longest      atomic.Int64 // time that a submit took
	mu           sync.Mutex
	acknowledged map[string]bool
	completed    map[string]int    // how often an answer said so
	seen         map[string]bool   // the queue says that it is completed, after the answer was lost
	last         map[string]string // the newest job of each group that was handed out
	inverted     int
	unheard      map[string]bool // the answer to a completion was lost
}

const (
	reshardQueue = "keys"
	submitters   = 6
)

func reshard(t *testing.T, killed bool) {
	c := cluster(t, buckets["directory"](t))
	for _, name := range []string{"a", "b", "c"} {
		c.Start(name)
	}
	r := &resharding{
		T: t, c: c, q: reach(t, c), killed: killed, acknowledged: map[string]bool{}, completed: map[string]int{}, seen: map[string]bool{}, last: map[string]string{}, unheard: map[string]bool{},
	}
	ctx := t.Context()
	if err := admin(t, c).Declare(ctx, queue.Settings{Name: reshardQueue, Shards: 2, Visibility: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var submitting, working sync.WaitGroup
	for n := range submitters {
		submitting.Go(func() { r.submit(ctx, n, stop) })
	}
	working.Go(func() { r.work(ctx) })
	c.Until(time.Minute, "the queue is used", func() bool { return r.ended() > 100 })
	r.longest.Store(0) // until then the queue had no brokers yet
	for _, shards := range []int{8, 3} {
		r.reshardTo(ctx, shards)
		seen := r.ended()
		c.Until(time.Minute, "the queue is used", func() bool { return r.ended() > seen+100 })
	}
	close(stop)
	submitting.Wait()
	c.Until(time.Minute, "all jobs are worked off", func() bool { return r.open() == 0 })
	working.Wait()
	r.check()
}

// admin makes a client of the nodes' addresses: it can declare a queue that has no broker yet.
func admin(t *testing.T, c *drill.Cluster) *client.Client {
	var addresses []string
	for _, n := range c.Nodes() {
		c.Until(time.Minute, "the node listens", func() bool { return n.Address() != "" })
		addresses = append(addresses, n.Address())
	}
	q, err := client.New(client.Config{Addresses: addresses, RetryFor: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

// reshardTo changes the number of shards. If nodes are killed, it kills one in each stage that it sees.
func (r *resharding) reshardTo(ctx context.Context, shards int) {
	if _, err := r.q.Reshard(ctx, reshardQueue, shards); err != nil {
		r.Fatal(err)
	}
	killed := map[queue.Stage]bool{}
	r.c.Until(2*time.Minute, fmt.Sprintf("the queue has %d shards", shards), func() bool {
		all, err := r.q.Queues(ctx)
		if err != nil {
			return false
		}
		for _, set := range all {
			if set.Name != reshardQueue {
				continue
			}
			stage := set.Resharding.Stage
			if r.killed && !killed[stage] && (stage == queue.Moving || stage == queue.Importing || len(killed) == 0) {
				killed[stage] = true
				r.killOne(shards, len(killed))
			}
			return set.Shards == shards && stage == ""
		}
		return false
	})
}

// killOne kills the node that serves shard 0, and starts another one.
func (r *resharding) killOne(shards, n int) {
	address, _, err := client.NewLocator(client.LocatorConfig{Cluster: r.c.Store}).Broker(context.Background(), reshardQueue, 0)
	if err != nil {
		return
	}
	for _, node := range r.c.Nodes() {
		if node.Alive() && node.Address() == address {
			node.Kill()
			r.c.Start(fmt.Sprintf("r%d-%d", shards, n))
			return
		}
	}
}

// submit submits the jobs of one group, one after the other.
func (r *resharding) submit(ctx context.Context, group int, stop chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		id, began := fmt.Sprintf("g%d-%07d", group, n), time.Now()
		if _, err := r.q.Enqueue(ctx, reshardQueue, []queue.Job{{ID: id, Group: fmt.Sprint("group", group), Payload: make([]byte, 200)}}); err != nil {
			r.Error(err)
			return
		}
		took := int64(time.Since(began))
		for old := r.longest.Load(); took > old && !r.longest.CompareAndSwap(old, took); old = r.longest.Load() {
		}
		r.mu.Lock()
		r.acknowledged[id] = true
		r.mu.Unlock()
	}
}

// work claims and completes jobs until all that were acknowledged are completed and no submitter runs.
func (r *resharding) work(ctx context.Context) {
	for ctx.Err() == nil {
		got, err := r.q.Claim(ctx, reshardQueue, queue.ClaimRequest{Worker: "w", Max: 100, Wait: time.Second})
		if err != nil {
			continue // for example an unknown outcome: the claims end after their visibility timeout
		}
		if len(got) == 0 && r.open() == 0 {
			return
		}
		var settled []queue.Settlement
		r.mu.Lock()
		for _, c := range got {
			if c.Job.Deliveries == 1 && r.last[c.Job.Group] > c.Job.ID {
				r.inverted++
			}
			r.last[c.Job.Group] = max(r.last[c.Job.Group], c.Job.ID)
			settled = append(settled, queue.Settlement{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token})
		}
		r.mu.Unlock()
		if len(settled) == 0 {
			continue
		}
		r.heard(r.q.Settle(ctx, reshardQueue, settled))
	}
}

func (r *resharding) heard(out []queue.Outcome, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range out {
		switch {
		case err != nil:
		case o.Err == nil:
			r.completed[o.ID]++
		default:
			r.unheard[o.ID] = true // an earlier answer was lost, or another delivery completes it
		}
	}
}

func (r *resharding) ended() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.completed)
}

// open returns how many acknowledged jobs are not completed.
func (r *resharding) open() (n int) {
	r.mu.Lock()
	var query []string
	for id := range r.acknowledged {
		if r.completed[id] == 0 && !r.seen[id] {
			if n++; r.unheard[id] {
				query = append(query, id)
			}
		}
	}
	r.mu.Unlock()
	for _, id := range query {
		if info, _, err := r.q.Get(r.Context(), reshardQueue, id); err == nil && info.State == queue.Completed {
			r.mu.Lock()
			r.seen[id] = true
			r.mu.Unlock()
		}
	}
	return n
}

func (r *resharding) check() {
	twice := 0
	for _, n := range r.completed {
		twice += max(n-1, 0)
	}
	what := "queue resharded from 2 to 8 to 3 shards under load"
	if r.killed {
		what += ", nodes killed meanwhile"
	}
	drill.Never(r.T, what+", lost", r.open())
	drill.Never(r.T, what+", completed twice", twice)
	if !r.killed {
		drill.Never(r.T, what+", handed out of order in a group", r.inverted)
		drill.Measure(r.T, what+": longest a submit took", drill.Bound{Max: 5 * time.Second}, []time.Duration{time.Duration(r.longest.Load())})
	}
	r.Logf("%s: %d jobs, longest submit %v, %d handed out of order", what, len(r.completed), time.Duration(r.longest.Load()), r.inverted)
}
