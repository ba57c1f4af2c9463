package broker

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/storage/blob"
)

// TestDamagedJournal: a broker that finds an object of the journal damaged, missing, or written by
// a newer version does not serve the shard at all, rather than with a part of its state. Callers
// are told to come back, nothing is deleted, and when the object is restored every acknowledged job
// is there.
func TestDamagedJournal(t *testing.T) {
	t.Parallel()
	change := func(at int, value byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at] = value; return b }
	}
	for name, damage := range map[string]struct {
		key   string // a part of it
		bytes func([]byte) []byte
		want  error
	}{
		"a flipped bit":          {"/log/", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, journal.ErrCorrupt},
		"cut off":                {"/log/", func(b []byte) []byte { return b[:len(b)-3] }, journal.ErrCorrupt},
		"not a segment":          {"/log/", func([]byte) []byte { return []byte("<html>not found</html>") }, journal.ErrCorrupt},
		"empty":                  {"/log/", func([]byte) []byte { return nil }, journal.ErrCorrupt},
		"a newer format":         {"/log/", change(4, 99), journal.ErrNewer},
		"HEAD that is none":      {"/HEAD", func([]byte) []byte { return []byte("x") }, journal.ErrCorrupt},
		"a newer list of queues": {"v1/queues", func(b []byte) []byte { return bytes.Replace(b, []byte(`"format": 1`), []byte(`"format": 9`), 1) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bucket := mem.New(mem.Config{})
			w := newWorld(t, bucket)
			w.declare(queue.Settings{})
			n := w.node("n1")
			r := n.serve(queue.DefaultQueue, 0)
			for _, j := range jobsWithIDs(3) {
				n.enqueue(j)
			}
			r.kill()
			keys := bucket.Keys()
			i := slices.IndexFunc(keys, func(k string) bool { return strings.Contains(k, damage.key) })
			if i < 0 {
				t.Fatalf("no %s in %q", damage.key, keys)
			}
			good, _ := bucket.Peek(keys[i])
			bad := damage.bytes(bytes.Clone(good))
			if bytes.Equal(bad, good) {
				t.Fatal("nothing was damaged")
			}
			if _, err := bucket.Write(w.ctx, keys[i], bad); err != nil {
				t.Fatal(err)
			}

			second := w.node("n2")
			second.damagedWait = time.Hour
			refused := second.begin(queue.DefaultQueue, 0)
			select {
			case <-refused.done: // of a format that another version of the program may know: another node is to try
			case <-refused.a.ReadyDone():
				if !errors.Is(damage.want, journal.ErrCorrupt) || second.shard(queue.DefaultQueue, 0) != nil {
					t.Fatal("the shard is served")
				}
			}
			_, err := second.Enqueue(w.ctx, queue.DefaultQueue, jobsWithIDs(1))
			if tag := queue.TagOf(err); tag != queue.Damaged && (errors.Is(damage.want, journal.ErrCorrupt) || tag != queue.QueueNotOwner && tag != queue.Unavailable) {
				t.Errorf("a call is answered %v", err)
			}
			refused.kill()
			if refused.err == nil || damage.want != nil && !errors.Is(refused.err, damage.want) {
				t.Errorf("the broker ended with %v, want %v", refused.err, damage.want)
			}
			for _, k := range keys {
				if _, ok := bucket.Peek(k); !ok {
					t.Errorf("%s was deleted", k)
				}
			}

			if _, err := bucket.Write(w.ctx, keys[i], good); err != nil {
				t.Fatal(err)
			}
			third := w.node("n3")
			third.serve(queue.DefaultQueue, 0)
			if st := third.stats(); st.Waiting != 3 || st.Enqueued != 3 {
				t.Errorf("after the repair: %+v", st)
			}
		})
	}
}

// damagedHead returns a node that has a shard whose HEAD is damaged, with its run, and a function that restores HEAD.
func damagedHead(t *testing.T) (n *node, r *run, restore func()) {
	t.Helper()
	w, bucket, former, n := slow(t, queue.Settings{})
	first := former.serve(queue.DefaultQueue, 0)
	former.enqueue(jobsWithIDs(1)...)
	first.kill()
	keys := bucket.Keys()
	head := keys[slices.IndexFunc(keys, func(key string) bool { return strings.HasSuffix(key, "/HEAD") })]
	good, _ := bucket.Peek(head)
	good = bytes.Clone(good)
	put := func(data []byte) {
		t.Helper()
		if _, err := bucket.Write(w.ctx, head, data); err != nil {
			t.Fatal(err)
		}
	}
	put([]byte("x"))
	n.damagedWait = damagedWait
	r = n.begin(queue.DefaultQueue, 0)
	r.ready(t)
	if count := n.damagedCounts()[queue.DefaultQueue]; count != 1 {
		t.Errorf("%d shards are damaged", count)
	}
	return n, r, func() { put(good) }
}

