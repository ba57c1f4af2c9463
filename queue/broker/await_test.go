package broker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
)

// gated is a bucket whose reads and replacements wait until the test lets them go on.
type gated struct {
	blob.Bucket
	before func(op, key string)
}

func (g gated) Read(ctx context.Context, key string) (*blob.Object, error) {
	g.before("read", key)
	return g.Bucket.Read(ctx, key)
}

func (g gated) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	g.before("read newer", key)
	return g.Bucket.ReadNewer(ctx, key, known)
}

func (g gated) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	g.before("replace", key)
	return g.Bucket.Replace(ctx, key, data, old)
}

// TestHandoverInLatencies: callers wait for only a few sequential requests at a clean hand-over.
// The former owner finishes its writes and closes HEAD. The successor, which knows the list of
// queues already, reads and replaces HEAD. Then the call writes its job.
func TestHandoverInLatencies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(300)...)
		if _, err := b.Registry().List(w.ctx); err != nil {
			t.Fatal(err)
		}
		var under sync.WaitGroup
		under.Go(func() { a.enqueue(queue.Job{ID: "under way"}) })
		synctest.Wait()
		begun := time.Now()
		r.drain(t)
		under.Wait()
		if took := time.Since(begun); took > 2*latency {
			t.Errorf("the former owner took %v", took)
		}
		b.begin(queue.DefaultQueue, 0)
		synctest.Wait() // the call meets a shard that is being taken over
		b.enqueue(queue.Job{ID: "next"})
		if took := time.Since(begun); took > 5*latency {
			t.Errorf("the handover took %v, that is %d latencies", took, took/latency)
		}
		if st := b.stats(); st.Waiting != 302 {
			t.Errorf("%+v", st)
		}
	})
}

// TestCallsWaitForTheTakeover: a caller that reaches the successor too early waits instead of being
// refused, but not for ever.
func TestCallsWaitForTheTakeover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var blocked atomic.Bool
		free := make(chan struct{})
		bucket := gated{mem.New(mem.Config{}), func(op, key string) {
			if op == "replace" && strings.HasSuffix(key, "/HEAD") && blocked.Load() {
				<-free
			}
		}}
		w := newWorld(t, bucket)
		w.declare(queue.Settings{Shards: 2})
		a, b := w.node("a"), w.node("b")
		a.serve(queue.DefaultQueue, 0)
		a.serve(queue.DefaultQueue, 1)
		a.enqueue(queue.Job{ID: "x"}, queue.Job{ID: "y"}, queue.Job{ID: "z"})
		for _, r := range a.runs {
			r.drain(t)
		}
		wantRefusal(t, enqueueErr(w, b, "before"), queue.QueueNotOwner) // no takeover is in progress
		b.serve(queue.DefaultQueue, 1)
		blocked.Store(true)
		r := b.begin(queue.DefaultQueue, 0)
		synctest.Wait()

		begun := time.Now()
		_, err := b.Stats(w.ctx, queue.DefaultQueue)
		if wantRefusal(t, err, queue.QueueNotOwner); time.Since(begun) != takeoverWait {
			t.Errorf("it waited for %v", time.Since(begun))
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if st := b.stats(); st.Waiting < 3 {
				t.Errorf("%+v", st)
			}
		})
		waiting.Go(func() { b.enqueue(jobsWithIDs(20)...) })
		waiting.Go(func() {
			wantOutcome(t, b.settle(queue.Complete, queue.Claimed{Job: queue.Info{ID: "x"}, Token: "none"}), "", queue.StaleClaim)
		})
		synctest.Wait()
		close(free)
		waiting.Wait()
		r.ready(t)

		// The waiting calls are refused when the takeover fails.
		b.runs[len(b.runs)-1].drain(t)
		wantRefusal(t, enqueueErr(w, b, "after", "after1", "after2", "after3"), queue.QueueNotOwner)
	})
}

func enqueueErr(w *world, n *node, ids ...string) error {
	var jobs []queue.Job
	for _, id := range ids {
		jobs = append(jobs, queue.Job{ID: id})
	}
	_, err := n.Enqueue(w.ctx, queue.DefaultQueue, jobs)
	return err
}

