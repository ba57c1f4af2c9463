package storagetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// waitTimeout bounds every wait of the suite. Only a broken store needs it all.
const waitTimeout = 30 * time.Second

// briefly is how long a story waits for something that must not happen, or does not always happen.
const briefly = 200 * time.Millisecond

// Lengths that a story uses where only "long" or "over when it begins" matters.
const (
	long = time.Hour
	over = -time.Hour
)

// world is one store with the processes that use it.
type world struct {
	testing.TB
	Backend
	ctx   context.Context
	count int // identities drawn
}

// open makes a world on a fresh store.
func open(t testing.TB, f Factory) *world {
	t.Helper()
	b := f.Open(t)
	if b.Store == nil {
		t.Fatal("storagetest: Factory.Open returned no store")
	}
	if missing := all &^ optional &^ b.offers() &^ f.Lacks; missing != 0 {
		t.Fatalf("storagetest: the backend offers no %s: implement it, or list it in Factory.Lacks", missing)
	}
	if has := b.offers() & f.Lacks; has != 0 {
		t.Fatalf("storagetest: the backend offers %s, which Factory.Lacks says it lacks", has)
	}
	if b.Second == nil {
		b.Second = b.Store
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*waitTimeout)
	t.Cleanup(cancel)
	return &world{TB: t, Backend: b, ctx: ctx}
}

// ok ends the test on an error.
func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// refused ends the test unless err is the answer want.
func (w *world) refused(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Fatalf("got error %v, want %v", err, want)
	}
}