// TestDamageIsForgotten: a node that does not have the damaged shard any more does not count it.
func TestDamageIsForgotten(t *testing.T) {
	for name, end := range map[string]func(r *run){
		"moved": func(r *run) { r.a.BeginDrain() },
		"ended": func(r *run) { r.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n, r, _ := damagedHead(t)
				end(r)
				if <-r.done; len(n.damagedCounts()) != 0 {
					t.Errorf("damaged afterwards: %v", n.damagedCounts())
				}
			})
		})
	}
}

// TestDamageIsWaitedFor: a node keeps a damaged shard for as long as it takes, and says why it does not serve it. A minute
// after its objects were restored, the shard is served. So nothing keeps the shard waiting then: a run that failed again and
// again would be given up, and its daemon quarantined.
func TestDamageIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n, r, restore := damagedHead(t)
		for range 8 {
			time.Sleep(time.Hour)
			_, err := n.Enqueue(t.Context(), queue.DefaultQueue, jobsWithIDs(1))
			if queue.TagOf(err) != queue.Damaged || n.damagedCounts()[queue.DefaultQueue] != 1 {
				t.Fatalf("a call is answered %v, damaged are %v", err, n.damagedCounts())
			}
		}
		restore()
		time.Sleep(time.Minute)
		select {
		case <-r.done:
			t.Fatalf("the run has ended: %v", r.err)
		default:
		}
		if st := n.stats(); st.Waiting != 1 || len(n.damagedCounts()) != 0 {
			t.Errorf("afterwards: %+v, damaged are %v", st, n.damagedCounts())
		}
	})
}

// TestRepairOfAShardThatIsWaitedFor: after the repair the shard belongs to a higher generation. The run of the node that waited
// for it does not count as failed for that, which would bar the node from the shard, and its next generation serves it.
func TestRepairOfAShardThatIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, bucket, former, n := slow(t, queue.Settings{})
		first := former.serve(queue.DefaultQueue, 0)
		for _, j := range jobsWithIDs(3) {
			former.enqueue(j)
		}
		first.kill()
		keys := bucket.Keys()
		if err := bucket.Delete(w.ctx, keys[slices.IndexFunc(keys, func(key string) bool { return strings.Contains(key, "/log/") })]); err != nil {
			t.Fatal(err)
		}
		n.damagedWait = damagedWait
		r := n.begin(queue.DefaultQueue, 0)
		r.ready(t)
		if _, err := w.node("repair").Repair(w.ctx, queue.DefaultQueue, RepairOptions{Shard: -1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case <-r.done:
		default:
			t.Fatal("the run goes on")
		}
		var stale *daemon.StaleError
		if !errors.As(r.err, &stale) || stale.HeldGeneration <= w.gen {
			t.Fatalf("the run ended with %v", r.err)
		}
		w.gen = stale.HeldGeneration
		n.serve(queue.DefaultQueue, 0)
		if st := n.stats(); st.Waiting != 2 {
			t.Errorf("afterwards: %+v", st)
		}
	})
}

// TestPersistently: a read whose result is damaged is repeated twice.
func TestPersistently(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for damaged, want := range map[int]int{0: 1, 2: 3, 9: 3} {
			calls := 0
			err := persistently(t.Context(), func() error {
				if calls++; calls <= damaged {
					return blob.ErrCorrupt
				}
				return nil
			})
			if calls != want || errors.Is(err, blob.ErrCorrupt) != (damaged > 2) {
				t.Errorf("%d calls, %v", calls, err)
			}
		}
	})
}

