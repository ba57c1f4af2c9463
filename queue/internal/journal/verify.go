package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
	"github.com/emitd/emitd/storage/blob"
)

// Problem describes an object of a journal that is missing or damaged.
type Problem struct {
	Key string // in the bucket
	// Kind is ErrMissing, ErrCorrupt, ErrNewer, blob.ErrDenied (its content is unknown), or,
	// for HEAD, ErrRepairing.
	Kind error
	Text string
	// Unneeded is true if nothing that was acknowledged depends on the object now.
	Unneeded bool
}

// VerifyResult is the result of Verify.
type VerifyResult struct {
	Problems []Problem
	Empty    bool // there is no journal yet
	Objects  int  // objects that were read
	Segments int  // segments of the log since the newest checkpoint
	Head     format.Head
	// Complete is true if the fold got the whole state. Otherwise the state ends before the
	// first problem.
	Complete bool
	// HasOwner is true if the owner in HEAD has completed its takeover, and has neither closed the
	// journal nor been fenced. It does not prove that the owner is alive. It is false if HEAD is missing
	// or damaged: an owner cannot mend that, and ends when it changes HEAD next.
	HasOwner bool

	prefix  string
	version blob.Version // version of HEAD; empty: it cannot be read
	copied  bool         // Head is the newest copy, because HEAD is missing or damaged
	epoch   int64        // the highest epoch of an object
}

// Verify reads every object of a journal and compares it with the others. It writes nothing, takes
// nothing over, and may run while an owner is active. The fold gets the state; it may get it
// several times, each time after Reset. name is Config.Name. Errors are those of the bucket;
// problems of objects are in VerifyResult.
func Verify(ctx context.Context, bucket blob.Bucket, prefix, name string, fold StateBuilder) (*VerifyResult, error) {
	var before *VerifyResult
	for attempt := 0; ; attempt++ {
		v := &verifier{bucket: bucket, prefix: prefix, name: name, codec: format.NewCodec(), fold: fold, found: &VerifyResult{prefix: prefix}, objects: map[string]*object{}}
		fold.Reset()
		if err := v.run(ctx); err != nil {
			return nil, fmt.Errorf("verify journal %s: %w", prefix, err)
		}
		if len(v.found.Problems) == 0 {
			return v.found, nil
		}
		// Objects that an owner replaced or deleted meanwhile are not damage: read again.
		o, err := bucket.Read(ctx, prefix+"/"+format.HeadKey)
		if err != nil && !isObjectError(err) {
			return nil, fmt.Errorf("verify journal %s: %w", prefix, err)
		}
		if moved := err == nil && o.Version != v.found.version; !moved {
			return v.found, nil
		}
		if attempt == maxRereads {
			// HEAD changes faster than everything can be read. Damaged objects stay
			// damaged, so only problems that were found twice are reported; objects
			// that are in use only now were not in use the first time.
			v.found.Problems = slices.DeleteFunc(v.found.Problems, func(p Problem) bool {
				return !slices.ContainsFunc(before.Problems, func(q Problem) bool { return q.Key == p.Key && errors.Is(q.Kind, p.Kind) })
			})
			return v.found, nil
		}
		before = v.found
	}
}

// maxRereads is how often a journal is read again while its HEAD changes.
const maxRereads = 3

// verifier is one attempt of Verify.
type verifier struct {
	bucket blob.Bucket
	prefix string
	name   string
	codec  *format.Codec
	fold   StateBuilder
	found  *VerifyResult

	mu         sync.Mutex
	objects    map[string]*object // by key below the prefix
	slots      []uint64           // slots of the log that were listed
	stateValid bool
}

// object is what is known about one object.
type object struct {
	header format.Header
	head   format.Head // for a copy of HEAD
	err    error
}

