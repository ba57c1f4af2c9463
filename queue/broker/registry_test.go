package broker

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

func TestRegistry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	r := NewRegistry(w.bucket, "/teams/a/")
	if list, err := r.List(w.ctx); err != nil || len(list) != 0 {
		t.Fatalf("%v, %v", list, err)
	}
	full := queue.Settings{
		Name: "mail", Shards: 4, Claims: queue.DurableClaims, Visibility: time.Minute, TTL: time.Hour, DedupWindow: time.Hour, DedupIDs: 5, MaxJobs: 6, MaxBytes: 7,
		Retry: queue.Retry{MaxAttempts: 9, Backoff: time.Second, MaxBackoff: time.Minute, Factor: 1.5, Jitter: -1, Back: true},
	}
	made, err := r.Declare(w.ctx, full)
	full.Incarnation = 1
	if err != nil || made != full {
		t.Fatalf("%+v, %v", made, err)
	}
	if _, err := r.Declare(w.ctx, queue.Settings{Name: "default"}); err != nil {
		t.Fatal(err)
	}
	other := NewRegistry(w.bucket, "teams/a")
	list, err := other.List(w.ctx)
	if err != nil || len(list) != 2 || list[0].Name != "default" || list[1] != full {
		t.Fatalf("%+v, %v", list, err)
	}
	before := w.bucket.(*mem.Bucket).Stats()[mem.Replace].Calls
	if again, err := other.Declare(w.ctx, full); err != nil || again != full {
		t.Fatalf("%+v, %v", again, err)
	}
	if after := w.bucket.(*mem.Bucket).Stats()[mem.Replace].Calls; after != before {
		t.Error("the same declaration was written")
	}
	_, err = other.Declare(w.ctx, queue.Settings{Name: "mail", Shards: 5})
	wantRefusal(t, err, queue.BadRequest)
	if err := other.Remove(w.ctx, "mail"); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, r.Remove(w.ctx, "mail"), queue.QueueNotFound)
	if made, err = r.Declare(w.ctx, queue.Settings{Name: "mail", Shards: 5}); err != nil || made.Incarnation != 3 {
		t.Fatalf("%+v, %v", made, err)
	}
	s := made.Spec()
	if s.ID != "emit:queue/mail" || s.Kind != "emit:queue" || s.Instances != 5 || s.Validate() != nil {
		t.Fatalf("%+v", s)
	}
}

// TestRemovedQueueComesBackEmpty: a queue that is declared again has nothing of the removed one
// with the same name.
func TestRemovedQueueComesBackEmpty(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, n, r := serving(t, queue.Settings{})
		n.enqueue(jobsWithIDs(3)...)
		if err := n.Registry().Remove(w.ctx, queue.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		<-r.done
		wantRefusal(t, r.err, queue.QueueNotFound)
		gone := n.begin(queue.DefaultQueue, 0)
		<-gone.done
		wantRefusal(t, gone.err, queue.QueueNotFound)
		w.declare(queue.Settings{})
		n.serve(queue.DefaultQueue, 0)
		if st := n.stats(); st.Waiting != 0 || st.Enqueued != 0 || st.Epoch != 1 {
			t.Fatalf("%+v", st)
		}
	})
}

// TestRemovedQueuesLeaveTombstones: a queue that was removed elsewhere is no longer served, and its
// objects are deleted by the broker of another queue. A queue that was declared in its place stays.
func TestRemovedQueuesLeaveTombstones(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, bucket, a, b := slow(t, queue.Settings{Shards: 2})
		w.declare(queue.Settings{Name: "other"})
		a.serve(queue.DefaultQueue, 0)
		r := a.serve(queue.DefaultQueue, 1)
		b.serve("other", 0)
		a.enqueue(jobsWithIDs(50)...)
		a.enqueue(queue.Job{Payload: make([]byte, queue.InlinePayload+1)})
		old := removedQueue{queue.DefaultQueue, 1, 2}
		of := func(g removedQueue) (n int) {
			for _, key := range bucket.Keys() {
				for index := range g.Shards {
					if strings.HasPrefix(key, shardPrefix("", &queue.Settings{Name: g.Name, Incarnation: g.Incarnation}, index)+"/") {
						n++
					}
				}
			}
			return n
		}
		if of(old) < 5 {
			t.Fatalf("%v", bucket.Keys())
		}
		if err := NewRegistry(bucket, "").Remove(w.ctx, queue.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		made := w.declare(queue.Settings{})
		time.Sleep(followEvery + time.Second)
		// A broker that does not know of the removal yet.
		if _, err := bucket.Create(w.ctx, shardPrefix("", &queue.Settings{Name: queue.DefaultQueue, Incarnation: 1}, 1)+"/log/late", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		<-r.done
		wantRefusal(t, r.err, queue.QueueNotFound)
		if n := of(old); n != 0 {
			t.Errorf("%d objects are left: %v", n, bucket.Keys())
		}
		a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(3)...)
		time.Sleep(3 * time.Minute)
		if st := a.stats(); st.Waiting != 3 || of(removedQueue{queue.DefaultQueue, made.Incarnation, 1}) == 0 {
			t.Errorf("%+v", st)
		}
		if _, err := b.Registry().List(w.ctx); err != nil || len(b.Registry().list.Removed) != 0 {
			t.Errorf("%v, %+v", err, b.Registry().list.Removed)
		}
	})
}

