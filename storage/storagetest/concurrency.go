package storagetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

var concurrencyStories = []story{
	{"of 16 candidates for a free term one wins, the others are told who", 0, racesForFreeTerm},
	{"of 16 candidates for an expired term one wins", 0, racesForExpiredTerm},
	{"of 8 processes with one ID one registers", 0, racesForID},
	{"a message that arrives twice at once counts once", 0, racesWithItself},
	{"a unit is assigned once, whoever commits", 0, racesForUnit},
	{"an acknowledgement and an expiry: one of them happens", 0, acknowledgesOrExpires},
	{"a heartbeat and a death: the node keeps its unit or is told that it lost it", 0, livesOrDies},
	{"a commit and a take-over: nothing of the old term comes after the new one", 0, commitsOrLoses},
	{"a run is resumed once", 0, resumesOnce},
	{"a command is filed once", 0, submitsOnce},
	{"readers of the history see no gap and no reordering", 0, readsWhileWriting},
	{"a snapshot shows all of a commit or nothing", 0, snapshotsWhileWriting},
	{"a node that goes on from each reply's head misses no membership event", 0, followsRoll},
	{"effects pass the fence in the order of generations", Tx, effectsInOrder},
}

// together runs f(0) … f(n-1) at the same time and waits for all. f must not end the test.
func (w *world) together(n int, f func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			f(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	if w.Failed() {
		w.FailNow()
	}
}

// handle returns the two handles alternately, as different processes would have them.
func (w *world) handle(i int) storage.Store { return []storage.Store{w.Store, w.Second}[i%2] }

// spread makes n registered processes that use the handles alternately.
func (w *world) spread(n int) []*peer {
	out := make([]*peer, n)
	for i := range out {
		out[i] = w.join(fmt.Sprintf("node-%d", i))
		out[i].via = w.handle(i)
	}
	return out
}

// race makes all processes send a heartbeat at the same time and returns the replies.
func (w *world) race(peers []*peer, edits ...edit) []*storage.Reply {
	w.Helper()
	replies := make([]*storage.Reply, len(peers))
	w.together(len(peers), func(i int) {
		var err error
		if replies[i], err = peers[i].try(edits...); err != nil {
			w.Errorf("heartbeat of %s: %v", peers[i].id.Name, err)
		}
	})
	return replies
}

// oneWinner checks that exactly one of the replies reports an election, and that all name its term.
func (w *world) oneWinner(peers []*peer, replies []*storage.Reply) (*peer, node.Term) {
	w.Helper()
	winner := -1
	for i, r := range replies {
		if r.Verdict != storage.Elect {
			continue
		}
		w.holds(winner < 0, "two were elected")
		winner = i
	}
	w.holds(winner >= 0, "nobody was elected")
	term := replies[winner].Term
	w.equal("leader", term.Leader, peers[winner].id)
	for _, r := range replies {
		w.equal("term that everybody is told", r.Term, term)
	}
	return peers[winner], term
}

func racesForFreeTerm(w *world) {
	peers := w.spread(16)
	var last node.Term
	for range 5 {
		head := w.snapshot().Head
		winner, term := w.oneWinner(peers, w.race(peers, campaign(long)))
		w.holds(term.Number > last.Number, "number %d after %d", term.Number, last.Number)
		w.equal("ordinal", term.Ordinal, last.Ordinal+1)
		w.equal("events", len(w.history(head)), 1)
		winner.leave(storage.Leave{Resign: term.Number})
		last = term
	}
}

func racesForExpiredTerm(w *world) {
	peers := w.spread(16)
	holder, term := peers[0], peers[0].lead()
	for range 5 {
		r := holder.beat(renew(term.Number, over))
		candidates := slices.DeleteFunc(slices.Clone(peers), func(p *peer) bool { return p == holder })
		holder, term = w.oneWinner(candidates, w.race(candidates, campaign(long), seen(term.Number, r.Lease.Renewals)))
	}
	w.equal("ordinal", term.Ordinal, int64(6))
}

func racesForID(w *world) {
	first := w.unregistered("twin")
	peers := []*peer{first}
	for i := range 7 {
		p := first.again()
		p.via = w.handle(i)
		peers = append(peers, p)
	}
	var accepted atomic.Int32
	w.together(len(peers), func(i int) {
		switch _, err := peers[i].try(advert(plain)); {
		case err == nil:
			accepted.Add(1)
		case !errors.Is(err, storage.ErrIDInUse):
			w.Errorf("heartbeat: %v", err)
		}
	})
	w.equal("accepted", accepted.Load(), int32(1))
	w.equal("rows", len(w.snapshot().Nodes), 1)
	w.equal("events", w.snapshot().Head, int64(1))
}

func racesWithItself(w *world) {
	l, _ := w.cluster(0)
	for range 10 {
		n := l.next()
		var accepted atomic.Int32
		w.together(6, func(i int) {
			q := &peer{w: w, id: l.id, via: w.handle(i)}
			switch _, err := q.try(seq(n), renew(l.term.Number, long)); {
			case err == nil:
				accepted.Add(1)
			case !errors.Is(err, storage.ErrStaleSeq):
				w.Errorf("heartbeat: %v", err)
			}
		})
		w.equal("accepted", accepted.Load(), int32(1))
	}
	w.equal("renewals", w.snapshot().Lease.Renewals, int64(10))
}

func racesForUnit(w *world) {
	l, peers := w.cluster(4)
	l.declare(unit0)
	for range 5 {
		r := w.unit(unit0)
		var applied atomic.Int32
		w.together(8, func(i int) {
			out, err := w.handle(i).Commit(w.ctx, storage.Commit{Term: l.term.Ref(), Changes: []storage.Change{
				on(r, daemon.Assign, func(c *storage.Change) { c.To = peers[i%4].id }),
			}})
			switch {
			case err != nil:
				w.Errorf("commit: %v", err)
			case out[0].Applied:
				applied.Add(1)
			}
		})
		w.equal("applied", applied.Load(), int32(1))
		l.change(on(w.unit(unit0), daemon.Expire))
	}
	w.equal("events", len(w.history(0)), 6+10)
}

func acknowledgesOrExpires(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	p.via = w.Second
	for range 15 {
		r := l.assign(unit0, p)
		n := p.next()
		var acknowledged, expired bool
		w.together(2, func(i int) {
			var out []storage.Outcome
			var err error
			if i == 0 {
				out, err = p.via.Report(w.ctx, storage.Report{Node: p.id, Seq: n, Units: []storage.UnitReport{{Unit: unit0, Generation: r.Generation, Step: daemon.Acknowledge}}})
				acknowledged = err == nil && out[0].Applied
			} else {
				out, err = l.try(on(r, daemon.Expire))
				expired = err == nil && out[0].Applied
			}
			if err != nil {
				w.Errorf("%v", err)
			}
		})
		w.holds(acknowledged != expired, "acknowledged: %v, expired: %v", acknowledged, expired)
		if now := w.unit(unit0); !now.State.IsFree() {
			l.change(on(now, daemon.Expire))
		}
	}
}

func livesOrDies(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	p.via = w.Second
	for range 15 {
		r := l.assign(unit0, p)
		guard := &storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: p.seq}
		n := p.next()
		var reply *storage.Reply
		var died bool
		w.together(2, func(i int) {
			var err error
			if i == 0 {
				reply, err = p.try(seq(n))
			} else {
				var out []storage.Outcome
				out, err = l.try(on(r, daemon.Expire, func(c *storage.Change) { c.Dead, c.Forced = guard, true }))
				died = err == nil && out[0].Applied
			}
			if err != nil {
				w.Errorf("%v", err)
			}
		})
		w.holds(died == (len(reply.Units) == 0), "taken: %v, but the heartbeat lists %+v", died, reply.Units)
		if !died {
			l.change(on(r, daemon.Expire))
		}
	}
}

