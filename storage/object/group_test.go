package object_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/object"
)

// TestStepsShareAWrite: simultaneous changes of one process are one write, and each call gets the
// answer that it would have got alone. A report reads nothing but the cluster.
func TestStepsShareAWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &meter{}
		p := start(t, mem.New(mem.Config{Latency: m.see}), 0).lead()
		m.reset()
		if _, err := p.s.Report(t.Context(), storage.Report{Node: p.id, Seq: 3}); err != nil {
			t.Fatal(err)
		}
		if calls := m.reset(); len(calls) != 2 || calls["read newer cluster"] != 1 || calls["replace cluster"] != 1 {
			t.Errorf("a report costs %v", calls)
		}
		var all sync.WaitGroup
		errs := make([]error, 7)
		for i, call := range []func(ctx context.Context) error{
			func(ctx context.Context) error { return p.s.StampFence(ctx, daemon.Fence{Unit: unit, Generation: 7}) },
			func(ctx context.Context) error {
				_, err := p.s.Report(ctx, storage.Report{Node: p.id, Seq: 4})
				return err
			},
			func(ctx context.Context) error {
				_, err := p.s.Commit(ctx, storage.Commit{Term: p.term.Ref(), Changes: []storage.Change{{Unit: unit}}})
				return err
			},
			func(ctx context.Context) error {
				_, err := p.s.Acquire(ctx, "a", "me", time.Minute, storage.Lock{})
				return err
			},
			func(ctx context.Context) error {
				return p.s.StampFence(ctx, daemon.Fence{Unit: daemon.Unit{Daemon: "acme:b"}})
			},
			func(ctx context.Context) error {
				_, err := p.s.Report(ctx, storage.Report{Node: p.id, Seq: 1})
				return err
			},
			func(ctx context.Context) error {
				_, err := p.s.Submit(ctx, storage.Command{ID: "x", Kind: daemon.CommandResign, Term: 1})
				return err
			},
		} {
			all.Go(func() { errs[i] = call(t.Context()) })
		}
		all.Wait()
		if n := m.reset()["replace cluster"]; n > 2 {
			t.Errorf("%d writes for 7 calls, want 2 at most", n)
		}
		for i, want := range []error{nil, nil, nil, nil, daemon.ErrStale, storage.ErrStaleSeq, nil} {
			if !errors.Is(errs[i], want) {
				t.Errorf("call %d: %v, want %v", i, errs[i], want)
			}
		}
		if err := p.s.Fence(t.Context(), daemon.Fence{Unit: unit, Generation: 7}); err != nil {
			t.Error(err)
		}
	})
}

// TestTooLargeAlone: a step that does not fit fails alone; the steps that wait with it are written.
func TestTooLargeAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := mem.New(mem.Config{Latency: mem.Constant(50 * time.Millisecond)})
		p := start(t, store, 0)
		p.s = open(t, store, object.Config{MaxBytes: 20_000})
		var all sync.WaitGroup
		errs := make([]error, 5)
		for i := range errs {
			all.Go(func() {
				owner := "me"
				if i == 2 {
					var b strings.Builder
					for n := range 20_000 { // hardly compressible
						fmt.Fprintf(&b, "%x", n*n*2654435761)
					}
					owner = b.String()
				}
				_, errs[i] = p.s.Acquire(t.Context(), fmt.Sprint("lock-", i), owner, time.Minute, storage.Lock{})
			})
		}
		all.Wait()
		for i, err := range errs {
			if i == 2 && !errors.Is(err, blob.ErrTooLarge) || i != 2 && err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		}
	})
}

// TestGroupWithoutAnAnswer: if the outcome of a write is unknown, each call that was part of it
// returns that.
func TestGroupWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{Bucket: mem.New(mem.Config{Latency: mem.Constant(50 * time.Millisecond)})}
		p := start(t, w, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			all.Go(func() {
				errs[i] = p.s.StampFence(ctx, daemon.Fence{Unit: daemon.Unit{Daemon: "acme:a", Index: i}, Generation: 1})
			})
		}
		synctest.Wait()
		w.cut.Store(true)
		all.Wait()
		failed := 0
		for _, err := range errs {
			if errors.Is(err, storage.ErrUnavailable) {
				failed++
			} else if err != nil {
				t.Error(err)
			}
		}
		w.cut.Store(false)
		for i, err := range errs {
			if now := p.s.StampFence(t.Context(), daemon.Fence{Unit: daemon.Unit{Daemon: "acme:a", Index: i}, Generation: 1}); now != nil {
				t.Errorf("unit %d, after %v: %v", i, err, now)
			}
		}
		if failed == 0 {
			t.Error("no call noticed that the line was cut")
		}
	})
}