// TestDamagedList: whatever happens to the list of queues, each known queue is served and nothing
// is declared over the damage. The damage is reported and can be repaired.
func TestDamagedList(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(now, before []byte) []byte{
		"gone":          func(_, _ []byte) []byte { return nil },
		"cut off":       func(now, _ []byte) []byte { return now[:len(now)/2] },
		"unknown names": func(now, _ []byte) []byte { return bytes.Replace(now, []byte(`"mail"`), []byte(`"../x"`), 1) },
		"an older one":  func(_, before []byte) []byte { return before },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bucket := mem.New(mem.Config{})
			w := newWorld(t, bucket)
			w.declare(queue.Settings{})
			before, _ := bucket.Peek("v1/queues")
			before = bytes.Clone(before)
			w.declare(queue.Settings{Name: "mail"})
			n := w.node("n1")
			r := n.serve("mail", 0)
			if _, err := n.Enqueue(w.ctx, "mail", jobsWithIDs(3)); err != nil {
				t.Fatal(err)
			}
			now, _ := bucket.Peek("v1/queues")
			var err error
			if bad := damage(bytes.Clone(now), before); bad == nil {
				err = bucket.Delete(w.ctx, "v1/queues")
			} else {
				_, err = bucket.Write(w.ctx, "v1/queues", bad)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := n.registry.EnsureCopy(w.ctx); queue.TagOf(err) != queue.Damaged {
				t.Errorf("a node that runs: %v", err)
			}
			r.drain(t)

			second := w.node("n2")
			second.serve("mail", 0)
			if st, err := second.Stats(w.ctx, "mail"); err != nil || st.Waiting != 3 {
				t.Errorf("%+v, %v", st, err)
			}
			list, err := second.Registry().List(w.ctx)
			if err != nil || len(list) != 2 {
				t.Errorf("%v, %v", list, err)
			}
			if _, err := second.Registry().Declare(w.ctx, queue.Settings{Name: "new"}); queue.TagOf(err) != queue.Damaged {
				t.Errorf("declared: %v", err)
			}
			if err := second.Registry().Remove(w.ctx, "mail"); queue.TagOf(err) != queue.Damaged {
				t.Errorf("removed: %v", err)
			}

			registry := NewRegistry(bucket, "")
			if _, _, err := registry.Repair(w.ctx, true); err != nil || registry.EnsureCopy(w.ctx) == nil {
				t.Errorf("a dry run: %v, or it has repaired the list", err)
			}
			known, kept, err := registry.Repair(w.ctx, false)
			if err != nil || len(known) != 2 {
				t.Fatal(known, err)
			}
			if _, there := bucket.Peek(kept); there != (name != "gone") {
				t.Errorf("the damaged list is kept as %q: %t", kept, there)
			}
			found, err := registry.Verify(w.ctx, "")
			if err != nil || len(found.Problems) != 0 {
				t.Errorf("after the repair: %+v, %v", found, err)
			}
			if _, err := second.Registry().Declare(w.ctx, queue.Settings{Name: "new"}); err != nil {
				t.Errorf("after the repair: %v", err)
			}
		})
	}
}

// TestNoListAndQueues: a bucket without the list of queues and its copy, but with journals, does
// not count as new.
func TestNoListAndQueues(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	w := newWorld(t, bucket)
	w.declare(queue.Settings{})
	n := w.node("n1")
	n.serve(queue.DefaultQueue, 0)
	n.enqueue(jobsWithIDs(3)...)
	for _, key := range []string{"v1/queues", "v1/queues.copy"} {
		if err := bucket.Delete(w.ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := NewRegistry(bucket, "").Declare(w.ctx, queue.Settings{Name: "new"}); queue.TagOf(err) != queue.Damaged {
		t.Errorf("declared: %v", err)
	}
	if _, err := n.Registry().List(w.ctx); err != nil {
		t.Errorf("the node that serves it: %v", err)
	}
}

// overtaken is a bucket in which another process declares a queue between two reads: after the list
// of queues was read and before its copy is.
type overtaken struct {
	blob.Bucket
	declare func()
}

func (b *overtaken) Read(ctx context.Context, key string) (*blob.Object, error) {
	if declare := b.declare; declare != nil && strings.HasSuffix(key, "queues.copy") {
		b.declare = nil
		declare()
	}
	return b.Bucket.Read(ctx, key)
}

// TestDeclaredMeanwhile: a list that others change while it is read is not damaged.
func TestDeclaredMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.declare(queue.Settings{})
	other := NewRegistry(w.bucket, "")
	between := &overtaken{Bucket: w.bucket}
	between.declare = func() {
		if _, err := other.Declare(w.ctx, queue.Settings{Name: "mail"}); err != nil {
			t.Error(err)
		}
	}
	r := NewRegistry(between, "")
	if _, err := r.Declare(w.ctx, queue.Settings{Name: "print"}); err != nil {
		t.Error(err)
	}
	if between.declare != nil {
		t.Error("nothing was declared meanwhile")
	}
}