// TestDeclaredAgainAtOnce: a queue is removed and declared again elsewhere, while a broker that has not read the list since
// serves the removed one. It must not accept a job: it would be lost with the removed queue.
func TestDeclaredAgainAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, _ := slow(t, queue.Settings{})
		former := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(3)...)
		elsewhere := NewRegistry(w.bucket, "")
		if err := elsewhere.Remove(w.ctx, queue.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		a.enqueue(queue.Job{ID: "meanwhile"}) // as if it had been before the removal
		brief, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		_, err := elsewhere.Declare(brief, queue.Settings{Name: queue.DefaultQueue})
		wantRefusal(t, err, queue.Unavailable)
		made, err := elsewhere.Declare(w.ctx, queue.Settings{Name: queue.DefaultQueue})
		if err != nil || made.Incarnation != 2 {
			t.Fatalf("%+v, %v", made, err)
		}
		_, err = a.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: "new"}})
		wantRefusal(t, err, queue.QueueNotOwner)
		<-former.done
		a.serve(queue.DefaultQueue, 0)
		a.enqueue(queue.Job{ID: "new"})
		if st := a.stats(); st.Waiting != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// TestRemovedAgainElsewhere: who has not seen the removal waits as long as who has removed the queue.
func TestRemovedAgainElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.declare(queue.Settings{})
		one, other := NewRegistry(w.bucket, ""), NewRegistry(w.bucket, "")
		if err := one.Remove(w.ctx, queue.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		took := func(r *Registry) time.Duration {
			t.Helper()
			begun := time.Now()
			if _, err := r.Declare(w.ctx, queue.Settings{Name: queue.DefaultQueue}); err != nil {
				t.Fatal(err)
			}
			return time.Since(begun)
		}
		time.Sleep(maxListAge / 2)
		if d := took(other); d != maxListAge {
			t.Errorf("declared after %v", d)
		}
		if err := one.Remove(w.ctx, queue.DefaultQueue); err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxListAge / 2)
		if d := took(one); d != maxListAge/2 {
			t.Errorf("declared after %v", d)
		}
		if d := took(one); d != 0 {
			t.Errorf("declared again after %v", d)
		}
	})
}

// TestATombstoneStaysForAWhile: a removed queue is struck off the list only after nothing was found
// of it for long enough.
func TestATombstoneStaysForAWhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, g := NewRegistry(mem.New(mem.Config{}), ""), removedQueue{"a", 1, 1}
		for n, round := range []struct {
			after         time.Duration
			nothing, want bool
		}{
			{0, true, false},
			{0, true, false},
			{strikeOffAfter - 1, true, false},
			{1, true, true},
			{0, true, false},
			{strikeOffAfter - 1, false, false},
			{strikeOffAfter, true, false},
			{strikeOffAfter, true, true},
		} {
			time.Sleep(round.after)
			if got := r.emptyLongEnough(g, round.nothing); got != round.want {
				t.Errorf("round %d: %t", n, got)
			}
		}
	})
}

