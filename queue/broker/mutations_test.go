package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/dir"
)

// TestMutations damages one object of the directory of a queue that is in use, takes the queue over, and
// compares it with what was acknowledged: each shard has exactly that, or is refused, and Verify names the
// object. All of it comes from a seed:
//
//	EMITD_TEST_MUTATIONS=200 EMITD_TEST_SEED=7 go test -run 'TestMutations$' -v ./queue/broker
func TestMutations(t *testing.T) {
	t.Parallel()
	count, seed := number("EMITD_TEST_MUTATIONS", 40), uint64(number("EMITD_TEST_SEED", 1))
	o := newOracle(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	table := map[string]*[4]int{}
	for n := range count {
		m := o.mutation(rng)
		verdict := o.try(m, filepath.Join(t.TempDir(), "bucket"))
		line := kindOf(m.key)
		if o.idle[m.key] {
			line += ", of no use any more"
		}
		line = fmt.Sprintf("%-9s %s", m.kind, line)
		if table[line] == nil {
			table[line] = new([4]int)
		}
		row := table[line]
		row[0]++
		switch {
		case verdict.wrong != "":
			t.Errorf("mutation %d, %s of %s (%s): %s", n+1, m.kind, m.key, m.other, verdict.wrong)
		case !verdict.named && o.idle[m.key] && m.kind == "delete":
			row[3]++
		case !verdict.named:
			t.Errorf("mutation %d, %s of %s (%s): nothing was lost, and Verify does not name it", n+1, m.kind, m.key, m.other)
		case verdict.refused:
			row[1]++
		default:
			row[2]++
		}
	}
	t.Logf("%-46s %5s %8s %7s %9s", "mutation of one object", "tried", "refused", "served", "traceless")
	for _, line := range slices.Sorted(maps.Keys(table)) {
		row := table[line]
		t.Logf("%-46s %5d %8d %7d %9d", line, row[0], row[1], row[2], row[3])
	}
}

func number(name string, standard int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return standard
}

// kindOf names the kind of an object.
func kindOf(key string) string {
	switch {
	case key == "v1/queues":
		return "list of queues"
	case key == "v1/queues.copy":
		return "copy of the list"
	case strings.HasSuffix(key, "/HEAD"):
		return "HEAD"
	case strings.Contains(key, "/log/"):
		return "segment"
	case strings.Contains(key, "/ckpt/"):
		return "checkpoint"
	case strings.Contains(key, "/heads/"):
		return "copy of HEAD"
	}
	return "payload"
}

// oracle is a directory of queues in use, with a record of what was acknowledged.
type oracle struct {
	t      *testing.T
	root   string
	keys   []string
	older  map[string][][]byte // earlier versions of objects that are replaced
	idle   map[string]bool     // objects on which nothing depends any more: their absence leaves no trace
	queues []queue.Settings
	live   map[string]map[string][]byte // queue, job: payload
	done   map[string]map[string]bool   // completed jobs, by queue
}

// newOracle creates the directory. Its brokers end without a close, after everything was
// acknowledged, all marks were written, and no checkpoint is due. So nothing changes the directory
// from then on.
func newOracle(t *testing.T) *oracle {
	t.Helper()
	o := &oracle{
		t: t, root: filepath.Join(t.TempDir(), "live"), older: map[string][][]byte{},
		live: map[string]map[string][]byte{}, done: map[string]map[string]bool{},
	}
	bucket := &signalling{Bucket: o.open(o.root), written: make(chan struct{}, 1)}
	w := newWorld(t, bucket)
	o.queues = []queue.Settings{w.declare(queue.Settings{Name: "two", Shards: 2})}
	o.keepOlder()
	o.queues = append(o.queues, w.declare(queue.Settings{Name: "one", Shards: 1}))
	var runs []*run
	var last *node
	var worked atomic.Bool
	for epoch := range 3 {
		n := w.node(fmt.Sprint("n", epoch))
		n.markPause, last = 50*time.Millisecond, n
		n.checkpointDue = func(l *journal.Log, _ int64) bool { return !worked.Load() && l.Stats().Slots >= 12 }
		for i, r := range runs {
			if epoch == 1 && i%2 == 0 {
				r.drain(t)
			} else {
				r.kill()
			}
		}
		runs = nil
		for _, set := range o.queues {
			for shard := range set.Shards {
				runs = append(runs, n.serve(set.Name, shard))
			}
			for round := range 25 {
				o.work(n, set.Name, epoch*1000+round*10)
				if round%10 == 0 {
					o.keepOlder()
				}
			}
		}
		o.keepOlder()
	}
	worked.Store(true)
	for _, set := range o.queues { // what no checkpoint covers
		for round := range 4 {
			o.work(last, set.Name, 9000+round*10)
		}
	}
	o.untilMarked(bucket)
	for _, r := range runs {
		r.kill()
	}
	o.keys = o.list(bucket)
	o.findIdle(bucket)
	return o
}

// findIdle finds the objects to which nothing refers any more: what is older than the previous
// checkpoint, all copies of HEAD except the newest, and the marks at the ends of the logs.
func (o *oracle) findIdle(b blob.Bucket) {
	o.t.Helper()
	o.idle = map[string]bool{}
	copies := map[string]string{}
	for _, key := range o.keys {
		if shard, _, ok := strings.Cut(key, "/heads/"); ok {
			if before := copies[shard]; before != "" {
				o.idle[before] = true
			}
			copies[shard] = key
		}
		shard, rest, ok := strings.Cut(key, "/log/")
		if !ok {
			continue
		}
		head := o.head(b, shard+"/HEAD")
		slot, _ := strconv.ParseUint(rest, 10, 64)
		next := fmt.Sprintf("%s/log/%020d", shard, slot+1)
		segment, err := b.Read(o.t.Context(), key)
		if err != nil {
			o.t.Fatal(err)
		}
		h, _ := format.DecodeHeader(segment.Data)
		o.idle[key] = slot < head.Previous.Start() && !o.kept(b, shard, head)[slot] || h.Records == 0 && !h.Fence && !slices.Contains(o.keys, next)
	}
}

// kept returns the slots to which the checkpoints of a journal refer.
func (o *oracle) kept(b blob.Bucket, shard string, head format.Head) map[uint64]bool {
	o.t.Helper()
	all := map[uint64]bool{}
	for _, c := range []format.Checkpoint{head.Checkpoint, head.Previous} {
		if c.Kept == 0 {
			continue
		}
		list, err := b.Read(o.t.Context(), shard+"/"+format.PartKey(c, -1))
		if err != nil {
			o.t.Fatal(err)
		}
		s, err := format.NewCodec().Decode(list.Data)
		if err != nil {
			o.t.Fatal(err)
		}
		slots, err := owner.KeptSlots(s, c.Kept)
		if err != nil {
			o.t.Fatal(err)
		}
		for _, slot := range slots {
			all[slot] = true
		}
	}
	return all
}

func (o *oracle) open(path string) *dir.Bucket {
	o.t.Helper()
	b, err := dir.Open(dir.Config{Path: path, NoSync: true})
	if err != nil {
		o.t.Fatal(err)
	}
	return b
}

// work submits some jobs and completes some.
func (o *oracle) work(n *node, name string, from int) {
	o.t.Helper()
	if o.live[name] == nil {
		o.live[name], o.done[name] = map[string][]byte{}, map[string]bool{}
	}
	jobs := make([]queue.Job, 3)
	for i := range jobs {
		payload := []byte(fmt.Sprint("payload ", name, from+i))
		switch {
		case from%100 == 50 && i == 0: // an object of its own
			payload = bytes.Repeat(payload, queue.InlinePayload/8)
		case from%20 == 0: // it stays in the segment
			payload = bytes.Repeat(payload, ledger.SmallPayload/8)
		}
		jobs[i] = queue.Job{ID: fmt.Sprint("j", from+i), Payload: payload}
	}
	if _, err := n.Enqueue(n.w.ctx, name, jobs); err != nil {
		o.t.Fatal(err)
	}
	for _, j := range jobs {
		o.live[name][j.ID] = j.Payload
	}
	got, err := n.Claim(n.w.ctx, name, queue.ClaimRequest{Worker: "w", Max: 1})
	if err != nil || len(got) != 1 {
		o.t.Fatalf("claimed %v, %v", got, err)
	}
	out, err := n.Settle(n.w.ctx, name, []queue.Settlement{{Verb: queue.Complete, ID: got[0].Job.ID, Token: got[0].Token}})
	if err != nil || out[0].Err != nil {
		o.t.Fatal(err, out)
	}
	delete(o.live[name], got[0].Job.ID)
	o.done[name][got[0].Job.ID] = true
}

// files returns the file of an object in its current and its next version, and all of its files.
func files(root, key string) (current string, all []string) {
	path := filepath.Join(root, filepath.FromSlash(key))
	current, all = path, []string{path}
	entries, _ := os.ReadDir(path + "@")
	top := 0
	for _, e := range entries {
		all = append(all, filepath.Join(path+"@", e.Name()))
		_, n, _ := strings.Cut(e.Name(), "-")
		if v, _ := strconv.Atoi(n); v > top {
			top, current = v, filepath.Join(path+"@", e.Name())
		}
	}
	return current, all
}

// keepOlder copies the current versions of objects that are replaced.
func (o *oracle) keepOlder() {
	o.t.Helper()
	for _, key := range o.list(o.open(o.root)) {
		if kind := kindOf(key); kind != "HEAD" && !strings.Contains(kind, "list") {
			continue
		}
		object, err := o.open(o.root).Read(o.t.Context(), key)
		if err != nil {
			o.t.Fatal(err)
		}
		if known := o.older[key]; len(known) == 0 || !bytes.Equal(known[len(known)-1], object.Data) {
			o.older[key] = append(known, object.Data)
		}
	}
}

func (o *oracle) list(b blob.Bucket) (keys []string) {
	o.t.Helper()
	page, err := b.List(o.t.Context(), "v1/", "", 0)
	for ; err == nil; page, err = b.List(o.t.Context(), "v1/", keys[len(keys)-1], 0) {
		for _, e := range page.Entries {
			keys = append(keys, e.Key)
		}
		if !page.More {
			return keys
		}
	}
	o.t.Fatal(err)
	return nil
}

// signalling is a bucket that says when something was written.
type signalling struct {
	blob.Bucket
	written chan struct{}
}

func (b *signalling) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	defer b.signal()
	return b.Bucket.Create(ctx, key, data)
}

