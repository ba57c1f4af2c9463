package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/storage/blob"
)

// gate is a bucket that counts writes, and can be stopped at one of them.
type gate struct {
	blob.Bucket
	mu    sync.Mutex
	count int
	// before is called with the number of each write, from 0, and its key. If it returns an
	// error, the write is not done.
	before func(n int, key string) error
	// after is called when a write was done.
	after func(n int, key string)
}

func (g *gate) write(key string, do func() error) error {
	g.mu.Lock()
	n := g.count
	g.count++
	g.mu.Unlock()
	if g.before != nil {
		if err := g.before(n, key); err != nil {
			return err
		}
	}
	err := do()
	if g.after != nil {
		g.after(n, key)
	}
	return err
}

func (g *gate) Create(ctx context.Context, key string, data []byte) (v blob.Version, err error) {
	err = g.write(key, func() error { v, err = g.Bucket.Create(ctx, key, data); return err })
	return v, err
}

func (g *gate) Replace(ctx context.Context, key string, data []byte, old blob.Version) (v blob.Version, err error) {
	err = g.write(key, func() error { v, err = g.Bucket.Replace(ctx, key, data, old); return err })
	return v, err
}

func (g *gate) Write(ctx context.Context, key string, data []byte) (v blob.Version, err error) {
	err = g.write(key, func() error { v, err = g.Bucket.Write(ctx, key, data); return err })
	return v, err
}

func (g *gate) Delete(ctx context.Context, key string) error {
	return g.write(key, func() error { return g.Bucket.Delete(ctx, key) })
}

// inMemory copies the objects of a bucket.
func (o *oracle) inMemory(b blob.Bucket) *mem.Bucket {
	o.t.Helper()
	out := mem.New(mem.Config{})
	for _, key := range o.list(b) {
		object, err := b.Read(o.t.Context(), key)
		if err != nil {
			o.t.Fatal(err)
		}
		if _, err := out.Write(o.t.Context(), key, object.Data); err != nil {
			o.t.Fatal(err)
		}
	}
	return out
}

// TestRepairInterrupted stops a repair before and after each of its writes, lets a broker try to
// take over the shard, and repeats the repair. The result is that of an uninterrupted repair: all
// objects are in the evidence, what is lost is reported, and the broker has served nothing in
// between.
func TestRepairInterrupted(t *testing.T) {
	t.Parallel()
	o := newOracle(t)
	head, checkpoint, segment := o.needed("/one/")
	for name, c := range map[string]struct {
		key  string
		lost int
	}{"HEAD is gone": {head, 0}, "a checkpoint is damaged": {checkpoint, 0}, "a segment is gone": {segment, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			damaged := o.inMemory(o.open(o.root))
			whole, _ := damaged.Peek(c.key)
			if strings.HasSuffix(name, "gone") {
				_ = damaged.Delete(t.Context(), c.key)
			} else if _, err := damaged.Write(t.Context(), c.key, whole[:len(whole)/2]); err != nil {
				t.Fatal(err)
			}
			var copies []int // writes that only copy evidence
			counted := &gate{Bucket: o.inMemory(damaged), before: func(n int, key string) error {
				if strings.Contains(key, "/evidence/") && strings.Contains(key, "/log/") {
					mu.Lock()
					defer mu.Unlock()
					copies = append(copies, n)
				}
				return nil
			}}
			w := newWorld(t, counted)
			done, err := w.node("repair").Repair(t.Context(), "one", RepairOptions{Shard: -1})
			if err != nil || len(done) != 1 || len(done[0].Lost) != c.lost {
				t.Fatalf("%+v, %v", done, err)
			}
			for at := range counted.count {
				if slices.Contains(copies, at) && at%8 != 0 { // they are alike
					continue
				}
				for _, applied := range []bool{false, true} {
					r := interrupted{o: o, key: c.key, at: at, applied: applied, lost: c.lost, want: done[0], damaged: damaged}
					r.run(t)
				}
			}
			t.Logf("stopped at %d writes", counted.count)
		})
	}
}

// interrupted is one repair that is stopped at a write and repeated.
type interrupted struct {
	o       *oracle
	key     string
	at      int
	applied bool // stop after the write
	lost    int
	want    RepairResult
	damaged *mem.Bucket
}

