package object

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// timedBucket is a bucket whose reads and conditional writes are timed.
type timedBucket struct {
	blob.Bucket
	mu          sync.Mutex
	read, write latency
}

// latency is the least time that requests of one kind took recently. The least shows what the
// bucket can do at its best. One slow moment does not count.
type latency struct {
	began         time.Time     // start of the present period
	least, before time.Duration // in the present and in the previous period; 0 = no request
}

// period is how long a measurement counts at least. It counts for at most twice that.
const period = time.Minute

func (l *latency) add(now time.Time, took time.Duration) {
	if passed := now.Sub(l.began); passed >= period {
		if l.before = l.least; passed >= 2*period {
			l.before = 0
		}
		l.began, l.least = now, 0
	}
	if l.least == 0 || took < l.least {
		l.least = took
	}
}

func (l *latency) value() time.Duration {
	if l.before == 0 || l.least != 0 && l.least < l.before {
		return l.least
	}
	return l.before
}

// time records how long a request took, if the bucket answered it.
func (p *timedBucket) time(l *latency, began time.Time, err error) {
	if err != nil && !isConflict(err) && !errors.Is(err, blob.ErrNotModified) && !errors.Is(err, blob.ErrNotFound) {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	l.add(now, now.Sub(began))
}

// changeTime returns how long one change takes: a read and a write. If one of them was not measured
// yet, it counts as long as the other; 0 is unknown.
func (p *timedBucket) changeTime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	read, write := p.read.value(), p.write.value()
	return cmp.Or(read, write) + cmp.Or(write, read)
}

func (p *timedBucket) Read(ctx context.Context, key string) (o *blob.Object, err error) {
	began := time.Now()
	o, err = p.Bucket.Read(ctx, key)
	p.time(&p.read, began, err)
	return o, err
}

func (p *timedBucket) ReadNewer(ctx context.Context, key string, known blob.Version) (o *blob.Object, err error) {
	began := time.Now()
	o, err = p.Bucket.ReadNewer(ctx, key, known)
	p.time(&p.read, began, err)
	return o, err
}

func (p *timedBucket) Create(ctx context.Context, key string, data []byte) (v blob.Version, err error) {
	began := time.Now()
	v, err = p.Bucket.Create(ctx, key, data)
	p.time(&p.write, began, err)
	return v, err
}

func (p *timedBucket) Replace(ctx context.Context, key string, data []byte, old blob.Version) (v blob.Version, err error) {
	began := time.Now()
	v, err = p.Bucket.Replace(ctx, key, data, old)
	p.time(&p.write, began, err)
	return v, err
}
