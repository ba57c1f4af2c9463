package object_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/object"
)

// unit is the unit of most stories.
var unit = daemon.Unit{Daemon: "acme:reports"}

// process is a node with a store of its own.
type process struct {
	t    testing.TB
	s    *object.Store
	id   node.Identity
	seq  uint64
	term node.Term
}

// start opens the n-th process's store and registers it.
func start(t testing.TB, bucket blob.Bucket, n int) *process {
	t.Helper()
	p := &process{t: t, s: open(t, bucket, object.Config{}), id: node.Identity{
		Name: fmt.Sprint("node-", n), ID: node.ID(fmt.Sprintf("0198c5a2-0001-7000-8000-%012x", n)),
		Incarnation: node.Incarnation(fmt.Sprintf("0198c5a2-0002-7000-8000-%012x", n)),
	}}
	p.beat(func(h *storage.Heartbeat) {
		h.Advert = &daemon.Advert{Traits: node.Traits{Capacity: 1}, Kinds: []daemon.Kind{"acme:reports"}}
	})
	return p
}

// try sends a heartbeat.
func (p *process) try(ctx context.Context, edits ...func(*storage.Heartbeat)) (*storage.Reply, error) {
	p.seq++
	h := storage.Heartbeat{Node: p.id, Seq: p.seq, ConfirmedSeq: p.seq - 1, TTL: time.Minute, EventsAfter: -1, TermRequest: storage.TermRequest{Lease: time.Minute}}
	if p.term.Number != 0 {
		h.TermRequest.Renew = p.term.Number
	}
	for _, e := range edits {
		e(&h)
	}
	return p.s.Heartbeat(ctx, h)
}

// beat sends a heartbeat that must be accepted.
func (p *process) beat(edits ...func(*storage.Heartbeat)) *storage.Reply {
	p.t.Helper()
	r, err := p.try(context.Background(), edits...)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func stand(h *storage.Heartbeat) { h.TermRequest.Campaign = true }

// lead makes the process the leader of a vacant term.
func (p *process) lead() *process {
	p.t.Helper()
	r := p.beat(stand)
	if r.Verdict != storage.Elect {
		p.t.Fatalf("verdict %v, want an election", r.Verdict)
	}
	p.term = r.Term
	return p
}

// commit commits changes under the process's term.
func (p *process) commit(changes ...storage.Change) ([]storage.Outcome, error) {
	return p.s.Commit(context.Background(), storage.Commit{Term: p.term.Ref(), Changes: changes})
}

// give assigns a unit, and declares it if needed.
func (p *process) give(u daemon.Unit, to *process) daemon.Record {
	p.t.Helper()
	out, err := p.commit(
		storage.Change{Unit: u},
		storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: to.id},
	)
	if err != nil || !out[1].Applied {
		p.t.Fatal(out, err)
	}
	return out[1].Record
}

// report reports one step of a run.
func (p *process) report(ctx context.Context, r daemon.Record, step daemon.Step) ([]storage.Outcome, error) {
	p.seq++
	return p.s.Report(ctx, storage.Report{Node: p.id, Seq: p.seq, Units: []storage.UnitReport{{Unit: r.Unit, Generation: r.Generation, Step: step}}})
}

// look reads the whole cluster.
func (p *process) snapshot() *daemon.Snapshot {
	p.t.Helper()
	snap, err := p.s.Snapshot(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	return snap
}

// row finds a process's row.
func (p *process) row(q *process) node.Member {
	p.t.Helper()
	for _, m := range p.snapshot().Nodes {
		if m.Incarnation == q.id.Incarnation {
			return m
		}
	}
	p.t.Fatalf("%s has no row", q.id.Name)
	return node.Member{}
}

// history reads all events.
func (p *process) history() []daemon.Event {
	p.t.Helper()
	page, err := p.s.Events(context.Background(), 0, 1<<20)
	if err != nil {
		p.t.Fatal(err)
	}
	for i, e := range page.Events {
		if e.Seq != page.Oldest+int64(i) {
			p.t.Fatalf("event %d stands in the place of %d", e.Seq, page.Oldest+int64(i))
		}
	}
	if n := len(page.Events); n > 0 && page.Events[n-1].Seq != page.Head {
		p.t.Fatalf("the history ends at %d, the head is %d", page.Events[n-1].Seq, page.Head)
	}
	return page.Events
}

// count counts the events of a kind.
func (p *process) count(kind daemon.EventKind) int {
	p.t.Helper()
	n := 0
	for _, e := range p.history() {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// tap is a bucket that calls hooks before and after its calls.
type tap struct {
	blob.Bucket
	mu            sync.Mutex
	before, after func(op mem.Op, key string)
}

// on sets the hooks; nil is no hook.
func (b *tap) on(before, after func(op mem.Op, key string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before, b.after = before, after
}

func (b *tap) notify(op mem.Op, key string) (done func()) {
	b.mu.Lock()
	before, after := b.before, b.after
	b.mu.Unlock()
	if before != nil {
		before(op, key)
	}
	return func() {
		if after != nil {
			after(op, key)
		}
	}
}

func (b *tap) Read(ctx context.Context, key string) (*blob.Object, error) {
	defer b.notify(mem.Read, key)()
	return b.Bucket.Read(ctx, key)
}

func (b *tap) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	defer b.notify(mem.ReadNewer, key)()
	return b.Bucket.ReadNewer(ctx, key, known)
}

func (b *tap) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	defer b.notify(mem.Create, key)()
	return b.Bucket.Create(ctx, key, data)
}

func (b *tap) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	defer b.notify(mem.Replace, key)()
	return b.Bucket.Replace(ctx, key, data, old)
}

// failures makes the next writes of a key fail.
type failures struct {
	mu    sync.Mutex
	key   string
	fault mem.Fault
	times int
}

func (x *failures) set(key string, fault mem.Fault, times int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.key, x.fault, x.times = key, fault, times
}

func (x *failures) left() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.times
}

// meet is a mem.Config.Faults.
func (x *failures) meet(call mem.Call) mem.Fault {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.times == 0 || call.Op != mem.Replace || call.Key != x.key {
		return mem.Fault{}
	}
	x.times--
	return x.fault
}

// once calls act before or after the first such call only.
func once(op mem.Op, prefix string, act func()) func(mem.Op, string) {
	var first sync.Once
	return func(o mem.Op, key string) {
		if o == op && strings.HasPrefix(key, prefix) {
			first.Do(act)
		}
	}
}

// restore puts an older content of the cluster object back: the same data with another number.
func restore(t testing.TB, bucket blob.Bucket) {
	t.Helper()
	o, err := bucket.Read(context.Background(), object.ClusterKey)
	if err != nil {
		t.Fatal(err)
	}
	older, err := object.Older(o.Data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Replace(context.Background(), object.ClusterKey, older, o.Version); err != nil && !errors.Is(err, blob.ErrUnknownOutcome) {
		t.Fatal(err)
	}
}