func (v *verifier) run(ctx context.Context) error {
	// HEAD is read first: the objects to which it refers exist as long as it does not change.
	head, headErr, err := v.readHead(ctx)
	if err != nil {
		return err
	}
	keys, err := v.list(ctx)
	if err != nil {
		return err
	}
	if len(keys) == 0 && errors.Is(headErr, blob.ErrNotFound) {
		v.found.Empty, v.found.Complete = true, true
		return nil
	}
	if err := v.readAll(ctx, keys); err != nil {
		return err
	}
	if err := v.compareHead(ctx, head, headErr); err != nil {
		return err
	}
	for _, o := range v.objects {
		epoch := max(o.header.Epoch, o.head.Epoch)
		v.found.epoch = max(v.found.epoch, epoch)
		if h := &v.found.Head; epoch == h.Epoch && h.Closed == 0 && h.Repair == "" && !v.found.copied { // a refused takeover writes only HEAD
			v.found.HasOwner = true
		}
	}
	if v.found.Head.Epoch > 0 { // otherwise it is not known where the state begins
		if err := v.state(ctx); err != nil {
			return err
		}
	}
	v.unneededObjects()
	slices.SortFunc(v.found.Problems, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	return nil
}

// state verifies the checkpoints and the log, and passes the state to the fold.
func (v *verifier) state(ctx context.Context) error {
	head := &v.found.Head
	v.stateValid = true
	if err := v.checkpoint(ctx, head.Checkpoint, false); err != nil {
		return err
	}
	if err := v.checkpoint(ctx, head.Previous, true); err != nil {
		return err
	}
	if err := v.log(ctx); err != nil {
		return err
	}
	v.found.Complete = v.stateValid
	return nil
}

// list returns all keys below the prefix, except those of payloads.
func (v *verifier) list(ctx context.Context) ([]string, error) {
	var keys []string
	for after := ""; ; {
		page, err := v.bucket.List(ctx, v.prefix+"/", after, 0)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			after = e.Key
			key := e.Key[len(v.prefix)+1:]
			if key != format.HeadKey && !strings.HasPrefix(key, format.LogPrefix) && !strings.HasPrefix(key, format.CkptPrefix) && !strings.HasPrefix(key, format.CopyPrefix) {
				continue
			}
			keys = append(keys, key)
			if slot, ok := format.ParseSlotKey(key); ok {
				v.slots = append(v.slots, slot)
			}
		}
		if !page.More || len(page.Entries) == 0 {
			return keys, nil
		}
	}
}

const readsAtOnce = 16

// readAll reads every object except HEAD and stores its header. It ends with the first error of the bucket.
func (v *verifier) readAll(ctx context.Context, keys []string) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(readsAtOnce)
	for _, key := range keys {
		if key == format.HeadKey {
			continue
		}
		all.Go(func() error {
			if err := ctx.Err(); err != nil { // another read has failed
				return err
			}
			o, err := v.read(ctx, key)
			if err != nil {
				return err
			}
			v.mu.Lock()
			defer v.mu.Unlock()
			v.objects[key] = o
			return nil
		})
	}
	v.found.Objects = len(keys)
	return all.Wait()
}

// read reads an object. It reads a damaged one again, because a read may be torn.
func (v *verifier) read(ctx context.Context, key string) (x *object, err error) {
	for range readsOfDamaged {
		data, err := v.bucket.Read(ctx, v.prefix+"/"+key)
		switch {
		case isObjectError(err):
			x = &object{err: err}
		case err != nil:
			return nil, err
		default:
			x = v.decode(key, data.Data)
		}
		if !errors.Is(kindOf(x.err), ErrCorrupt) {
			break
		}
	}
	return x, nil
}

// readsOfDamaged is how often an object is read before it counts as damaged.
const readsOfDamaged = 3

func (v *verifier) decode(key string, data []byte) *object {
	x := &object{}
	if serial, ok := format.ParseCopyKey(key); ok {
		x.head, x.err = format.DecodeHead(data)
		if x.err == nil && x.head.Serial != serial {
			x.err = fmt.Errorf("%w: it is the copy with the number %d", format.ErrCorrupt, x.head.Serial)
		}
		if x.err == nil && v.ofOther(&x.head) {
			x.err = fmt.Errorf("%w: it is of the journal %q", format.ErrCorrupt, x.head.Name)
		}
		return x
	}
	s, err := v.codec.Decode(data)
	if x.err = err; err == nil {
		x.header = s.Header
	}
	return x
}

