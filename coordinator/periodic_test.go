package coordinator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/schedule"
	"github.com/emitd/emitd/storage/memory"
)

func nothing(context.Context, *daemon.Assignment, time.Time) error { return nil }

// A periodic daemon is called once for each due time, on one node, while leaders change, its node is killed, stops, or
// is cut off.
func TestPeriodicOverChanges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 4})
		var dues record[time.Time]
		c.Register(daemon.Spec{ID: "acme:reports"}, daemon.Every(time.Minute, func(_ context.Context, _ *daemon.Assignment, due time.Time) error {
			dues.add(due)
			return nil
		}))
		runs := func() bool { return c.Holder("acme:reports/0") >= 0 }
		c.WaitUntil("it runs", runs)
		for _, change := range []func(){
			func() { c.Expire() },
			func() { c.Resign() },
			func() { c.Kill(c.Holder("acme:reports/0")) },
			func() {
				if err := c.Stop(c.Holder("acme:reports/0")); err != nil {
					t.Error(err)
				}
			},
			func() {
				i := c.Holder("acme:reports/0")
				c.Partition(i)
				c.WaitUntil("it runs elsewhere", func() bool { h := c.Holder("acme:reports/0"); return h >= 0 && h != i })
				c.Heal(i)
			},
		} {
			advance(90 * time.Second)
			change()
			c.WaitUntil("it runs", runs)
		}
		advance(3 * time.Minute)
		got := dues.all()
		if len(got) < 9 {
			t.Fatalf("%d calls", len(got))
		}
		for i := range got[1:] {
			if d := got[i+1].Sub(got[i]); d != time.Minute {
				t.Errorf("the due time after %v is %v", got[i], got[i+1])
			}
		}
	})
}

// The call that a killed node was making is made again by the next one, and the history tells.
func TestPeriodicCallOfAKilledNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		var calls record[string]
		c.Register(daemon.Spec{ID: "acme:reports"}, daemon.Every(time.Minute, func(ctx context.Context, a *daemon.Assignment, due time.Time) error {
			calls.add(fmt.Sprintf("%s %s", a.Node, due.Format("04:05")))
			if len(calls.all()) == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}))
		c.WaitUntil("a call is under way", func() bool { return len(calls.all()) == 1 })
		first := c.Holder("acme:reports/0")
		c.Kill(first)
		c.WaitUntil("the call is made again", func() bool { return len(calls.all()) == 2 })
		all := calls.all()
		if all[0][:6] == all[1][:6] || all[0][6:] != all[1][6:] {
			t.Errorf("calls %v", all)
		}
		advance(time.Second)
		page, err := c.Store().Events(t.Context(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		var reported []string
		for _, e := range page.Events {
			if kind, ok := strings.CutPrefix(string(e.Kind), "periodic."); ok {
				reported = append(reported, kind+" "+e.Node)
			}
		}
		a, b := fmt.Sprint("node-", first), fmt.Sprint("node-", 1-first)
		want := []string{"scheduled " + a, "started " + a, "failed " + b, "started " + b, "ended " + b}
		if fmt.Sprint(reported) != fmt.Sprint(want) {
			t.Errorf("events %v, want %v", reported, want)
		}
	})
}

// A store that keeps no states is refused when the daemon is registered, not when it should run.
func TestPeriodicNeedsStates(t *testing.T) {
	t.Parallel()
	c, err := coordinator.New(&tap{Store: memory.Open(memory.Config{})}, coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Register(daemon.Spec{ID: "acme:reports"}, daemon.Every(time.Minute, nothing))
	if err == nil || !strings.Contains(err.Error(), "is no daemon.StateStore") {
		t.Error(err)
	}
}

// Nodes are cut off, deafened, killed and stopped at random, and the leader resigns. Whatever happens: calls never
// overlap, a due time that is done with does not come again, none is lost without an event, and the history is in order.
func TestPeriodicStorm(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &storm{T: t, c: coordinatortest.New(t, coordinatortest.Config{Nodes: 4}), rng: rand.New(rand.NewPCG(seed, 74))}
				for i := range 4 {
					s.joins(i)
				}
				for range 60 {
					advance(time.Duration(s.rng.IntN(25)) * time.Second)
					s.strikes()
				}
				advance(2 * time.Minute)
				s.check()
			})
		})
	}
}

