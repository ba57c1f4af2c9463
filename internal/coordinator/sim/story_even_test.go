package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
)

// journey counts how often each unit was entered on another machine than before, and how long it ran nowhere in
// between.
type journey struct {
	moves []int
	gaps  []time.Duration // sorted once total was called
	at    []*process
	since []time.Duration // since when it runs nowhere
}

// watch begins to count.
func (s *stage) watch() *journey {
	j := &journey{moves: make([]int, len(s.units)), at: s.where(), since: make([]time.Duration, len(s.units))}
	var inspect func()
	inspect = func() {
		for i, p := range s.where() {
			switch {
			case p == nil && j.since[i] == 0:
				j.since[i] = s.now
			case p != nil:
				if p != j.at[i] {
					j.moves[i]++
					j.at[i] = p
					j.gaps = append(j.gaps, s.now-j.since[i])
				}
				j.since[i] = 0
			}
		}
		s.after(10*time.Millisecond, inspect)
	}
	inspect()
	return j
}

func (j *journey) total() int {
	n := 0
	for _, m := range j.moves {
		n += m
	}
	return n
}

func (j *journey) gap(percent int) time.Duration {
	slices.Sort(j.gaps)
	return j.gaps[len(j.gaps)*percent/100]
}

// loads returns how many units run on each live machine, and the difference between the most and the least.
func (s *stage) loads() (map[string]int, int) {
	n := map[string]int{}
	for _, p := range s.procs {
		if p.state == running && !p.stopping && !p.host.advert.Traits.NoDaemons {
			n[fmt.Sprintf("p%02d", p.index)] = 0
		}
	}
	for _, p := range s.where() {
		if p != nil {
			n[fmt.Sprintf("p%02d", p.index)]++
		}
	}
	low, high := 1<<30, 0
	for _, units := range n {
		low, high = min(low, units), max(high, units)
	}
	return n, high - low
}

func (s *stage) wantEven() {
	s.Helper()
	if n, diff := s.loads(); diff > 1 || !s.allRun() {
		s.Errorf("loads %v, all run: %v", n, s.allRun())
	}
}

// seeds runs a story with several seeds and both profiles.
func manySeeds(t *testing.T, n uint64, story func(t *testing.T, seed uint64, timing lease.Timing)) {
	t.Helper()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		for seed := range n {
			t.Run(fmt.Sprint(seed+1), func(t *testing.T) {
				t.Parallel()
				story(t, seed+1, timing)
			})
		}
	})
}

// Nine of ten nodes are cut off until one runs everything, and return. A minute later the loads are even again, after
// as few moves as possible.
func TestStoryHealOfNineNodes(t *testing.T) {
	t.Parallel()
	manySeeds(t, 6, func(t *testing.T, seed uint64, timing lease.Timing) {
		s := onStage(t, Config{Seed: seed, Nodes: 10, Timing: timing, Work: []Work{plain("acme:a", 60)}}).begin()
		s.wantEven()
		stays := s.leader()
		s.restartBound("cut")
		for _, h := range s.hosts {
			h.cutOff = h.proc != stays
		}
		s.within(2*s.bound(), "one node runs everything", func() bool { return len(stays.runs) == 60 && s.allRun() })
		for _, h := range s.hosts {
			h.cutOff = false
		}
		s.restartBound("heal")
		j := s.watch()
		s.pass(time.Minute)
		s.wantEven()
		t.Logf("%d moves, gap p50 %v, p99 %v", j.total(), j.gap(50), j.gap(99))
		if j.total() > 54 {
			t.Errorf("%d moves, want at most 54", j.total())
		}
	})
}

// A node that stays deaf has lost its units. It does not keep the loads of the others from becoming even.
func TestStoryDeafNodeBesideAScaleOut(t *testing.T) {
	t.Parallel()
	manySeeds(t, 3, func(t *testing.T, seed uint64, timing lease.Timing) {
		s := onStage(t, Config{Seed: seed, Nodes: 5, Timing: timing, Work: []Work{plain("acme:a", 24)}})
		joining := s.hosts[4]
		s.hosts = s.hosts[:4]
		s.begin()
		deaf := s.follower()
		deaf.host.deaf = true
		s.restartBound("deaf")
		s.pass(s.bound() + time.Second)
		s.hosts = append(s.hosts, joining)
		s.start(joining)
		s.restartBound("join")
		j := s.watch()
		s.pass(time.Minute)
		for i, p := range s.where() {
			if p == nil || p == deaf {
				t.Errorf("%s does not run on a node that hears", s.units[i].Unit)
			}
		}
		if n := len(joining.proc.runs); n != 6 || j.total() != 6 {
			t.Errorf("the new node has %d units after %d moves, want 6 after 6", n, j.total())
		}
		s.pass(s.bound())
	})
}

