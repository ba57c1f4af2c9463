package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// LostSlots is a range of slots of a shard's log that are lost; the shard goes on without them.
type LostSlots struct {
	From   uint64 `json:"from"`
	To     uint64 `json:"to"` // inclusive
	Reason string `json:"why"`
}

// RepairResult is the result of a shard's repair, or of its rehearsal.
type RepairResult struct {
	Queue string `json:"queue"`
	Shard int    `json:"shard"`
	// Served is true if a broker serves the shard; then nothing was done. The broker has all
	// that was acknowledged in memory, and its next checkpoints replace the damaged objects.
	Served   bool        `json:"served"`
	Problems []Problem   `json:"problems"` // found before the repair
	Lost     []LostSlots `json:"lost"`
	// RejectedRecords counts the records after the lost slots that have no effect: they are about jobs
	// that are lost, or submit a job again whose end was lost. If a fence is lost, it no longer
	// marks the unacknowledged segments behind it as void. Such segments may then be replayed,
	// and valid records after them may have no effect.
	RejectedRecords int `json:"void"`
	Jobs            int `json:"jobs"` // jobs after the repair
	// Head and Checkpoint name what they were restored from; empty: they were not damaged.
	Head       string `json:"head,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	// Evidence is the prefix below which all objects of the shard were copied before the
	// repair. CopiedRaw lists objects that cannot be read; their stored bytes were copied as
	// they are. NotCopied lists objects of which nothing could be copied.
	Evidence  string    `json:"evidence"`
	CopiedRaw []string  `json:"raw"`
	NotCopied []string  `json:"unread"`
	Remaining []Problem `json:"left"` // found after the repair: damaged payloads, for instance
}

// RepairOptions say what to repair, and how.
type RepairOptions struct {
	Shard int // only this shard; -1: all that are damaged
	// RehearsalBucket is a bucket for a rehearsal: the journals are copied there and repaired there,
	// and nothing else is written. The result shows what a repair would do.
	RehearsalBucket blob.Bucket
	// Served reports whether a broker serves a shard under a generation. nil: none does.
	Served func(ctx context.Context, shard int, generation int64) (bool, error)
}

// Repair makes the damaged journals of a queue usable again, of all shards or of one. What is lost
// for good, segments that are missing or damaged, stays lost.
//
// From the repair's first write on, no broker owns the shard, and a broker that did own it
// acknowledges nothing more. Before anything is deleted, all objects are copied below the shard's
// prefix evidence/<name of the repair>, together with a report of what is lost. An interrupted
// repair is continued by the next one; until then the shard is not served. Shards without damage
// are left alone, and so are those that a broker serves. The queue's other shards may be served
// meanwhile.
func (b *Broker) Repair(ctx context.Context, name string, how RepairOptions) ([]RepairResult, error) {
	set, err := b.registry.get(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	if how.Shard >= set.Shards {
		return nil, queue.Refuse(queue.BadRequest, "the queue %s has %d shards, there is no shard %d", name, set.Shards, how.Shard)
	}
	all := []RepairResult{}
	for index := range set.Shards {
		if how.Shard >= 0 && index != how.Shard {
			continue
		}
		one, err := b.repairShard(ctx, set, index, &how)
		if err != nil {
			return all, queue.Refuse(queue.Damaged, "repair shard %d of queue %s: %w", index, name, err)
		}
		if one != nil {
			all = append(all, *one)
		}
	}
	return all, nil
}

// repair is the repair of one shard.
type repair struct {
	b      *Broker
	set    *queue.Settings
	index  int
	bucket blob.Bucket // the bucket that is repaired: the broker's, or RehearsalBucket
	prefix string      // prefix of the shard's journal
	dry    bool
	name   string
	out    *RepairResult

	mu     sync.Mutex
	copied map[string]bool // keys of objects that were copied to the evidence
}

// repairShard repairs one shard; it returns nil if the journal is not damaged.
func (b *Broker) repairShard(ctx context.Context, set *queue.Settings, index int, how *RepairOptions) (*RepairResult, error) {
	r := &repair{
		b: b, set: set, index: index, bucket: b.cfg.Bucket, prefix: shardPrefix(b.cfg.Root, set, index), copied: map[string]bool{},
		name: b.cfg.Now().UTC().Format("20060102T150405.000000Z"),
		out:  &RepairResult{Queue: set.Name, Shard: index, Lost: []LostSlots{}, CopiedRaw: []string{}, NotCopied: []string{}, Remaining: []Problem{}},
	}
	found, err := r.verify(ctx)
	if err != nil || len(found.Problems) == 0 {
		return nil, err
	}
	if id := found.Head.StoreID; id != "" && id != b.cfg.StoreID {
		return nil, fmt.Errorf("%w: it says %q, ours is %q", journal.ErrOtherStore, id, b.cfg.StoreID)
	}
	if r.out.Problems, err = r.problems(ctx); err != nil {
		return nil, err
	}
	if found.HasOwner && how.Served != nil {
		r.out.Served, err = how.Served(ctx, index, found.Head.Generation)
		if err != nil || r.out.Served {
			return r.out, err
		}
	}
	if err := found.Repairable(); err != nil {
		return nil, err
	}
	if how.RehearsalBucket != nil {
		if err := r.switchToRehearsal(ctx, how.RehearsalBucket); err != nil {
			return nil, err
		}
	}
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	if found, err = r.verify(ctx); err != nil {
		return nil, err
	}
	restored, err := journal.RestoreHead(ctx, r.bucket, r.prefix, r.name, found)
	if err != nil {
		return nil, err
	}
	r.out.Head, r.out.Checkpoint = restored.Head, restored.Checkpoint
	if err := r.rewriteJournal(ctx, restored); err != nil {
		return nil, err
	}
	err = journal.FinishRepair(ctx, r.bucket, r.prefix, shardPath(set, index), &ledgerBuilder{})
	if err == nil && !r.dry { // a rehearsal has no copy of the payloads
		r.out.Remaining, err = r.problems(ctx)
	}
	return r.out, err
}

func (r *repair) verify(ctx context.Context) (*journal.VerifyResult, error) {
	return journal.Verify(ctx, r.bucket, r.prefix, shardPath(r.set, r.index), &ledgerBuilder{})
}

// problems lists what is wrong with the shard.
func (r *repair) problems(ctx context.Context) ([]Problem, error) {
	seen := &VerifyResult{Problems: []Problem{}}
	err := (&Registry{bucket: r.bucket, root: r.b.cfg.Root}).verifyShard(ctx, r.set, r.index, seen)
	return seen.Problems, err
}

// begin marks the journal as being repaired, which keeps brokers away, and copies its objects to
// the evidence.
func (r *repair) begin(ctx context.Context) (err error) {
	r.name, err = journal.BeginRepair(ctx, r.bucket, r.prefix, r.name, func(name string, head []byte) error {
		return r.copyToEvidence(ctx, name, headObject, head)
	})
	if err != nil {
		return err
	}
	r.out.Evidence = r.prefix + "/evidence/" + r.name
	return r.copyRemaining(ctx)
}

const (
	headObject   = "HEAD"
	reportObject = "report.json"
)

// copyToEvidence copies the bytes of an object to the evidence of a repair. An existing copy is the older
// one and stays.
func (r *repair) copyToEvidence(ctx context.Context, name, key string, data []byte) error {
	if r.dry {
		return nil
	}
	if _, err := r.bucket.Create(ctx, r.prefix+"/evidence/"+name+"/"+key, data); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("keep %s: %w", key, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.copied[key] = true
	return nil
}

// copyRemaining copies the objects of the journal that are not in the evidence yet.
func (r *repair) copyRemaining(ctx context.Context) error {
	if r.dry {
		return nil
	}
	want := func(key string) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !r.copied[key]
	}
	return journal.ReadAll(ctx, r.bucket, r.prefix, want, func(ctx context.Context, key string, data []byte, unread error) error {
		if unread == nil {
			return r.copyToEvidence(ctx, r.name, key, data)
		}
		err := blob.Preserve(ctx, r.bucket, r.prefix+"/"+key, r.out.Evidence+"/"+key)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.copied[key] = true
		switch {
		case err == nil, errors.Is(err, blob.ErrExists):
			r.out.CopiedRaw = append(r.out.CopiedRaw, r.prefix+"/"+key)
		case errors.Is(err, errors.ErrUnsupported):
			r.out.NotCopied = append(r.out.NotCopied, r.prefix+"/"+key)
		default:
			return fmt.Errorf("keep %s, which cannot be read (%w): %w", key, unread, err)
		}
		return nil
	})
}

// switchToRehearsal copies the journal to a scratch bucket and makes the repair go on there.
func (r *repair) switchToRehearsal(ctx context.Context, scratch blob.Bucket) error {
	all := func(string) bool { return true }
	err := journal.ReadAll(ctx, r.bucket, r.prefix, all, func(ctx context.Context, key string, data []byte, unread error) error {
		if unread != nil {
			data = []byte("unreadable")
		}
		_, err := scratch.Write(ctx, r.prefix+"/"+key, data)
		return err
	})
	r.bucket, r.dry = scratch, true
	return err
}

// report stores the report of what is lost with the evidence, before anything is deleted. It merges
// the report of an earlier, interrupted run of the same repair.
func (r *repair) report(ctx context.Context) error {
	if r.dry {
		return nil
	}
	key := r.out.Evidence + "/" + reportObject
	before := &RepairResult{}
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
	r.out.RejectedRecords = max(r.out.RejectedRecords, before.RejectedRecords)
	r.out.Head, r.out.Checkpoint = cmp.Or(before.Head, r.out.Head), cmp.Or(before.Checkpoint, r.out.Checkpoint)
	if len(before.Problems) > 0 {
		r.out.Problems = before.Problems
	}
	r.out.CopiedRaw = slices.Compact(slices.Sorted(slices.Values(append(r.out.CopiedRaw, before.CopiedRaw...))))
	r.out.NotCopied = slices.Compact(slices.Sorted(slices.Values(append(r.out.NotCopied, before.NotCopied...))))
	data, err := json.MarshalIndent(r.out, "", "  ")
	if err == nil {
		_, err = r.bucket.Write(ctx, key, data)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

// rewriteJournal takes over the journal with what is left of it, and writes two checkpoints. After the
// second one, nothing refers to the lost slots, and the remains of the damaged objects are deleted.
// If the state began with a checkpoint, objects are deleted after the first one too. Only a
// complete repair closes the log, which ends its marking.
func (r *repair) rewriteJournal(ctx context.Context, from *journal.RestoredHead) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	swept := make(chan error, 4)
	cfg := r.b.journalConfig(r.set, r.index, from.Generation+1, &storeBudget{})
	cfg.Bucket, cfg.Salvage = r.bucket, true
	cfg.Hooks.OnCollected = func(_ int, err error) {
		select {
		case swept <- err:
		default:
		}
	}
	f := &ledgerBuilder{}
	log, err := journal.Open(ctx, cfg, f)
	if err != nil {
		return err
	}
	err = r.writeCheckpoints(ctx, log, f, swept, from.CheckpointSlot > 0)
	if err != nil {
		cancel()
		return errors.Join(err, log.Close(ctx))
	}
	return log.Close(ctx)
}

// writeCheckpoints writes the remaining state into two checkpoints.
func (r *repair) writeCheckpoints(ctx context.Context, log *journal.Log, f *ledgerBuilder, swept <-chan error, based bool) error {
	l, err := f.ledger()
	if err != nil {
		return err
	}
	again, err := r.importsAgain(ctx, l)
	if err != nil {
		return err
	}
	if again {
		l = ledger.New(l.Config())
	}
	for _, lost := range log.Lost() {
		r.out.Lost = append(r.out.Lost, LostSlots{From: lost.Slot, To: lost.End - 1, Reason: lost.Err.Error()})
	}
	r.out.RejectedRecords, r.out.Jobs = f.rejected, l.Jobs()
	// A broker may have written until the log was opened.
	if err := r.copyRemaining(ctx); err != nil {
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

// importsAgain reports whether the shard has a part of an import that begins again, with an empty shard. The former shards
// still have all jobs, unless the shard has said that its import is complete; its end may be what was lost.
func (r *repair) importsAgain(ctx context.Context, l *ledger.Ledger) (bool, error) {
	if !l.Importing() || r.set.Resharding.Stage != queue.Importing {
		return false, nil
	}
	_, err := readObject(ctx, r.bucket, importedKey(r.b.cfg.Root, r.set, r.index))
	if errors.Is(err, blob.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// checkpointNow writes a checkpoint. First it appends a record that changes nothing, so that the
// checkpoint has a later slot than the one before.
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
	c := checkpoint{log: begun, upTo: upTo, writer: l.BeginCheckpoint()}
	for more := true; more && err == nil; {
		if c.canWrite() {
			more, err = c.write()
			continue
		}
		select {
		case <-c.progressed():
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
	case <-time.After(checkpointTimeout):
		return errors.New("the checkpoint is not stored")
	}
}

// checkpointTimeout is how long the repair of a shard waits for the store to accept one checkpoint.
const checkpointTimeout = 10 * time.Minute