func (b *signalling) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	defer b.signal()
	return b.Bucket.Replace(ctx, key, data, old)
}

func (b *signalling) Delete(ctx context.Context, key string) error {
	defer b.signal()
	return b.Bucket.Delete(ctx, key)
}

func (b *signalling) signal() {
	select {
	case b.written <- struct{}{}:
	default: // the last signal was not received yet
	}
}

// untilMarked waits until every journal has a mark behind its last segment or a HEAD that covers it,
// and no object belongs to an unfinished checkpoint or is about to be deleted.
func (o *oracle) untilMarked(b *signalling) {
	o.t.Helper()
	for deadline := time.After(time.Minute); ; {
		keys := o.list(b)
		marked := 0
		for _, key := range keys {
			if prefix, ok := strings.CutSuffix(key, "HEAD"); ok && o.marked(b, keys, prefix) {
				marked++
			}
		}
		if marked == 3 {
			return
		}
		select {
		case <-b.written:
		case <-deadline:
			o.t.Fatalf("not marked: %v", keys)
		}
	}
}

// marked reports whether the journal below the prefix is at rest.
func (o *oracle) marked(b blob.Bucket, keys []string, prefix string) bool {
	o.t.Helper()
	var newest string
	var checkpoints []string
	for _, key := range keys {
		rest, _ := strings.CutPrefix(key, prefix)
		switch {
		case strings.HasPrefix(rest, "log/"):
			newest = max(newest, key)
		case strings.HasPrefix(rest, format.CkptPrefix):
			checkpoints = append(checkpoints, rest)
		}
	}
	if newest == "" {
		return false
	}
	head := o.head(b, prefix+"HEAD")
	named := slices.Concat(head.Checkpoint.Objects(), head.Previous.Objects())
	for _, c := range []format.Checkpoint{head.Checkpoint, head.Previous} {
		if c.Kept > 0 {
			named = append(named, format.Run{Slot: c.Slot, ID: c.ID, Part: -1})
		}
	}
	for _, part := range named {
		checkpoints = slices.DeleteFunc(checkpoints, func(key string) bool { return key == part.Key() })
	}
	segment, err := b.Read(o.t.Context(), newest)
	if errors.Is(err, blob.ErrNotFound) {
		return false // deleted since it was listed: there is a newer one
	}
	if err != nil {
		o.t.Fatal(err)
	}
	h, err := format.DecodeHeader(segment.Data)
	slot, _ := strconv.ParseUint(newest[strings.LastIndex(newest, "/")+1:], 10, 64)
	covered := h.Records == 0 || head.AckedBelow > slot // a checkpoint that ended last has written HEAD
	return err == nil && covered && len(checkpoints) == 0
}