// equal ends the test unless got is want.
func (w *world) equal(what string, got, want any) {
	w.Helper()
	if !same(got, want) {
		w.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// holds ends the test unless the condition holds.
func (w *world) holds(cond bool, format string, args ...any) {
	w.Helper()
	if !cond {
		w.Fatalf(format, args...)
	}
}

// snapshot reads the whole cluster.
func (w *world) snapshot() *daemon.Snapshot {
	w.Helper()
	snap, err := w.Store.Snapshot(w.ctx)
	w.ok(err)
	return snap
}

// history reads all events after a number.
func (w *world) history(after int64) []daemon.Event {
	w.Helper()
	page, err := w.Store.Events(w.ctx, after, 100_000)
	w.ok(err)
	return page.Events
}

// unchanged runs act and ends the test if that changed the cluster or its history.
func (w *world) unchanged(act func()) {
	w.Helper()
	before := w.snapshot()
	act()
	after := w.snapshot()
	after.Now = before.Now
	w.equal("the cluster after a call that must change nothing", after, before)
}

// row finds a node's row.
func (w *world) row(p *peer) node.Member {
	w.Helper()
	for _, m := range w.snapshot().Nodes {
		if m.Incarnation == p.id.Incarnation {
			return m
		}
	}
	w.Fatalf("node %q has no row", p.id.Name)
	return node.Member{}
}

// unit finds a unit's row; a zero Record says that there is none.
func (w *world) unit(u daemon.Unit) daemon.Record {
	w.Helper()
	for _, r := range w.snapshot().Units {
		if r.Unit == u {
			return r
		}
	}
	return daemon.Record{}
}

// within ends the test unless lo ≤ t ≤ hi, with a tolerance for the rounding of backends.
func (w *world) within(what string, t, lo, hi time.Time) {
	w.Helper()
	if t.Before(lo.Add(-rounding)) || t.After(hi.Add(rounding)) {
		w.Fatalf("%s is %v, want between %v and %v", what, t, lo, hi)
	}
}

// rounding is the precision with which a backend must store a time.
const rounding = time.Millisecond

// uuid makes the n-th UUID of a kind. They differ within a world and are the same in every run.
func uuid(kind, n int) string { return fmt.Sprintf("0198c5a2-%04x-7000-8000-%012x", kind, n) }

// peer is one process, as the store sees it.
type peer struct {
	w   *world
	id  node.Identity
	seq uint64
	via storage.Store
}

// unregistered makes a process that has not registered.
func (w *world) unregistered(name string) *peer {
	w.count++
	id := node.Identity{Name: name, ID: node.ID(uuid(1, w.count)), Incarnation: node.Incarnation(uuid(2, w.count))}
	return &peer{w: w, id: id, via: w.Store}
}

// join makes a process and registers it.
func (w *world) join(name string, edits ...edit) *peer {
	w.Helper()
	p := w.unregistered(name)
	p.beat(append([]edit{advert(plain)}, edits...)...)
	return p
}

// again makes another process with the same name and ID.
func (p *peer) again() *peer {
	q := p.w.unregistered(p.id.Name)
	q.id.ID = p.id.ID
	return q
}

// next draws the process's next sequence number.
func (p *peer) next() uint64 {
	p.seq++
	return p.seq
}

// edit changes one thing in a heartbeat.
type edit func(*storage.Heartbeat)

// plain is what a node advertises in cases where that does not matter.
var plain = daemon.Advert{
	Traits: node.Traits{Version: "v1", Capacity: 4, Labels: map[string]string{"zone": "a"}},
	Kinds:  []daemon.Kind{"acme:reports"},
	Specs:  []daemon.Spec{{ID: "acme:reports", Instances: 4}},
}

func advert(a daemon.Advert) edit { return func(b *storage.Heartbeat) { b.Advert = &a } }
func ttl(d time.Duration) edit    { return func(b *storage.Heartbeat) { b.TTL = d } }
func seq(n uint64) edit           { return func(b *storage.Heartbeat) { b.Seq = n } }
func heard(n uint64) edit         { return func(b *storage.Heartbeat) { b.ConfirmedSeq = n } }
func after(n int64) edit          { return func(b *storage.Heartbeat) { b.EventsAfter = n } }
func members(b *storage.Heartbeat) {
	b.WantMembers = true
}

func ended(peers ...*peer) edit {
	return func(b *storage.Heartbeat) {
		for _, p := range peers {
			b.ExitEvidence = append(b.ExitEvidence, p.id.Incarnation)
		}
	}
}

func highest(term, generation int64) edit {
	return func(b *storage.Heartbeat) { b.HighestTerm, b.HighestGeneration = term, generation }
}

// campaign campaigns for the next term, with a lease of that length.
func campaign(lease time.Duration) edit {
	return func(b *storage.Heartbeat) { b.TermRequest.Campaign, b.TermRequest.Lease = true, lease }
}

// renew renews the term that the process believes to hold.
func renew(term int64, lease time.Duration) edit {
	return func(b *storage.Heartbeat) { b.TermRequest.Renew, b.TermRequest.Lease = term, lease }
}

// seen names the lease that the candidate believes to be over.
func seen(term, renewals int64) edit {
	return func(b *storage.Heartbeat) { b.TermRequest.SeenTerm, b.TermRequest.SeenRenewals = term, renewals }
}

func unchanged(b *storage.Heartbeat) { b.TermRequest.Unchanged = true }
func lostThrough(term int64) edit {
	return func(b *storage.Heartbeat) { b.TermRequest.LostThrough = term }
}
func passes(n uint64) edit { return func(b *storage.Heartbeat) { b.TermRequest.PassSeq = n } }

// try sends a heartbeat.
func (p *peer) try(edits ...edit) (*storage.Reply, error) {
	beat := storage.Heartbeat{Node: p.id, TTL: long, EventsAfter: -1, TermRequest: storage.TermRequest{Lease: long}}
	for _, e := range edits {
		e(&beat)
	}
	if beat.Seq == 0 {
		beat.Seq = p.next()
	}
	return p.via.Heartbeat(p.w.ctx, beat)
}

// beat sends a heartbeat that must be accepted.
func (p *peer) beat(edits ...edit) *storage.Reply {
	p.w.Helper()
	r, err := p.try(edits...)
	p.w.ok(err)
	return r
}

// lead makes the process the leader of a vacant term.
func (p *peer) lead() node.Term {
	p.w.Helper()
	r := p.beat(campaign(long))
	p.w.equal("verdict", r.Verdict, storage.Elect)
	return r.Term
}

// replaceLeader makes the process the leader in place of another one, whose lease it claims to have seen
// unchanged.
func (p *peer) replaceLeader(old node.Term) node.Term {
	p.w.Helper()
	r := p.beat(campaign(long), seen(old.Number, p.w.snapshot().Lease.Renewals), unchanged)
	p.w.equal("verdict", r.Verdict, storage.Elect)
	return r.Term
}

// report reports steps; the store must accept the report itself.
func (p *peer) report(units ...storage.UnitReport) []storage.Outcome {
	p.w.Helper()
	out, err := p.via.Report(p.w.ctx, storage.Report{Node: p.id, Seq: p.next(), Units: units})
	p.w.ok(err)
	p.w.equal("number of outcomes", len(out), len(units))
	return out
}

// step reports one step of a record's run, which must be accepted, and returns the row.
func (p *peer) step(r daemon.Record, step daemon.Step) daemon.Record {
	p.w.Helper()
	out := p.report(storage.UnitReport{Unit: r.Unit, Generation: r.Generation, Step: step, Reason: "test"})[0]
	p.w.holds(out.Applied, "%s of %s at generation %d was refused; the row is %+v", step, r.Unit, r.Generation, out.Record)
	return out.Record
}

// leave gives up what the call says; the store must accept it.
func (p *peer) leave(l storage.Leave) {
	p.w.Helper()
	p.w.ok(p.tryLeave(l))
}

func (p *peer) tryLeave(l storage.Leave) error {
	l.Node = p.id
	if l.Seq == 0 {
		l.Seq = p.next()
	}
	return p.via.Leave(p.w.ctx, l)
}

// leader is a process that leads, and what it commits.
type leader struct {
	*peer
	term node.Term
}

// cluster makes a leader and n more nodes.
func (w *world) cluster(n int) (leader, []*peer) {
	w.Helper()
	l := leader{peer: w.join("leader")}
	l.term = l.lead()
	peers := make([]*peer, n)
	for i := range peers {
		peers[i] = w.join(fmt.Sprintf("node-%d", i))
	}
	return l, peers
}

// try commits changes under the leader's term.
func (l leader) try(changes ...storage.Change) ([]storage.Outcome, error) {
	return l.via.Commit(l.w.ctx, storage.Commit{Term: l.term.Ref(), Changes: changes})
}

// commit commits changes; the term must hold.
func (l leader) commit(changes ...storage.Change) []storage.Outcome {
	l.w.Helper()
	out, err := l.try(changes...)
	l.w.ok(err)
	l.w.equal("number of outcomes", len(out), len(changes))
	return out
}

// change commits one change that must be applied and returns the row.
func (l leader) change(c storage.Change) daemon.Record {
	l.w.Helper()
	out := l.commit(c)[0]
	l.w.holds(out.Applied, "%q of %s was skipped; the row is %+v", c.Step, c.Unit, out.Record)
	return out.Record
}

// changeNode commits one change of a node.
func (l leader) changeNode(n storage.NodeChange) {
	l.w.Helper()
	_, err := l.via.Commit(l.w.ctx, storage.Commit{Term: l.term.Ref(), Nodes: []storage.NodeChange{n}})
	l.w.ok(err)
}

// declareDead declares a node dead.
func (l leader) declareDead(p *peer) {
	l.w.Helper()
	l.changeNode(storage.NodeChange{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: p.seq}, State: node.Removed, Reason: "silent"})
	l.w.equal("state of the node", l.w.row(p).State, node.Removed)
}

// declare creates the rows of units.
func (l leader) declare(units ...daemon.Unit) {
	l.w.Helper()
	for _, u := range units {
		l.change(storage.Change{Unit: u})
	}
}

// assign gives a free unit to a node and returns the row; it declares the unit if need be.
func (l leader) assign(u daemon.Unit, to *peer) daemon.Record {
	l.w.Helper()
	r := l.w.unit(u)
	if r.Unit.IsZero() {
		r = l.change(storage.Change{Unit: u})
	}
	return l.change(on(r, daemon.Assign, func(c *storage.Change) {
		c.To, c.AcknowledgeTimeout, c.DrainTimeout = to.id, 30*time.Second, 20*time.Second
	}))
}

// bring brings a unit into a state, with p as its holder, and returns the row.
func (l leader) bring(u daemon.Unit, p *peer, s daemon.State) daemon.Record {
	l.w.Helper()
	if s == daemon.Unassigned {
		return l.change(storage.Change{Unit: u})
	}
	r := l.assign(u, p)
	if s == daemon.Active || s == daemon.Revoking || s == daemon.Deleted {
		r = p.step(r, daemon.Acknowledge)
	}
	if s == daemon.Revoking || s == daemon.Deleted {
		r = l.change(on(r, daemon.Revoke))
	}
	if s == daemon.Deleted {
		r = p.step(r, daemon.Confirm)
	}
	l.w.equal("state", r.State, s)
	return r
}

// on makes a change that is guarded by a row as it was seen.
func on(r daemon.Record, step daemon.Step, edits ...func(*storage.Change)) storage.Change {
	c := storage.Change{Unit: r.Unit, Step: step, Generation: r.Generation, State: r.State, Reason: "test"}
	for _, e := range edits {
		e(&c)
	}
	return c
}

// unit0 and friends are the units of most stories.
var (
	unit0 = daemon.Unit{Daemon: "acme:reports", Index: 0}
	unit1 = daemon.Unit{Daemon: "acme:reports", Index: 1}
	unit2 = daemon.Unit{Daemon: "acme:reports", Index: 2}
)

// sweeper stamps a fence for a sweep and returns it.
func (w *world) sweeper() daemon.Fence {
	w.Helper()
	f := daemon.Fence{Unit: daemon.Unit{Daemon: "emit:sweeper"}, Generation: 7}
	w.ok(w.Store.StampFence(w.ctx, f))
	return f
}