// Six nodes join three. Each unit moves at most once, and the loads are even.
func TestStoryScaleOut(t *testing.T) {
	t.Parallel()
	manySeeds(t, 6, func(t *testing.T, seed uint64, timing lease.Timing) {
		s := onStage(t, Config{Seed: seed, Nodes: 9, Timing: timing, Work: []Work{plain("acme:a", 40), plain("acme:b", 5)}})
		joining := s.hosts[3:]
		s.hosts = s.hosts[:3]
		s.begin()
		s.wantEven()
		j := s.watch()
		s.hosts = append(s.hosts, joining...)
		for _, h := range joining {
			s.after(s.upTo(3*time.Second), func() { s.start(h) })
		}
		s.pass(time.Minute)
		s.wantEven()
		if j.total() != 30 || slices.Max(j.moves) > 1 {
			t.Errorf("%d moves, want 30; one unit moved %d times", j.total(), slices.Max(j.moves))
		}
	})
}

// All six nodes are replaced at once. The first of the new ones does not get everything for good.
func TestStoryAllReplacedAtOnce(t *testing.T) {
	t.Parallel()
	manySeeds(t, 12, func(t *testing.T, seed uint64, timing lease.Timing) {
		s := onStage(t, Config{Seed: seed, Nodes: 12, Timing: timing, Work: []Work{plain("acme:a", 24)}})
		joining := s.hosts[6:]
		s.hosts = s.hosts[:6]
		s.begin()
		j := s.watch()
		leaving := s.hosts
		s.hosts = append(slices.Clone(leaving), joining...)
		for i := range joining {
			s.after(s.upTo(timing.SettleWindow/2), func() { s.start(joining[i]) })
			s.after(s.upTo(timing.SettleWindow/2), leaving[i].proc.stop)
		}
		s.pass(2 * time.Minute)
		s.wantEven()
		t.Logf("%.2f moves per unit, gap p50 %v, p99 %v", float64(j.total())/24, j.gap(50), j.gap(99))
		if longest := j.gap(99); longest > timing.SettleWindow+timing.HeartbeatInterval {
			t.Errorf("a unit ran nowhere for %v", longest)
		}
	})
}

// Scenario 11: 20 nodes with 1,000 units are replaced one after another. If each new node joins before an old one
// leaves, every unit moves once. If the old one leaves first, the units of the first node go to nodes that will be replaced
// too, so they move twice, and one round of rebalancing fills the last node.
func TestStoryRollingReplacement(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]rollout{
		"surge":                  {surge: true},
		"surge, pause 1s":        {surge: true, pause: time.Second},
		"remove first":           {},
		"remove first, pause 1s": {pause: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			profiles(t, r.roll)
		})
	}
}

// A rollout of another version pauses after each node for longer than the settle window. It has one round all the same.
// If the nodes have one version, nothing tells the rollout from one node that is replaced now and another one later: the
// membership is settled in each pause, so each new node is filled by a round, and a unit moves twice.
func TestStoryRolloutWithPauses(t *testing.T) {
	t.Parallel()
	timing := lease.Fast()
	rollout{version: "v2", pause: 3 * timing.SettleWindow}.roll(t, timing)
	rollout{pause: 3 * timing.SettleWindow, settles: true}.roll(t, timing)
}

// rollout is how nodes are replaced.
type rollout struct {
	surge   bool // the new node joins before the old one leaves
	version string
	pause   time.Duration // after each node
	settles bool          // each pause lets the membership settle
}

func (r rollout) roll(t *testing.T, timing lease.Timing) {
	s := onStage(t, Config{Nodes: 40, Timing: timing, Work: []Work{plain("acme:a", 1000)}})
	joining := s.hosts[20:]
	for _, h := range joining {
		h.advert.Traits.Version = r.version
		h.full = h.advert
	}
	s.hosts = s.hosts[:20]
	s.begin()
	s.wantEven()
	leaving := slices.Clone(s.hosts)
	j, counted := s.watch(), s.countRounds()
	for i, h := range leaving {
		s.hosts = append(s.hosts, joining[i])
		if r.surge {
			p := s.start(joining[i])
			s.within(time.Minute, "the new node is live", func() bool { return s.registered(p) })
		}
		old := h.proc
		old.stop()
		s.within(2*time.Minute, "the old node has ended", func() bool { return old.state == dead })
		if !r.surge {
			p := s.start(joining[i])
			s.within(time.Minute, "the new node is live", func() bool { return s.registered(p) })
		}
		s.pass(r.pause)
		if r.settles {
			s.wantEven()
		}
	}
	s.pass(s.bound())
	s.wantEven()
	counted.read(s)
	per := float64(j.total()) / 1000
	t.Logf("%.3f moves per unit, %d of them in %d rounds of rebalancing, gap p50 %v, p99 %v", per, counted.moves, counted.total, j.gap(50), j.gap(99))
	limit, most := 1.1, 1
	if r.surge {
		limit, most = 1, 0
	}
	if r.settles {
		limit, most = 2, len(leaving)
	}
	if per > limit || counted.moves > most*plan.DefaultMaxMoves || counted.total > most {
		t.Errorf("%.3f moves per unit, want at most %v; %d moves in %d rounds of rebalancing, want at most %d rounds", per, limit, counted.moves, counted.total, most)
	}
}

