package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/storage/blob"
)

// A repair has these steps: BeginRepair, Verify, RestoreHead, Open with Config.Salvage, Close,
// FinishRepair. From the first step until Close, HEAD names the repair. During that time no other
// process can own the journal, and the former owner is fenced. A repair that was interrupted at any
// step begins again with the first one.

// Repairable returns why the journal cannot be repaired, as far as Verify has seen; nil: it can be.
func (f *VerifyResult) Repairable() error {
	for _, p := range f.Problems {
		if errors.Is(p.Kind, ErrNewer) || errors.Is(p.Kind, blob.ErrDenied) {
			return fmt.Errorf("%s: %w: its content is unknown", p.Key, p.Kind)
		}
	}
	if f.Head.Epoch == 0 {
		return fmt.Errorf("%s/%s: %w, and so is every copy of it", f.prefix, format.HeadKey, ErrMissing)
	}
	newest := f.damaged(f.Head.Checkpoint)
	if older := f.damaged(f.Head.Previous); newest != "" && older != "" {
		return fmt.Errorf("%s and %s: %w: neither of the two checkpoints is whole", newest, older, ErrCorrupt)
	}
	return nil
}

// damaged returns the key of a missing or damaged object of a checkpoint; empty: there is none.
func (f *VerifyResult) damaged(c format.Checkpoint) string {
	parts := map[string]bool{}
	for _, part := range c.Objects() {
		parts[f.prefix+"/"+part.Key()] = true
	}
	if c.Kept > 0 {
		parts[f.prefix+"/"+format.PartKey(c, -1)] = true
	}
	for _, p := range f.Problems {
		if parts[p.Key] {
			return p.Key
		}
	}
	return ""
}

// BeginRepair writes into HEAD that a repair of this name has begun, and returns the name. If an
// earlier repair has not ended, its name stays and is returned. keep gets HEAD before it is
// changed. A HEAD that cannot be read is left alone: nobody can take over such a journal anyway.
func BeginRepair(ctx context.Context, bucket blob.Bucket, prefix, name string, keep func(name string, head []byte) error) (string, error) {
	key := prefix + "/" + format.HeadKey
	for range beginTries {
		o, err := bucket.Read(ctx, key)
		if errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrCorrupt) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		head, err := format.DecodeHead(o.Data)
		switch {
		case errors.Is(err, format.ErrNewer):
			return "", fmt.Errorf("%s: %w", key, err)
		case err != nil:
			return name, nil //nolint:nilerr // it is what the repair is for
		}
		head.Repair = cmp.Or(head.Repair, name)
		if err := keep(head.Repair, o.Data); err != nil {
			return "", err
		}
		// The serial number stays: if this is an older HEAD, its copies must go on proving
		// it.
		head.Epoch, head.Nonce = head.Epoch+1, random()
		head.AckedBelow, head.Closed = max(head.AckedBelow, head.Closed), 0
		_, err = bucket.Replace(ctx, key, format.EncodeHead(head), o.Version)
		if err == nil || !errors.Is(err, blob.ErrChanged) {
			return head.Repair, err
		}
	}
	return "", fmt.Errorf("%s: it was changed by others %d times in a row", key, beginTries)
}

const beginTries = 10

// RestoredHead describes how RestoreHead rewrote HEAD, so that the rest of a damaged journal can be
// opened with Config.Salvage.
type RestoredHead struct {
	// Generation in HEAD; opening the journal needs a higher one.
	Generation int64
	// Head and Checkpoint name what HEAD and its checkpoint were restored from; empty: they
	// were not damaged.
	Head, Checkpoint string
	// CheckpointSlot is the slot of the checkpoint with which the state begins; 0: there is none.
	CheckpointSlot uint64
}