func commitsOrLoses(w *world) {
	l, peers := w.cluster(1)
	a, b := l.peer, peers[0]
	b.via = w.Second
	l.declare(unit0, unit1, unit2)
	for range 10 {
		old, head := l.term, w.snapshot().Head
		claim := []edit{campaign(long), seen(old.Number, w.snapshot().Lease.Renewals), unchanged}
		w.together(4, func(i int) {
			if i == 0 {
				if r, err := b.try(claim...); err != nil || r.Verdict != storage.Elect {
					w.Errorf("take-over: %v, %v", r, err)
				}
				return
			}
			for range 10 {
				u := daemon.Unit{Daemon: unit0.Daemon, Index: i - 1}
				snap, err := w.Store.Snapshot(w.ctx)
				if err != nil {
					w.Errorf("snapshot: %v", err)
					return
				}
				j, _ := slices.BinarySearchFunc(snap.Units, u, func(r daemon.Record, u daemon.Unit) int { return r.Unit.Compare(u) })
				step := daemon.Expire
				if snap.Units[j].State.IsFree() {
					step = daemon.Assign
				}
				if _, err = l.try(on(snap.Units[j], step, func(c *storage.Change) { c.To = a.id })); err != nil {
					if !errors.Is(err, storage.ErrTermLost) {
						w.Errorf("commit: %v", err)
					}
					return
				}
			}
		})
		taken := false
		for _, e := range w.history(head) {
			taken = taken || e.Kind == daemon.LeaderElected
			w.holds(!taken || e.Term != old.Number || e.Kind == daemon.LeaderLost, "%s of term %d came after the next election", e.Kind, e.Term)
		}
		_, err := l.try()
		w.refused(err, storage.ErrTermLost)
		a, b = b, a
		l = leader{peer: a, term: w.snapshot().Term}
	}
}

