package journal

import (
	"context"
	"errors"

	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
	"github.com/emitd/emitd/storage/blob"
)

// Executor executes calls of an owner on the bucket, for the journal below Prefix, and translates
// the outcomes into answers of the protocol. The log and the simulator both use it. Several
// goroutines may use it for different calls.
type Executor struct {
	Bucket blob.Bucket
	Prefix string // without a slash at the end
	Codec  *format.Codec
}

// Key returns the key of a journal's object in the bucket.
func (e *Executor) Key(k string) string { return e.Prefix + "/" + k }

// Execute sends the request of a call once and returns the answer.
func (e *Executor) Execute(ctx context.Context, call *owner.Call) owner.Result {
	r := owner.Result{ID: call.ID}
	if err := e.send(ctx, call, &r); err != nil {
		r.Answer, r.Err, r.Retry = classify(call.Op, err), err, blob.RetryAfter(err)
	}
	return r
}

func (e *Executor) send(ctx context.Context, call *owner.Call, r *owner.Result) (err error) {
	b, key := e.Bucket, e.Key(call.Key)
	var v blob.Version
	switch call.Op {
	case owner.ReadHead, owner.ReadSlot, owner.ReadPart, owner.ReadHeader:
		return e.read(ctx, call, r)
	case owner.CreateHead, owner.CopyHead:
		v, err = b.Create(ctx, key, call.Data)
	case owner.ReplaceHead:
		v, err = b.Replace(ctx, key, call.Data, blob.Version(call.Old))
	case owner.CreateSlot, owner.CreatePart:
		_, err = b.Create(ctx, key, call.Write.Bytes(e.Codec))
	case owner.Delete:
		err = b.Delete(ctx, key)
	case owner.List:
		err = e.list(ctx, call, r)
	}
	r.Version = string(v)
	return err
}

func (e *Executor) read(ctx context.Context, call *owner.Call, r *owner.Result) error {
	key := e.Key(call.Key)
	if call.Op == owner.ReadHeader {
		o, err := e.Bucket.ReadPrefix(ctx, key, format.HeaderSize)
		if err == nil {
			r.Header, err = format.DecodeHeader(o.Data)
		}
		return err
	}
	o, err := e.Bucket.Read(ctx, key)
	switch {
	case err != nil:
	case call.Op == owner.ReadHead:
		r.Data, r.Version = o.Data, string(o.Version)
	default:
		r.Segment, err = e.Codec.Decode(o.Data)
	}
	return err
}

func (e *Executor) list(ctx context.Context, call *owner.Call, r *owner.Result) error {
	after := ""
	if call.Cursor != "" {
		after = e.Key(call.Cursor)
	}
	page, err := e.Bucket.List(ctx, e.Key(call.Key), after, 0)
	if err != nil {
		return err
	}
	r.More = page.More
	for _, found := range page.Entries {
		r.Entries = append(r.Entries, owner.Entry{Key: found.Key[len(e.Key("")):], Size: found.Size})
	}
	return nil
}

// classify translates an error of the bucket into an answer.
func classify(op owner.Op, err error) owner.Outcome {
	switch {
	case errors.Is(err, format.ErrCorrupt), errors.Is(err, format.ErrNewer),
		errors.Is(err, blob.ErrCorrupt) && op.Reads():
		return owner.Undecodable
	case errors.Is(err, blob.ErrExists), errors.Is(err, blob.ErrChanged):
		// Also if the outcome is unknown: the machine reads the object after a refusal.
		return owner.ConditionFailed
	case errors.Is(err, blob.ErrNotFound) && !op.Writes():
		return owner.NotFound
	case op.Writes() && !blob.NotApplied(err):
		return owner.Unknown
	}
	return owner.Failed
}