// countRounds begins to count. The store keeps only the newest events, so they are read often.
func (s *stage) countRounds() *rounds {
	r := &rounds{after: s.snapshot().Head}
	var again func()
	again = func() {
		r.read(s)
		s.after(10*time.Millisecond, again)
	}
	again()
	return r
}

// rounds counts the units that were moved to make loads even, and in how many rounds.
type rounds struct {
	after        int64 // events up to this one are counted
	last         time.Time
	moves, total int
}

// read counts the events since the last call.
func (r *rounds) read(s *stage) {
	s.Helper()
	page, err := s.server.store.Events(s.Context(), r.after, 1<<20)
	if err != nil {
		s.Fatal(err)
	}
	if page.Oldest > r.after+1 {
		s.Fatalf("the events %d to %d were dropped before they were counted", r.after+1, page.Oldest-1)
	}
	for _, e := range page.Events {
		r.after = e.Seq
		if e.Kind != daemon.AssignmentRevoking || !strings.HasPrefix(e.Reason, string(plan.Rebalancing)) {
			continue
		}
		if r.moves++; !e.At.Equal(r.last) {
			r.total, r.last = r.total+1, e.At
		}
	}
}

// registered reports whether the process is a live member.
func (s *stage) registered(p *process) bool {
	for _, m := range s.snapshot().Nodes {
		if m.Incarnation == p.who.Incarnation {
			return m.Present()
		}
	}
	return false
}

// A unit that fails on every node goes from node to node. No other unit moves for that.
func TestStoryCrashMovesNoOther(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		sick := plain("acme:sick", 1)
		sick.Fails, sick.Spec.MaxFailures = time.Second, 1
		s := onStage(t, Config{Nodes: 4, Timing: timing, Work: []Work{plain("acme:a", 11), sick}}).begin()
		s.pass(time.Minute)
		j := s.watch()
		s.pass(time.Hour)
		for i, n := range j.moves {
			if n > 0 && s.units[i].Daemon == "acme:a" {
				t.Errorf("%s moved %d times", s.units[i].Unit, n)
			}
		}
	})
}

// Operators' moves leave loads uneven, and no change of the membership follows. A rebalance makes them even and is
// answered then.
func TestStoryRebalanceIsOrdered(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing, Work: []Work{plain("acme:a", 9)}}).begin()
		s.wantEven()
		s.pass(s.bound())
		to := s.hosts[0]
		for i := range s.snapshot().Units {
			r := &s.snapshot().Units[i]
			if r.Holder.Name != to.name {
				index := r.Unit.Index
				s.submit(daemon.CommandMove, daemon.CommandArgs{Daemon: r.Unit.Daemon, Index: &index, Generation: r.Generation, To: to.name}, 0)
			}
		}
		s.within(4*timing.HeartbeatInterval, "all units are on one node", func() bool { return s.allRun() && len(to.proc.runs) == 9 })
		s.wantAnswer(daemon.CommandRebalance, 0, "done: the loads are even")
		s.wantEven()
		s.pass(s.bound())
	})
}

// Four units can run on one node only and do not start there in time. While an embargo keeps them from it, the others are made
// even. Once the four run, the loads are made even again, though no node has joined or left, and then nothing moves.
func TestStoryEvenAfterAnEmbargo(t *testing.T) {
	t.Parallel()
	manySeeds(t, 3, func(t *testing.T, seed uint64, timing lease.Timing) {
		special := plain("acme:special", 4)
		special.Spec.Requires = map[string]string{"disk": "fast"}
		special.Spec.WaitReady, special.Ready = true, Span{time.Hour, time.Hour}
		s := onStage(t, Config{Seed: seed, Nodes: 2, Timing: timing, Work: []Work{plain("acme:a", 6), special}})
		s.hosts[0].advert.Traits.Labels = map[string]string{"disk": "fast"}
		s.hosts[0].full = s.hosts[0].advert
		s.begin()
		s.works[1].Ready = Span{}
		s.within(11*time.Minute, "the four run", s.allRun)
		s.pass(s.placing() + s.roundAfterEmbargo())
		s.wantEven()
		j := s.watch()
		s.pass(5 * time.Minute)
		if n := j.total(); n > 0 || s.stats.Embargoes == 0 {
			t.Errorf("%d moves afterwards; the cluster was checked %d times after an embargo", n, s.stats.Embargoes)
		}
	})
}
