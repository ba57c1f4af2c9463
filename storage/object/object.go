package object

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
)

// The keys of a bucket. A node's own object is found through its row.
const (
	clusterKey    = "cluster"
	segmentPrefix = "ev/"
)

// Config configures a store. The zero value is usable.
type Config struct {
	// Name distinguishes this bucket from a copy of it. Use its address without credentials and
	// options, the same text in every process of the cluster. It becomes part of the store
	// identity, so a cluster that was moved to a copy detects that.
	Name string
	// MaxBytes bounds the cluster object; default DefaultMaxBytes. The object is written with each
	// renewal of the lease, and every node reads it once per interval. At MaxBytes, no unit, state, command or lock is
	// added any more. What is there goes on: assignments may use a sixteenth more, and heartbeats, deaths and
	// removals an eighth.
	MaxBytes int
	// QueryTimeout bounds how long one call may read or change the cluster object, for which the other calls of the
	// process wait meanwhile, heartbeats too. A call that meets other processes' changes has this time again for each
	// attempt. The default is that of the process's nodes (the longest, if they differ), and 5 s before one has registered.
	// Open has its caller's whole time.
	QueryTimeout time.Duration
	// MustExist refuses a bucket that holds no cluster. It is for commands that only read.
	MustExist bool
	// NoProbe skips the check that the bucket honours conditions, which costs about thirty requests
	// at each start. Use it only for buckets that were checked before.
	NoProbe bool
	// Clock is a clock that all processes of the cluster share, if there is one. Then deadlines
	// may be judged by the store's clock, as with a database. Two hosts with synchronised clocks do
	// not share one.
	// It is for tests, and for several nodes in one process.
	Clock func() time.Time
}

// DefaultMaxBytes is enough for some fifty thousand units on a few hundred nodes.
const DefaultMaxBytes = 4 << 20

// Store is a cluster store in a bucket. Its methods may be called from any goroutine. Each process
// opens one. It starts no goroutines that outlive a call, and needs no closing.
type Store struct {
	cfg    Config
	bucket *timedBucket

	clusterMu   chan struct{}        // a mutex: held to read or write the cluster object
	opened      bool                 // false only inside Open
	nodeTimeout atomic.Int64         // the longest QueryTimeout of this process's nodes, in nanoseconds
	seen        atomic.Pointer[view] // its newest content that this process knows

	// clusterMu guards these three. pendingWrite is a write of unknown outcome that may still happen.
	// left has the store IDs that this process has seen replaced by others. lastSegment is the segment of
	// events that was written last; if the step that needed it failed, the next one uses it.
	pendingWrite *cluster
	left         map[string]bool
	lastSegment  struct {
		id      string
		segment segment
	}

	pulses         pulses         // the nodes' own objects (their heartbeats) as last read
	group          group          // steps of this process that share one write of the cluster object
	unchangedSince unchangedTimes // since when values are unchanged, by this process's clock
}

var (
	_ storage.Store   = (*Store)(nil)
	_ storage.Locker  = (*Store)(nil)
	_ storage.Sweeper = (*Store)(nil)
	_ storage.Renamer = (*Store)(nil)
	_ storage.Capable = (*Store)(nil)
)

// Open checks the bucket and reads the cluster, or creates it. Errors: blob.ErrUnfit for a bucket
// that ignores conditions, storage.ErrSchema for one that a newer emitd has written.
func Open(ctx context.Context, bucket blob.Bucket, cfg Config) (*Store, error) {
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, DefaultMaxBytes)
	s := &Store{
		cfg: cfg, bucket: &timedBucket{Bucket: bucket}, clusterMu: make(chan struct{}, 1), left: map[string]bool{},
		pulses: pulses{of: map[node.Incarnation]knownPulse{}}, unchangedSince: unchangedTimes{of: map[string]observation{}},
	}
	if !cfg.NoProbe {
		if err := blob.Probe(ctx, s.bucket); err != nil {
			return nil, wrapErr(err, "open the cluster store")
		}
	}
	if _, err := s.readCluster(ctx); err != nil {
		return nil, wrapErr(err, "open the cluster store")
	}
	s.opened = true
	return s, nil
}

// holdLimit is the longest time that a call may hold the cluster object.
func (s *Store) holdLimit() time.Duration {
	if !s.opened {
		return math.MaxInt64 // the requests of Open also connect, and nothing waits for them
	}
	return cmp.Or(s.cfg.QueryTimeout, time.Duration(s.nodeTimeout.Load()), 5*time.Second)
}

