package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/emitd/emitd/daemon/queue/journal/format"
	"github.com/emitd/emitd/daemon/queue/journal/owner"
	"github.com/emitd/emitd/storage/blob"
)

// Problem is an object of a journal that is not as it should be.
type Problem struct {
	Key string // in the bucket
	// Kind is ErrMissing, ErrCorrupt or ErrNewer.
	Kind error
	Text string
	// Spare: nothing that was acknowledged depends on the object now.
	Spare bool
}

// Found is what Verify has seen.
type Found struct {
	Problems []Problem
	Empty    bool // there is no journal yet
	Objects  int  // read
	Segments int  // of the log since the newest checkpoint
	Head     format.Head
	// Complete: the state that Fold was handed is all of it. Else it ends before the first problem.
	Complete bool

	version blob.Version // of HEAD; empty: it cannot be read
	epoch   int64        // the highest one of an object
}

// Verify reads every object of a journal and compares it with what the others say. It writes nothing and
// takes nothing over, and it may run beside the owner. fold is handed the state; it may be handed it
// several times, each time after Reset. name is Config.Name. Errors are those of the bucket: what is wrong with objects is in
// Found.
func Verify(ctx context.Context, bucket blob.Bucket, prefix, name string, fold Fold) (*Found, error) {
	for attempt := 0; ; attempt++ {
		v := &verifier{bucket: bucket, prefix: prefix, name: name, codec: format.NewCodec(), fold: fold, found: &Found{}, objects: map[string]*object{}}
		fold.Reset()
		if err := v.run(ctx); err != nil {
			return nil, fmt.Errorf("verify journal %s: %w", prefix, err)
		}
		if len(v.found.Problems) == 0 || attempt == 3 {
			return v.found, nil
		}
		// What an owner replaced or collected meanwhile is no damage.
		o, err := bucket.Read(ctx, prefix+"/"+format.HeadKey)
		if moved := err == nil && o.Version != v.version; !moved {
			return v.found, nil
		}
	}
}

// verifier is one attempt.
type verifier struct {
	bucket  blob.Bucket
	prefix  string
	name    string
	codec   *format.Codec
	fold    Fold
	found   *Found
	version blob.Version // of HEAD

	mu      sync.Mutex
	objects map[string]*object // by key below the prefix
	slots   []uint64           // of the log, that are listed
	folding bool
}

// object is what is known of one.
type object struct {
	header format.Header
	head   format.Head // of a copy of HEAD
	err    error
}

func (v *verifier) run(ctx context.Context) error {
	keys, err := v.list(ctx)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		v.found.Empty, v.found.Complete = true, true
		return nil
	}
	if err := v.readAll(ctx, keys); err != nil {
		return err
	}
	if err := v.readHead(ctx); err != nil {
		return err
	}
	v.found.version = v.version
	for _, o := range v.objects {
		v.found.epoch = max(v.found.epoch, o.header.Epoch)
	}
	head := &v.found.Head
	if head.Epoch == 0 {
		return nil // nothing says where the state begins
	}
	v.folding = true
	if err := v.checkpoint(ctx, head.Checkpoint, false); err != nil {
		return err
	}
	if err := v.checkpoint(ctx, head.Previous, true); err != nil {
		return err
	}
	if err := v.log(ctx); err != nil {
		return err
	}
	v.found.Complete = v.folding
	v.rest()
	slices.SortFunc(v.found.Problems, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	return nil
}

// list returns all keys, below the prefix, but for those of payloads.
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

// readAll reads every object but HEAD, and keeps what its header says.
func (v *verifier) readAll(ctx context.Context, keys []string) error {
	var all sync.WaitGroup
	turns := make(chan struct{}, readsAtOnce)
	var failed error
	for _, key := range keys {
		if key == format.HeadKey {
			continue
		}
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			o, err := v.read(ctx, key)
			v.mu.Lock()
			defer v.mu.Unlock()
			if err != nil {
				failed = errors.Join(failed, err)
				return
			}
			v.objects[key] = o
		})
	}
	all.Wait()
	v.found.Objects = len(keys)
	return failed
}

