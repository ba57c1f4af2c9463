package journal_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
	"github.com/emitd/emitd/storage/blob"
)

func write() *owner.Write {
	body := format.NewBody(1)
	body.Add(1, []byte("a"))
	return &owner.Write{Header: format.Header{Slot: 1, Epoch: 1, PutID: 7}, Body: body}
}

func carrier() (*journal.Executor, *mem.Bucket) {
	b := mem.New(mem.Config{})
	return &journal.Executor{Bucket: b, Prefix: "p", Codec: format.NewCodec()}, b
}

// TestOperations: every operation, beginning with an empty bucket.
func TestOperations(t *testing.T) {
	t.Parallel()
	c, b := carrier()
	carry := func(call *owner.Call, want owner.Outcome) owner.Result {
		t.Helper()
		call.ID = 42
		r := c.Execute(t.Context(), call)
		if r.ID != 42 || r.Answer != want {
			t.Fatalf("%s %s: %d %v, want %d", call.Op, call.Key, r.Answer, r.Err, want)
		}
		return r
	}
	slot := format.SlotKey(1)
	carry(&owner.Call{Op: owner.ReadHead, Key: "HEAD"}, owner.NotFound)
	carry(&owner.Call{Op: owner.ReadSlot, Key: slot}, owner.NotFound)
	carry(&owner.Call{Op: owner.ReadHeader, Key: slot}, owner.NotFound)
	v := carry(&owner.Call{Op: owner.CreateHead, Key: "HEAD", Data: []byte("1")}, owner.Done).Version
	carry(&owner.Call{Op: owner.CreateHead, Key: "HEAD", Data: []byte("2")}, owner.ConditionFailed)
	if r := carry(&owner.Call{Op: owner.ReadHead, Key: "HEAD"}, owner.Done); r.Version != v || string(r.Data) != "1" {
		t.Errorf("%+v", r)
	}
	carry(&owner.Call{Op: owner.ReplaceHead, Key: "HEAD", Data: []byte("2"), Old: v}, owner.Done)
	carry(&owner.Call{Op: owner.ReplaceHead, Key: "HEAD", Data: []byte("3"), Old: v}, owner.ConditionFailed)
	carry(&owner.Call{Op: owner.CreateSlot, Key: slot, Write: write()}, owner.Done)
	carry(&owner.Call{Op: owner.CreatePart, Key: slot, Write: write()}, owner.ConditionFailed)
	if r := carry(&owner.Call{Op: owner.ReadHeader, Key: slot}, owner.Done); r.Header.PutID != 7 {
		t.Errorf("%+v", r.Header)
	}
	if r := carry(&owner.Call{Op: owner.ReadSlot, Key: slot}, owner.Done); r.Segment.Header.Records != 1 {
		t.Errorf("%+v", r.Segment)
	}
	carry(&owner.Call{Op: owner.ReadSlot, Key: "HEAD"}, owner.Undecodable)
	carry(&owner.Call{Op: owner.ReadHeader, Key: "HEAD"}, owner.Undecodable)
	r := carry(&owner.Call{Op: owner.List, Cursor: "HEAD"}, owner.Done)
	if !slices.Equal(r.Entries, []owner.Entry{{Key: slot, Size: 78}}) || r.More {
		t.Errorf("%+v", r.Entries)
	}
	carry(&owner.Call{Op: owner.Delete, Key: slot}, owner.Done)
	carry(&owner.Call{Op: owner.Delete, Key: slot}, owner.Done)
	if got := b.Keys(); !slices.Equal(got, []string{"p/HEAD"}) {
		t.Errorf("%v", got)
	}
}

// TestErrors: what an error of the bucket means: a write that is not certainly undone is unknown.
func TestErrors(t *testing.T) {
	t.Parallel()
	both := func(kind error) error { return &blob.Error{Kind: kind, Unknown: true} }
	for _, x := range []struct {
		err         error
		write, read owner.Outcome
	}{
		{blob.ErrExists, owner.ConditionFailed, owner.ConditionFailed},
		{both(blob.ErrExists), owner.ConditionFailed, owner.ConditionFailed},
		{both(blob.ErrChanged), owner.ConditionFailed, owner.ConditionFailed},
		{blob.ErrNotFound, owner.Failed, owner.NotFound},
		{blob.ErrUnavailable, owner.Failed, owner.Failed},
		{both(blob.ErrUnavailable), owner.Unknown, owner.Failed},
		{blob.ErrDenied, owner.Failed, owner.Failed},
		{blob.ErrUnfit, owner.Failed, owner.Failed},
		{errors.New("no idea"), owner.Unknown, owner.Failed},
		{fmt.Errorf("wrapped: %w", blob.ErrBudget), owner.Failed, owner.Failed},
	} {
		c := &journal.Executor{Bucket: broken{err: x.err}, Prefix: "p", Codec: format.NewCodec()}
		for op, want := range map[owner.Op]owner.Outcome{
			owner.CreateSlot: x.write, owner.ReplaceHead: x.write, owner.Delete: x.write,
			owner.ReadHead: x.read, owner.ReadSlot: x.read, owner.List: x.read,
		} {
			if r := c.Execute(t.Context(), &owner.Call{Op: op, Key: "k", Write: write()}); r.Answer != want || !errors.Is(r.Err, x.err) {
				t.Errorf("%s: %v is %d (%v), want %d", op, x.err, r.Answer, r.Err, want)
			}
		}
	}
	damaged := &journal.Executor{Bucket: broken{err: blob.ErrCorrupt}, Prefix: "p", Codec: format.NewCodec()}
	for op, want := range map[owner.Op]owner.Outcome{owner.ReadHead: owner.Undecodable, owner.ReadSlot: owner.Undecodable, owner.List: owner.Failed, owner.ReplaceHead: owner.Unknown} {
		if r := damaged.Execute(t.Context(), &owner.Call{Op: op, Key: "k"}); r.Answer != want {
			t.Errorf("%s of a damaged object is %d, want %d", op, r.Answer, want)
		}
	}
	c, b := carrier()
	b.Inject(mem.Create, "", mem.Fault{Kind: mem.Throttled, Delay: time.Minute})
	if r := c.Execute(t.Context(), &owner.Call{Op: owner.CreateSlot, Key: "k", Write: write()}); r.Retry != time.Minute {
		t.Errorf("the store asks to wait, and that is lost: %+v", r)
	}
}
