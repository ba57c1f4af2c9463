package broker

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// TestRepair damages the journals of an oracle's directory, repairs them, and compares what is
// served with what was acknowledged. If only HEAD or the newest checkpoint was damaged, nothing is
// lost; otherwise only jobs that were submitted in the lost slots are.
func TestRepair(t *testing.T) {
	t.Parallel()
	o := newOracle(t)
	head, checkpoint, segment := o.needed("/one/")
	for name, c := range map[string]struct {
		key  string
		flip bool
		lost int // most ranges of slots that may be lost
	}{
		"HEAD is gone":            {head, false, 0},
		"HEAD is damaged":         {head, true, 0},
		"a checkpoint is gone":    {checkpoint, false, 0},
		"a checkpoint is damaged": {checkpoint, true, 0},
		"a segment is gone":       {segment, false, 1},
		"a segment is damaged":    {segment, true, 1},
	} {
		t.Run(name, func(t *testing.T) { o.repair(t, c.key, c.flip, c.lost) })
	}
}

// needed returns the keys of objects that a takeover of the queue's only shard reads: HEAD, a part
// of the newest checkpoint, and a segment behind it.
func (o *oracle) needed(queue string) (head, checkpoint, segment string) {
	o.t.Helper()
	bucket := o.open(o.root)
	for _, key := range o.keys {
		if strings.Contains(key, queue) && strings.HasSuffix(key, "/HEAD") {
			head = key
		}
	}
	prefix := strings.TrimSuffix(head, "HEAD")
	newest := o.head(bucket, head).Checkpoint
	parts := newest.Objects()
	checkpoint = prefix + parts[len(parts)-1].Key()
	for slot := newest.Start(); ; slot++ {
		segment = fmt.Sprintf("%slog/%020d", prefix, slot)
		object, err := bucket.Read(o.t.Context(), segment)
		if err != nil {
			o.t.Fatal(err)
		}
		if h, err := format.DecodeHeader(object.Data); err == nil && h.Records > 0 {
			return head, checkpoint, segment
		}
	}
}

// repair damages one object of a copy of the directory, repairs it, and compares.
func (o *oracle) repair(t *testing.T, key string, flip bool, lost int) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "bucket")
	if err := copyTree(o.root, root); err != nil {
		t.Fatal(err)
	}
	bucket := o.open(root)
	var err error
	if flip {
		err = edit(root, key, func(b []byte) []byte { b[len(b)/2] ^= 4; return b })
	} else {
		err = bucket.Delete(t.Context(), key)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, bucket)
	w.gen = 100
	n := w.node("repair")
	before := n.begin("one", 0)
	<-before.done
	if !isDamage(before.err) {
		t.Fatalf("before the repair of %s: %v", key, before.err)
	}
	damagedFile, _ := files(root, key)
	damaged, _ := os.ReadFile(damagedFile)
	files := o.list(bucket)
	dry, err := n.Repair(t.Context(), "one", RepairOptions{Shard: -1, RehearsalBucket: mem.New(mem.Config{})})
	if err != nil || len(dry) != 1 || !slices.Equal(o.list(bucket), files) {
		t.Fatalf("a rehearsal: %+v, %v", dry, err)
	}
	done, err := n.Repair(t.Context(), "one", RepairOptions{Shard: -1})
	if err != nil || len(done) != 1 || len(done[0].Remaining) != 0 {
		t.Fatalf("repaired: %+v, %v", done, err)
	}
	if len(done[0].Lost) != lost || len(dry[0].Lost) != lost || dry[0].Jobs != done[0].Jobs {
		t.Errorf("lost %+v; the rehearsal said %+v", done[0], dry[0])
	}
	found, err := NewRegistry(bucket, "").Verify(t.Context(), "one")
	if err != nil || len(found.Problems) != 0 {
		t.Errorf("verify: %+v, %v", found, err)
	}
	if again, err := n.Repair(t.Context(), "one", RepairOptions{Shard: -1}); err != nil || len(again) != 0 {
		t.Errorf("repaired again: %+v, %v", again, err)
	}
	if len(done[0].NotCopied) != 0 || len(done[0].CopiedRaw) != map[bool]int{true: 1}[flip] {
		t.Errorf("kept as it is: %q, not kept: %q", done[0].CopiedRaw, done[0].NotCopied)
	}
	if flip { // byte by byte
		got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(done[0].Evidence+strings.TrimPrefix(damagedFile, filepath.Join(root, filepath.FromSlash(shardOfKey(key)))))))
		if err != nil || !bytes.Equal(got, damaged) {
			t.Errorf("the damaged file is kept as %d bytes, %v", len(got), err)
		}
	}
	shard, _, _ := strings.Cut(done[0].Evidence, "evidence/")
	for _, k := range files { // readable objects are in the evidence
		if rest, ok := strings.CutPrefix(k, shard); ok && kindOf(k) != "payload" {
			_, err := bucket.Read(t.Context(), done[0].Evidence+"/"+rest)
			if raw := slices.Contains(done[0].CopiedRaw, k) && errors.Is(err, blob.ErrCorrupt); err != nil && !raw {
				t.Errorf("%s is not kept: %v", k, err)
			}
		}
	}
	if len(done[0].Lost) == 0 {
		key = ""
	}
	o.compareRepaired(t, w, key)
}