func (r *interrupted) run(t *testing.T) {
	t.Helper()
	bucket := r.o.inMemory(r.damaged)
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	stopped := &gate{Bucket: bucket}
	stopped.before = func(n int, _ string) error {
		if n > r.at || n == r.at && !r.applied {
			kill()
			return context.Canceled
		}
		return nil
	}
	stopped.after = func(n int, _ string) {
		if n == r.at {
			kill()
		}
	}
	complaint := func(format string, args ...any) {
		t.Errorf("stopped at write %d (done: %t): %s", r.at, r.applied, fmt.Sprintf(format, args...))
	}
	_, err := newWorld(t, stopped).node("repair-1").Repair(ctx, "one", RepairOptions{Shard: -1})
	w := newWorld(t, bucket)
	w.gen = 100
	n := w.node("between")
	between := n.begin("one", 0)
	served := false
	select {
	case <-between.done:
		if !isDamage(between.err) && !errors.Is(between.err, journal.ErrGeneration) {
			complaint("a broker ended with %v", between.err)
		}
	case <-between.a.ReadyDone():
		served = true
		between.drain(t)
	case <-time.After(time.Minute):
		t.Fatal("the takeover hangs")
	}
	again, err2 := w.node("repair-2").Repair(t.Context(), "one", RepairOptions{Shard: -1})
	switch {
	case err2 != nil:
		complaint("the first repair: %v; repeated: %v", err, err2)
		return
	case len(again) == 0 && !served:
		complaint("a broker was refused with %v, and the repair finds nothing to do", between.err)
	case len(again) == 1 && (again[0].Jobs != r.want.Jobs || len(again[0].Remaining) != 0 || len(again[0].Lost) != r.lost && !served):
		complaint("repeated: %+v, want %+v", again[0], r.want)
	}
	if found, err := NewRegistry(bucket, "").Verify(t.Context(), "one"); err != nil || len(found.Problems) != 0 {
		complaint("verify: %+v, %v", found, err)
	}
	r.evidence(bucket, complaint)
	lost := ""
	if r.lost > 0 {
		lost = r.key
	}
	r.o.compareRepaired(t, newWorld(t, bucket), lost)
}

// evidence checks that every object was copied, and that what is lost is reported.
func (r *interrupted) evidence(bucket *mem.Bucket, complaint func(string, ...any)) {
	shard := shardOfKey(r.key) + "/"
	lost := false
	for _, key := range bucket.Keys() {
		if rest, ok := strings.CutPrefix(key, shard+"evidence/"); ok && strings.HasSuffix(rest, "/report.json") {
			data, _ := bucket.Peek(key)
			var report RepairResult
			if err := json.Unmarshal(data, &report); err != nil {
				complaint("%s: %v", key, err)
			}
			lost = lost || slices.ContainsFunc(report.Lost, func(l LostSlots) bool { return strings.HasSuffix(r.key, fmt.Sprint("/", fmt.Sprintf("%020d", l.From))) })
		}
	}
	if lost != (r.lost > 0) {
		complaint("a report of what is lost: %t", lost)
	}
	for _, key := range r.damaged.Keys() {
		rest, ok := strings.CutPrefix(key, shard)
		if !ok || kindOf(key) == "payload" || rest == "HEAD" && r.at == 0 && !r.applied { // the broker has changed it
			continue
		}
		was, _ := r.damaged.Peek(key)
		if !slices.ContainsFunc(bucket.Keys(), func(k string) bool {
			kept, _ := bucket.Peek(k)
			return strings.HasPrefix(k, shard+"evidence/") && strings.HasSuffix(k, "/"+rest) && bytes.Equal(kept, was)
		}) {
			complaint("%s is not kept as it was", key)
		}
	}
}

