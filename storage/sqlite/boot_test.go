package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// machine is a host whose clocks and boots the test controls.
type machine struct {
	host
	up   time.Duration
	time time.Time
}

func newMachine() *machine {
	m := &machine{time: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), up: time.Hour}
	m.wall = func() time.Time { return m.time }
	m.sinceBoot = func() time.Duration { return m.up }
	m.bootID = "boot-1"
	return m
}

// pass lets time pass on both clocks.
func (m *machine) pass(d time.Duration) { m.up, m.time = m.up+d, m.time.Add(d) }

// boots reboots the machine: no earlier process runs any more.
func (m *machine) boots(id string) *machine {
	n := newMachine()
	n.time, n.up, n.bootID = m.time.Add(time.Minute), 5*time.Second, id
	return n
}

func (m *machine) open(t testing.TB, path string) *Store {
	t.Helper()
	return mustOpen(t, Config{Path: path, host: &m.host})
}

// beat sends a heartbeat that must be accepted.
func beat(t testing.TB, s *Store, b storage.Heartbeat) *storage.Reply {
	t.Helper()
	r, err := s.Heartbeat(context.Background(), b)
	ok(t, err)
	return r
}

func snapshot(t testing.TB, s *Store) *daemon.Snapshot {
	t.Helper()
	snap, err := s.Snapshot(context.Background())
	ok(t, err)
	return snap
}

func history(t testing.TB, s *Store, after int64) []daemon.Event {
	t.Helper()
	page, err := s.Events(context.Background(), after, 10_000)
	ok(t, err)
	return page.Events
}

var unit0 = daemon.Unit{Daemon: "acme:reports"}

// runs makes a node that leads, holds unit0 and holds a lock.
func runs(t testing.TB, s *Store, who node.Identity) (node.Term, daemon.Record) {
	t.Helper()
	r := beat(t, s, storage.Heartbeat{Node: who, Seq: 1, Advert: plainAdvert, TTL: time.Minute, TermRequest: storage.TermRequest{Campaign: true, Lease: time.Hour}})
	out, err := s.Commit(context.Background(), storage.Commit{Term: r.Term.Ref(), Changes: []storage.Change{
		{Unit: unit0}, {Unit: unit0, Step: daemon.Assign, State: daemon.Unassigned, To: who},
	}})
	ok(t, err)
	if !out[1].Applied {
		t.Fatalf("not assigned: %+v", out[1].Record)
	}
	return r.Term, out[1].Record
}

// The store's clock is the same for every process of a boot, moves with the boot clock, and does
// not change when the wall clock is set.
func TestClockIgnoresTheWallClock(t *testing.T) {
	t.Parallel()
	m := newMachine()
	path := filepath.Join(t.TempDir(), "store.db")
	s := m.open(t, path)
	first := snapshot(t, s).Now
	if !first.Equal(m.time) {
		t.Errorf("the store's clock began at %v, the wall clock says %v", first, m.time)
	}
	m.time = m.time.Add(-48 * time.Hour)
	if now := snapshot(t, s).Now; !now.Equal(first) {
		t.Errorf("the store's clock is %v after the wall clock was set back, want %v", now, first)
	}
	m.pass(time.Minute)
	other := m.open(t, path) // another process, long after the wall clock was set
	for _, s := range []*Store{s, other} {
		if now := snapshot(t, s).Now; !now.Equal(first.Add(time.Minute)) {
			t.Errorf("the store's clock is %v, want %v", now, first.Add(time.Minute))
		}
	}
}