// RestoreHead rewrites the HEAD of a damaged journal. It uses the newest copy if HEAD itself is
// missing or damaged, and the previous checkpoint if the newest one is damaged. found is what
// Verify has seen since BeginRepair, and name is what BeginRepair returned. It refuses if HEAD has
// changed since Verify, or if found is not Repairable.
func RestoreHead(ctx context.Context, bucket blob.Bucket, prefix, name string, found *VerifyResult) (*RestoredHead, error) {
	if err := found.Repairable(); err != nil {
		return nil, err
	}
	head := found.Head
	out := &RestoredHead{Generation: head.Generation}
	if found.copied {
		out.Head = prefix + "/" + format.CopyKey(head.Serial)
	}
	head.AckedBelow, head.Closed = max(head.AckedBelow, head.Closed, head.Checkpoint.Slot), 0
	if found.damaged(head.Checkpoint) != "" {
		head.Checkpoint = head.Previous
		out.Checkpoint = fmt.Sprintf("the one before slot %d", head.Checkpoint.Start())
	}
	out.CheckpointSlot = head.Checkpoint.Slot
	// No segment may have a higher epoch than HEAD; a copy of HEAD may be older than the log.
	head.Epoch = max(head.Epoch, found.epoch) + 1
	head.Serial++
	head.Nonce, head.Repair = random(), name
	data := format.EncodeHead(head)
	key := prefix + "/" + format.HeadKey
	var err error
	if found.version != "" {
		_, err = bucket.Replace(ctx, key, data, found.version)
	} else if _, err = bucket.Create(ctx, key, data); errors.Is(err, blob.ErrExists) {
		// The store itself cannot read the object, so it cannot be replaced by compare and
		// swap.
		if _, unreadable := bucket.Read(ctx, key); errors.Is(unreadable, blob.ErrCorrupt) {
			if err = bucket.Delete(ctx, key); err == nil {
				_, err = bucket.Create(ctx, key, data)
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", key, err)
	}
	return out, nil
}

// ReadAll calls f for each object of a journal that is wanted, with its key below the prefix. err
// says why an object cannot be read. Several objects are read concurrently, so f is called by
// several goroutines. Objects that are deleted meanwhile are left out.
func ReadAll(ctx context.Context, bucket blob.Bucket, prefix string, want func(key string) bool, f func(ctx context.Context, key string, data []byte, err error) error) error {
	v := &verifier{bucket: bucket, prefix: prefix}
	keys, err := v.list(ctx)
	if err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(readsAtOnce)
	for _, key := range keys {
		if !want(key) {
			continue
		}
		all.Go(func() error {
			o, err := bucket.Read(ctx, prefix+"/"+key)
			switch {
			case errors.Is(err, blob.ErrNotFound):
				return nil
			case isObjectError(err):
				return f(ctx, key, nil, err)
			case err != nil:
				return err
			}
			return f(ctx, key, o.Data, nil)
		})
	}
	return all.Wait()
}

// FinishRepair does what is left after a salvaged journal was closed. It stores a copy of HEAD,
// which the close may have skipped. It also replaces damaged segments before the checkpoints that
// are as small as a fence, by fences. Garbage collection takes them for fences and never deletes
// them, because a request that creates the name may still be in flight. Nobody reads them.
func FinishRepair(ctx context.Context, bucket blob.Bucket, prefix, name string, fold StateBuilder) error {
	found, err := Verify(ctx, bucket, prefix, name, fold)
	if err != nil {
		return err
	}
	head, err := bucket.Read(ctx, prefix+"/"+format.HeadKey)
	if err != nil || head.Version != found.version {
		return err // another process has taken over the journal
	}
	if _, err := bucket.Create(ctx, prefix+"/"+format.CopyKey(found.Head.Serial), head.Data); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("copy %s: %w", format.HeadKey, err)
	}
	codec := format.NewCodec()
	for _, p := range found.Problems {
		slot, ok := format.ParseSlotKey(p.Key[len(prefix)+1:])
		if !ok || !p.Unneeded || slot >= found.Head.Previous.Slot || !errors.Is(p.Kind, ErrCorrupt) {
			continue
		}
		body := format.NewBody(0)
		h := format.Header{Slot: slot, Epoch: found.Head.Epoch, PutID: random(), Jump: 1, Fence: true}
		data := codec.Encode(&h, &body)
		_, err := bucket.Read(ctx, p.Key)
		if errors.Is(err, blob.ErrCorrupt) { // the store cannot read the object, so it cannot replace it either
			if err = bucket.Delete(ctx, p.Key); err == nil {
				_, err = bucket.Create(ctx, p.Key, data)
			}
		} else {
			_, err = bucket.Write(ctx, p.Key, data)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", p.Key, err)
		}
	}
	return nil
}