// TestRepairBesideABroker: a broker that serves the shard acknowledges nothing more once a repair
// has begun. What it acknowledged before is there, except what is in the damaged segment.
func TestRepairBesideABroker(t *testing.T) {
	t.Parallel()
	w, n, r := serving(t, queue.Settings{})
	bucket := w.bucket.(*mem.Bucket)
	var acked []string
	enqueue := func(id string) error {
		_, err := n.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: id, Payload: []byte(id)}})
		if err == nil {
			acked = append(acked, id)
		}
		return err
	}
	for i := range 30 {
		if err := enqueue(fmt.Sprint("before-", i)); err != nil {
			t.Fatal(err)
		}
	}
	var segment string
	for _, key := range bucket.Keys() {
		if data, _ := bucket.Peek(key); strings.Contains(key, "/log/") && bytes.Contains(data, []byte("before-15")) {
			segment = key
		}
	}
	if err := bucket.Delete(w.ctx, segment); err != nil || segment == "" {
		t.Fatal(segment, err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = enqueue(fmt.Sprint("beside-", i))
			}
		}
	}()
	done, err := w.node("repair").Repair(w.ctx, queue.DefaultQueue, RepairOptions{Shard: -1})
	if err != nil || len(done) != 1 || len(done[0].Lost) != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		t.Fatal("the broker runs on")
	}
	close(stop)
	<-stopped
	if !errors.Is(r.err, journal.ErrFenced) {
		t.Errorf("the broker ended with %v", r.err)
	}
	if err := enqueue("after"); err == nil {
		t.Error("the fenced broker acknowledges a job")
	}
	w.gen = 100
	next := w.node("next")
	next.serve(queue.DefaultQueue, 0)
	for _, id := range acked {
		if _, _, err := next.Get(w.ctx, queue.DefaultQueue, id); (err != nil) != (id == "before-15") {
			t.Errorf("job %s of %d: %v", id, len(acked), err)
		}
	}
}