// problem adds a problem, unless the object has one already.
func (v *verifier) problem(key string, kind error, spare bool, format string, args ...any) {
	if slices.ContainsFunc(v.found.Problems, func(p Problem) bool { return p.Key == v.prefix+"/"+key && (!p.Unneeded || spare) }) {
		return // it has one already
	}
	v.found.Problems = append(v.found.Problems, Problem{Key: v.prefix + "/" + key, Kind: kind, Text: fmt.Sprintf(format, args...), Unneeded: spare})
}

// broken adds the problem of an object that cannot be read.
func (v *verifier) broken(key string, err error, spare bool) {
	if kind := kindOf(err); errors.Is(kind, ErrMissing) {
		v.problem(key, kind, spare, "the object is missing")
	} else {
		v.problem(key, kind, spare, "%v", err)
	}
}

// kindOf returns the kind of an error of the bucket or of package format.
func kindOf(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, blob.ErrNotFound):
		return ErrMissing
	case errors.Is(err, format.ErrNewer):
		return ErrNewer
	case errors.Is(err, blob.ErrDenied):
		return blob.ErrDenied
	}
	return ErrCorrupt
}

// readHead reads HEAD; bad says why it cannot be read or decoded.
func (v *verifier) readHead(ctx context.Context) (head format.Head, bad, err error) {
	for range readsOfDamaged {
		o, err := v.bucket.Read(ctx, v.prefix+"/"+format.HeadKey)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			return head, err, nil
		case errors.Is(err, blob.ErrCorrupt):
			bad = err
			continue
		case err != nil: // a client that may not read HEAD may read nothing
			return head, nil, err
		}
		v.found.version = o.Version
		if head, bad = format.DecodeHead(o.Data); !errors.Is(bad, format.ErrCorrupt) {
			break
		}
	}
	return head, bad, nil
}

// isObjectError reports whether an error of the bucket concerns the object and not the bucket.
func isObjectError(err error) bool {
	return errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrCorrupt) || errors.Is(err, blob.ErrDenied)
}

// compareHead compares HEAD with its copies. If HEAD is missing, damaged or older, the newest copy
// takes its place.
func (v *verifier) compareHead(ctx context.Context, head format.Head, bad error) error {
	newest := v.newestCopy()
	v.found.copied = true
	switch {
	case bad != nil:
		v.broken(format.HeadKey, bad, false)
	case newest.Serial > head.Serial:
		v.problem(format.HeadKey, ErrCorrupt, false, "it is an older HEAD, of the serial number %d: %s has %d", head.Serial, format.CopyKey(newest.Serial), newest.Serial)
	case v.ofOther(&head):
		v.problem(format.HeadKey, ErrCorrupt, false, "it is of the journal %q, this one is %q", head.Name, v.name)
	default:
		v.found.Head, v.found.copied = head, false
		if head.Repair != "" {
			v.problem(format.HeadKey, ErrRepairing, true, "run the repair again: no node serves the journal until it has ended")
		}
		return v.checkCopy(ctx, &head)
	}
	// The last HEAD may have been written by a takeover, which enlarges the window.
	newest.Window = max(newest.Window, owner.BarrierWindows*defaultWindow)
	v.found.Head = newest
	return nil
}

// checkCopy reports a missing copy of HEAD as a problem.
func (v *verifier) checkCopy(ctx context.Context, head *format.Head) error {
	last := head.Serial
	if head.Closed != 0 && last > 0 { // the HEAD of a clean close is not copied
		last--
	}
	if last == 0 || v.objects[format.CopyKey(last)] != nil || v.objects[format.CopyKey(head.Serial)] != nil {
		return nil
	}
	o, err := v.read(ctx, format.CopyKey(last)) // the copy is written after HEAD
	if err == nil && errors.Is(o.err, blob.ErrNotFound) {
		v.problem(format.CopyKey(last), ErrMissing, true, "the copy of HEAD is missing or not written yet")
	}
	return err
}

