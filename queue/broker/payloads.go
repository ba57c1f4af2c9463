package broker

import (
	"context"
	"strconv"
	"strings"
	"sync"
)

// rubbish holds the keys of payload objects that are not needed any more. A goroutine deletes them
// one after the other. It exists only while there is something to delete: most shards are idle, and
// a process has thousands.
type rubbish struct {
	mu      sync.Mutex
	keys    []string
	busy    bool // the goroutine is running
	over    bool // no more keys are accepted
	all     sync.WaitGroup
	deletes func() // the goroutine's function
}

// begin starts the goroutine, which runs first before it deletes.
func (r *rubbish) begin(first, deletes func()) {
	r.busy, r.deletes = true, deletes
	r.all.Go(func() { first(); deletes() })
}

// put adds a key, and starts the goroutine if it is not running.
func (r *rubbish) put(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || len(r.keys) >= inboxSize {
		return
	}
	r.keys = append(r.keys, key)
	if !r.busy {
		r.busy = true
		r.all.Go(r.deletes)
	}
}

// next returns the next key. If there is none, the goroutine must end.
func (r *rubbish) next() (key string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.keys) == 0 {
		r.keys, r.busy = nil, false
		return "", false
	}
	key, r.keys = r.keys[0], r.keys[1:]
	return key, true
}

// end accepts no more keys and waits until all are deleted.
func (r *rubbish) end() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.all.Wait()
}

// trash schedules the deletion of a payload object. If too many wait already, the object stays: it
// only costs storage, and the shard's next broker finds it.
func (s *shard) trash(key string) { s.rubbish.put(key) }

// sweep deletes the scheduled objects. Once the run has ended, the remaining ones stay.
func (s *shard) sweep() {
	for key, ok := s.rubbish.next(); ok; key, ok = s.rubbish.next() {
		if s.ctx.Err() == nil {
			s.remove(s.ctx, key)
		}
	}
}

// sweepLeft deletes the payload objects of earlier epochs that no job refers to. An earlier broker
// left them if it died between writing the object and the job's record, or between the job's end
// and the deletion. This is safe because the ledger has all that earlier brokers recorded, and they
// can record nothing more.
func (s *shard) sweepLeft() {
	ctx := s.ctx
	left, err := s.blobsBefore(ctx)
	if err != nil && ctx.Err() == nil {
		s.b.cfg.Logger.WarnContext(ctx, "cannot look for unused payloads", "unit", s.unit.String(), "error", err)
	}
	if len(left) == 0 {
		return
	}
	c := newCall(func(s *shard, c *call) progress {
		c.keys = s.ledger.Unreferenced(left)
		return decided
	})
	if s.do(ctx, c) != nil {
		return // the run has ended: the next broker does it
	}
	for _, key := range c.keys {
		s.remove(ctx, key)
	}
}

// blobsBefore lists the payload objects of earlier epochs.
func (s *shard) blobsBefore(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for after := ""; ; {
		page, err := s.b.cfg.Bucket.List(ctx, s.blobs, after, 0)
		if err != nil {
			return out, err
		}
		for _, e := range page.Entries {
			epoch, _, _ := strings.Cut(e.Key[len(s.blobs):], "-")
			if n, err := strconv.ParseInt(epoch, 10, 64); err == nil && n < s.epoch {
				out[e.Key] = true
			}
			after = e.Key
		}
		if !page.More {
			return out, nil
		}
	}
}

// remove deletes one object; an error is only logged.
func (s *shard) remove(ctx context.Context, key string) {
	if err := s.b.cfg.Bucket.Delete(ctx, key); err != nil && ctx.Err() == nil {
		s.b.cfg.Logger.WarnContext(ctx, "cannot delete an unused payload", "key", key, "error", err)
	}
}