// head reads the HEAD of a journal.
func (o *oracle) head(b blob.Bucket, key string) format.Head {
	o.t.Helper()
	object, err := b.Read(o.t.Context(), key)
	if err != nil {
		o.t.Fatal(err)
	}
	head, err := format.DecodeHead(object.Data)
	if err != nil {
		o.t.Fatal(err)
	}
	return head
}

// mutation is a change of one object.
type mutation struct {
	kind, key, other string
	do               func(root string) error
}

// mutation returns a random mutation; each kind of object is equally likely.
func (o *oracle) mutation(rng *rand.Rand) mutation {
	byKind := map[string][]string{}
	for _, key := range o.keys {
		byKind[kindOf(key)] = append(byKind[kindOf(key)], key)
	}
	kinds := slices.Sorted(maps.Keys(byKind))
	kind := kinds[rng.IntN(len(kinds))]
	keys := byKind[kind]
	m := mutation{key: keys[rng.IntN(len(keys))]}
	at := rng.Float64()
	switch choice := rng.IntN(5); {
	case choice == 0:
		m.kind = "flip"
		m.do = func(root string) error {
			return edit(root, m.key, func(b []byte) []byte { b[int(at*float64(len(b)))] ^= 1 << rng.IntN(8); return b })
		}
	case choice == 1:
		m.kind = "truncate"
		m.do = func(root string) error {
			return edit(root, m.key, func(b []byte) []byte { return b[:int(at*float64(len(b)))] })
		}
	case choice == 2 || choice == 4 && len(o.older[m.key]) < 2:
		m.kind = "delete"
		m.do = func(root string) (err error) {
			_, all := files(root, m.key)
			for _, f := range all {
				err = os.Remove(f)
			}
			return err
		}
	case choice == 4:
		older := o.older[m.key][rng.IntN(len(o.older[m.key])-1)]
		m.kind = "older"
		m.do = func(root string) error {
			_, err := o.open(root).Write(context.Background(), m.key, older)
			return err
		}
	default:
		m.kind, m.other = "swap", m.key
		for m.other == m.key {
			pool := keys
			if len(keys) == 1 {
				pool = o.keys
			}
			m.other = pool[rng.IntN(len(pool))]
		}
		m.do = func(root string) error { return o.swap(root, m.key, m.other) }
	}
	return m
}