// ofOther reports whether a HEAD belongs to another journal.
func (v *verifier) ofOther(h *format.Head) bool {
	return h.Name != "" && v.name != "" && h.Name != v.name
}

// newestCopy returns the newest copy of HEAD that can be decoded.
func (v *verifier) newestCopy() (newest format.Head) {
	for key, o := range v.objects {
		if strings.HasPrefix(key, format.CopyPrefix) && o.err == nil && o.head.Serial > newest.Serial {
			newest = o.head
		}
	}
	return newest
}

// checkpoint verifies the parts of a checkpoint, and passes them to the fold unless it is the
// previous checkpoint (spare).
func (v *verifier) checkpoint(ctx context.Context, c format.Checkpoint, spare bool) error {
	whole := true
	parts := c.Objects()
	if c.Kept > 0 {
		parts = append(parts, format.Run{Slot: c.Slot, ID: c.ID, Part: -1})
	}
	for _, part := range parts {
		key := part.Key()
		switch o := v.objects[key]; {
		case o == nil:
			v.problem(key, ErrMissing, spare, "a part of the checkpoint of slot %d is missing", c.Slot)
			whole = false
		case o.err != nil:
			v.broken(key, o.err, spare)
			whole = false
		case !o.header.Part || o.header.PutID != part.ID || int(o.header.Jump) != max(part.Part, 0):
			v.problem(key, ErrCorrupt, spare, "it is another part of the checkpoint")
			whole = false
		}
	}
	if whole && c.Kept > 0 {
		if err := v.keptSlots(ctx, c, spare); err != nil {
			return err
		}
	}
	if spare {
		return nil
	}
	v.stateValid = v.stateValid && whole
	for _, part := range c.Objects() {
		if !v.stateValid {
			return nil
		}
		s, err := v.segment(ctx, part.Key())
		if err != nil {
			return err
		}
		if s == nil {
			continue
		}
		if err := restore(v.fold, s); err != nil {
			v.problem(part.Key(), ErrCorrupt, false, "%v", err)
			v.stateValid = false
		}
	}
	return nil
}

// keptSlots verifies the slots below a checkpoint to which it refers. What they are needed for is known
// to the caller; the state is complete without them.
func (v *verifier) keptSlots(ctx context.Context, c format.Checkpoint, spare bool) error {
	key := format.PartKey(c, -1)
	list, err := v.segment(ctx, key)
	if err != nil || list == nil {
		return err
	}
	slots, err := owner.KeptSlots(list, c.Kept)
	if err != nil {
		v.problem(key, ErrCorrupt, spare, "%v", err)
		v.stateValid = v.stateValid && spare
		return nil
	}
	for _, slot := range slots {
		key := format.SlotKey(slot)
		switch o := v.objects[key]; {
		case o == nil:
			v.problem(key, ErrMissing, spare, "the checkpoint of slot %d refers to it, and it is missing", c.Slot)
		case o.err != nil:
			v.broken(key, o.err, spare)
		case o.header.Slot != slot || o.header.Part || o.header.Fence:
			v.problem(key, ErrCorrupt, spare, "it says slot %d, part %t, fence %t", o.header.Slot, o.header.Part, o.header.Fence)
		}
	}
	return nil
}

// segment reads an object that was valid a moment ago.
func (v *verifier) segment(ctx context.Context, key string) (*format.Segment, error) {
	o, err := v.bucket.Read(ctx, v.prefix+"/"+key)
	if err == nil {
		var s *format.Segment
		if s, err = v.codec.Decode(o.Data); err == nil {
			return s, nil
		}
	}
	if isObjectError(err) || errors.Is(err, format.ErrCorrupt) {
		v.broken(key, err, false)
		v.stateValid = false
		return nil, nil
	}
	return nil, err
}