func TestBadDeclarations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	r := NewRegistry(w.bucket, "")
	for name, set := range map[string]queue.Settings{
		"no name": {}, "name": {Name: "Mail"}, "shards": {Name: "a", Shards: -1}, "many shards": {Name: "a", Shards: 257}, "claims": {Name: "a", Claims: "hard"},
		"visibility": {Name: "a", Visibility: time.Millisecond}, "ttl": {Name: "a", TTL: -1}, "window": {Name: "a", DedupWindow: -1},
		"ids": {Name: "a", DedupIDs: -1}, "jobs": {Name: "a", MaxJobs: -1}, "retry": {Name: "a", Retry: queue.Retry{MaxAttempts: -1}},
	} {
		if _, err := r.Declare(w.ctx, set); queue.TagOf(err) != queue.BadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"text": "x", "newer": `{"format":3}`, "queue": `{"format":1,"next_incarnation":1,"queues":[{"name":"A","shards":1,"incarnation":1}]}`,
		"shards": `{"format":1,"next_incarnation":1,"queues":[{"name":"a","incarnation":1}]}`, "incarnation": `{"format":1,"queues":[{"name":"a","shards":1,"incarnation":1}]}`,
		"removed": `{"format":1,"next_incarnation":1,"queues":[],"removed":[{"name":"a","incarnation":1}]}`,
	} {
		bucket := mem.New(mem.Config{})
		if _, err := bucket.Create(w.ctx, "v1/queues", []byte(text)); err != nil {
			t.Fatal(err)
		}
		_, err := NewRegistry(bucket, "").Declare(w.ctx, queue.Settings{Name: "a"})
		want := queue.Damaged
		if name == "newer" {
			want = queue.Unavailable
		}
		if queue.TagOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDeclaredAtOnce: concurrent declarations by many processes are all stored, although some
// answers are lost.
func TestDeclaredAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{Latency: mem.Constant(time.Millisecond)})
		w := newWorld(t, bucket)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				r := NewRegistry(bucket, "")
				for range 100 {
					bucket.Inject(mem.Replace, "", mem.Fault{Kind: mem.LostReply})
					_, err := r.Declare(w.ctx, queue.Settings{Name: fmt.Sprint("q", i)})
					if err == nil {
						return
					}
					time.Sleep(time.Duration(i+1) * 7 * time.Millisecond)
				}
				t.Error("not declared")
			})
		}
		all.Wait()
		list, err := NewRegistry(bucket, "").List(w.ctx)
		if err != nil || len(list) != 8 {
			t.Fatalf("%+v, %v", list, err)
		}
		seen := map[uint64]bool{}
		for _, set := range list {
			if seen[set.Incarnation] {
				t.Errorf("incarnation %d twice", set.Incarnation)
			}
			seen[set.Incarnation] = true
		}
	})
}

// TestAmendedAtOnce: Amend preserves concurrent declarations of others; a refused one changes
// nothing.
func TestAmendedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	one, other := NewRegistry(w.bucket, ""), NewRegistry(w.bucket, "")
	for n, name := range []string{queue.DefaultQueue, "new"} {
		if n == 0 {
			w.declare(queue.Settings{TTL: time.Hour})
		}
		calls := 0
		made, err := one.Amend(w.ctx, name, func(s queue.Settings) (queue.Settings, error) {
			if calls++; calls == 1 {
				if _, err := other.Amend(w.ctx, name, func(s queue.Settings) (queue.Settings, error) {
					s.Visibility, s.Shards = time.Minute, 2-n
					return s, nil
				}); n == 1 && err != nil || n == 0 && queue.TagOf(err) != queue.BadRequest {
					t.Error(err)
				}
				if _, err := other.Amend(w.ctx, name, func(s queue.Settings) (queue.Settings, error) { s.MaxJobs = 9; return s, nil }); err != nil {
					t.Error(err)
				}
			}
			s.DedupIDs = 7
			return s, nil
		})
		want := queue.Settings{Name: name, Incarnation: uint64(n + 1), Shards: 1, MaxJobs: 9, DedupIDs: 7}
		if want.TTL = time.Hour; n == 1 {
			want.TTL, want.Visibility = 0, time.Minute
		}
		if err != nil || calls != 2 || made != want {
			t.Errorf("%d calls: %+v, %v", calls, made, err)
		}
		if set, err := other.get(w.ctx, name, 0); err != nil || *set != withDefaults(want) {
			t.Errorf("%+v, %v", set, err)
		}
	}
	before, err := one.List(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = one.Amend(w.ctx, queue.DefaultQueue, func(s queue.Settings) (queue.Settings, error) { return s, queue.Refuse(queue.BadRequest, "no") })
	wantRefusal(t, err, queue.BadRequest)
	_, err = one.Amend(w.ctx, queue.DefaultQueue, func(s queue.Settings) (queue.Settings, error) { s.MaxJobs = -1; return s, nil })
	wantRefusal(t, err, queue.BadRequest)
	_, err = one.Amend(w.ctx, "No", func(s queue.Settings) (queue.Settings, error) { return s, nil })
	wantRefusal(t, err, queue.BadRequest)
	if after, err := other.List(w.ctx); err != nil || !slices.Equal(after, before) {
		t.Errorf("%+v, %v", after, err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	for name, cfg := range map[string]Config{
		"bucket": {StoreID: "s", Owner: "o", Now: time.Now}, "store": {Bucket: bucket, Owner: "o", Now: time.Now},
		"owner": {Bucket: bucket, StoreID: "s", Now: time.Now}, "clock": {Bucket: bucket, StoreID: "s", Owner: "o"},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("a broker without its %s was made", name)
		}
	}
	w := newWorld(t, bucket)
	n := w.node("n")
	a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: "other"}, Generation: 1}, 1, "n", nil)
	if err := n.Run(w.ctx, a); err == nil {
		t.Error("a unit of no queue was served")
	}
	w.declare(queue.Settings{})
	r := n.begin(queue.DefaultQueue, 1)
	if <-r.done; r.err == nil {
		t.Error("a shard that the queue does not have was served")
	}
}

