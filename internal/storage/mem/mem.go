// Package mem is a bucket in memory: the reference model of package blob, for tests, simulations
// and development.
//
// Without latency and faults a call takes effect at once, on the caller's goroutine. The package
// starts no goroutines and has no timers of its own. A deterministic simulator can therefore drive
// it step by step, and in a testing/synctest bubble its latencies pass in virtual time.
//
// # Versions
//
// A version is a checksum of the bytes, like the ETag of S3. Equal bytes written twice have equal
// versions, and an object that goes A, B, A looks unchanged. This is deliberate: code that works
// with this package does not depend on versions that never repeat.
//
// # Latency
//
// Half of the latency passes before the effect and half after it. A write whose context ends in the
// first half has not happened. One whose context ends in the second half has happened. Both return
// blob.ErrUnknownOutcome, because the caller of a real store could not distinguish them either.
//
// # Faults
//
// [Bucket.Inject] queues faults for the next calls of one kind. [Config.Faults] is called before
// every call, for random faults from a seed. A fault is a value ([Fault]). Its kinds are what
// stores and networks do: see [FaultKind].
package mem

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// Config configures a bucket. Its zero value is a store without latency and faults.
type Config struct {
	// Latency is the latency of each call; nil is none. It is called before the call, outside any
	// lock.
	Latency func(Call) time.Duration

	// Faults is called before each call for which Inject has queued nothing; nil is no fault. It
	// runs under the bucket's lock, so it must not call the bucket.
	Faults func(Call) Fault

	// Now stamps objects and decides when late writes arrive; nil is time.Now.
	Now func() time.Time
}

// Bucket is a blob.Bucket in memory. Use New.
type Bucket struct {
	config Config

	mu       sync.Mutex
	objects  map[string]object
	keys     []string // of objects, sorted
	calls    int
	injected []injection
	late     []lateWrite
	stats    map[Op]Stats
}

var _ blob.Bucket = (*Bucket)(nil)

// object is immutable once stored.
type object struct {
	data     []byte
	version  blob.Version
	modified time.Time
}

// New returns an empty bucket.
func New(config Config) *Bucket {
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Bucket{config: config, objects: map[string]object{}, stats: map[Op]Stats{}}
}

// Constant is a Config.Latency that is always the same.
func Constant(d time.Duration) func(Call) time.Duration {
	return func(Call) time.Duration { return d }
}

// Read implements blob.Bucket.
func (b *Bucket) Read(ctx context.Context, key string) (*blob.Object, error) {
	return b.read(ctx, Call{Op: Read, Key: key}, blob.MaxSize, "")
}

// ReadPrefix implements blob.Bucket.
func (b *Bucket) ReadPrefix(ctx context.Context, key string, n int) (*blob.Object, error) {
	return b.read(ctx, Call{Op: ReadPrefix, Key: key}, max(n, 0), "")
}

// ReadNewer implements blob.Bucket.
func (b *Bucket) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	return b.read(ctx, Call{Op: ReadNewer, Key: key}, blob.MaxSize, known)
}

func (b *Bucket) read(ctx context.Context, call Call, n int, known blob.Version) (*blob.Object, error) {
	if err := blob.CheckKey(call.Key); err != nil {
		return nil, fail(call, err)
	}
	var got *blob.Object
	err := b.do(ctx, &call, func(fault Fault) error {
		o, ok := b.objects[call.Key]
		switch {
		case !ok:
			return blob.ErrNotFound
		case known != "" && o.version == known:
			return blob.ErrNotModified
		}
		data := o.data[:min(n, len(o.data))]
		if fault.Kind == TornRead {
			data = data[:len(data)/2]
		}
		got = &blob.Object{Data: slices.Clone(data), Version: o.version}
		b.count(call.Op, func(s *Stats) { s.BytesOut += int64(len(data)) })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return got, nil
}

// Create implements blob.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	return b.put(ctx, Call{Op: Create, Key: key, Size: len(data)}, data, func() error {
		if _, ok := b.objects[key]; ok {
			return blob.ErrExists
		}
		return nil
	})
}

// Replace implements blob.Bucket.
func (b *Bucket) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	return b.put(ctx, Call{Op: Replace, Key: key, Size: len(data)}, data, func() error {
		if o, ok := b.objects[key]; !ok || o.version != old {
			return blob.ErrChanged
		}
		return nil
	})
}

// Write implements blob.Bucket.
func (b *Bucket) Write(ctx context.Context, key string, data []byte) (blob.Version, error) {
	return b.put(ctx, Call{Op: Write, Key: key, Size: len(data)}, data, func() error { return nil })
}

// put stores a copy of data if the condition holds when the request arrives.
func (b *Bucket) put(ctx context.Context, call Call, data []byte, condition func() error) (blob.Version, error) {
	if err := blob.CheckKey(call.Key); err != nil {
		return "", fail(call, err)
	}
	if len(data) > blob.MaxSize {
		return "", fail(call, blob.ErrTooLarge)
	}
	data = slices.Clone(data)
	version := Sum(data)
	err := b.do(ctx, &call, func(fault Fault) error {
		if err := condition(); err != nil && fault.Kind != ConditionIgnored {
			return err
		}
		b.store(call.Key, object{data: data, version: version, modified: b.config.Now()})
		b.count(call.Op, func(s *Stats) { s.BytesIn += int64(len(data)) })
		return nil
	})
	if err != nil {
		return "", err
	}
	return version, nil
}

// Sum is the version of an object with these bytes.
func Sum(data []byte) blob.Version {
	sum := sha256.Sum256(data)
	return blob.Version(hex.EncodeToString(sum[:8]))
}

func (b *Bucket) store(key string, o object) {
	if _, ok := b.objects[key]; !ok {
		at, _ := slices.BinarySearch(b.keys, key)
		b.keys = slices.Insert(b.keys, at, key)
	}
	b.objects[key] = o
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	call := Call{Op: Delete, Key: key}
	if err := blob.CheckKey(key); err != nil {
		return fail(call, err)
	}
	return b.do(ctx, &call, func(Fault) error {
		if at, ok := slices.BinarySearch(b.keys, key); ok {
			b.keys = slices.Delete(b.keys, at, at+1)
			delete(b.objects, key)
		}
		return nil
	})
}

// List implements blob.Bucket.
func (b *Bucket) List(ctx context.Context, prefix, after string, limit int) (*blob.Page, error) {
	call := Call{Op: List, Key: prefix}
	if err := blob.CheckPrefix(prefix); err != nil {
		return nil, fail(call, err)
	}
	page := &blob.Page{}
	err := b.do(ctx, &call, func(Fault) error {
		at, found := slices.BinarySearch(b.keys, max(prefix, after))
		if found && after >= prefix {
			at++ // `after` itself is on the previous page
		}
		for _, key := range b.keys[at:] {
			if !strings.HasPrefix(key, prefix) {
				break
			}
			if len(page.Entries) == blob.PageLimit(limit) {
				page.More = true
				break
			}
			o := b.objects[key]
			page.Entries = append(page.Entries, blob.Entry{Key: key, Version: o.version, Size: int64(len(o.data)), Modified: o.modified})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// Peek returns the bytes of a key as they are now. It is no call: it has no latency and no fault,
// and is not counted. The caller must not change the bytes.
func (b *Bucket) Peek(key string) ([]byte, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deliverDue(false)
	o, ok := b.objects[key]
	return o.data, ok
}

// Keys returns all keys in order, as Peek would find them.
func (b *Bucket) Keys() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deliverDue(false)
	return slices.Clone(b.keys)
}
