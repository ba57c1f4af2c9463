package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
)

// hundred is 100 daemons, of which the first crashes everywhere, and the others on the machine with index sick.
func hundred(sick int) []Work {
	var work []Work
	for i := range 100 {
		k := plain(daemon.ID(fmt.Sprintf("acme:d%02d", i)), 1)
		k.Fails, k.FailsOn = 300*time.Millisecond, sick
		if i == 0 {
			k.FailsOn = -1
		}
		work = append(work, k)
	}
	return work
}

// One of 100 daemons crashes everywhere, and on one of ten nodes everything crashes. Within a minute the one is
// quarantined, the other counts as sick, and 99 daemons run elsewhere. Then the two cost hardly any starts.
func TestStorySickDaemonAndSickNode(t *testing.T) {
	t.Parallel()
	manySeeds(t, 4, func(t *testing.T, seed uint64, timing lease.Timing) {
		const sick = 4
		s := onStage(t, Config{Seed: seed, Nodes: 10, Timing: timing, Work: hundred(sick)})
		s.boot()
		s.within(time.Minute, "everything was started once", func() bool { return s.stats.Runs >= 100 })
		from := s.now
		limit := time.Minute + 2*(timing.HeartbeatInterval-time.Second) // failures are reported with heartbeats
		for !s.sickAreKnown(sick) && s.now < from+limit {
			s.pass(100 * time.Millisecond)
		}
		if !s.sickAreKnown(sick) {
			s.Fatalf("in time: %d quarantined, %d sick, all run: %v", s.recorded(daemon.LedgerQuarantined), s.recorded(daemon.LedgerSick), s.allRun())
		}
		t.Logf("after %v, with %d starts", s.now-from, s.stats.Runs)
		s.pass(time.Minute)
		runs := s.stats.Runs
		s.pass(10 * time.Minute)
		t.Logf("%.1f starts per minute afterwards", float64(s.stats.Runs-runs)/10)
		if n := s.stats.Runs - runs; n > 60 {
			t.Errorf("%d starts in ten minutes", n)
		}
		for i, p := range s.where() {
			if i > 0 && (p == nil || p.host.index == sick) {
				t.Errorf("%s does not run on a healthy node", s.units[i].Unit)
			}
		}
	})
}

// sickAreKnown reports whether both verdicts are in the history, and 99 daemons run elsewhere.
func (s *stage) sickAreKnown(sick int) bool {
	s.Helper()
	n := 0
	for _, p := range s.where() {
		if p != nil && p.host.index != sick {
			n++
		}
	}
	return n >= 99 && s.recorded(daemon.LedgerQuarantined) == 1 && s.recorded(daemon.LedgerSick) == 1
}

// What a lost node ran does not try the sick node first, though that is the least loaded.
func TestStorySickNodeIsNoBlackHole(t *testing.T) {
	t.Parallel()
	manySeeds(t, 4, func(t *testing.T, seed uint64, timing lease.Timing) {
		const sick = 4
		s := onStage(t, Config{Seed: seed, Nodes: 10, Timing: timing, Work: hundred(sick)})
		s.boot()
		s.pass(3 * time.Minute)
		before := s.startsOn(sick)
		for _, h := range s.hosts {
			if h.index != sick && !h.proc.watch.leading {
				h.proc.kill()
				break
			}
		}
		s.pass(3 * timing.NodeRegistrationTTL)
		if n := s.startsOn(sick) - before; n > 0 {
			t.Errorf("%d more daemons were tried on the sick node", n)
		}
	})
}

// startsOn counts the healthy daemons that were started on a machine.
func (s *stage) startsOn(host int) int {
	n := 0
	for _, p := range s.procs {
		for i, generation := range p.started {
			if p.host.index == host && i > 0 && generation > 0 {
				n++
			}
		}
	}
	return n
}

// A daemon that crashes everywhere is mended: one unit is tried, and once it has run for a minute, the others follow.
func TestStoryQuarantineEnds(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		sick := plain("acme:sick", 5)
		sick.Fails = 300 * time.Millisecond
		s := onStage(t, Config{Nodes: 5, Timing: timing, Work: []Work{plain("acme:a", 10), sick}})
		s.boot()
		s.pass(3 * time.Minute)
		if s.recorded(daemon.LedgerQuarantined) == 0 {
			t.Error("no quarantine within three minutes")
		}
		s.pass(5 * time.Minute)
		runs := s.stats.Runs
		s.pass(10 * time.Minute)
		t.Logf("%d starts in ten minutes of quarantine", s.stats.Runs-runs)
		for _, u := range s.units {
			u.work.Fails = 0
		}
		s.within(15*time.Minute, "everything runs", s.allRun)
		s.pass(20 * time.Minute)
		if s.recorded(daemon.LedgerCleared) == 0 {
			t.Error("the quarantine never ended")
		}
	})
}

// One of twelve units crashes wherever it is. If a node dies, too few of the others run to outvote it, and the daemon is
// quarantined. What the node ran starts elsewhere all the same, and keeps running.
func TestStoryPoisonUnit(t *testing.T) {
	t.Parallel()
	manySeeds(t, 2, func(t *testing.T, seed uint64, timing lease.Timing) {
		s := onStage(t, Config{Seed: seed, Nodes: 4, Timing: timing, MaxMoves: -1, Work: []Work{plain("acme:a", 12)}}) // a unit that moves by itself keeps loads uneven
		s.boot()
		poison := *s.units[0].work
		poison.Fails = 300 * time.Millisecond
		s.units[0].work = &poison
		s.pass(10 * time.Minute)
		for _, p := range s.where()[1:] {
			if !p.watch.leading {
				p.kill()
				break
			}
		}
		s.within(3*timing.NodeRegistrationTTL+2*time.Minute, "all but one run", func() bool {
			for i, p := range s.where() {
				if i > 0 && (p == nil || p.state != running) {
					return false
				}
			}
			return true
		})
		if s.recorded(daemon.LedgerQuarantined) == 0 {
			t.Error("the daemon was not quarantined: this shows nothing")
		}
	})
}

// A daemon of many units that crashes everywhere costs hardly any starts once it is quarantined: one trial each time, and never
// all units together.
func TestStoryQuarantineIsCheap(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		sick := plain("acme:sick", 40)
		sick.Fails, sick.FailsOn = 300*time.Millisecond, -1
		s := onStage(t, Config{Nodes: 5, Timing: timing, Work: []Work{sick}})
		s.boot()
		s.pass(5 * time.Minute)
		runs := s.stats.Runs
		s.pass(45 * time.Minute)
		if n := s.stats.Runs - runs; n == 0 || n > 60 {
			t.Errorf("%d starts in 45 minutes of quarantine", n)
		}
		t.Logf("%d starts in 45 minutes", s.stats.Runs-runs)
		for _, u := range s.units {
			u.work.Fails = 0
		}
		s.within(21*time.Minute, "everything runs", s.allRun)
	})
}