// shardOfKey returns the prefix of the journal to which an object belongs, without a slash at its
// end.
func shardOfKey(key string) string {
	return strings.Join(strings.Split(key, "/")[:5], "/")
}

// compareRepaired takes over the repaired shard and looks for every job. lost is the key of the segment
// that is lost; empty: none. Nothing may be lost but the jobs that were submitted in it, and what it
// says about others.
func (o *oracle) compareRepaired(t *testing.T, w *world, lost string) {
	t.Helper()
	concerned, content := o.jobsIn(lost)
	w.gen = 1000
	n := w.node("next")
	defer n.serve("one", 0).kill()
	var missing, back []string
	for _, id := range slices.Sorted(maps.Keys(o.live["one"])) {
		info, got, err := n.Get(w.ctx, "one", id)
		switch {
		case queue.TagOf(err) == queue.JobNotFound:
			missing = append(missing, id)
		case err != nil || string(got) != string(o.live["one"][id]) || info.State == queue.Completed:
			t.Errorf("job %s: %+v, %d bytes, %v", id, info, len(got), err)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(o.done["one"])) {
		info, _, err := n.Get(w.ctx, "one", id)
		switch {
		case err == nil && info.State == queue.Completed:
		case err == nil || queue.TagOf(err) == queue.JobNotFound:
			back = append(back, id)
		default:
			t.Errorf("job %s was completed: %v", id, err)
		}
	}
	if len(missing)+len(back) > concerned {
		t.Errorf("jobs %q are missing and the ended ones %q are not known as such; lost is the segment %s, with %d jobs:%s", missing, back, lost, concerned, content)
	}
	if _, err := n.Enqueue(w.ctx, "one", []queue.Job{{ID: "after the repair"}}); err != nil {
		t.Error(err)
	}
	if stats, err := n.Stats(w.ctx, "one"); err != nil || len(back) == 0 && stats.Waiting+stats.Active != int64(len(o.live["one"])-len(missing)+1) {
		t.Errorf("%+v, %v", stats, err)
	}
}

// jobsIn returns how many jobs the records of a segment are about, and the records as text.
func (o *oracle) jobsIn(segment string) (jobs int, content string) {
	o.t.Helper()
	if segment == "" {
		return 0, ""
	}
	object, err := o.open(o.root).Read(o.t.Context(), segment)
	if err != nil {
		o.t.Fatal(err)
	}
	s, err := format.NewCodec().Decode(object.Data)
	if err != nil {
		o.t.Fatal(err)
	}
	numbers := map[uint64]bool{}
	for _, b := range s.Batches {
		for record := range b.Records() {
			var r ledger.Record
			if err := r.Decode(record); err != nil {
				o.t.Fatal(err)
			}
			for _, number := range r.Numbers {
				numbers[number] = true
			}
			content += fmt.Sprintf(" kind %d of %d", r.Kind, r.Numbers)
		}
	}
	return len(numbers), content
}

// TestRepairAfterAnImport: a shard has got its jobs in an import, and then loses a segment, which may be the one that ended
// the import. What is in the others stays.
func TestRepairAfterAnImport(t *testing.T) {
	for lost := range 7 {
		t.Run(fmt.Sprint(lost), func(t *testing.T) { repairAfterAnImport(t, lost) })
	}
}

func repairAfterAnImport(t *testing.T, lost int) {
	bubble(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{})
		w := newWorld(t, bucket)
		w.declare(queue.Settings{Shards: 2})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		n.serve(queue.DefaultQueue, 1)
		n.enqueue(jobsWithIDs(20)...)
		n.reshard(1)
		for i := range 5 {
			n.enqueue(queue.Job{ID: fmt.Sprint("after", i)})
		}
		w.wantNoFormerObjects()
		for _, r := range n.runs {
			r.kill()
		}
		prefix := shardPrefix("", w.settings(), 0) + "/log/"
		keys := slices.DeleteFunc(bucket.Keys(), func(key string) bool { return !strings.HasPrefix(key, prefix) })
		if err := bucket.Delete(w.ctx, keys[lost]); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Repair(w.ctx, queue.DefaultQueue, RepairOptions{Shard: -1}); err != nil {
			t.Fatal(err)
		}
		n.serve(queue.DefaultQueue, 0)
		if st := n.stats(); st.Waiting < 4 { // five came with segments of their own, and one of these may be lost
			t.Errorf("without segment %d of %d, %d jobs are left", lost, len(keys), st.Waiting)
		}
	})
}