func resumesOnce(w *world) {
	l, peers := w.cluster(1)
	p := peers[0]
	r := l.bring(unit0, p, daemon.Active)
	var applied atomic.Int32
	w.together(6, func(i int) {
		out, err := w.handle(i).Report(w.ctx, storage.Report{Node: p.id, Seq: p.seq + 1 + uint64(i), Units: []storage.UnitReport{{Unit: unit0, Generation: r.Generation, Step: daemon.Resume}}})
		switch {
		case err == nil && out[0].Applied:
			applied.Add(1)
		case err != nil && !errors.Is(err, storage.ErrStaleSeq):
			w.Errorf("report: %v", err)
		}
	})
	w.equal("applied", applied.Load(), int32(1))
	w.equal("generation", w.unit(unit0).Generation, r.Generation+1)
}

func submitsOnce(w *world) {
	w.join("node-a")
	head := w.snapshot().Head
	actors := make([]string, 8)
	w.together(8, func(i int) {
		c, err := w.handle(i).Submit(w.ctx, storage.Command{ID: uuid(4, 1), Kind: daemon.CommandResign, Actor: fmt.Sprint(i)})
		if err != nil {
			w.Errorf("submit: %v", err)
			return
		}
		actors[i] = c.Actor
	})
	w.equal("commands", len(slices.Compact(actors)), 1)
	w.equal("events", w.snapshot().Head, head+1)
}

func readsWhileWriting(w *world) {
	l, _ := w.cluster(0)
	peers := w.spread(4)
	var units []daemon.Unit
	for i := range peers {
		units = append(units, daemon.Unit{Daemon: "acme:busy", Index: i})
	}
	l.declare(units...)
	ctx, stop := context.WithCancel(w.ctx)
	var writers sync.WaitGroup
	seen := make([][]daemon.Event, 2)
	writers.Add(len(peers))
	go func() { writers.Wait(); stop() }()
	w.together(len(peers)+len(seen), func(i int) {
		if i >= len(peers) {
			seen[i-len(peers)] = w.follow(ctx, w.handle(i))
			return
		}
		defer writers.Done()
		for range 10 {
			if err := live(w.ctx, l, peers[i], units[i]); err != nil {
				w.Errorf("%v", err)
				return
			}
		}
	})
	all := w.history(0)
	w.equal("number of the newest event", all[len(all)-1].Seq, int64(len(all)))
	w.equal("events", len(all), 6+4*10*4)
	for i, got := range seen {
		w.equal(fmt.Sprintf("what reader %d saw", i), got, all[:len(got)])
	}
}

// live takes a free unit through one assignment: assigned, active, revoked, confirmed.
func live(ctx context.Context, l leader, p *peer, u daemon.Unit) error {
	change := func(r daemon.Record, step daemon.Step) (daemon.Record, error) {
		out, err := p.via.Commit(ctx, storage.Commit{Term: l.term.Ref(), Changes: []storage.Change{on(r, step, func(c *storage.Change) { c.To = p.id })}})
		if err != nil || !out[0].Applied {
			return r, fmt.Errorf("%s %s: %+v: %w", step, u, out, errors.Join(err))
		}
		return out[0].Record, nil
	}
	report := func(r daemon.Record, step daemon.Step) (daemon.Record, error) {
		out, err := p.via.Report(ctx, storage.Report{Node: p.id, Seq: p.next(), Units: []storage.UnitReport{{Unit: u, Generation: r.Generation, Step: step}}})
		if err != nil || !out[0].Applied {
			return r, fmt.Errorf("%s %s: %+v: %w", step, u, out, errors.Join(err))
		}
		return out[0].Record, nil
	}
	snap, err := p.via.Snapshot(ctx)
	if err != nil {
		return err
	}
	r := snap.Units[slices.IndexFunc(snap.Units, func(r daemon.Record) bool { return r.Unit == u })]
	for _, step := range []daemon.Step{daemon.Assign, daemon.Acknowledge, daemon.Revoke, daemon.Confirm} {
		take := change
		if slices.Contains(reportable, step) {
			take = report
		}
		if r, err = take(r, step); err != nil {
			return err
		}
	}
	return nil
}

// follow reads the history until ctx ends and then to its end, and checks that there is no gap.
func (w *world) follow(ctx context.Context, s storage.Store) []daemon.Event {
	var out []daemon.Event
	for ended := false; ; {
		last := ended
		ended = ctx.Err() != nil
		page, err := s.Events(w.ctx, int64(len(out)), 7)
		if err != nil {
			w.Errorf("events: %v", err)
			return out
		}
		for _, e := range page.Events {
			if e.Seq != int64(len(out))+1 {
				w.Errorf("event %d follows event %d", e.Seq, len(out))
				return out
			}
			out = append(out, e)
		}
		if page.Head < int64(len(out)) {
			w.Errorf("head is %d, but event %d was read", page.Head, len(out))
		}
		if last && len(page.Events) == 0 {
			return out
		}
	}
}

