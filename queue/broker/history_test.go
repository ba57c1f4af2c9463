package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// Operations of clients on one job, with their results.
type (
	deed struct {
		what  string // enqueue, claim, complete, get
		id    string
		token string
	}
	seen struct {
		result string // new, duplicate, ok, stale, missing, live, done, unknown
	}
	jobState struct {
		live, done bool
		by         string // token that completed it
	}
)

// lifeOfAJob is the model: which results an operation may have, and what state it leaves. An
// operation with an unknown outcome may have taken effect at any later time, or never; the model
// may place it last, where it has no visible effect.
var lifeOfAJob = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byID := map[string][]porcupine.Operation{}
		for _, op := range history {
			id := op.Input.(deed).id
			byID[id] = append(byID[id], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range byID {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return jobState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(jobState), input.(deed), output.(seen)
		switch in.what + " " + out.result {
		case "enqueue new":
			return !s.live && !s.done, jobState{live: true}
		case "enqueue duplicate":
			return s.live || s.done, s
		case "enqueue unknown":
			if !s.live && !s.done {
				s.live = true
			}
			return true, s
		case "claim ok":
			return s.live, s
		case "complete ok":
			return s.live || s.done && s.by == in.token, jobState{done: true, by: in.token}
		case "complete unknown":
			if s.live {
				s = jobState{done: true, by: in.token}
			}
			return true, s
		case "complete stale": // another client has the job, or completed it
			return !s.done || s.by != in.token, s
		case "get missing":
			return !s.live && !s.done, s
		case "get live":
			return s.live, s
		case "get done":
			return s.done, s
		}
		return false, s
	},
}

// recorder records a history in the order of events.
type recorder struct {
	clock atomic.Int64
	mu    sync.Mutex
	ops   []porcupine.Operation
}

func (r *recorder) do(client int, in deed, f func() string) string {
	begun := r.clock.Add(1)
	result := f()
	end := r.clock.Add(1)
	if result == "unknown" {
		end = 1 << 60
	}
	if result != "" { // refused before anything happened: not an operation
		r.mu.Lock()
		r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: in, Call: begun, Output: seen{result}, Return: end})
		r.mu.Unlock()
	}
	return result
}

// refusal returns the result of a failed call: nothing happened, or the outcome is unknown.
func refusal(err error) string {
	if queue.TagOf(err) == queue.UnknownOutcome {
		return "unknown"
	}
	return ""
}

// storm is a cluster whose nodes take the queue from each other while the store fails.
type storm struct {
	*world
	rec   recorder
	rnd   *rand.Rand
	mu    sync.Mutex
	nodes []*node
	stop  chan struct{}
}

// roll returns a random number, to any goroutine.
func (s *storm) roll(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

func (s *storm) fault(c mem.Call) mem.Fault {
	if s.roll(100) >= 6 {
		return mem.Fault{}
	}
	faults := []mem.Fault{
		{Kind: mem.LostReply},
		{Kind: mem.LostRequest},
		{Kind: mem.Unavailable},
		{Kind: mem.Conflict},
		{Kind: mem.Late, Delay: time.Duration(1+s.roll(3000)) * time.Millisecond},
	}
	return faults[s.roll(len(faults))]
}

// client enqueues, claims, completes and reads at any node, and repeats refused calls.
func (s *storm) client(n int) {
	for round := 0; ; round++ {
		select {
		case <-s.stop:
			return
		default:
		}
		id := fmt.Sprintf("c%d-%d", n, round)
		s.insist(func(b *node) bool { return s.submit(n, b, id) })
		var got []queue.Claimed
		s.insist(func(b *node) bool {
			ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
			defer cancel()
			s.rec.doClaim(n, func() (ids []string) {
				var err error
				if got, err = b.Claim(ctx, queue.DefaultQueue, queue.ClaimRequest{Worker: fmt.Sprint(n), Wait: 100 * time.Millisecond, Visibility: 3 * time.Second}); err != nil {
					return nil
				}
				for _, c := range got {
					ids = append(ids, c.Job.ID)
				}
				return ids
			})
			return got != nil
		})
		time.Sleep(time.Duration(s.roll(200)) * time.Millisecond)
		for _, c := range got {
			s.insist(func(b *node) bool { return s.complete(n, b, c) })
		}
		s.insist(func(b *node) bool { return s.find(n, b, id) })
	}
}

func (r *recorder) doClaim(client int, f func() []string) {
	begun := r.clock.Add(1)
	ids := f()
	end := r.clock.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: deed{what: "claim", id: id}, Call: begun, Output: seen{"ok"}, Return: end})
	}
}