// TestTakeoverDoesNotWaitForTheList: the list is read while the takeover runs, and changed settings
// are used.
func TestTakeoverDoesNotWaitForTheList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var waits atomic.Bool
		replaced := make(chan struct{})
		bucket := gated{mem.New(mem.Config{}), func(op, key string) {
			switch {
			case op == "read newer" && waits.Load():
				<-replaced
			case op == "replace" && strings.HasSuffix(key, "/HEAD") && waits.Load():
				close(replaced)
			}
		}}
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		a, b := w.node("a"), w.node("b")
		r := a.serve(queue.DefaultQueue, 0)
		if _, err := b.Registry().List(w.ctx); err != nil {
			t.Fatal(err)
		}
		r.drain(t)
		w.declare(queue.Settings{Visibility: 7 * time.Minute})
		waits.Store(true)
		b.serve(queue.DefaultQueue, 0)
		waits.Store(false)
		if got := servedSettings(b).Visibility; got != 7*time.Minute {
			t.Errorf("the settings are old: visibility %v", got)
		}
	})
}

// TestTakeoverOfAnotherQueue: a queue that was removed after the list was read, and perhaps
// declared again, is not served as it was, and all its objects are deleted.
func TestTakeoverOfAnotherQueue(t *testing.T) {
	for name, again := range map[string]bool{"removed": false, "declared again": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, bucket, a, b := slow(t, queue.Settings{})
				r := a.serve(queue.DefaultQueue, 0)
				a.enqueue(jobsWithIDs(5)...)
				r.drain(t)
				if _, err := b.Registry().List(w.ctx); err != nil {
					t.Fatal(err)
				}
				if err := a.Registry().Remove(w.ctx, queue.DefaultQueue); err != nil {
					t.Fatal(err)
				}
				if again {
					w.declare(queue.Settings{})
				}
				r = b.begin(queue.DefaultQueue, 0)
				if !again {
					<-r.done
					if wantRefusal(t, r.err, queue.QueueNotFound); !errors.Is(r.err, daemon.ErrRelease) {
						t.Errorf("%v", r.err)
					}
				} else if r.ready(t); b.stats().Waiting != 0 || b.stats().Epoch != 1 {
					t.Errorf("%+v", b.stats())
				}
				for _, key := range bucket.Keys() {
					if strings.HasPrefix(key, shardPrefix("", &queue.Settings{Name: queue.DefaultQueue, Incarnation: 1}, 0)) {
						t.Errorf("%s is left", key)
					}
				}
			})
		})
	}
}

// TestListThatCannotBeRead: a broker that knows the queue already serves it, and reads the list
// later. It opens no journal that nothing was ever in: the list could say that the shard is gone, with all its objects.
func TestListThatCannotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{})
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		later := newWorld(t, unread{bucket})
		first, second := w.node("a"), later.node("b")
		know := func() {
			t.Helper()
			if _, err := second.Registry().List(w.ctx); err != nil {
				t.Fatal(err)
			}
		}
		know()
		for range 2 {
			r := second.begin(queue.DefaultQueue, 0)
			select {
			case <-r.done:
				wantRefusal(t, r.err, queue.Unavailable)
			case <-r.a.ReadyDone():
				t.Fatal("it serves a new journal")
			}
		}
		later.gen++
		w.gen = later.gen
		r := first.serve(queue.DefaultQueue, 0)
		first.enqueue(queue.Job{ID: "x"})
		r.kill()
		later.gen = w.gen
		second.serve(queue.DefaultQueue, 0)
		second.enqueue(queue.Job{ID: "y"})
		time.Sleep(maxListAge)
		_, err := second.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: "z"}})
		wantRefusal(t, err, queue.Unavailable)
	})
}

// unread is a bucket whose changed objects cannot be read.
type unread struct{ blob.Bucket }

func (u unread) ReadNewer(context.Context, string, blob.Version) (*blob.Object, error) {
	return nil, errors.New("the store is away")
}