// edit changes the bytes of an object's file.
func edit(root, key string, change func([]byte) []byte) error {
	current, _ := files(root, key)
	data, err := os.ReadFile(current)
	if err != nil {
		return err
	}
	_ = os.Remove(current) // it may be read-only
	return os.WriteFile(current, change(data), 0o600)
}

func (o *oracle) swap(root, a, b string) error {
	bucket, ctx := o.open(root), context.Background()
	x, err := bucket.Read(ctx, a)
	if err != nil {
		return err
	}
	y, err := bucket.Read(ctx, b)
	if err != nil {
		return err
	}
	if _, err := bucket.Write(ctx, a, y.Data); err != nil {
		return err
	}
	_, err = bucket.Write(ctx, b, x.Data)
	return err
}

// verdict is the result of a mutation.
type verdict struct {
	named, refused bool
	wrong          string
}

// try mutates a copy of the directory, verifies it, takes over all shards and compares.
func (o *oracle) try(m mutation, root string) (v verdict) {
	o.t.Helper()
	if err := copyTree(o.root, root); err != nil {
		o.t.Fatal(err)
	}
	defer os.RemoveAll(root)
	if err := m.do(root); err != nil {
		o.t.Fatalf("%s of %s: %v", m.kind, m.key, err)
	}
	bucket := o.open(root)
	found, err := NewRegistry(bucket, "").Verify(o.t.Context(), "")
	if err != nil {
		v.wrong = "verify: " + err.Error()
		return v
	}
	named := map[string]bool{}
	for _, p := range found.Problems {
		named[p.Object] = true
	}
	v.named = named[m.key] && (m.other == "" || named[m.other] || kindOf(m.other) != kindOf(m.key))
	if m.kind == "swap" { // of two exchanged segments, the first one that does not fit is reported
		v.named = named[m.key] || named[m.other]
	}
	w := newWorld(o.t, bucket)
	w.gen = 100
	n := w.node("next")
	defer func() {
		for _, r := range n.runs {
			r.kill()
		}
	}()
	for _, set := range o.queues {
		served := map[int]bool{}
		for shard := range set.Shards {
			r := n.begin(set.Name, shard)
			select {
			case <-r.a.ReadyDone():
				served[shard] = true
			case <-r.done:
				v.refused = true
				if !isDamage(r.err) {
					v.wrong = fmt.Sprintf("shard %d of %s ended with %v", shard, set.Name, r.err)
					return v
				}
				if !slices.ContainsFunc(found.Problems, func(p Problem) bool { return p.Queue == set.Name && p.Shard == shard }) {
					v.wrong = fmt.Sprintf("shard %d of %s was refused, and Verify finds nothing: %v", shard, set.Name, r.err)
					return v
				}
			case <-time.After(time.Minute):
				v.wrong = "the takeover hangs"
				return v
			}
		}
		if v.wrong = o.compare(n, set, served, named); v.wrong != "" {
			return v
		}
	}
	return v
}