// After a reboot everything of the previous boot has ended. Term, nodes, units and locks end in one
// transaction, with their events, and the first process to start leads at once.
func TestRebootEndsEverything(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	m := newMachine()
	path := filepath.Join(t.TempDir(), "store.db")
	s := m.open(t, path)
	who := someone("before")
	term, run := runs(t, s, who)
	lock, err := s.Acquire(ctx, "lock", "owner", time.Hour, storage.Lock{})
	ok(t, err)
	before := snapshot(t, s)
	ok(t, s.Close())

	s = m.boots("boot-2").open(t, path)
	after := snapshot(t, s)
	if after.StoreID == before.StoreID {
		t.Error("the store is still the same one")
	}
	if after.Term.Number != term.Number || after.Term.Held() {
		t.Errorf("the term is %+v, want %d vacant", after.Term, term.Number)
	}
	if n := after.Nodes[0]; n.Present() || n.EndReason != ReasonRebooted || !n.EndedAt.Equal(after.Now) {
		t.Errorf("the node's row is %+v", n)
	}
	if u := after.Units[0]; u.State != daemon.Deleted || !u.Forced || u.Reason != ReasonRebooted || u.Generation != run.Generation {
		t.Errorf("the unit's row is %+v", u)
	}
	var kinds []string
	for _, e := range history(t, s, before.Head) {
		kinds = append(kinds, string(e.Kind)+" "+e.Reason)
	}
	if got, want := strings.Join(kinds, ", "), "leader.lost expired, node.removed host rebooted, assignment.forced host rebooted"; got != want {
		t.Errorf("events are %s, want %s", got, want)
	}
	again, err := s.Acquire(ctx, "lock", "another", time.Hour, storage.Lock{})
	ok(t, err)
	if again.Number <= lock.Number {
		t.Errorf("lock number %d after %d", again.Number, lock.Number)
	}
	_, err = s.Heartbeat(ctx, storage.Heartbeat{Node: who, Seq: 2})
	refused(t, err, storage.ErrNotRegistered)
	r := beat(t, s, storage.Heartbeat{Node: someone("after"), Seq: 1, Advert: plainAdvert, TermRequest: storage.TermRequest{Campaign: true, Lease: time.Hour}})
	if r.Verdict != storage.Elect || r.Term.Number <= term.Number {
		t.Errorf("verdict %v, term %d after %d", r.Verdict, r.Term.Number, term.Number)
	}
	// The next process of the same boot changes nothing.
	head := snapshot(t, s).Head
	third := m.boots("boot-2").open(t, path)
	if snap := snapshot(t, third); snap.Head != head || !snap.Term.Held() {
		t.Errorf("a second opening in one boot changed the cluster: %+v", snap.Term)
	}
}

// A reboot does not touch a unit in a state that a newer version wrote.
func TestRebootKeepsUnknownStates(t *testing.T) {
	t.Parallel()
	m := newMachine()
	path := filepath.Join(t.TempDir(), "store.db")
	s := m.open(t, path)
	runs(t, s, someone("before"))
	_, err := userDB(t, path).Exec("UPDATE emitd_unit SET state = 'hibernating'")
	ok(t, err)
	ok(t, s.Close())
	s = m.boots("boot-2").open(t, path)
	if u := snapshot(t, s).Units[0]; u.State != "hibernating" {
		t.Errorf("the unit's row is %+v", u)
	}
}

// A host whose wall clock is wrong after a boot (no battery) still stamps later than before.
func TestClockOfABootBeginsAfterTheOneBefore(t *testing.T) {
	t.Parallel()
	m := newMachine()
	path := filepath.Join(t.TempDir(), "store.db")
	s := m.open(t, path)
	term, run := runs(t, s, someone("before"))
	m.pass(time.Hour)
	beat(t, s, storage.Heartbeat{Node: someone("late"), Seq: 1, Advert: plainAdvert})
	last := snapshot(t, s).Now
	ok(t, s.Close())

	m = m.boots("boot-2")
	m.time = time.Date(1970, 1, 1, 0, 0, 10, 0, time.UTC)
	s = m.open(t, path)
	if now := snapshot(t, s).Now; !now.After(last) || now.Sub(last) > time.Second {
		t.Errorf("the store's clock is %v, the last stamp of the boot before was %v", now, last)
	}
	term2, run2 := runsAgain(t, s, someone("after"))
	if term2.Number <= term.Number || run2.Generation <= run.Generation {
		t.Errorf("term %d after %d, generation %d after %d", term2.Number, term.Number, run2.Generation, run.Generation)
	}
}

// runsAgain is runs where unit0 has a row.
func runsAgain(t testing.TB, s *Store, who node.Identity) (node.Term, daemon.Record) {
	t.Helper()
	r := beat(t, s, storage.Heartbeat{Node: who, Seq: 1, Advert: plainAdvert, TermRequest: storage.TermRequest{Campaign: true, Lease: time.Hour}})
	u := snapshot(t, s).Units[0]
	out, err := s.Commit(context.Background(), storage.Commit{Term: r.Term.Ref(), Changes: []storage.Change{
		{Unit: unit0, Step: daemon.Assign, State: u.State, Generation: u.Generation, To: who},
	}})
	ok(t, err)
	if !out[0].Applied {
		t.Fatalf("not assigned: %+v", out[0].Record)
	}
	return r.Term, out[0].Record
}