func snapshotsWhileWriting(w *world) {
	l, peers := w.cluster(1)
	l.declare(unit0, unit1)
	start := w.snapshot().Head
	ctx, stop := context.WithCancel(w.ctx)
	w.together(3, func(i int) {
		if i == 0 {
			defer stop()
			for range 20 {
				if err := flip(w, l, peers[0]); err != nil {
					w.Errorf("%v", err)
					return
				}
			}
			return
		}
		for ctx.Err() == nil {
			snap, err := w.handle(i).Snapshot(w.ctx)
			if err != nil {
				w.Errorf("snapshot: %v", err)
				return
			}
			a, b := snap.Units[0], snap.Units[1]
			odd := (snap.Head-start)/2%2 == 1
			if a.State != b.State || (snap.Head-start)%2 != 0 || odd == a.State.IsFree() {
				w.Errorf("half a commit: %s is %s, %s is %s, %d events", a.Unit, a.State, b.Unit, b.State, snap.Head-start)
				return
			}
		}
	})
}

// flip assigns the first two units, or frees them, in one commit: two events.
func flip(w *world, l leader, p *peer) error {
	snap, err := w.Store.Snapshot(w.ctx)
	if err != nil {
		return err
	}
	step := daemon.Expire
	if snap.Units[0].State.IsFree() {
		step = daemon.Assign
	}
	to := func(c *storage.Change) { c.To = p.id }
	out, err := l.try(on(snap.Units[0], step, to), on(snap.Units[1], step, to))
	if err == nil && (!out[0].Applied || !out[1].Applied) {
		err = fmt.Errorf("%s was skipped: %+v", step, out)
	}
	return err
}

func followsRoll(w *world) {
	l, _ := w.cluster(0)
	l.declare(unit0)
	peers := w.spread(4)
	reader := w.join("reader")
	reader.via = w.Second
	ctx, stop := context.WithCancel(w.ctx)
	var writers sync.WaitGroup
	writers.Add(len(peers))
	go func() { writers.Wait(); stop() }()
	cursor, roll := int64(0), []daemon.Event(nil)
	w.together(len(peers)+1, func(i int) {
		if i < len(peers) {
			defer writers.Done()
			if err := flap(w, l, peers[i], i); err != nil {
				w.Errorf("%v", err)
			}
			return
		}
		for last := false; !last; {
			last = ctx.Err() != nil
			r, err := reader.try(after(cursor))
			if err != nil {
				w.Errorf("heartbeat: %v", err)
				return
			}
			roll = append(roll, r.Events...)
			cursor = r.Head
			if n := len(roll); n > 0 {
				cursor = max(cursor, roll[n-1].Seq)
			}
		}
	})
	want := slices.DeleteFunc(w.history(0), func(e daemon.Event) bool { return !strings.HasPrefix(string(e.Kind), "node.") })
	w.equal("membership events", roll, want)
}

// flap makes the leader call a node late and take that back, with other events between.
func flap(w *world, l leader, p *peer, index int) error {
	for i := range 12 {
		state := []node.State{node.Late, node.Deaf}[i%2]
		_, err := p.via.Commit(w.ctx, storage.Commit{Term: l.term.Ref(), Nodes: []storage.NodeChange{{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation}, State: state}}})
		if err != nil {
			return err
		}
		if _, err := p.via.Submit(w.ctx, storage.Command{ID: uuid(5+index, i), Kind: daemon.CommandResign, Term: 1}); err != nil {
			return err
		}
	}
	return nil
}

func effectsInOrder(w *world) {
	var next atomic.Int64
	var mu sync.Mutex
	var effects []int64
	const runners, runs = 4, 6
	w.together(runners, func(i int) {
		for range runs {
			f := fence(next.Add(1))
			if err := w.handle(i).StampFence(w.ctx, f); err != nil {
				if !errors.Is(err, daemon.ErrStale) {
					w.Errorf("stamp %s: %v", f, err)
				}
				continue // superseded before it began
			}
			for range 5 {
				err := w.InTx(w.ctx, f, func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					effects = append(effects, f.Generation)
					return nil
				})
				if errors.Is(err, daemon.ErrStale) {
					break
				}
				if err != nil {
					w.Errorf("effect of %s: %v", f, err)
					return
				}
			}
		}
	})
	w.holds(slices.IsSorted(effects), "effects came in the order %v", effects)
	w.holds(len(effects) >= 5, "only %d effects passed", len(effects))
}