// TestBrokerBesideARepair: at every step of a repair, a broker that is assigned the shard is
// refused, changes nothing, and reports the reason. So is a first repair after a second one has
// begun.
func TestBrokerBesideARepair(t *testing.T) {
	t.Parallel()
	o := newOracle(t)
	_, _, segment := o.needed("/one/")
	bucket := o.inMemory(o.open(o.root))
	if err := bucket.Delete(t.Context(), segment); err != nil {
		t.Fatal(err)
	}
	shard := shardOfKey(segment)
	waits, goOn := make(chan string), make(chan struct{})
	slow := &gate{Bucket: bucket, before: func(_ int, key string) error {
		if strings.Contains(key, "/evidence/") && strings.Contains(key, "/log/") || strings.Contains(key, "/ckpt/") || strings.HasSuffix(key, "/report.json") {
			waits <- key
			<-goOn
		}
		return nil
	}}
	type result struct {
		done []RepairResult
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		done, err := newWorld(t, slow).node("repair").Repair(t.Context(), "one", RepairOptions{Shard: -1})
		ended <- result{done, err}
	}()
	w := newWorld(t, bucket)
	w.gen = 100
	tried := map[string]bool{}
	for {
		select {
		case key := <-waits:
			kind := key[len(shard)+1:][:4]
			if tried[kind] {
				goOn <- struct{}{}
				continue
			}
			tried[kind] = true
			before, _ := bucket.Peek(shard + "/HEAD")
			before = bytes.Clone(before)
			n := w.node(fmt.Sprint("n", w.gen))
			n.damagedWait = time.Hour
			r := n.begin("one", 0)
			r.ready(t)
			if _, err := n.Enqueue(w.ctx, "one", jobsWithIDs(1)); queue.TagOf(err) != queue.Damaged {
				t.Errorf("at %s: a caller is told %v", key, err)
			}
			if r.kill(); !errors.Is(r.err, journal.ErrRepairing) || !isDamage(r.err) {
				t.Errorf("at %s: the broker ended with %v", key, r.err)
			}
			if now, _ := bucket.Peek(shard + "/HEAD"); !bytes.Equal(before, now) {
				t.Errorf("at %s: the broker has changed HEAD", key)
			}
			goOn <- struct{}{}
			continue
		case r := <-ended:
			if r.err != nil || len(r.done) != 1 || len(r.done[0].Lost) != 1 {
				t.Fatalf("%+v, %v", r.done, r.err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the repair hangs")
		}
		break
	}
	if !tried["evid"] || !tried["ckpt"] {
		t.Errorf("tried at %v", tried)
	}
	o.compareRepaired(t, w, segment)
}

// TestTwoRepairs: the second one continues what the first one has begun, and the first one ends.
func TestTwoRepairs(t *testing.T) {
	t.Parallel()
	o := newOracle(t)
	_, _, segment := o.needed("/one/")
	bucket := o.inMemory(o.open(o.root))
	if err := bucket.Delete(t.Context(), segment); err != nil {
		t.Fatal(err)
	}
	waits, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := &gate{Bucket: bucket, before: func(_ int, key string) error {
		if strings.HasSuffix(key, "/report.json") {
			once.Do(func() { waits <- struct{}{}; <-goOn })
		}
		return nil
	}}
	ended := make(chan error, 1)
	go func() {
		_, err := newWorld(t, slow).node("one").Repair(t.Context(), "one", RepairOptions{Shard: -1})
		ended <- err
	}()
	<-waits
	second, err := newWorld(t, bucket).node("two").Repair(t.Context(), "one", RepairOptions{Shard: -1})
	if err != nil || len(second) != 1 || len(second[0].Lost) != 1 {
		t.Errorf("the second: %+v, %v", second, err)
	}
	close(goOn)
	if err := <-ended; !errors.Is(err, journal.ErrFenced) {
		t.Errorf("the first: %v", err)
	}
	w := newWorld(t, bucket)
	o.compareRepaired(t, w, segment)
}

// TestRepairKeepsWhatCannotBeRead: a file that the file system cannot read is reported by Verify,
// prevents only its shard from being served, and a repair copies it as it is. A file that may not
// be read is not given up.
func TestRepairKeepsWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	o := newOracle(t)
	_, _, segment := o.needed("/one/")
	root := filepath.Join(t.TempDir(), "bucket")
	if err := copyTree(o.root, root); err != nil {
		t.Fatal(err)
	}
	path, _ := files(root, segment)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(path), path); err != nil { // a link to itself: it cannot be opened
		t.Fatal(err)
	}
	bucket := o.open(root)
	found, err := NewRegistry(bucket, "").Verify(t.Context(), "")
	if err != nil || !slices.ContainsFunc(found.Problems, func(p Problem) bool { return p.Object == segment && p.What == "damaged" && p.Lost }) {
		t.Fatalf("%+v, %v", found, err)
	}
	w := newWorld(t, bucket)
	w.gen = 100
	n := w.node("n1")
	n.serve("two", 0)
	r := n.begin("one", 0)
	<-r.done
	if !isDamage(r.err) {
		t.Errorf("the broker ended with %v", r.err)
	}
	done, err := w.node("repair").Repair(t.Context(), "one", RepairOptions{Shard: -1})
	if err != nil || len(done) != 1 || !slices.Equal(done[0].CopiedRaw, []string{segment}) || len(done[0].NotCopied) != 0 || len(done[0].Lost) != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	kept := filepath.Join(root, filepath.FromSlash(done[0].Evidence+strings.TrimPrefix(segment, shardOfKey(segment))))
	if to, err := os.Readlink(kept); err != nil || to != filepath.Base(path) {
		t.Errorf("it is kept as %q, %v", to, err)
	}
	o.compareRepaired(t, w, segment)
}

// denying is a bucket that denies reading one object.
type denying struct {
	blob.Bucket
	key string
}

func (d *denying) Read(ctx context.Context, key string) (*blob.Object, error) {
	if key == d.key {
		return nil, &blob.Error{Op: "read", Key: key, Kind: blob.ErrDenied}
	}
	return d.Bucket.Read(ctx, key)
}