// compare returns the differences between the served shards and what was acknowledged.
func (o *oracle) compare(n *node, set queue.Settings, served map[int]bool, named map[string]bool) string {
	for id, payload := range o.live[set.Name] {
		shard := shardOf(id, set.Shards)
		if !served[shard] {
			if _, _, err := n.Get(n.w.ctx, set.Name, id); err == nil {
				return fmt.Sprintf("job %s of the refused shard %d is there", id, shard)
			}
			continue
		}
		info, got, err := n.Get(n.w.ctx, set.Name, id)
		switch {
		case err == nil && bytes.Equal(got, payload):
		case len(payload) > ledger.SmallPayload && (err == nil && got == nil || queue.TagOf(err) == queue.Unavailable):
			kind := "payload"
			if len(payload) <= queue.InlinePayload {
				kind = "segment"
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(named)), func(key string) bool { return kindOf(key) == kind }) {
				return fmt.Sprintf("the payload of job %s cannot be read (%v), and Verify names none", id, err)
			}
		default:
			return fmt.Sprintf("job %s of %s was acknowledged and is now %+v with a payload of %d bytes (%v)", id, set.Name, info, len(got), err)
		}
	}
	for id := range o.done[set.Name] {
		if !served[shardOf(id, set.Shards)] {
			continue
		}
		if info, _, err := n.Get(n.w.ctx, set.Name, id); err != nil || info.State != queue.Completed {
			return fmt.Sprintf("job %s of %s was completed and is now %+v (%v)", id, set.Name, info, err)
		}
	}
	return ""
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
}
