package broker

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// fakeLog is a journal in memory: what is appended becomes durable when the test says so.
type fakeLog struct {
	slots   []int // number of records in each slot
	durable uint64
	refuse  error // what Append returns
}

func (l *fakeLog) AppendFor(_ int, _ time.Time, records ...[]byte) (uint64, error) {
	if l.refuse != nil {
		return 0, l.refuse
	}
	l.slots = append(l.slots, len(records))
	return uint64(len(l.slots)), nil
}

func (l *fakeLog) Durable() uint64    { return l.durable }
func (l *fakeLog) NewestSlot() uint64 { return uint64(len(l.slots)) }
func (l *fakeLog) Full() bool         { return errors.Is(l.refuse, journal.ErrFull) }

// fakeHost notes what commits reports.
type fakeHost struct {
	finished []*call
	retried  []*call
	kinds    []ledger.Kind
	cuts     []uint64
}

func (*fakeHost) appended(int)                      {}
func (h *fakeHost) beforeSlot(next uint64)          { h.cuts = append(h.cuts, next) }
func (h *fakeHost) beforeApplying(r *ledger.Record) { h.kinds = append(h.kinds, r.Kind) }
func (*fakeHost) applied(*batch)                    {}
func (h *fakeHost) retry(calls []*call)             { h.retried = append(h.retried, calls...) }
func (h *fakeHost) finish(c *call) {
	if c.waits == 0 {
		h.finished = append(h.finished, c)
	}
}

func newCommits() (*commits, *fakeLog, *fakeHost) {
	log, host := &fakeLog{}, &fakeHost{}
	start := time.Now()
	clock := &queueClock{now: start.UnixMilli(), at: start, local: start}
	return &commits{log: log, ledger: ledger.New(ledger.Config{DedupWindow: 60_000, DedupIDs: 100}), clock: clock, host: host, budget: &storeBudget{}}, log, host
}

func newJob(id string) *validJob {
	return &validJob{id: id, packed: ledger.Pack(id), inline: "payload", policy: ledger.Policy{Max: 3, Factor: 2}}
}

// TestCommitsAnswerWhenDurable: a call is answered after its own records are durable, and one that
// wrote nothing after everything that was decided before it. The ledger has a job only then.
func TestCommitsAnswerWhenDurable(t *testing.T) {
	t.Parallel()
	g, log, host := newCommits()
	first, second, duplicate := &call{}, &call{}, &call{}
	g.recordEnqueue(first, newJob("a"))
	g.recordEnqueue(second, newJob("b"))
	g.appendBatch(false)
	g.waitForAll(duplicate)
	if g.applyDurable(); len(host.finished) != 0 || g.ledger.Jobs() != 0 || g.unapplied.jobs != 2 {
		t.Fatalf("before it is durable: %d answers, %d jobs, %+v", len(host.finished), g.ledger.Jobs(), g.unapplied)
	}
	log.durable = 1
	g.applyDurable()
	if !slices.Equal(host.finished, []*call{first, second, duplicate}) {
		t.Errorf("%d calls were answered, want the three in their order", len(host.finished))
	}
	if !first.wrote || duplicate.wrote || g.ledger.Jobs() != 2 || g.unapplied.jobs != 0 || g.unapplied.bytes != 0 || !g.idle() {
		t.Errorf("%d jobs, %+v", g.ledger.Jobs(), g.unapplied)
	}
	if want := []uint64{1, 1, 2}; !slices.Equal(host.cuts, want) {
		t.Errorf("a checkpoint could be cut before the slots %v, want %v", host.cuts, want)
	}
	alone := &call{}
	if g.waitForAll(alone); alone.waits != 0 {
		t.Error("a call waits although everything is durable")
	}
}

// TestCommitsKeepTheOrder: a batch is not applied before the ones that were appended before it, and
// a call that met a held job is decided anew after the batch that holds it.
func TestCommitsKeepTheOrder(t *testing.T) {
	t.Parallel()
	g, log, host := newCommits()
	one, two, met := &call{}, &call{}, &call{}
	g.recordEnqueue(one, newJob("a"))
	g.appendBatch(false)
	g.recordEnqueue(two, newJob("b"))
	if p := g.waitForNewest(met); p != waiting {
		t.Fatalf("the call that met a held job is %v", p)
	}
	g.appendBatch(false)
	log.durable = 1
	if g.applyDurable(); !slices.Equal(host.finished, []*call{one}) || len(host.retried) != 0 {
		t.Fatalf("with one batch durable: %d answers, %d retries", len(host.finished), len(host.retried))
	}
	log.durable = 2
	if g.applyDurable(); !slices.Equal(host.finished, []*call{one, two}) || !slices.Equal(host.retried, []*call{met}) {
		t.Errorf("with both durable: %d answers, %d retries", len(host.finished), len(host.retried))
	}
}

