package member_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// joinSlow adds a node with profile "fast", on a store in which a change takes that long.
func (c *cluster) joinSlow(name string, change *time.Duration) *peer {
	p := c.joinTimed(name, lease.Fast())
	p.forge = func(r *storage.Reply) { r.MinChangeTime = *change }
	return p
}

// A store becomes too slow for its nodes and stays so. Each node reports that once, and once that it is fast
// again. No node stops or stops anything because of it. A store that is slow for a moment is not reported.
func TestStoreThatBecomesSlow(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	change := 100 * time.Millisecond
	for _, name := range []string{"a", "b", "c", "d"} {
		c.joinSlow(name, &change)
	}
	expect := func(when string, slow, fine int, now bool) {
		t.Helper()
		for _, p := range c.nodes {
			if s, f := p.count(string(member.StoreSlow)), p.count(string(member.StoreRecovered)); s != slow || f != fine {
				t.Errorf("%s: %s said %d times that the store is slow and %d times that it is not, want %d and %d", when, p.id.Name, s, f, slow, fine)
			}
			if v := p.m.View(); (v.TooSlow != nil) != now || v.ChangeTime != change || v.ChangeTimeLimit != lease.Fast().AcknowledgeTimeout/24 {
				t.Errorf("%s: %s shows %v, %v of %v", when, p.id.Name, v.TooSlow, v.ChangeTime, v.ChangeTimeLimit)
			}
			if p.stopped || p.logged("lost") || p.logged("cancel") {
				t.Errorf("%s: %s was disturbed\n%s", when, p.id.Name, c.dump())
			}
		}
	}
	c.until(time.Minute, "run", func() bool { return c.total() == 6 })
	c.run(10 * time.Second)
	expect("in time", 0, 0, false)
	change = time.Second
	c.run(4 * time.Second)
	change = 101 * time.Millisecond
	c.run(4 * time.Second)
	expect("after a moment", 0, 0, false)
	change = time.Second
	c.run(30 * time.Second)
	expect("slow", 1, 0, true)
	change = 200 * time.Millisecond // hardly better than what is needed
	c.run(10 * time.Second)
	expect("still", 1, 0, true)
	change = 60 * time.Millisecond
	c.run(10 * time.Second)
	expect("fast again", 1, 1, false)
}

// solo is a member whose calls the test answers itself.
type solo struct {
	t        *testing.T
	m        *member.Member
	now      lease.Instant
	calls    []member.Call
	notified []member.Notice
	ended    *member.Stopped
}

// answer answers each heartbeat for d, and collects the member's effects.
func (s *solo) answer(d time.Duration, with func(member.Call) member.Result) {
	for end := s.now.Add(d); s.now < end; s.now = max(s.now, min(s.m.Next(), end)) {
		for in := []member.Input{member.Tick{}}; len(in) > 0; in = in[1:] {
			for _, e := range append([]member.Effect(nil), s.m.Step(s.now, in[0])...) {
				switch e := e.(type) {
				case member.Call:
					s.calls = append(s.calls, e)
					r := with(e)
					r.ID = e.ID
					in = append(in, r)
				case member.Notice:
					s.notified = append(s.notified, e)
				case member.Stopped:
					s.ended = &e
				}
			}
		}
		if s.ended != nil {
			return
		}
	}
}

// A node for which the store has no room asks again at each interval. It ends after the time that a dead or
// stopping node may take, without another call to the store. Once it is registered, it asks for no room any more.
func TestNodeWaitsForRoom(t *testing.T) {
	t.Parallel()
	tm := lease.Fast()
	begin := func() *solo {
		id := node.Identity{Name: "a", ID: "id-a", Incarnation: "a-1"}
		return &solo{t: t, now: lease.Instant(time.Hour), m: member.New(member.Config{Node: id, Advert: advert("acme:work", 1), Timing: tm, Seed: 1}, lease.Instant(time.Hour))}
	}
	refuse := func(member.Call) member.Result {
		return member.Result{Err: fmt.Errorf("x: %w", &storage.TooManyNodesError{Nodes: 5, ChangeTime: 100 * time.Millisecond})}
	}
	s := begin()
	s.answer(10*time.Second, refuse)
	if len(s.calls) < 9 || len(s.calls) > 12 || s.calls[9].Heartbeat == nil || s.calls[9].Heartbeat.MaxTotalChangeTime != member.ChangeTimeBudget(tm) || s.calls[9].Heartbeat.Advert == nil {
		t.Errorf("%d calls in 10 intervals, the last %+v", len(s.calls), s.calls[len(s.calls)-1].Heartbeat)
	}
	if len(s.notified) != 1 || s.notified[0].Kind != member.NoRoom || s.m.View().NoRoom == nil || s.m.View().Registered {
		t.Errorf("told %+v, shows %+v", s.notified, s.m.View())
	}
	s.answer(time.Minute, refuse)
	var slow *member.SlowStoreError
	switch took := s.now.Sub(lease.Instant(time.Hour)); {
	case s.ended == nil || !errors.As(s.ended.Err, &slow) || slow.Nodes != 5 || slow.NeedQueryTimeout != 250*time.Millisecond || slow.NeedAcknowledgeTimeout != 3*time.Second:
		t.Errorf("it ended with %v", s.ended)
	case took < member.RoomTimeout(tm) || took > member.RoomTimeout(tm)+2*tm.HeartbeatInterval:
		t.Errorf("it ended after %v, want %v", took, member.RoomTimeout(tm))
	}
	for _, call := range s.calls {
		if call.Heartbeat == nil {
			t.Errorf("it called %+v", call)
		}
	}
	s = begin()
	s.answer(3*time.Second, refuse)
	s.answer(3*time.Second, func(c member.Call) member.Result {
		return member.Result{Reply: &storage.Reply{Seq: c.Heartbeat.Seq, Now: time.Unix(1_800_000_000, 0).Add(time.Duration(s.now)), StoreID: "x", Members: []node.Member{}}}
	})
	if last := s.calls[len(s.calls)-1].Heartbeat; last == nil || last.MaxTotalChangeTime != 0 || s.m.View().NoRoom != nil || !s.m.View().Registered {
		t.Errorf("once it is in: %+v, %+v", last, s.m.View())
	}
}

// A store that makes many changes at once reports no time per change, and refuses no node.
func TestOtherStoresCarryAnyNumber(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	var none time.Duration
	for i := range 30 {
		c.joinSlow(fmt.Sprint("x", i), &none)
	}
	c.run(time.Minute)
	for _, p := range c.nodes {
		if p.stopped || p.logged(string(member.StoreSlow)) {
			t.Errorf("%s warned, or ended with %v", p.id.Name, p.ended)
		}
	}
}