// log verifies the log from the newest checkpoint to its end, and from the previous checkpoint to
// the newest one.
func (v *verifier) log(ctx context.Context) error {
	head := &v.found.Head
	if head.Previous.Slot > 0 && head.Previous.Slot < head.Checkpoint.Slot {
		if err := v.follow(ctx, head.Previous, head.Checkpoint.Slot); err != nil {
			return err
		}
	}
	return v.follow(ctx, head.Checkpoint, 0)
}

// follow verifies the log from a checkpoint to its end, or up to the slot to. With to, the slots
// are spare: only the previous checkpoint needs them.
func (v *verifier) follow(ctx context.Context, from format.Checkpoint, to uint64) error {
	t := owner.NewLogWalk(&v.found.Head, from)
	t.Slots = v.slots
	spare := to != 0
	for !spare || t.At < to {
		key := format.SlotKey(t.At)
		if closed, older := t.Closed(); closed {
			v.walkProblem(older, spare)
			return nil
		}
		o := v.objects[key]
		if o == nil || errors.Is(o.err, blob.ErrNotFound) {
			until, why := t.ProveAcked(v.header)
			if why == nil {
				return nil
			}
			found, err := v.read(ctx, key) // it may exist since
			if err != nil {
				return err
			}
			if o = found; errors.Is(o.err, blob.ErrNotFound) {
				v.walkProblem(why, spare)
				if until == t.At { // it is the end of the log, or that is not known
					return nil
				}
				t.Skip(until)
				continue
			}
			v.objects[key] = o
		}
		if why := v.fits(&t, o); why != nil {
			v.walkProblem(why, spare)
			t.Skip(t.At + 1)
			continue
		}
		t.Advance(o.header)
		if spare {
			continue
		}
		if err := v.replay(ctx, key, o); err != nil {
			return err
		}
	}
	return nil
}

// header returns the header of a listed slot.
func (v *verifier) header(slot uint64) (format.Header, error) {
	key := format.SlotKey(slot)
	o := v.objects[key]
	if o == nil || errors.Is(o.err, blob.ErrNotFound) {
		return format.Header{}, nil
	}
	if o.err != nil {
		return o.header, &owner.ObjectError{Key: key, Kind: kindOf(o.err), Err: o.err}
	}
	return o.header, nil
}

// fits returns what is wrong with the object in the next slot of the walk.
func (v *verifier) fits(t *owner.LogWalk, o *object) error {
	if o.err != nil {
		return &owner.ObjectError{Key: format.SlotKey(t.At), Kind: kindOf(o.err), Err: o.err}
	}
	return cmp.Or(t.CheckHead(o.header), t.CheckSegment(o.header))
}

// walkProblem adds an error of a walk as a problem.
func (v *verifier) walkProblem(err error, spare bool) {
	o, ok := errors.AsType[*owner.ObjectError](err)
	if !ok {
		return
	}
	v.stateValid = v.stateValid && spare
	v.problem(o.Key, o.Kind, spare, "%v", o.Err)
}

// replay passes a segment to the fold.
func (v *verifier) replay(ctx context.Context, key string, o *object) error {
	v.found.Segments++
	if o.header.Records == 0 || !v.stateValid {
		return nil
	}
	s, err := v.segment(ctx, key)
	if err != nil || s == nil {
		return err
	}
	if err := replay(v.fold, s); err != nil {
		v.problem(key, ErrCorrupt, false, "%v", err)
		v.stateValid = false
	}
	return nil
}

// unneededObjects adds objects that are not needed now and still cannot be read.
func (v *verifier) unneededObjects() {
	named := map[string]bool{}
	for _, p := range v.found.Problems {
		named[p.Key] = true
	}
	for key, o := range v.objects {
		slot, isSlot := format.ParseSlotKey(key)
		switch {
		case named[v.prefix+"/"+key]:
		case o.err != nil:
			if !errors.Is(o.err, blob.ErrNotFound) {
				v.broken(key, o.err, true)
			}
		case isSlot && (o.header.Slot != slot || o.header.Part):
			v.problem(key, ErrCorrupt, true, "it says slot %d, part %t", o.header.Slot, o.header.Part)
		}
	}
}