// insist repeats a call at random nodes until it is answered, or the storm is over.
func (s *storm) insist(f func(*node) bool) {
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		if f(s.nodes[s.roll(len(s.nodes))]) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *storm) submit(n int, b *node, id string) bool {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	result := s.rec.do(n, deed{what: "enqueue", id: id}, func() string {
		got, err := b.Enqueue(ctx, queue.DefaultQueue, []queue.Job{{ID: id}})
		switch {
		case err != nil:
			return refusal(err)
		case got[0].Duplicate:
			return "duplicate"
		}
		return "new"
	})
	return result == "new" || result == "duplicate"
}

func (s *storm) complete(n int, b *node, c queue.Claimed) bool {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	result := s.rec.do(n, deed{what: "complete", id: c.Job.ID, token: c.Token}, func() string {
		out, err := b.Settle(ctx, queue.DefaultQueue, []queue.Settlement{{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token}})
		switch {
		case err != nil:
			return refusal(err)
		case out[0].Err == nil:
			return "ok"
		}
		return "stale"
	})
	return result == "ok" || result == "stale"
}

func (s *storm) find(n int, b *node, id string) bool {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	result := s.rec.do(n, deed{what: "get", id: id}, func() string {
		i, _, err := b.Get(ctx, queue.DefaultQueue, id)
		switch {
		case queue.TagOf(err) == queue.JobNotFound:
			return "missing"
		case err != nil:
			return ""
		case i.State == queue.Completed:
			return "done"
		}
		return "live"
	})
	return result != ""
}

// binding reports whether the operation must be right even if the broker's assignment had expired
// without its knowledge: an acknowledgement.
func binding(op porcupine.Operation) bool {
	what := op.Input.(deed).what + " " + op.Output.(seen).result
	return what == "enqueue new" || what == "enqueue duplicate" || what == "enqueue unknown" || what == "complete ok" || what == "complete unknown"
}

// TestHistoriesAreLinearizable: everything that clients saw is possible in one queue that does one
// thing at a time. Meanwhile brokers are killed, replaced and drained, and the store loses, delays
// and refuses requests. With even seeds a broker's assignment expires before its successor starts,
// as the cluster promises. With odd seeds it does not, and only acknowledgements are checked.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { weather(t, seed) })
		})
	}
}

func weather(t *testing.T, seed uint64) {
	zombies := seed%2 == 1
	s := &storm{rnd: rand.New(rand.NewPCG(seed, 1)), stop: make(chan struct{})}
	calm := atomic.Bool{}
	bucket := mem.New(mem.Config{
		Latency: func(mem.Call) time.Duration { return time.Duration(1+s.roll(30)) * time.Millisecond },
		Faults: func(c mem.Call) mem.Fault {
			if calm.Load() {
				return mem.Fault{}
			}
			return s.fault(c)
		},
	})
	s.world = newWorld(t, bucket)
	calm.Store(true)
	s.declare(queue.Settings{})
	calm.Store(false)
	for i := range 3 {
		s.nodes = append(s.nodes, s.node(fmt.Sprint("n", i)))
	}
	var clients sync.WaitGroup
	for n := range 6 {
		clients.Go(func() { s.client(n) })
	}
	var last *run
	for range 15 { // the queue moves to another node, with or without a clean hand-over
		n := s.nodes[s.roll(len(s.nodes))]
		if last != nil {
			switch s.roll(3) {
			case 0:
				last.kill()
			case 1:
				last.a.BeginDrain()
			default: // the old broker does not know
				if !zombies {
					last.trust.Store(0)
				}
			}
		}
		last = n.begin(queue.DefaultQueue, 0)
		time.Sleep(time.Duration(200+s.roll(1500)) * time.Millisecond)
		n.noneRejected(queue.DefaultQueue, 0)
	}
	calm.Store(true)
	time.Sleep(5 * time.Second)
	close(s.stop)
	clients.Wait()
	synctest.Wait()
	completed := 0
	for _, op := range s.rec.ops {
		if op.Input.(deed).what == "complete" && op.Output.(seen).result == "ok" {
			completed++
		}
	}
	if completed < 20 {
		t.Errorf("only %d of %d operations completed a job: the storm was too strong to say anything", completed, len(s.rec.ops))
	}
	if zombies {
		s.rec.ops = slices.DeleteFunc(s.rec.ops, func(op porcupine.Operation) bool { return !binding(op) })
	}
	if !porcupine.CheckOperations(lifeOfAJob, s.rec.ops) {
		t.Errorf("seed %d: a history of %d operations that no queue could have", seed, len(s.rec.ops))
		s.explain()
	}
}

// explain prints the histories of jobs that violate the model.
func (s *storm) explain() {
	for _, part := range lifeOfAJob.Partition(s.rec.ops) {
		if porcupine.CheckOperations(lifeOfAJob, part) {
			continue
		}
		for _, op := range part {
			s.t.Logf("client %d, %d to %d: %+v: %+v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
		}
	}
}
