package queue

import (
	"context"
	"errors"
	"fmt"
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
	Queue    string      `json:"queue"`
	Shard    int         `json:"shard"`
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
	// Evidence is the prefix under which all objects of the shard were kept as they were, except
	// Unread, which the object store could not read.
	Evidence string    `json:"evidence"`
	Unread   []string  `json:"unread"`
	Left     []Problem `json:"left"` // that are there still: payloads, for instance
}

// Repair makes the damaged journals of a queue whole again, of all shards or of one (at least 0), without
// what is lost for good: segments that are missing or damaged. It takes each journal over, so that a
// broker that still serves the shard acknowledges nothing more. First, all objects are copied below the
// shard's prefix evidence/<time>. It can be repeated after a crash at any time; shards without damage
// are left alone. With a scratch bucket, a copy is repaired there and nothing else is written: that
// says what would happen.
func (b *Broker) Repair(ctx context.Context, name string, shard int, scratch blob.Bucket) ([]Repaired, error) {
	set, err := b.registry.get(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	if shard >= set.Shards {
		return nil, Refuse(BadRequest, "the queue %s has %d shards, there is no shard %d", name, set.Shards, shard)
	}
	all := []Repaired{}
	for index := range set.Shards {
		if shard >= 0 && index != shard {
			continue
		}
		one, err := b.repairShard(ctx, set, index, scratch)
		if err != nil {
			return all, Refuse(Damaged, "repair shard %d of queue %s: %w", index, name, err)
		}
		if one != nil {
			all = append(all, *one)
		}
	}
	return all, nil
}

// repairShard repairs one shard; nil: its journal is not damaged.
func (b *Broker) repairShard(ctx context.Context, set *Settings, index int, scratch blob.Bucket) (*Repaired, error) {
	bucket, at := b.cfg.Bucket, prefix(b.cfg.Root, set, index)
	found, err := journal.Verify(ctx, bucket, at, path(set, index), &folder{})
	if err != nil || len(found.Problems) == 0 {
		return nil, err
	}
	if id := found.Head.StoreID; id != "" && id != b.cfg.StoreID {
		return nil, fmt.Errorf("%w: it says %q, ours is %q", journal.ErrForeign, id, b.cfg.StoreID)
	}
	out := &Repaired{Queue: set.Name, Shard: index, Lost: []LostSlots{}, Unread: []string{}, Left: []Problem{}}
	out.Problems, err = b.shardProblems(ctx, bucket, set, index)
	if err != nil {
		return nil, err
	}
	out.Evidence = fmt.Sprintf("%s/evidence/%s", at, b.cfg.Now().UTC().Format("20060102T150405.000000Z"))
	if scratch == nil {
		err = keepEvidence(ctx, bucket, at, out)
	} else {
		err = rehearseIn(ctx, scratch, bucket, at, out)
		bucket = scratch
		if err == nil { // versions are those of the copy
			found, err = journal.Verify(ctx, bucket, at, path(set, index), &folder{})
		}
	}
	if err != nil {
		return nil, err
	}
	restored, err := journal.RestoreHead(ctx, bucket, at, found)
	if err != nil {
		return nil, err
	}
	out.Head, out.Checkpoint = restored.Head, restored.Checkpoint
	cfg := b.journalConfig(set, index, restored.Generation+1)
	cfg.Bucket, cfg.Salvage = bucket, true
	if err := b.salvage(ctx, cfg, restored.Base > 0, out); err != nil {
		return nil, err
	}
	err = journal.FinishRepair(ctx, bucket, at, path(set, index), &folder{})
	if err == nil && scratch == nil { // a rehearsal has no payloads
		out.Left, err = b.shardProblems(ctx, bucket, set, index)
	}
	return out, err
}

// shardProblems lists what is wrong with a shard.
func (b *Broker) shardProblems(ctx context.Context, bucket blob.Bucket, set *Settings, index int) ([]Problem, error) {
	seen := &Verified{Problems: []Problem{}}
	err := (&Registry{bucket: bucket, root: b.cfg.Root}).verifyShard(ctx, set, index, seen)
	return seen.Problems, err
}

// keepEvidence copies the objects of a journal, as they are, to where nobody deletes them.
func keepEvidence(ctx context.Context, bucket blob.Bucket, at string, out *Repaired) error {
	return journal.ReadAll(ctx, bucket, at, func(key string, data []byte, err error) error {
		if err != nil {
			out.Unread = append(out.Unread, at+"/"+key)
			return nil //nolint:nilerr // an object that the store cannot read is evidence that cannot be copied; the report names it
		}
		if _, err := bucket.Write(ctx, out.Evidence+"/"+key, data); err != nil {
			return fmt.Errorf("keep %s: %w", key, err)
		}
		return nil
	})
}

// rehearseIn copies the objects of a journal to a scratch bucket.
func rehearseIn(ctx context.Context, scratch, bucket blob.Bucket, at string, out *Repaired) error {
	return journal.ReadAll(ctx, bucket, at, func(key string, data []byte, err error) error {
		if err != nil {
			out.Unread = append(out.Unread, at+"/"+key)
			data = []byte("unreadable")
		}
		_, err = scratch.Write(ctx, at+"/"+key, data)
		return err
	})
}

// salvage takes a journal over with what is left of it, and writes two checkpoints: behind the second,
// nothing refers to the lost slots any more, and what is left of the damaged objects is deleted. based says
// whether the state began with a checkpoint: then something is deleted after the first one, too.
func (b *Broker) salvage(ctx context.Context, cfg journal.Config, based bool, out *Repaired) error {
	swept := make(chan error, 4)
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
	l, err := f.ledger()
	if err != nil {
		return errors.Join(err, log.Close(ctx))
	}
	for _, lost := range log.Lost() {
		out.Lost = append(out.Lost, LostSlots{From: lost.Slot, To: lost.Next - 1, Why: lost.Err.Error()})
	}
	out.Void, out.Jobs = f.void, l.Jobs()
	for round := range 2 {
		if err := b.checkpointNow(ctx, log, l); err != nil {
			return errors.Join(err, log.Close(ctx))
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
	}
	return errors.Join(err, log.Close(ctx))
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
