package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon/queue/journal"
	"github.com/emitd/emitd/daemon/queue/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// LostSlots is a range of slots of a shard's log without which it goes on.
type LostSlots struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"` // inclusive
	Why  string `json:"why"`
}

// Repaired says what the repair of a shard did, or would do.
type Repaired struct {
	Queue string `json:"queue"`
	Shard int    `json:"shard"`
	// Served: a broker serves the shard, so nothing was done. It knows everything that was acknowledged, and
	// its checkpoints replace what is damaged.
	Served   bool        `json:"served"`
	Problems []Problem   `json:"problems"` // that were there before
	Lost     []LostSlots `json:"lost"`
	// Void counts the records behind the lost slots that have no effect: they are about jobs that are
	// lost, or submit a job again whose end was lost.
	// A fence that is lost no longer says which segments behind it were never acknowledged: they may count,
	// and then what follows may be void.
	Void int `json:"void"`
	Jobs int `json:"jobs"` // that are there now
	// Head and Checkpoint say from what they were restored; empty: they were not damaged.
	Head       string `json:"head,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	// Evidence is the prefix under which all objects of the shard were kept as they were. Of the objects
	// Raw, which cannot be read, it has what the store has of them; of the objects Unread, nothing.
	Evidence string    `json:"evidence"`
	Raw      []string  `json:"raw"`
	Unread   []string  `json:"unread"`
	Left     []Problem `json:"left"` // that are there still: payloads, for instance
}

// RepairOptions say what is repaired, and how.
type RepairOptions struct {
	Shard int // only this one; -1: all that are damaged
	// Scratch is a bucket in which copies are repaired instead, and nothing else is written: that says what
	// would happen.
	Scratch blob.Bucket
	// Served reports whether a broker serves a shard under a generation. nil: none does.
	Served func(ctx context.Context, shard int, generation int64) (bool, error)
}

// Repair makes the damaged journals of a queue whole again, of all shards or of one, without
// what is lost for good: segments that are missing or damaged. From its first write on, no broker owns the
// shard, and one that did acknowledges nothing more. All objects are kept below the shard's prefix
// evidence/<name of the repair>, with a report of what is lost, before anything is deleted. A repair that
// was interrupted at any time is gone on with by the next one; until then the shard is not served. Shards
// without damage are left alone, and so are those that a broker serves; the other shards may be served
// meanwhile.
func (b *Broker) Repair(ctx context.Context, name string, how RepairOptions) ([]Repaired, error) {
	set, err := b.registry.get(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	if how.Shard >= set.Shards {
		return nil, Refuse(BadRequest, "the queue %s has %d shards, there is no shard %d", name, set.Shards, how.Shard)
	}
	all := []Repaired{}
	for index := range set.Shards {
		if how.Shard >= 0 && index != how.Shard {
			continue
		}
		one, err := b.repairShard(ctx, set, index, &how)
		if err != nil {
			return all, Refuse(Damaged, "repair shard %d of queue %s: %w", index, name, err)
		}
		if one != nil {
			all = append(all, *one)
		}
	}
	return all, nil
}

// repair is one of one shard.
type repair struct {
	b      *Broker
	set    *Settings
	index  int
	bucket blob.Bucket // in which it is repaired
	at     string      // the prefix of its journal
	dry    bool
	name   string
	out    *Repaired

	mu   sync.Mutex
	kept map[string]bool // keys of which evidence is kept
}

// repairShard repairs one shard; nil: its journal is not damaged.
func (b *Broker) repairShard(ctx context.Context, set *Settings, index int, how *RepairOptions) (*Repaired, error) {
	r := &repair{
		b: b, set: set, index: index, bucket: b.cfg.Bucket, at: prefix(b.cfg.Root, set, index), kept: map[string]bool{},
		name: b.cfg.Now().UTC().Format("20060102T150405.000000Z"),
		out:  &Repaired{Queue: set.Name, Shard: index, Lost: []LostSlots{}, Raw: []string{}, Unread: []string{}, Left: []Problem{}},
	}
	found, err := r.verify(ctx)
	if err != nil || len(found.Problems) == 0 {
		return nil, err
	}
	if id := found.Head.StoreID; id != "" && id != b.cfg.StoreID {
		return nil, fmt.Errorf("%w: it says %q, ours is %q", journal.ErrForeign, id, b.cfg.StoreID)
	}
	if r.out.Problems, err = r.problems(ctx); err != nil {
		return nil, err
	}
	if found.Owned && how.Served != nil {
		r.out.Served, err = how.Served(ctx, index, found.Head.Generation)
		if err != nil || r.out.Served {
			return r.out, err
		}
	}
	if err := found.Repairable(); err != nil {
		return nil, err
	}
	if how.Scratch != nil {
		if err := r.rehearseIn(ctx, how.Scratch); err != nil {
			return nil, err
		}
	}
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	if found, err = r.verify(ctx); err != nil {
		return nil, err
	}
	restored, err := journal.RestoreHead(ctx, r.bucket, r.at, r.name, found)
	if err != nil {
		return nil, err
	}
	r.out.Head, r.out.Checkpoint = restored.Head, restored.Checkpoint
	if err := r.salvage(ctx, restored); err != nil {
		return nil, err
	}
	err = journal.FinishRepair(ctx, r.bucket, r.at, path(set, index), &folder{})
	if err == nil && !r.dry { // a rehearsal has no payloads
		r.out.Left, err = r.problems(ctx)
	}
	return r.out, err
}

func (r *repair) verify(ctx context.Context) (*journal.Found, error) {
	return journal.Verify(ctx, r.bucket, r.at, path(r.set, r.index), &folder{})
}

// problems lists what is wrong with the shard.
func (r *repair) problems(ctx context.Context) ([]Problem, error) {
	seen := &Verified{Problems: []Problem{}}
	err := (&Registry{bucket: r.bucket, root: r.b.cfg.Root}).verifyShard(ctx, r.set, r.index, seen)
	return seen.Problems, err
}

// begin keeps the brokers away, and the objects as they are.
func (r *repair) begin(ctx context.Context) (err error) {
	r.name, err = journal.BeginRepair(ctx, r.bucket, r.at, r.name, func(name string, head []byte) error {
		return r.keepAs(ctx, name, headObject, head)
	})
	if err != nil {
		return err
	}
	r.out.Evidence = r.at + "/evidence/" + r.name
	return r.keepEvidence(ctx)
}

const (
	headObject   = "HEAD"
	reportObject = "report.json"
)

// keepAs keeps the bytes of an object among the evidence of a repair. What is kept already is what there
// was first.
func (r *repair) keepAs(ctx context.Context, name, key string, data []byte) error {
	if r.dry {
		return nil
	}
	if _, err := r.bucket.Create(ctx, r.at+"/evidence/"+name+"/"+key, data); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("keep %s: %w", key, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept[key] = true
	return nil
}

// keepEvidence keeps the objects of the journal that are not kept yet.
func (r *repair) keepEvidence(ctx context.Context) error {
	if r.dry {
		return nil
	}
	want := func(key string) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !r.kept[key]
	}
	return journal.ReadAll(ctx, r.bucket, r.at, want, func(ctx context.Context, key string, data []byte, unread error) error {
		if unread == nil {
			return r.keepAs(ctx, r.name, key, data)
		}
		err := blob.Keep(ctx, r.bucket, r.at+"/"+key, r.out.Evidence+"/"+key)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.kept[key] = true
		switch {
		case err == nil, errors.Is(err, blob.ErrExists):
			r.out.Raw = append(r.out.Raw, r.at+"/"+key)
		case errors.Is(err, errors.ErrUnsupported):
			r.out.Unread = append(r.out.Unread, r.at+"/"+key)
		default:
			return fmt.Errorf("keep %s, which cannot be read (%w): %w", key, unread, err)
		}
		return nil
	})
}

// rehearseIn goes on with a copy of the journal in a scratch bucket.
func (r *repair) rehearseIn(ctx context.Context, scratch blob.Bucket) error {
	all := func(string) bool { return true }
	err := journal.ReadAll(ctx, r.bucket, r.at, all, func(ctx context.Context, key string, data []byte, unread error) error {
		if unread != nil {
			data = []byte("unreadable")
		}
		_, err := scratch.Write(ctx, r.at+"/"+key, data)
		return err
	})
	r.bucket, r.dry = scratch, true
	return err
}

// report keeps what is lost among the evidence, before anything is deleted, and takes over what an
// interrupted run of the same repair has found to be lost.
func (r *repair) report(ctx context.Context) error {
	if r.dry {
		return nil
	}
	key := r.out.Evidence + "/" + reportObject
	before := &Repaired{}
	o, err := r.bucket.Read(ctx, key)
	switch {
	case errors.Is(err, blob.ErrNotFound):
	case err != nil:
		return fmt.Errorf("read %s: %w", key, err)
	default:
		if err := json.Unmarshal(o.Data, before); err != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
	}
	lost := before.Lost
	for _, l := range r.out.Lost {
		if !slices.ContainsFunc(lost, func(k LostSlots) bool { return k.From == l.From && k.To == l.To }) {
			lost = append(lost, l)
		}
	}
	if len(lost) > 0 {
		r.out.Lost = lost
	}
	r.out.Void = max(r.out.Void, before.Void)
	r.out.Head, r.out.Checkpoint = cmp.Or(before.Head, r.out.Head), cmp.Or(before.Checkpoint, r.out.Checkpoint)
	if len(before.Problems) > 0 {
		r.out.Problems = before.Problems
	}
	r.out.Raw = slices.Compact(slices.Sorted(slices.Values(append(r.out.Raw, before.Raw...))))
	r.out.Unread = slices.Compact(slices.Sorted(slices.Values(append(r.out.Unread, before.Unread...))))
	data, err := json.MarshalIndent(r.out, "", "  ")
	if err == nil {
		_, err = r.bucket.Write(ctx, key, data)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

// salvage takes the journal over with what is left of it, and writes two checkpoints: behind the second,
// nothing refers to the lost slots any more, and what is left of the damaged objects is deleted. If the state
// began with a checkpoint, something is deleted after the first one, too. Only a repair that is complete
// closes the log.
func (r *repair) salvage(ctx context.Context, from *journal.Restored) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	swept := make(chan error, 4)
	cfg := r.b.journalConfig(r.set, r.index, from.Generation+1)
	cfg.Bucket, cfg.Salvage = r.bucket, true
	cfg.Hooks.Collected = func(_ int, err error) {
		select {
		case swept <- err:
		default:
		}
	}
	f := &folder{}
	log, err := journal.Open(ctx, cfg, f)
	if err != nil {
		return err
	}
	err = r.rewrite(ctx, log, f, swept, from.Base > 0)
	if err != nil {
		cancel()
		return errors.Join(err, log.Close(ctx))
	}
	return log.Close(ctx)
}

// rewrite writes what is left into two checkpoints.
func (r *repair) rewrite(ctx context.Context, log *journal.Log, f *folder, swept <-chan error, based bool) error {
	l, err := f.ledger()
	if err != nil {
		return err
	}
	for _, lost := range log.Lost() {
		r.out.Lost = append(r.out.Lost, LostSlots{From: lost.Slot, To: lost.Next - 1, Why: lost.Err.Error()})
	}
	r.out.Void, r.out.Jobs = f.void, l.Jobs()
	// A broker may have written until now.
	if err := r.keepEvidence(ctx); err != nil {
		return err
	}
	if err := r.report(ctx); err != nil {
		return err
	}
	for round := range 2 {
		if err := r.b.checkpointNow(ctx, log, l); err != nil {
			return err
		}
		if round == 0 && !based {
			continue
		}
		select {
		case err = <-swept:
		case <-log.Done():
			err = log.Err()
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkpointNow appends a record that changes nothing, so that a checkpoint differs from the one before,
// and writes a checkpoint.
func (b *Broker) checkpointNow(ctx context.Context, log *journal.Log, l *ledger.Ledger) error {
	at := log.Now(b.cfg.Now())
	same := ledger.Record{Kind: ledger.Configure, At: at.UnixMilli(), Config: l.Config()}
	if _, err := log.Append(at, same.Append(nil)); err != nil {
		return err
	}
	if err := l.Apply(&same, at.UnixMilli()); err != nil {
		return err
	}
	begun, upTo, err := log.Checkpoint()
	if err != nil {
		return err
	}
	c := checkpoint{log: begun, upTo: upTo, cut: l.Cut()}
	for more := true; more && err == nil; {
		if c.eager() {
			more, err = c.write()
			continue
		}
		select {
		case <-c.moved():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	select {
	case <-begun.Done():
		return begun.Err()
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(repairPatience):
		return errors.New("the checkpoint is not stored")
	}
}

// repairPatience is how long the repair of a shard waits for the store to take one checkpoint.
const repairPatience = 10 * time.Minute
