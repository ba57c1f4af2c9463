package broker

import (
	"context"
	"fmt"
	"maps"
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

// reshardStorm is a queue whose number of shards changes while clients use it, units move, and, if it is rough,
// brokers are killed and the store fails.
type reshardStorm struct {
	*storm
	rough bool
	units map[int]*run

	heard  sync.Mutex
	claims map[string][2]int64 // when the first claim of a job began and ended
}

// TestReshardStorm: while the number of shards goes from 2 to 8 to 3, what clients see is possible in one queue
// that does one thing at a time, every acknowledged job ends, and a group's jobs are handed out in order.
func TestReshardStorm(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { stormOfReshards(t, seed) })
		})
	}
}

func stormOfReshards(t *testing.T, seed uint64) {
	s := &reshardStorm{
		storm: &storm{rnd: rand.New(rand.NewPCG(seed, 7)), stop: make(chan struct{})}, rough: seed%2 == 1,
		units: map[int]*run{}, claims: map[string][2]int64{},
	}
	calm := atomic.Bool{}
	s.world = newWorld(t, mem.New(mem.Config{
		Latency: func(mem.Call) time.Duration { return time.Duration(1+s.roll(20)) * time.Millisecond },
		Faults: func(c mem.Call) mem.Fault {
			if calm.Load() || !s.rough {
				return mem.Fault{}
			}
			return s.fault(c)
		},
	}))
	calm.Store(true)
	s.declare(queue.Settings{Shards: 2})
	calm.Store(false)
	for i := range 3 {
		s.nodes = append(s.nodes, s.node(fmt.Sprint("n", i)))
		s.nodes[i].importBatch = 100 // imports can be interrupted in the middle
	}
	s.place(0)
	s.place(1)
	var clients sync.WaitGroup
	for n := range 5 {
		clients.Go(func() { s.use(n) })
	}
	time.Sleep(2 * time.Second)
	s.reshardTo(2, 8)
	s.reshardTo(8, 3)
	calm.Store(true)
	for unit := range 3 { // whatever happened, each has a broker
		s.place(unit)
	}
	for range 50 {
		time.Sleep(100 * time.Millisecond)
		s.revive()
	}
	close(s.stop)
	clients.Wait()
	s.workOff()
	synctest.Wait()
	s.checkHistory(seed)
}

// place starts a unit on a random node, whatever becomes of its former run.
func (s *reshardStorm) place(unit int) {
	if last := s.units[unit]; last != nil {
		switch s.roll(3) {
		case 0:
			if s.rough {
				last.kill()
				break
			}
			fallthrough
		case 1:
			last.a.BeginDrain()
			<-last.done
		default: // the old broker does not know
			last.trust.Store(0)
		}
	}
	s.units[unit] = s.nodes[s.roll(len(s.nodes))].begin(queue.DefaultQueue, unit)
}

