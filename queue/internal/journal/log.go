package journal

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
	"github.com/emitd/emitd/storage/blob"
)

// The limits of one call of Append, and of a segment.
const (
	MaxCall    = 32 << 20 // bytes of records in one call of Append
	maxSegment = 4 << 20  // bytes of records at which a segment ends; a larger call gets a segment of its own
)

// Log is a journal that this process owns. Its methods may be called from any goroutine. Except
// Close and Read, they never wait for the store.
type Log struct {
	executor    Executor
	callTimeout time.Duration
	begun       time.Time // the machine's time 0

	ctx     context.Context // context of all requests
	cancel  context.CancelFunc
	calls   sync.WaitGroup // requests in flight, and other events that the machine is handling
	opening *opening       // nil after the takeover

	acks chan uint64
	done chan struct{} // closed when the log has ended

	hooks  Hooks
	inHook sync.Mutex // held while a hook runs

	mu           sync.Mutex // guards the fields below; the machine is called only with mu held
	machine      *owner.Machine
	wakeAt       time.Duration // when the machine wants a Tick; 0: never
	timer        *time.Timer   // nil until it is needed
	unwatch      func() bool   // stops watching the context; nil until the takeover has ended
	ckpt         *Checkpoint
	owned        bool
	lost         []Lost
	err          error
	pendingHooks []func() // hook calls to make without mu
}

// Lost is a range of slots that a salvaged journal continues without: from Slot up to, but not
// including, End.
type Lost struct {
	Slot, End uint64
	Err       error
}

// Lost lists the slots that were skipped because of Config.Salvage.
func (l *Log) Lost() []Lost { return l.lost }

// Now returns the time to pass to Append: the estimate, or the newest time in the journal if that
// is later, in whole microseconds (the journal's precision). A decision that replay repeats must
// use this time.
func (l *Log) Now(estimate time.Time) time.Time {
	return time.UnixMicro(max(estimate.UnixMicro(), l.view().Time))
}

// Append adds records to the segment that is being gathered, and returns its slot. The records are
// durable when that slot is. All records of a call are in one segment and reach one call of Replay.
// They are copied. at is the time of the records; see Now. Without records, Append does nothing and
// returns Barrier.
//
// Errors: ErrFull and ErrTooLarge (nothing was appended), and Err once the log has ended.
func (l *Log) Append(at time.Time, records ...[]byte) (slot uint64, err error) {
	return l.AppendFor(0, at, records...)
}

// AppendFor is Append for so many callers who wait for the records. If several waited for a segment, the first of the next ones
// waits for the others to come back, for as long as two writes take, but at most 2 ms.
func (l *Log) AppendFor(callers int, at time.Time, records ...[]byte) (slot uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slot, effects, err := l.machine.Append(l.now(), at.UnixMicro(), callers, records)
	l.carryOut(effects)
	return slot, l.endError(err)
}

// Full reports whether Append would return ErrFull for any record. Only an acknowledgement changes
// that.
func (l *Log) Full() bool {
	return l.view().Full
}

// NewestSlot returns the highest slot that has a record or is being gathered. An answer that depends
// on the state but writes nothing (for a duplicate, or a repeated complete) is valid once Durable
// has reached this slot.
func (l *Log) NewestSlot() uint64 {
	return l.view().NewestSlot
}

// Durable returns the highest acknowledged slot: everything appended to it and to lower slots is
// durable. After Done is closed it does not change any more; records in higher slots have an
// unknown outcome.
func (l *Log) Durable() uint64 {
	return l.view().Durable
}

// Acks delivers Durable after it grew. The channel holds the newest value only and is never closed:
// receive from it and from Done.
func (l *Log) Acks() <-chan uint64 { return l.acks }

// Done is closed when the log has ended: because it was fenced or closed, or because its context
// ended.
func (l *Log) Done() <-chan struct{} { return l.done }

// Err returns why the log has ended: ErrFenced, ErrClosed, ErrCorrupt, …; nil before that.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Epoch returns the number of this ownership; it grows with every takeover.
func (l *Log) Epoch() int64 {
	return l.view().Epoch
}

// Secret returns 32 random bytes that were made with the journal. They are the same for all its
// owners, and serve as the key for MACs over what the caller gives to clients.
func (l *Log) Secret() []byte {
	return l.view().Secret
}

