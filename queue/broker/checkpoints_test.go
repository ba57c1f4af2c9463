package broker

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// fakeCheckpoint is a checkpoint in memory.
type fakeCheckpoint struct {
	chunks    [][]byte
	backlog   int
	err       error
	committed bool
	aborted   bool
	done      chan struct{}
}

func (c *fakeCheckpoint) Write(b []byte) error {
	c.chunks = append(c.chunks, append([]byte(nil), b...))
	return nil
}
func (c *fakeCheckpoint) WriteRun(b []byte) error   { return c.Write(b) }
func (*fakeCheckpoint) DropRuns(int) error          { return nil }
func (c *fakeCheckpoint) Commit([]uint64) error     { c.committed = true; return nil }
func (c *fakeCheckpoint) Abort()                    { c.aborted = true }
func (c *fakeCheckpoint) Backlog() int              { return c.backlog }
func (*fakeCheckpoint) Progressed() <-chan struct{} { return nil }
func (c *fakeCheckpoint) Done() <-chan struct{}     { return c.done }
func (c *fakeCheckpoint) Err() error                { return c.err }

// fakeCheckpointHost begins the checkpoint next, which covers the slots up to upTo.
type fakeCheckpointHost struct {
	due    bool
	next   *fakeCheckpoint
	upTo   uint64
	failed error
}

func (h *fakeCheckpointHost) checkpointDue() bool        { return h.due }
func (h *fakeCheckpointHost) checkpointFailed(err error) { h.failed = err }
func (h *fakeCheckpointHost) beginCheckpoint() (storedCheckpoint, uint64, error) {
	if h.next == nil {
		return nil, 0, journal.ErrBusy
	}
	return h.next, h.upTo, nil
}

func newCheckpoints(t *testing.T) (*checkpoints, *fakeCheckpointHost, *fakeCheckpoint) {
	t.Helper()
	l := ledger.New(ledger.Config{DedupWindow: 60_000, DedupIDs: 100})
	addJobs(t, l, "before", 3)
	stored := &fakeCheckpoint{done: make(chan struct{})}
	host := &fakeCheckpointHost{due: true, next: stored, upTo: 7}
	return &checkpoints{ledger: l, host: host, next: 6}, host, stored
}

func addJobs(t *testing.T, l *ledger.Ledger, name string, jobs int) {
	t.Helper()
	for i := range jobs {
		r := ledger.Record{Kind: ledger.Enqueue, Numbers: []uint64{l.NextNumber()}, At: 1, ID: fmt.Sprint(name, i), Policy: ledger.DefaultPolicy}
		if err := l.Apply(&r, 1); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckpointIsCutAtItsSlot: the checkpoint has the jobs of the slots up to its own, and none of
// later slots, although the ledger has them while it is written.
func TestCheckpointIsCutAtItsSlot(t *testing.T) {
	t.Parallel()
	k, _, stored := newCheckpoints(t)
	k.step()
	if k.beforeSlot(7); k.current.writer != nil || k.current.canWrite() {
		t.Fatal("the state is cut before the checkpoint's slot is applied")
	}
	addJobs(t, k.ledger, "slot 7 ", 1)
	k.beforeSlot(8)
	addJobs(t, k.ledger, "slot 8 ", 1)
	if k.inForce() != nil || k.atRest() {
		t.Error("a checkpoint that is being written is in force")
	}
	for k.current.log != nil {
		k.step()
	}
	if !stored.committed || stored.aborted {
		t.Fatalf("%+v", stored)
	}
	restore := ledger.NewCheckpointReader()
	for _, chunk := range stored.chunks {
		if err := restore.Add(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := restore.Ledger(); err != nil || l.Jobs() != 4 {
		t.Errorf("%d jobs, %v", l.Jobs(), err)
	}
	if k.atRest() {
		t.Error("it is in force before the journal says so")
	}
	close(stored.done)
	if <-k.inForce(); !k.atRest() {
		t.Error("it is in force, and something is awaited")
	}
}

// TestCheckpointHasWhatIsDurable begins a checkpoint when its newest slot is durable but not yet applied, as happens if the store
// answers within a round. A successor that starts from that checkpoint must have the slot's record.
func TestCheckpointHasWhatIsDurable(t *testing.T) {
	t.Parallel()
	w, _, n, r := quiet(t, 0)
	n.enqueue(queue.Job{ID: "a"})
	s := n.shard(queue.DefaultQueue, 0)
	if err := s.inquire(w.ctx, func(s *shard) {
		s.commits.record(nil, &ledger.Record{Kind: ledger.Pause})
		s.commits.appendBatch(true)
		for s.log.Durable() < s.commits.inFlight[0].slot {
			runtime.Gosched()
		}
		s.checkpoints.begin()
	}); err != nil {
		t.Fatal(err)
	}
	for rest := false; !rest; {
		if err := s.inquire(w.ctx, func(s *shard) { rest = s.checkpoints.atRest() }); err != nil {
			t.Fatal(err)
		}
	}
	r.kill()
	successor := w.quietNode("n2", 0)
	successor.serve(queue.DefaultQueue, 0)
	if !successor.stats().Paused {
		t.Error("the record of the checkpoint's newest slot is lost")
	}
}

// TestCheckpointWaitsForTheStore: nothing is written while the journal has too much to store.
func TestCheckpointWaitsForTheStore(t *testing.T) {
	t.Parallel()
	k, host, stored := newCheckpoints(t)
	host.upTo, stored.backlog = 5, checkpointBacklog
	k.step()
	if k.step(); k.current.writer == nil || len(stored.chunks) != 0 {
		t.Fatalf("%d chunks", len(stored.chunks))
	}
	stored.backlog = 0
	for k.current.log != nil {
		k.step()
	}
	if len(stored.chunks) == 0 || !stored.committed {
		t.Errorf("%+v", stored)
	}
}

// TestCheckpointGivenUp: after one that failed, the next one begins; it is not begun while the journal
// is busy.
func TestCheckpointGivenUp(t *testing.T) {
	t.Parallel()
	k, host, stored := newCheckpoints(t)
	host.upTo = 5
	k.step()
	stored.err = errors.New("no room")
	if k.step(); !stored.aborted || !errors.Is(host.failed, stored.err) || k.current.log != nil {
		t.Fatalf("%+v, %v", stored, host.failed)
	}
	if !k.atRest() {
		t.Error("a checkpoint is awaited that was given up")
	}
	host.next = nil
	if k.step(); k.current.log != nil {
		t.Error("one was begun while the journal was busy")
	}
	host.next = &fakeCheckpoint{}
	if k.step(); k.current.writer == nil {
		t.Error("no other one was begun")
	}
}
