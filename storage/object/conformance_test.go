package object_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/object"
	"github.com/emitd/emitd/storage/storagetest"
)

// clock is a clock that all processes share. It stands still between steps.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// open opens the store of one process.
func open(t testing.TB, bucket blob.Bucket, cfg object.Config) *object.Store {
	t.Helper()
	cfg.NoProbe = true
	s, err := object.Open(t.Context(), bucket, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// backend is a cluster in a bucket, in the form that the suite needs: two processes.
func backend(t testing.TB, bucket blob.Bucket, cfg object.Config) storagetest.Backend {
	t.Helper()
	s := open(t, bucket, cfg)
	return storagetest.Backend{
		Store: s, Second: open(t, bucket, cfg),
		ChangeIdentity: func(t testing.TB) { restore(t, bucket) },
		WriteState: func(t testing.TB, u daemon.Unit, state daemon.State) {
			if err := s.Plant(context.Background(), u, state); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// TestConformance runs the suite on a bucket in memory whose users share a clock.
func TestConformance(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, storagetest.Factory{
		Open: func(t testing.TB) storagetest.Backend {
			c := newClock()
			b := backend(t, mem.New(mem.Config{}), object.Config{Clock: c.Now})
			b.Advance, b.Frozen = c.Advance, true
			return b
		},
		Lacks: storagetest.Tx | storagetest.Wakes,
	})
}

// TestConformanceWithoutAClock runs the suite as in production: each process has a clock of its
// own, which decides nothing.
func TestConformanceWithoutAClock(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, storagetest.Factory{
		Open:  func(t testing.TB) storagetest.Backend { return backend(t, mem.New(mem.Config{}), object.Config{}) },
		Lacks: storagetest.Clock | storagetest.FrozenClock | storagetest.Tx | storagetest.Wakes,
		Runs:  30,
	})
}

// TestConformanceOnADirectory runs the suite on a directory that two processes of one host share.
func TestConformanceOnADirectory(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, storagetest.Factory{
		Open: func(t testing.TB) storagetest.Backend {
			c, root := newClock(), t.TempDir()
			b := backend(t, directory(t, root), object.Config{Clock: c.Now})
			b.Second = open(t, directory(t, root), object.Config{Clock: c.Now})
			b.Advance, b.Frozen = c.Advance, true
			return b
		},
		Lacks: storagetest.Tx | storagetest.Wakes,
		Runs:  10,
	})
}

// directory opens the bucket in a directory, as a process of its own does.
func directory(t testing.TB, root string) blob.Bucket {
	t.Helper()
	b, err := dir.Open(dir.Config{Path: root, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// storm makes a share of all requests fail in the ways of object stores and networks.
func storm(seed uint64) func(mem.Call) mem.Fault {
	rng := rand.New(rand.NewPCG(seed, 1))
	kinds := []mem.FaultKind{
		mem.Conflict, mem.Refused, mem.Throttled, mem.Unavailable, mem.LostRequest, mem.LostReply, mem.LostReply, mem.Late, mem.TornRead,
	}
	return func(mem.Call) mem.Fault {
		if rng.IntN(100) >= 7 {
			return mem.Fault{}
		}
		return mem.Fault{Kind: kinds[rng.IntN(len(kinds))], Delay: time.Duration(rng.IntN(int(20 * time.Millisecond)))}
	}
}

// TestConformanceInAStorm runs the suite on a bucket that answers late, loses requests and replies,
// answers 409, 412 and 503, and carries writes out after it reported an unknown outcome.
func TestConformanceInAStorm(t *testing.T) {
	t.Parallel()
	var seed atomic.Uint64
	storagetest.Run(t, storagetest.Factory{
		Open: func(t testing.TB) storagetest.Backend {
			c := newClock()
			bucket := mem.New(mem.Config{Faults: storm(seed.Add(1)), Latency: mem.Constant(100 * time.Microsecond)})
			b := backend(t, bucket, object.Config{Clock: c.Now})
			b.Advance, b.Frozen, b.ChangeIdentity = c.Advance, true, nil
			return b
		},
		Lacks: storagetest.Tx | storagetest.Wakes,
		Runs:  8,
	})
}