// TestCommitsWhenTheJournalIsFull: records that the journal refused are kept, and are appended once
// when there is room.
func TestCommitsWhenTheJournalIsFull(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{journal.ErrFull, errors.New("the log has ended")} {
		g, log, host := newCommits()
		c := &call{}
		log.refuse = refusal
		g.recordEnqueue(c, newJob("a"))
		size := g.size()
		g.appendBatch(false)
		if !g.blocked || !g.full() || g.size() != size || len(log.slots) != 0 || g.idle() {
			t.Fatalf("refused: blocked %t, full %t, %d of %d bytes are kept", g.blocked, g.full(), g.size(), size)
		}
		log.refuse = nil
		if g.retryAppend(false); g.blocked || g.size() != 0 || !slices.Equal(log.slots, []int{1}) {
			t.Fatalf("with room: blocked %t, %d bytes are left, slots %v", g.blocked, g.size(), log.slots)
		}
		g.retryAppend(false)
		log.durable = 1
		if g.applyDurable(); len(log.slots) != 1 || !slices.Equal(host.finished, []*call{c}) {
			t.Errorf("slots %v, %d answers", log.slots, len(host.finished))
		}
	}
}

// TestSoftRecordsWait: a soft record is in the ledger at once. It is appended with the next hard
// record, after softDelay, or when the shard drains.
func TestSoftRecordsWait(t *testing.T) {
	t.Parallel()
	for name, push := range map[string]func(*commits){
		"hard record": func(g *commits) { g.recordEnqueue(nil, newJob("b")); g.appendBatch(false) },
		"time":        func(g *commits) { g.clock.local = g.clock.local.Add(softDelay); g.appendBatch(false) },
		"drain":       func(g *commits) { g.appendBatch(true) },
	} {
		g, log, _ := newCommits()
		g.recordEnqueue(nil, newJob("a"))
		g.appendBatch(false)
		log.durable = 1
		g.applyDurable()
		n, ok := g.ledger.Best(nil)
		if !ok {
			t.Fatal("there is no job to claim")
		}
		g.applySoft(ledger.Record{Kind: ledger.Claim, Numbers: []uint64{n}, Deliveries: []uint64{1}, Epoch: 1, Until: g.clock.now + 1000, Visibility: 1000})
		if j, _ := g.ledger.JobWithoutPayload(n); j.State != ledger.Active {
			t.Errorf("%s: the claimed job is %v", name, j.State)
		}
		if g.appendBatch(false); len(log.slots) != 1 {
			t.Errorf("%s: the soft record was appended at once", name)
		}
		if _, waits := g.untilSoft(); !waits {
			t.Errorf("%s: nothing is to be written", name)
		}
		push(g)
		if _, waits := g.untilSoft(); waits || len(log.slots) != 2 || g.size() != 0 {
			t.Errorf("%s: the soft record is still not appended", name)
		}
	}
}

// TestCommitsReuseChunks: a batch of many records needs no new memory for them the second time.
func TestCommitsReuseChunks(t *testing.T) {
	t.Parallel()
	g, log, _ := newCommits()
	fill := func() {
		for n := range uint64(3 * pendingChunk) {
			g.add(g.currentBatch(), pending{number: n})
		}
		g.reuse(g.gathering)
		g.gathering = nil
	}
	fill()
	if len(g.spare) != 3 || log.durable != 0 {
		t.Fatalf("%d chunks are kept", len(g.spare))
	}
	kept := &g.spare[2][:1][0]
	g.add(g.currentBatch(), pending{number: 7})
	if &g.gathering.records[0][0] != kept {
		t.Error("a spare chunk was not used")
	}
}

// TestReleaseOfCalls: at the end of a run, every call that waits is released.
func TestReleaseOfCalls(t *testing.T) {
	t.Parallel()
	g, _, _ := newCommits()
	calls := []*call{{}, {}, {}}
	g.recordEnqueue(calls[0], newJob("a"))
	g.appendBatch(false)
	g.waitForNewest(calls[1])
	g.recordEnqueue(calls[2], newJob("b"))
	var got []*call
	take := func(c *call) { got = append(got, c) }
	if g.releaseParked(take); !slices.Equal(got, calls[1:2]) {
		t.Errorf("%d parked calls were released", len(got))
	}
	got = nil
	if g.releaseAll(take); !slices.Equal(got, []*call{calls[0], calls[2]}) {
		t.Errorf("%d calls were released", len(got))
	}
}