// reshardTo changes the number of shards, and moves units meanwhile.
func (s *reshardStorm) reshardTo(from, to int) {
	for {
		if _, err := s.nodes[0].Registry().Reshard(s.ctx, queue.DefaultQueue, to); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	for unit := from; unit < to; unit++ {
		s.place(unit)
	}
	for n := 0; ; n++ {
		time.Sleep(time.Duration(50+s.roll(800)) * time.Millisecond)
		set, err := s.nodes[0].Registry().get(s.ctx, queue.DefaultQueue, 0)
		if err == nil && set.Shards == to && set.Resharding.Stage == "" {
			break
		}
		if n == 500 {
			s.t.Fatalf("resharding to %d shards does not end: %+v, %v", to, set, err)
		}
		if n < 30 || n%20 == 0 { // later runs end only if they have failed
			s.place(s.roll(max(from, to)))
		}
		s.revive()
	}
	for unit := to; unit < from; unit++ {
		s.units[unit].kill()
		delete(s.units, unit)
	}
	time.Sleep(2 * time.Second)
}

// revive starts the units whose runs have ended, as a supervisor does.
func (s *reshardStorm) revive() {
	for _, unit := range slices.Sorted(maps.Keys(s.units)) {
		select {
		case <-s.units[unit].done:
			s.place(unit)
		default:
		}
	}
}

// use submits jobs of one group, one after the other, and works on jobs of all groups.
func (s *reshardStorm) use(n int) {
	for round := 0; ; round++ {
		select {
		case <-s.stop:
			return
		default:
		}
		id := fmt.Sprintf("c%d-%04d", n, round)
		s.insist(func(b *node) bool { return s.submitGrouped(n, b, id) })
		for range 1 + s.roll(2) {
			var got []queue.Claimed
			s.insist(func(b *node) bool {
				var err error
				got, err = s.claimAt(n, b)
				return err == nil
			})
			for _, c := range got {
				if s.roll(4) > 0 {
					s.insist(func(*node) bool { return s.completeAnywhere(n, c) })
				}
			}
		}
		time.Sleep(time.Duration(s.roll(100)) * time.Millisecond)
	}
}

func (s *reshardStorm) submitGrouped(n int, b *node, id string) bool {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	result := s.rec.do(n, deed{what: "enqueue", id: id}, func() string {
		payload := make([]byte, s.roll(400))
		got, err := b.Enqueue(ctx, queue.DefaultQueue, []queue.Job{{ID: id, Group: id[:2], Payload: payload, Retry: queue.Retry{MaxAttempts: 1000}}})
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

func (s *reshardStorm) claimAt(n int, b *node) (got []queue.Claimed, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	begun := s.rec.clock.Add(1)
	s.rec.doClaim(n, func() (ids []string) {
		got, err = b.Claim(ctx, queue.DefaultQueue, queue.ClaimRequest{Worker: fmt.Sprint(n), Max: 2, Visibility: 3 * time.Second})
		for _, c := range got {
			ids = append(ids, c.Job.ID)
		}
		return ids
	})
	end := s.rec.clock.Add(1)
	s.heard.Lock()
	defer s.heard.Unlock()
	for _, c := range got {
		if _, again := s.claims[c.Job.ID]; !again {
			s.claims[c.Job.ID] = [2]int64{begun, end}
		}
	}
	return got, err
}

// completeAnywhere asks all nodes, as an api.Forwarder does, until one of them knows the job.
func (s *reshardStorm) completeAnywhere(n int, c queue.Claimed) bool {
	result := s.rec.do(n, deed{what: "complete", id: c.Job.ID, token: c.Token}, func() string {
		set, err := s.nodes[0].Registry().get(s.ctx, queue.DefaultQueue, time.Second)
		if err != nil {
			return ""
		}
		answered, unknown := map[int]bool{}, false
		for _, b := range s.nodes {
			for _, x := range b.localShards(queue.DefaultQueue) {
				ctx, cancel := context.WithTimeout(queue.OnShards(s.ctx, []int{x.index}, set.Shards), 2*time.Second)
				out, err := b.Settle(ctx, queue.DefaultQueue, []queue.Settlement{{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token}})
				cancel()
				switch {
				case queue.TagOf(err) == queue.UnknownOutcome:
					unknown = true
				case err != nil: // for example, the node has lost the shard
				case out[0].Err == nil:
					return "ok"
				case out[0].Err.Tag == queue.StaleClaim:
					return map[bool]string{true: "unknown", false: "stale"}[unknown]
				default:
					answered[x.index] = true
				}
			}
		}
		switch {
		case unknown:
			return "unknown"
		case len(answered) < set.Shards:
			return ""
		}
		return "stale"
	})
	return result == "ok" || result == "stale"
}

// workOff completes what is left.
func (s *reshardStorm) workOff() {
	s.stop = make(chan struct{})
	for idle := 0; idle < 4; {
		met := 0
		for _, b := range s.nodes {
			got, err := s.claimAt(9, b)
			if err != nil {
				continue
			}
			met += len(got)
			for _, c := range got {
				for tries := 0; !s.completeAnywhere(9, c); tries++ {
					if s.revive(); tries == 500 {
						s.t.Fatalf("no node says what became of %s: %+v", c.Job.ID, s.units)
					}
					time.Sleep(20 * time.Millisecond)
				}
			}
		}
		s.revive()
		if idle++; met > 0 {
			idle = 0
		} else {
			time.Sleep(4 * time.Second) // claims that nobody completed end
		}
	}
}

// checkHistory checks what clients saw.
func (s *reshardStorm) checkHistory(seed uint64) {
	acknowledged, ended := map[string]bool{}, map[string]bool{}
	for _, op := range s.rec.ops {
		in, out := op.Input.(deed), op.Output.(seen).result
		switch {
		case in.what == "enqueue" && out != "unknown":
			acknowledged[in.id] = true
		case in.what == "complete" && (out == "ok" || out == "unknown"):
			ended[in.id] = true
		}
	}
	if len(ended) < 60 {
		s.t.Errorf("seed %d: only %d jobs ended: the storm was too strong to say anything", seed, len(ended))
	}
	for id := range acknowledged {
		if !ended[id] {
			s.t.Errorf("seed %d: job %s is lost", seed, id)
		}
	}
	if !porcupine.CheckOperations(lifeOfAJob, s.rec.ops) {
		s.t.Errorf("seed %d: a history of %d operations that no queue could have", seed, len(s.rec.ops))
		s.explain()
	}
	if s.rough {
		return // the answer to an earlier claim may have been lost
	}
	last := map[string]string{}
	for _, id := range slices.Sorted(maps.Keys(s.claims)) {
		if before := last[id[:2]]; before != "" && s.claims[id][1] < s.claims[before][0] {
			s.t.Errorf("seed %d: %s was handed out before %s", seed, id, before)
		}
		last[id[:2]] = id
	}
}