// storm is a cluster with one periodic daemon.
type storm struct {
	*testing.T
	c     *coordinatortest.Cluster
	rng   *rand.Rand
	alive []int
	calls atomic.Int32 // under way
}

const stormInterval = 20 * time.Second

var errStorm = errors.New("the call fails")

// joins registers the daemon on a node.
func (s *storm) joins(i int) {
	p := daemon.Every(stormInterval, func(ctx context.Context, a *daemon.Assignment, due time.Time) error {
		if s.calls.Add(1) > 1 {
			s.Errorf("two calls at once, one for %v", due)
		}
		defer s.calls.Add(-1)
		n := due.Unix()/20 + a.Generation
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(n*7%25) * time.Second): // some take longer than the interval
		}
		if n%5 == 0 {
			return errStorm
		}
		return nil
	})
	p.Logger = slog.New(slog.DiscardHandler)
	if err := s.c.Node(i).Register(daemon.Spec{ID: "acme:reports"}, p); err != nil {
		s.Fatal(err)
	}
	s.alive = append(s.alive, i)
}

// strikes lets something happen to a node, which may be the one that has the unit.
func (s *storm) strikes() {
	k := s.rng.IntN(len(s.alive))
	if h := slices.Index(s.alive, s.c.Holder("acme:reports/0")); h >= 0 && s.rng.IntN(2) == 0 {
		k = h
	}
	i := s.alive[k]
	switch s.rng.IntN(5) {
	case 0:
		s.c.Partition(i)
		advance(time.Duration(s.rng.IntN(15)) * time.Second)
		s.c.Heal(i)
	case 1:
		s.c.LoseReplies(i)
		advance(time.Duration(s.rng.IntN(15)) * time.Second)
		s.c.Heal(i)
	case 2:
		s.c.Resign()
	default:
		s.alive = slices.Delete(s.alive, k, k+1)
		if s.rng.IntN(2) == 0 {
			s.c.Kill(i)
		} else if err := s.c.Stop(i); err != nil {
			s.Error(err)
		}
		s.joins(s.c.Add())
	}
}

// check reads the history.
func (s *storm) check() {
	page, err := s.c.Store().Events(s.Context(), 0, 1<<20)
	if err != nil {
		s.Fatal(err)
	}
	var open, last time.Time // the due time under way, and the newest that is known
	generation, attempt, done := int64(0), 0, 0
	for _, e := range page.Events {
		kind, ok := strings.CutPrefix(string(e.Kind), "periodic.")
		if !ok {
			continue
		}
		var d schedule.Detail
		if err := json.Unmarshal(e.Detail, &d); err != nil {
			s.Fatal(err)
		}
		if e.Generation < generation {
			s.Errorf("event %d is of generation %d, after %d", e.Seq, e.Generation, generation)
		}
		generation = e.Generation
		switch kind {
		case "scheduled":
			last = d.Next.Add(-stormInterval)
		case "missed":
			if !d.First.Equal(last.Add(stormInterval)) {
				s.Errorf("event %d: missed from %v, after %v", e.Seq, d.First, last)
			}
			last = last.Add(time.Duration(d.Missed) * stormInterval)
		case "started":
			again := d.Due.Equal(open)
			if again != (d.Attempt > 1) || d.Attempt > 1 && d.Attempt != attempt+1 || !again && !d.Due.Equal(last.Add(stormInterval)) {
				s.Errorf("event %d: attempt %d for %v starts after attempt %d for %v, last %v", e.Seq, d.Attempt, d.Due, attempt, open, last)
			}
			open, last, attempt = d.Due, d.Due, d.Attempt
		case "ended", "failed":
			if !d.Due.Equal(open) || d.Attempt != attempt {
				s.Errorf("event %d: attempt %d for %v %s, under way is attempt %d for %v", e.Seq, d.Attempt, d.Due, kind, attempt, open)
			}
			if kind == "ended" || d.GivenUp {
				open = time.Time{}
				done++
			}
		}
	}
	s.Logf("%d due times were done with", done)
	if done < 20 {
		s.Errorf("only %d due times were done with", done)
	}
}
