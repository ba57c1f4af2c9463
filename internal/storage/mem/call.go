package mem

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// Op is a method of blob.Bucket.
type Op string

// The methods.
const (
	Read       Op = "read"
	ReadPrefix Op = "read prefix"
	ReadNewer  Op = "read newer"
	Create     Op = "create"
	Replace    Op = "replace"
	Write      Op = "write"
	List       Op = "list"
	Delete     Op = "delete"
)

// writes reports whether the method changes something.
func (op Op) writes() bool { return op == Create || op == Replace || op == Write || op == Delete }

// Call is one call of the bucket, as latencies and faults get it.
type Call struct {
	N    int // number of the call in its bucket, from 1; 0 when Config.Latency is asked, before the call has a number
	Op   Op
	Key  string // or the prefix of a List
	Size int    // bytes of a write
}

// Stats counts the calls of one method.
type Stats struct {
	Calls    int64 // all, refused ones included
	Failed   int64 // calls that returned an error, including answers such as ErrNotFound
	BytesIn  int64 // of writes that took effect
	BytesOut int64
}

// Stats returns the counts by method.
func (b *Bucket) Stats() map[Op]Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.stats)
}

// Requests is the sum of all calls.
func (b *Bucket) Requests() int64 {
	var n int64
	for _, s := range b.Stats() {
		n += s.Calls
	}
	return n
}

func (b *Bucket) count(op Op, change func(*Stats)) {
	s := b.stats[op]
	change(&s)
	b.stats[op] = s
}

// do carries out a call: half the latency, then the effect or the fault, then the other half.
func (b *Bucket) do(ctx context.Context, call *Call, effect func(Fault) error) error {
	if err := ctx.Err(); err != nil {
		return &blob.Error{Op: string(call.Op), Key: call.Key, Kind: blob.ErrUnavailable, Err: err}
	}
	var latency time.Duration
	if b.config.Latency != nil {
		latency = b.config.Latency(*call)
	}
	if err := wait(ctx, latency/2); err != nil {
		b.tally(call, true)
		return interrupted(*call, err)
	}
	fault, err := b.arrive(call, effect)
	if fault.Hang {
		<-ctx.Done()
	}
	if late := wait(ctx, latency-latency/2); late != nil {
		return interrupted(*call, late)
	}
	return err
}

// arrive is the part of a call that happens at the store, in one step.
func (b *Bucket) arrive(call *Call, effect func(Fault) error) (Fault, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deliverDue(false)
	b.calls++
	call.N = b.calls
	fault := b.pick(*call)
	err := b.apply(*call, fault, effect)
	b.count(call.Op, func(s *Stats) {
		s.Calls++
		if err != nil {
			s.Failed++
		}
	})
	return fault, err
}

// tally counts a call that ended before it arrived.
func (b *Bucket) tally(call *Call, failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	call.N = b.calls
	b.count(call.Op, func(s *Stats) {
		s.Calls++
		if failed {
			s.Failed++
		}
	})
}

// wait lets d pass, or returns why it ended early. It does not yield if d is zero.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// interrupted is the error of a call whose context ended while the call was in flight.
func interrupted(call Call, err error) error {
	e := &blob.Error{Op: string(call.Op), Key: call.Key, Err: err}
	if call.Op.writes() {
		e.Unknown = true
	} else {
		e.Kind = blob.ErrUnavailable
	}
	return e
}

// fail gives an error the form of the package's errors.
func fail(call Call, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*blob.Error](err); ok {
		return e
	}
	return &blob.Error{Op: string(call.Op), Key: call.Key, Kind: err}
}