const queueJSON = `{"broker":"host:8080","brokerHeartbeat":1700000000000,"completedTotal":7,"jobs":[
 {"id":"6f1a","status":"unclaimed","payload":{"to" : "a"},"type":"mail","createdAt":1700000000000,"attempts":0},
 {"id":"6f1b","status":"in_progress","payload":[1],"heartbeat":1700000000001,"workerId":"w","createdAt":1700000000000,"attempts":2,"maxAttempts":5},
 {"id":"6f1c","status":"in_progress","payload":null,"createdAt":1700000000000,"attempts":9}]}`

func TestImport(t *testing.T) {
	t.Parallel()
	file, err := ParseOsqueue([]byte(queueJSON))
	if err != nil || len(file.Jobs) != 3 {
		t.Fatalf("%+v, %v", file, err)
	}
	got := file.Jobs
	if j := got[0]; j.ID != "6f1a" || string(j.Payload) != `{"to":"a"}` || j.Type != "mail" || got[1].Retry.MaxAttempts != 5 {
		t.Errorf("%+v", got)
	}
	_, n, _ := serving(t, queue.Settings{})
	n.enqueue(got...)
	if again := n.enqueue(got...); !again[0].Duplicate || !again[2].Duplicate {
		t.Errorf("imported again: %+v", again)
	}
	if c := n.claim(queue.ClaimRequest{Max: 3}); len(c) != 3 || string(c[2].Payload) != "null" {
		t.Errorf("%+v", c)
	}
}

func TestBadImports(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing": "", "a list": "[]", "half": queueJSON[:200], "more": queueJSON + "{}", "unknown field": `{"jobs":[],"completedTotal":0,"x":1}`, "no jobs": `{"completedTotal":0}`,
		"no total": `{"jobs":[]}`, "negative total": `{"jobs":[],"completedTotal":-1}`,
		"status":     strings.Replace(queueJSON, "unclaimed", "done", 1),
		"id":         strings.Replace(queueJSON, "6f1a", "", 1),
		"same id":    strings.Replace(queueJSON, "6f1a", "6f1b", 1),
		"attempts":   strings.Replace(queueJSON, `"attempts":0`, `"attempts":-1`, 1),
		"type":       strings.Replace(queueJSON, `"mail"`, `7`, 1),
		"fractional": strings.Replace(queueJSON, `"attempts":0`, `"attempts":0.5`, 1),
	} {
		if _, err := ParseOsqueue([]byte(text)); queue.TagOf(err) != queue.BadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseOsqueue(f *testing.F) {
	f.Add([]byte(queueJSON))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := ParseOsqueue(data)
		if err != nil {
			if queue.TagOf(err) != queue.BadRequest {
				t.Fatal(err)
			}
			return
		}
		set := withDefaults(queue.Settings{})
		for i := range file.Jobs {
			if _, err := prepare(&set, &file.Jobs[i]); err != nil {
				t.Fatalf("%+v: %v", file.Jobs[i], err)
			}
		}
	})
}