// Two machines on one file would end each other's nodes alternately. The machine that was there
// first gets an error from every call, and does not write again.
func TestTwoMachinesOnOneFile(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	one, two := newMachine(), newMachine()
	two.bootID = "another machine"
	path := filepath.Join(t.TempDir(), "store.db")
	s := one.open(t, path)
	runs(t, s, someone("one"))
	intruder := two.open(t, path)
	head := snapshot(t, intruder).Head
	for range 2 {
		_, err := s.Heartbeat(ctx, storage.Heartbeat{Node: someone("one"), Seq: 2, Advert: plainAdvert})
		refused(t, err, errOtherHost)
		_, err = s.Snapshot(ctx)
		refused(t, err, errOtherHost)
	}
	if errors.Is(errOtherHost, storage.ErrUnavailable) {
		t.Error("a file shared by two machines does not pass by itself")
	}
	if now := snapshot(t, intruder).Head; now != head {
		t.Errorf("events %d to %d were written by the machine that was told", head+1, now)
	}
}

// A backup from before the last reboot ends what was of that boot, as a reboot does. But processes of this boot may run what
// the lost rows gave them, so nodes that start now are told since when it is another store, whoever finds it first.
func TestBackupFromBeforeTheReboot(t *testing.T) {
	t.Parallel()
	joins := func(t testing.TB, s *Store) *storage.Reply {
		return beat(t, s, storage.Heartbeat{Node: someone("x"), Seq: 1, Advert: plainAdvert})
	}
	runner := func(t testing.TB, s *Store, _ *machine) { joins(t, s) }
	reader := func(t testing.TB, s *Store, _ *machine) { snapshot(t, s) }
	put := map[string]func(testing.TB, *Store, string){"in its place": replace, "into the file": restore}
	for how, first := range map[string]func(testing.TB, *Store, *machine){
		"in its place, found by a process that runs":   runner,
		"in its place, found by a read":                reader,
		"in its place, found by a process that starts": func(t testing.TB, s *Store, m *machine) { m.open(t, s.Path()) },
		"into the file, found by a process that runs":  runner,
		"into the file, found by a read":               reader,
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m := newMachine()
			path := filepath.Join(t.TempDir(), "store.db")
			s := m.open(t, path)
			runs(t, s, someone("before"))
			backup := copyOf(t, s)
			ok(t, s.Close())
			m = m.boots("boot-2")
			s = m.open(t, path)
			runsAgain(t, s, someone("a"))
			before := joins(t, s)
			if !before.StoreSince.IsZero() {
				t.Errorf("after a reboot it is another store since %v", before.StoreSince)
			}
			m.pass(time.Minute)
			where, _, _ := strings.Cut(how, ",")
			put[where](t, s, backup)
			first(t, s, m)
			for i, s := range []*Store{m.open(t, path), s} {
				r := joins(t, s)
				if r.StoreID == before.StoreID || r.StoreSince.IsZero() || r.Now.Sub(r.StoreSince) > time.Second || r.Term.Held() {
					t.Errorf("process %d is told of %s since %v, term %+v, now %v; before it was %s", i, r.StoreID, r.StoreSince, r.Term, r.Now, before.StoreID)
				}
			}
			snap := snapshot(t, s)
			ended := slices.ContainsFunc(snap.Nodes, func(m node.Member) bool { return m.Name == "before" && m.EndReason == ReasonRebooted })
			if !ended || !snap.Units[0].State.IsFree() {
				t.Errorf("the rows of the former boot are %+v and %+v", snap.Nodes, snap.Units)
			}
		})
	}
}

// Without a boot clock, the store uses the wall clock, which then never goes back, even across
// processes.
func TestWallClockAsALastResort(t *testing.T) {
	t.Parallel()
	m := newMachine()
	m.host = host{wall: m.wall}
	path := filepath.Join(t.TempDir(), "store.db")
	one, two := m.open(t, path), m.open(t, path)
	who := someone("a")
	last := time.Time{}
	for i := range 10 {
		s := []*Store{one, two}[i%2]
		b := storage.Heartbeat{Node: who, Seq: uint64(i + 1), TermRequest: storage.TermRequest{Campaign: true, Lease: time.Hour}}
		if i == 0 {
			b.Advert = plainAdvert
		}
		r := beat(t, s, b)
		if !r.Now.After(last) {
			t.Errorf("the store's clock went from %v to %v", last, r.Now)
		}
		last = r.Now
		if snap := snapshot(t, s); snap.Now.Before(last) {
			t.Errorf("a snapshot of %v after a stamp of %v", snap.Now, last)
		}
		m.time = m.time.Add(time.Duration(3-i) * time.Minute)
	}
	// Opening again must not count as a reboot, because the store cannot know of one.
	if snap := snapshot(t, m.open(t, path)); !snap.Term.Held() {
		t.Error("the term was ended by an opening")
	}
}