// noteTimeout records the QueryTimeout of a node of this process.
func (s *Store) noteTimeout(t time.Duration) {
	for known := s.nodeTimeout.Load(); known < int64(t) && !s.nodeTimeout.CompareAndSwap(known, int64(t)); {
		known = s.nodeTimeout.Load()
	}
}

// Capabilities declares where a bucket is weaker than a database.
func (s *Store) Capabilities() storage.Capabilities {
	return storage.Capabilities{NoWakeUps: true, NoClock: s.cfg.Clock == nil, Requests: 2}
}

// now is the time to stamp facts with: the shared clock, or this process's own.
func (s *Store) now() time.Time {
	if s.cfg.Clock != nil {
		return s.cfg.Clock().Round(0).UTC()
	}
	return time.Now().Round(0).UTC()
}

// identity returns the store identity of a content.
func (s *Store) identity(c *cluster) string {
	if s.cfg.Name == "" {
		return c.StoreID
	}
	return c.StoreID + "@" + s.cfg.Name
}

// same refuses a call whose caller decided from another store than the one that c belongs to. read is
// the store identity that the caller had read; "" matches any.
func (s *Store) same(c *cluster, read string) error {
	if read != "" && read != s.identity(c) {
		return storage.ErrStoreChanged
	}
	return nil
}

// Heartbeat implements [storage.Store].
func (s *Store) Heartbeat(ctx context.Context, beat storage.Heartbeat) (*storage.Reply, error) {
	if beat.Advert != nil {
		s.noteTimeout(beat.Advert.Traits.Timing.QueryTimeout)
	}
	reply, err := s.heartbeat(ctx, beat)
	if err != nil {
		return nil, wrapErr(err, "heartbeat of %q (incarnation %s)", beat.Node.Name, beat.Node.Incarnation)
	}
	return reply, nil
}

// Report implements [storage.Store].
func (s *Store) Report(ctx context.Context, report storage.Report) ([]storage.Outcome, error) {
	out, err := s.report(ctx, report)
	return out, wrapErr(err, "report of %q (incarnation %s)", report.Node.Name, report.Node.Incarnation)
}

// Leave implements [storage.Store].
func (s *Store) Leave(ctx context.Context, leave storage.Leave) error {
	return wrapErr(s.leave(ctx, leave), "leave of %q (incarnation %s)", leave.Node.Name, leave.Node.Incarnation)
}

// Commit implements [storage.Store].
func (s *Store) Commit(ctx context.Context, commit storage.Commit) ([]storage.Outcome, error) {
	out, err := s.commit(ctx, commit)
	return out, wrapErr(err, "commit of term %d", commit.Term.Number)
}

// Snapshot implements [storage.Store].
func (s *Store) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	c, err := s.readCluster(ctx)
	if err != nil {
		return nil, wrapErr(err, "snapshot")
	}
	c = c.clone()
	if err := s.refresh(ctx, c, c.memberIDs()); err != nil {
		return nil, wrapErr(err, "snapshot")
	}
	snap := &daemon.Snapshot{
		Now: s.now(), StoreID: s.identity(c), Cluster: c.Name, Term: c.Term, Lease: c.Lease,
		Nodes: c.list(), Units: make([]daemon.Record, len(c.Units)), Adverts: c.Adverts, Head: c.Head,
		Commands: c.Commands.Open(),
	}
	for i, r := range c.Units {
		snap.Units[i] = *r
	}
	return snap, nil
}

// Events implements [storage.Store].
func (s *Store) Events(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	page, err := s.page(ctx, after, limit)
	if err != nil {
		return nil, wrapErr(err, "events after %d", after)
	}
	return page, nil
}

// StampFence implements [storage.Store].
func (s *Store) StampFence(ctx context.Context, fence daemon.Fence) error {
	return wrapErr(s.stamp(ctx, fence), "stamp %s", fence)
}

// Fence reports whether effects of a run are accepted at this moment: a [daemon.StaleError] if not.
// A bucket has no transactions. An effect that must not come after a later run's effects must carry
// the fence to where it is written, and be compared there.
func (s *Store) Fence(ctx context.Context, fence daemon.Fence) error {
	c, err := s.readCluster(ctx)
	if err == nil {
		err = c.checkFence(fence)
	}
	return wrapErr(err, "fence %s", fence)
}

// Submit implements [storage.Store].
func (s *Store) Submit(ctx context.Context, command storage.Command) (*storage.Command, error) {
	filed, err := s.submit(ctx, command)
	if err != nil {
		return nil, wrapErr(err, "submit command %s", fmt.Sprintf("%q", command.ID))
	}
	return filed, nil
}