// FuzzCursor: a cursor that is accepted is one that List returns; any other is refused.
func FuzzCursor(f *testing.F) {
	f.Add(cursorOf(0, 0))
	f.Add(cursorOf(255, 1<<64-1))
	for _, text := range []string{"", "-1.2", "+1.2", "1.-2", "01.2", " 1.2", "1.2 ", "1.2x", "1", "99999999999999999999.1", "1.18446744073709551616"} {
		f.Add(base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	f.Fuzz(func(t *testing.T, text string) {
		shard, number, err := parseCursor(text)
		switch {
		case err != nil && (err.Tag != queue.BadRequest || text == ""):
			t.Fatalf("%q: %v", text, err)
		case err == nil && text != "" && (shard < 0 || cursorOf(shard, number) != text):
			t.Fatalf("%q is taken for shard %d, job %d", text, shard, number)
		}
	})
}

func FuzzToken(f *testing.F) {
	seal := newTokenCodecs([]byte("key")).Get().(*tokenCodec)
	whole := seal.encode(token{shard: 3, number: 1 << 40, epoch: 7, delivery: 9, nonce: 1 << 31}, "id")
	f.Add(whole, "id")
	f.Fuzz(func(t *testing.T, text, id string) {
		seal := newTokenCodecs([]byte("key")).Get().(*tokenCodec)
		got, ok := seal.decode(text, id)
		if ok && (text != whole || id != "id") && seal.encode(got, id) != text {
			t.Fatalf("%q is accepted as %+v", text, got)
		}
	})
}

func FuzzRegistry(f *testing.F) {
	f.Add([]byte(`{"format":1,"next_incarnation":1,"queues":[{"name":"a","shards":1,"incarnation":1,"retry":{"factor":2}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseRegistry(data)
		if err != nil {
			if _, tagged := errors.AsType[*queue.Error](err); !tagged {
				t.Fatal(err)
			}
			return
		}
		for _, q := range got.Queues {
			set := q.settings()
			if err := checkSettings(&set); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestJumpHash: every key has one shard; adding one moves few keys.
func TestJumpHash(t *testing.T) {
	t.Parallel()
	moved := 0
	count := [8]int{}
	for i := range 8000 {
		key := fmt.Sprint("key", i)
		at := shardOf(key, 8)
		count[at]++
		if next := shardOf(key, 9); next != at {
			moved++
			if next != 8 {
				t.Fatalf("%s moved from %d to %d", key, at, next)
			}
		}
	}
	for i, n := range count {
		if n < 800 || n > 1200 {
			t.Errorf("shard %d has %d of 8,000 keys", i, n)
		}
	}
	if moved < 700 || moved > 1100 {
		t.Errorf("%d keys moved", moved)
	}
}

// TestCallersShareARead: callers that need the current list at the same moment do not read it one after the other. Each has
// a list that was read after its call began.
func TestCallersShareARead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{Latency: mem.Constant(20 * time.Millisecond)})
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		r := NewRegistry(bucket, w.prefix)
		before, begun := bucket.Stats(), time.Now()
		var callers sync.WaitGroup
		for range 1000 {
			callers.Go(func() {
				if _, err := r.get(w.ctx, queue.DefaultQueue, 0); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Millisecond) // the first of them reads
		for range 1000 {
			callers.Go(func() {
				if _, err := r.get(w.ctx, queue.DefaultQueue, 0); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		reads := added(before, bucket.Stats())
		if n := reads[mem.Read] + reads[mem.ReadNewer]; n > 6 { // of the list and, when it is new, of its copy
			t.Errorf("%d reads for 2000 callers, in %s", n, time.Since(begun))
		}
		w.declare(queue.Settings{Name: "later"})
		if _, err := r.get(w.ctx, "later", 0); err != nil {
			t.Errorf("a queue that was declared before the call: %v", err)
		}
	})
}

// TestShardsIsRemembered: the number of shards is known without the lock while the list is recent, and follows what this
// process changes, and what it is told to doubt.
func TestShardsIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, bucket := t.Context(), mem.New(mem.Config{})
		r, other := NewRegistry(bucket, ""), NewRegistry(bucket, "")
		want := func(n int) {
			t.Helper()
			if got, err := r.Shards(ctx, "mail"); got != n || err != nil {
				t.Errorf("%d shards, %v, want %d", got, err, n)
			}
		}
		declare := func(r *Registry, shards int) {
			t.Helper()
			_ = r.Remove(ctx, "mail")
			if _, err := r.Declare(ctx, queue.Settings{Name: "mail", Shards: shards}); err != nil {
				t.Fatal(err)
			}
		}
		declare(r, 2)
		want(2)
		_ = r.lock(ctx)
		want(2) // at once
		r.unlock()
		declare(other, 3)
		want(2) // as every list that is up to half a minute old
		time.Sleep(invalidatedAge)
		r.Invalidate()
		want(3)
		declare(r, 4)
		want(4)
		declare(other, 5)
		time.Sleep(registryAge)
		want(5)
		if err := r.Remove(ctx, "mail"); err != nil {
			t.Fatal(err)
		}
		_, err := r.Shards(ctx, "mail")
		wantRefusal(t, err, queue.QueueNotFound)
	})
}