func (v *verifier) read(ctx context.Context, key string) (*object, error) {
	data, err := v.bucket.Read(ctx, v.prefix+"/"+key)
	switch {
	case errors.Is(err, blob.ErrCorrupt), errors.Is(err, blob.ErrNotFound):
		return &object{err: err}, nil
	case err != nil:
		return nil, err
	}
	x := &object{}
	if serial, ok := format.ParseCopyKey(key); ok {
		x.head, x.err = format.DecodeHead(data.Data)
		if x.err == nil && x.head.Serial != serial {
			x.err = fmt.Errorf("%w: it is the copy with the number %d", format.ErrCorrupt, x.head.Serial)
		}
		if x.err == nil && v.foreign(&x.head) {
			x.err = fmt.Errorf("%w: it is of the journal %q", format.ErrCorrupt, x.head.Name)
		}
		return x, nil
	}
	s, err := v.codec.Decode(data.Data)
	if x.err = err; err == nil {
		x.header = s.Header
	}
	return x, nil
}

// problem adds one.
func (v *verifier) problem(key string, kind error, spare bool, format string, args ...any) {
	v.found.Problems = append(v.found.Problems, Problem{Key: v.prefix + "/" + key, Kind: kind, Text: fmt.Sprintf(format, args...), Spare: spare})
}

// broken adds an object that cannot be read.
func (v *verifier) broken(key string, err error, spare bool) {
	switch {
	case errors.Is(err, blob.ErrNotFound):
		v.problem(key, ErrMissing, spare, "it is gone")
	case errors.Is(err, format.ErrNewer):
		v.problem(key, ErrNewer, spare, "%v", err)
	default:
		v.problem(key, ErrCorrupt, spare, "%v", err)
	}
}

// readHead reads HEAD and compares it with its copies. If it cannot be read, what follows goes by the
// newest copy.
func (v *verifier) readHead(ctx context.Context) error {
	o, err := v.bucket.Read(ctx, v.prefix+"/"+format.HeadKey)
	if err != nil && !errors.Is(err, blob.ErrCorrupt) && !errors.Is(err, blob.ErrNotFound) {
		return err
	}
	var head format.Head
	if err == nil {
		v.version = o.Version
		head, err = format.DecodeHead(o.Data)
	}
	newest := v.newestCopy()
	switch {
	case err != nil:
		v.broken(format.HeadKey, err, false)
		head = newest
	case newest.Serial > head.Serial:
		v.problem(format.HeadKey, ErrCorrupt, false, "it is an older HEAD, of the serial number %d: %s has %d", head.Serial, format.CopyKey(newest.Serial), newest.Serial)
		head = newest
	case v.foreign(&head):
		v.problem(format.HeadKey, ErrCorrupt, false, "it is of the journal %q, this one is %q", head.Name, v.name)
		head = newest
	default:
		last := head.Serial
		if head.Closed != 0 && last > 0 { // nobody copies the HEAD of a clean close
			last--
		}
		if last > 0 && v.objects[format.CopyKey(last)] == nil && v.objects[format.CopyKey(head.Serial)] == nil {
			v.problem(format.CopyKey(last), ErrMissing, true, "the copy of HEAD is gone, or not written yet")
		}
	}
	v.found.Head = head
	return nil
}

// foreign reports whether a HEAD is that of another journal.
func (v *verifier) foreign(h *format.Head) bool {
	return h.Name != "" && v.name != "" && h.Name != v.name
}

// newestCopy returns the newest copy of HEAD that can be read.
func (v *verifier) newestCopy() (newest format.Head) {
	for key, o := range v.objects {
		if strings.HasPrefix(key, format.CopyPrefix) && o.err == nil && o.head.Serial > newest.Serial {
			newest = o.head
		}
	}
	return newest
}