// TestRepairOfWhatMayNotBeRead: an object that may not be read may be whole, so nothing is given up
// and nothing is written.
func TestRepairOfWhatMayNotBeRead(t *testing.T) {
	t.Parallel()
	o := newOracle(t)
	_, _, segment := o.needed("/one/")
	bucket := &gate{Bucket: &denying{Bucket: o.inMemory(o.open(o.root)), key: segment}}
	found, err := NewRegistry(bucket, "").Verify(t.Context(), "")
	if err != nil || len(found.Problems) != 1 || found.Problems[0].Object != segment || found.Problems[0].What != "denied" {
		t.Fatalf("%+v, %v", found, err)
	}
	done, err := newWorld(t, bucket).node("repair").Repair(t.Context(), "one", RepairOptions{Shard: -1})
	if !errors.Is(err, blob.ErrDenied) || len(done) != 0 || bucket.count != 0 {
		t.Errorf("%+v, %v after %d writes", done, err, bucket.count)
	}
}

// TestRepairOfOneShard: shards that are served are left alone, damaged or not; a damaged shard is
// repaired beside them.
func TestRepairOfOneShard(t *testing.T) {
	t.Parallel()
	o := newOracle(t)
	bucket := o.inMemory(o.open(o.root))
	w := newWorld(t, bucket)
	w.gen = 100
	n := w.node("n1")
	served := n.serve("two", 0)
	var lost []string
	for shard := range 2 { // the first segment with records behind the newest checkpoint
		at := shardPrefix("", &o.queues[0], shard)
		start := o.head(bucket, at+"/HEAD").Checkpoint.Start()
		for _, key := range bucket.Keys() {
			rest, ok := strings.CutPrefix(key, at+"/")
			slot, isSlot := format.ParseSlotKey(rest)
			data, _ := bucket.Peek(key)
			if h, err := format.DecodeHeader(data); ok && isSlot && slot >= start && err == nil && h.Records > 0 {
				lost = append(lost, key)
				_ = bucket.Delete(w.ctx, key)
				break
			}
		}
	}
	refused := n.begin("two", 1)
	<-refused.done
	if !isDamage(refused.err) {
		t.Fatalf("shard 1: %v", refused.err)
	}
	requested := map[int]int64{}
	how := RepairOptions{Shard: -1, Served: func(_ context.Context, shard int, generation int64) (bool, error) {
		requested[shard] = generation
		return generation == 101, nil // of the run that serves shard 0
	}}
	done, err := w.node("repair").Repair(w.ctx, "two", how)
	if err != nil || len(done) != 2 || !done[0].Served || done[0].Evidence != "" || done[1].Served || len(done[1].Lost) != 1 {
		t.Fatalf("lost %q, asked for %v: %+v, %v", lost, requested, done, err)
	}
	if _, whether := requested[1]; whether {
		t.Error("shard 1 has no owner, and it was asked whether that one is alive")
	}
	if st, err := n.Stats(queue.OnShards(w.ctx, []int{0}, 0), "two"); err != nil || st.Waiting == 0 {
		t.Errorf("shard 0: %+v, %v", st, err)
	}
	select {
	case <-served.done:
		t.Errorf("shard 0 ended with %v", served.err)
	default:
	}
	w.gen = 1000
	n.serve("two", 1)
}

// TestRepairOfALostHead: a broker cannot bring its HEAD back, and afterwards its node still has the shard, under the same
// generation. So the shard is repaired whatever the node does. Nothing is lost, and the former owner acknowledges nothing more.
func TestRepairOfALostHead(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	w := newWorld(t, bucket)
	w.declare(queue.Settings{})
	n := w.node("n1")
	n.serve(queue.DefaultQueue, 0)
	n.enqueue(jobsWithIDs(3)...)
	for _, key := range bucket.Keys() {
		if strings.HasSuffix(key, "/HEAD") {
			_ = bucket.Delete(w.ctx, key)
		}
	}
	how := RepairOptions{Shard: -1, Served: func(context.Context, int, int64) (bool, error) { return true, nil }}
	done, err := w.node("repair").Repair(w.ctx, queue.DefaultQueue, how)
	if err != nil || len(done) != 1 || done[0].Served || done[0].Head == "" || done[0].Jobs != 3 || len(done[0].Lost) != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	if got, err := n.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{ID: "late"}}); err == nil {
		t.Errorf("the former owner acknowledges %+v", got)
	}
	w.gen = 100
	second := w.node("n2")
	second.serve(queue.DefaultQueue, 0)
	if st := second.stats(); st.Waiting != 3 {
		t.Errorf("afterwards: %+v", st)
	}
}