// Stats returns the log's counts.
func (l *Log) Stats() Stats {
	v := l.view()
	return Stats{
		Epoch: v.Epoch, Head: v.NewestSlot, Durable: v.Durable, PendingBytes: v.Pending, Outstanding: v.Outstanding,
		Slots: v.Stats.Slots, Bytes: v.Stats.Bytes,
		Segments: v.Stats.Segments, Records: v.Stats.Records, SegmentBytes: v.Stats.SegmentBytes,
		Repeated: v.Stats.Repeated, Recognised: v.Stats.Recognised,
	}
}

// view returns the machine's state.
func (l *Log) view() owner.View {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.machine.View()
}

const (
	// dueBytes is what a replay reads in about a quarter of a second of decoding. Reading 4,096 slots
	// takes about a second at 60 ms per request, so a slot counts as slotBytes.
	dueBytes  = 64 << 20
	slotBytes = dueBytes / 4096
	// dueShare is how often a checkpoint's own bytes must be written before the next one is due.
	dueShare = 2
)

// CheckpointDue reports whether replay has become long enough for a checkpoint to be worth its cost.
// checkpointBytes is about the size of the next checkpoint. It is due when the log since the last one
// has 64 MiB, or twice the bytes of the checkpoint if that is more; each slot counts as 16 KiB in addition. So
// checkpoints add at most half to what is written, whatever the size of the state. Before Close, a
// checkpoint is worth it above Config.Readahead slots.
func (l *Log) CheckpointDue(checkpointBytes int64) bool {
	s := l.Stats()
	return s.Bytes+int64(s.Slots)*slotBytes >= max(dueBytes, dueShare*checkpointBytes)
}

// Read returns the records of a durable slot, in the order of replay. It is for payloads to which the
// state refers and which a checkpoint kept (Checkpoint.Commit). The records point into one piece of
// memory of about size bytes. Errors: ErrMissing, ErrCorrupt, ErrNewer, and those of the bucket.
func (l *Log) Read(ctx context.Context, slot uint64) (records iter.Seq[[]byte], size int, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.callTimeout)
	defer cancel()
	return ReadSlot(ctx, l.executor.Bucket, l.executor.Prefix, l.executor.Codec, slot)
}

// ReadSlot is Log.Read for programs that do not own the journal.
func ReadSlot(ctx context.Context, bucket blob.Bucket, prefix string, codec *Codec, slot uint64) (records iter.Seq[[]byte], size int, err error) {
	key := SlotKey(prefix, slot)
	o, err := bucket.Read(ctx, key)
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", key, readError(err))
	}
	s, err := codec.Decode(o.Data)
	if err == nil && (s.Header.Slot != slot || s.Header.Part) {
		err = fmt.Errorf("%w: it says slot %d, part %t", format.ErrCorrupt, s.Header.Slot, s.Header.Part)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", key, readError(err))
	}
	return func(yield func([]byte) bool) {
		for _, b := range s.Batches {
			for r := range b.Records() {
				if !yield(r) {
					return
				}
			}
		}
	}, int(s.Header.Raw), nil
}

// SlotKey returns the key of a slot's object in the bucket.
func SlotKey(prefix string, slot uint64) string { return prefix + "/" + format.SlotKey(slot) }

// Close writes the remaining records, waits until all are acknowledged, and marks the journal as
// closed, so that the next owner can start at once. A checkpoint that HEAD does not name, and is
// not about to name, is aborted. If ctx ends first, or the log ends otherwise, the error says why,
// and the next owner takes over as after a crash. When Close returns, all goroutines of the log
// have ended. Close may be called after the log has ended; it then returns Err, or nil if the log
// was closed cleanly.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	l.carryOut(l.machine.Close(l.now()))
	l.mu.Unlock()
	select {
	case <-l.done:
	case <-ctx.Done():
		l.mu.Lock()
		l.carryOut(l.machine.Stop(fmt.Errorf("%w before everything was acknowledged: %w", ErrClosed, ctx.Err())))
		l.mu.Unlock()
	}
	<-l.done
	l.calls.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.machine.View().Err != nil {
		return l.err
	}
	return nil
}

// endError converts errors of the machine: once the log has ended, the reason replaces them.
func (l *Log) endError(err error) error {
	switch {
	case err == nil:
		return nil
	case l.err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, ErrTooLarge):
		return l.err
	}
	return err
}

func (l *Log) wrap(err error) error { return fmt.Errorf("journal %s: %w", l.executor.Prefix, err) }

func (l *Log) now() time.Duration { return time.Since(l.begun) }