// checkpoint looks at the parts of a checkpoint, and hands them to the fold unless it is a spare one.
func (v *verifier) checkpoint(ctx context.Context, c format.Checkpoint, spare bool) error {
	whole := true
	for _, part := range c.Objects() {
		key := part.Key()
		switch o := v.objects[key]; {
		case o == nil:
			v.problem(key, ErrMissing, spare, "a part of the checkpoint of slot %d is gone", c.Slot)
			whole = false
		case o.err != nil:
			v.broken(key, o.err, spare)
			whole = false
		case !o.header.Part || o.header.PutID != part.ID || int(o.header.Jump) != part.Part:
			v.problem(key, ErrCorrupt, spare, "it is not this part of the checkpoint")
			whole = false
		}
	}
	if spare {
		return nil
	}
	v.folding = v.folding && whole
	for _, part := range c.Objects() {
		if !v.folding {
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
			v.folding = false
		}
	}
	return nil
}

// segment reads an object that was whole a moment ago.
func (v *verifier) segment(ctx context.Context, key string) (*format.Segment, error) {
	o, err := v.bucket.Read(ctx, v.prefix+"/"+key)
	if err == nil {
		var s *format.Segment
		if s, err = v.codec.Decode(o.Data); err == nil {
			return s, nil
		}
	}
	if errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrCorrupt) || errors.Is(err, format.ErrCorrupt) {
		v.broken(key, err, false)
		v.folding = false
		return nil, nil
	}
	return nil, err
}

// log follows the log from the checkpoint to its end, and what is before it from the checkpoint before.
func (v *verifier) log(ctx context.Context) error {
	head := &v.found.Head
	if head.Previous.Slot > 0 && head.Previous.Slot < head.Checkpoint.Slot {
		t := owner.NewTrail(head, head.Previous)
		if err := v.follow(ctx, t, head.Checkpoint.Slot, true); err != nil {
			return err
		}
	}
	return v.follow(ctx, owner.NewTrail(head, head.Checkpoint), 0, false)
}

// follow goes along the log until a slot (0: its end).
func (v *verifier) follow(ctx context.Context, t *owner.Trail, until uint64, spare bool) error {
	for {
		at := t.At
		if until != 0 && at >= until {
			return nil
		}
		key := format.SlotKey(at)
		o := v.objects[key]
		switch {
		case o == nil:
			var why error
			if until == 0 {
				why = t.Filled(v.slots, func(slot uint64) (format.Header, bool) {
					x := v.objects[format.SlotKey(slot)]
					return x.header, x.err == nil
				})
				if why == nil {
					return nil
				}
			} else {
				why = fmt.Errorf("the checkpoint of slot %d was written after it", until)
			}
			v.problem(key, ErrMissing, spare, "a segment is gone: %v", why)
			v.skip(t, until, spare)
			continue
		case o.err != nil:
			v.broken(key, o.err, spare)
			v.skip(t, until, spare)
			continue
		}
		if why := t.Fits(o.header); why != nil {
			v.problem(key, ErrCorrupt, spare, "%v", why)
			v.skip(t, until, spare)
			continue
		}
		t.Take(o.header)
		if spare {
			continue
		}
		v.found.Segments++
		if o.header.Records == 0 || !v.folding {
			continue
		}
		s, err := v.segment(ctx, key)
		if err != nil {
			return err
		}
		if s == nil {
			continue
		}
		if err := replay(v.fold, s); err != nil {
			v.problem(key, ErrCorrupt, false, "%v", err)
			v.folding = false
		}
	}
}

// skip goes on behind a slot that cannot be used.
func (v *verifier) skip(t *owner.Trail, until uint64, spare bool) {
	if !spare {
		v.folding = false
	}
	next, ok := t.Next(v.slots)
	if until != 0 && (!ok || next > until) {
		next = until
	} else if !ok {
		next = max(v.found.Head.Known, t.At+1)
	}
	t.Skip(next)
}

// rest names objects that nothing depends on now and that cannot be read all the same.
func (v *verifier) rest() {
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
