package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/emitd/emitd/daemon/queue/journal/format"
	"github.com/emitd/emitd/storage/blob"
)

// Restored says how HEAD was written anew, so that what is left of a damaged journal can be opened with
// Config.Salvage.
type Restored struct {
	// Generation that HEAD names: who opens the journal needs a higher one.
	Generation int64
	// Head and Checkpoint say from what HEAD was restored; empty: it was good, and so was its checkpoint.
	Head, Checkpoint string
	// Base is the slot of the checkpoint with which the state begins; 0: there is none.
	Base uint64
}

// RestoreHead writes the HEAD of a damaged journal anew: from its newest copy, if HEAD itself is gone or
// damaged, and with the checkpoint before the newest, if that one is damaged. found is what Verify has
// just seen. From then on, whoever owned the journal acknowledges nothing more. It refuses if HEAD has changed meanwhile, if there is
// nothing to restore it from, and if something was written by a newer program.
func RestoreHead(ctx context.Context, bucket blob.Bucket, prefix string, found *Found) (*Restored, error) {
	bad := map[string]bool{}
	for _, p := range found.Problems {
		if errors.Is(p.Kind, ErrNewer) {
			return nil, fmt.Errorf("%s: %w", p.Key, ErrNewer)
		}
		bad[p.Key] = true
	}
	head := found.Head
	out := &Restored{Generation: head.Generation}
	if head.Epoch == 0 {
		return nil, fmt.Errorf("%s/%s: %w, and so is every copy of it", prefix, format.HeadKey, ErrMissing)
	}
	if found.copied {
		out.Head = prefix + "/" + format.CopyKey(head.Serial)
	}
	damaged := func(c format.Checkpoint) string {
		for _, part := range c.Objects() {
			if key := prefix + "/" + part.Key(); bad[key] {
				return key
			}
		}
		return ""
	}
	if newest := damaged(head.Checkpoint); newest != "" {
		if older := damaged(head.Previous); older != "" {
			return nil, fmt.Errorf("%s and %s: %w: neither of the two checkpoints is whole", newest, older, ErrCorrupt)
		}
		head.Checkpoint = head.Previous
		out.Checkpoint = fmt.Sprintf("the one before slot %d", head.Checkpoint.Start())
	}
	out.Base = head.Checkpoint.Slot
	// No segment has a higher epoch than HEAD; a copy may be older than the log.
	head.Epoch = max(head.Epoch, found.epoch) + 1
	head.Known, head.Closed = max(head.Known, head.Closed), 0
	head.Serial++
	head.Nonce = random()
	data := format.EncodeHead(head)
	key := prefix + "/" + format.HeadKey
	var err error
	if found.version != "" {
		_, err = bucket.Replace(ctx, key, data, found.version)
	} else if _, err = bucket.Create(ctx, key, data); errors.Is(err, blob.ErrExists) {
		// There is something that the store itself cannot read: it cannot be replaced if unchanged.
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

// ReadAll hands every object of a journal to f, with its key below the prefix; err says why it cannot be
// read. Objects that are deleted meanwhile are left out.
func ReadAll(ctx context.Context, bucket blob.Bucket, prefix string, f func(key string, data []byte, err error) error) error {
	v := &verifier{bucket: bucket, prefix: prefix}
	keys, err := v.list(ctx)
	if err != nil {
		return err
	}
	for _, key := range keys {
		o, err := bucket.Read(ctx, prefix+"/"+key)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			continue
		case errors.Is(err, blob.ErrCorrupt):
			err = f(key, nil, err)
		case err == nil:
			err = f(key, o.Data, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// FinishRepair does what is left when a salvaged journal was closed. It keeps a copy of HEAD, which the
// close may have cut short. And it writes a fence over each damaged segment that is as small as a fence and
// stands before the checkpoints, where nobody reads it: such a name is never deleted, since a request to
// create it may still be under way.
func FinishRepair(ctx context.Context, bucket blob.Bucket, prefix, name string, fold Fold) error {
	found, err := Verify(ctx, bucket, prefix, name, fold)
	if err != nil {
		return err
	}
	head, err := bucket.Read(ctx, prefix+"/"+format.HeadKey)
	if err != nil || head.Version != found.version {
		return err // somebody has taken the journal over
	}
	if _, err := bucket.Create(ctx, prefix+"/"+format.CopyKey(found.Head.Serial), head.Data); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("copy %s: %w", format.HeadKey, err)
	}
	codec := format.NewCodec()
	for _, p := range found.Problems {
		slot, ok := format.ParseSlotKey(p.Key[len(prefix)+1:])
		if !ok || !p.Spare || slot >= found.Head.Previous.Slot || !errors.Is(p.Kind, ErrCorrupt) {
			continue
		}
		body := format.NewBody(0)
		h := format.Header{Slot: slot, Epoch: found.Head.Epoch, PutID: random(), Jump: 1, Fence: true}
		if _, err := bucket.Write(ctx, p.Key, codec.Encode(&h, &body)); err != nil {
			return fmt.Errorf("write %s: %w", p.Key, err)
		}
	}
	return nil
}
