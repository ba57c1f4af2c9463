package queue

import (
	"context"
	"strconv"
	"strings"
	"sync"
)

// rubbish are payload objects that nobody needs any more. A goroutine deletes them one after the other.
// It is there only while there is something to delete: most shards are idle, and a process has
// thousands.
type rubbish struct {
	mu      sync.Mutex
	keys    []string
	busy    bool // the goroutine is there
	over    bool // nothing is taken any more
	all     sync.WaitGroup
	deletes func() // what the goroutine does
}

// begin starts the goroutine, which does something else first.
func (r *rubbish) begin(first, deletes func()) {
	r.busy, r.deletes = true, deletes
	r.all.Go(func() { first(); deletes() })
}

// put takes a key, and starts the goroutine if it is not there.
func (r *rubbish) put(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || len(r.keys) >= inbox {
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

// end takes nothing more and waits until everything is deleted.
func (r *rubbish) end() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.all.Wait()
}

// trash has an object deleted. If too many wait for that already, the object stays: it costs storage and
// nothing else, and the next broker finds it.
func (s *shard) trash(key string) { s.rubbish.put(key) }

// sweep deletes what trash was given. Once the run has ended, what is left stays.
func (s *shard) sweep() {
	for key, ok := s.rubbish.next(); ok; key, ok = s.rubbish.next() {
		if s.ctx.Err() == nil {
			s.remove(s.ctx, key)
		}
	}
}

// sweepLeft deletes the payload objects of earlier epochs that no job refers to: of a broker that died
// between the object and its job's record, or between the job's end and the deletion. What an
// earlier broker has recorded is in the ledger, and it records nothing any more.
func (s *shard) sweepLeft() {
	ctx := s.ctx
	left, err := s.blobsBefore(ctx)
	if err != nil && ctx.Err() == nil {
		s.b.cfg.Logger.WarnContext(ctx, "payloads that nobody needs were not looked for", "unit", s.unit.String(), "error", err)
	}
	if len(left) == 0 {
		return
	}
	c := newCall(func(s *shard, c *call) progress {
		c.keys = s.ledger.Unreferenced(left)
		return decided
	})
	if s.do(ctx, c) != nil {
		return // the shard is gone: the next broker looks
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

func (s *shard) remove(ctx context.Context, key string) {
	if err := s.b.cfg.Bucket.Delete(ctx, key); err != nil && ctx.Err() == nil {
		s.b.cfg.Logger.WarnContext(ctx, "a payload was not deleted", "key", key, "error", err)
	}
}
