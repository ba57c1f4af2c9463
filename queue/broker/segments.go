package broker

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

const (
	// segmentCacheBytes is how many bytes of segments a broker keeps that it has read. Jobs are claimed
	// about in the order in which they were submitted, so each segment of a backlog is read about once.
	segmentCacheBytes = 32 << 20
	// maxSegmentReads is how many segments a broker reads concurrently.
	maxSegmentReads = 16
)

// segmentCache reads payloads out of the segments of logs, and keeps the segments that were read last.
// A segment is read once, however many callers want it. The goroutine that reads it ends when the
// journal's time limit for a request is over, at the latest.
type segmentCache struct {
	limit   int64
	reading chan struct{} // one for each segment that is being read

	mu      sync.Mutex
	bytes   int64
	entries map[segmentID]*list.Element
	order   list.List // of *segment; the one that was used last is in front
}

// segmentID identifies a segment: the prefix of its journal, and its slot.
type segmentID struct {
	prefix string
	slot   uint64
}

// segment is the payloads of one segment. Its fields are valid once read is closed.
type segment struct {
	id       segmentID
	read     chan struct{}
	err      error
	size     int
	payloads []segmentPayload // by the number of the job
}

// segmentPayload is the payload of the job with this number and ID.
type segmentPayload struct {
	number  uint64
	id      ledger.ID
	payload []byte // points into the segment
}

func newSegmentCache(limit int64) *segmentCache {
	return &segmentCache{limit: limit, reading: make(chan struct{}, maxSegmentReads), entries: map[segmentID]*list.Element{}}
}

// get returns a segment of the shard's log, and reads it if necessary.
func (c *segmentCache) get(ctx context.Context, s *shard, slot uint64) (*segment, error) {
	id := segmentID{s.prefix, slot}
	c.mu.Lock()
	at := c.entries[id]
	if at == nil {
		at = c.order.PushFront(&segment{id: id, read: make(chan struct{})})
		c.entries[id] = at
		go c.fill(at.Value.(*segment), s.ctx, s.log)
	} else {
		c.order.MoveToFront(at)
	}
	c.mu.Unlock()
	g := at.Value.(*segment)
	select {
	case <-g.read:
		return g, g.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fill reads a segment, and forgets those that were not used for the longest time.
func (c *segmentCache) fill(g *segment, ctx context.Context, log *journal.Log) { //nolint:revive // the context is that of the run
	c.reading <- struct{}{}
	defer func() { <-c.reading }()
	records, size, err := log.Read(ctx, g.id.slot)
	if err == nil {
		g.payloads = payloadsOf(records)
	}
	g.err = err
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(g.read)
	if err != nil { // the next caller tries again
		c.order.Remove(c.entries[g.id])
		delete(c.entries, g.id)
		return
	}
	g.size = size
	c.bytes += int64(size)
	for at := c.order.Back(); at != nil && c.bytes > c.limit; {
		old := at.Value.(*segment)
		at = at.Prev()
		if old.size > 0 {
			c.bytes -= int64(old.size)
			c.order.Remove(c.entries[old.id])
			delete(c.entries, old.id)
		}
	}
}

// payloadsOf returns the payloads in records, by the number of the job.
func payloadsOf(records func(func([]byte) bool)) []segmentPayload {
	var all []segmentPayload
	for r := range records {
		if number, id, payload, ok := ledger.PayloadOf(r); ok {
			all = append(all, segmentPayload{number, id, payload})
		}
	}
	slices.SortFunc(all, func(x, y segmentPayload) int { return cmp.Compare(x.number, y.number) })
	return all
}

// payload returns the payload of a job. It points into the segment. A segment of another shard, which
// somebody has put there, may have a job of this number, but none of this ID.
func (g *segment) payload(number uint64, id ledger.ID) ([]byte, bool) {
	at, ok := slices.BinarySearchFunc(g.payloads, number, func(p segmentPayload, n uint64) int { return cmp.Compare(p.number, n) })
	if !ok || g.payloads[at].id != id {
		return nil, false
	}
	return g.payloads[at].payload, true
}

// payloadPlace is a job and the segment with its payload.
type payloadPlace struct {
	number uint64
	id     ledger.ID
	slot   uint64
}

// segmentPayload returns a copy of the payload of a job that is in a segment of its shard's log. If the
// segment is gone, the payload may have moved meanwhile: the shard says where it is now. The error is
// blob.ErrNotFound if it is gone, or the job has ended.
func (b *Broker) segmentPayload(ctx context.Context, s *shard, p payloadPlace) ([]byte, error) {
	for slot := p.slot; ; {
		g, err := b.segments.get(ctx, s, slot)
		if err == nil {
			payload, ok := g.payload(p.number, p.id)
			if !ok {
				return nil, fmt.Errorf("%w: %s has no payload of job %d", blob.ErrCorrupt, journal.SlotKey(s.prefix, slot), p.number)
			}
			return bytes.Clone(payload), nil
		}
		if !errors.Is(err, blob.ErrNotFound) {
			return nil, err
		}
		now, refused := s.slotOf(ctx, p.number)
		switch {
		case refused != nil:
			return nil, refused
		case now == slot || now == 0:
			return nil, err
		}
		slot = now
	}
}

// slotOf asks the shard for the segment that has a job's payload; 0: the job has ended.
func (s *shard) slotOf(ctx context.Context, number uint64) (uint64, error) {
	var slot uint64
	err := s.inquire(ctx, func(s *shard) {
		j, _ := s.ledger.JobWithoutPayload(number)
		slot = j.Slot
	})
	if err != nil {
		return 0, err
	}
	return slot, nil
}

// pagePayload is a payload of a page that is read after the shard has made the page.
type pagePayload struct {
	at int // position in Page.Payloads
	payloadPlace
}

// fillPage reads the payloads of a page that are in segments. A payload stays empty if its job has
// ended meanwhile, or if it is lost.
func (b *Broker) fillPage(ctx context.Context, s *shard, page *queue.Page, unread []pagePayload) error {
	var all errgroup.Group
	all.SetLimit(maxSegmentReads)
	for _, u := range unread {
		all.Go(func() error {
			payload, err := b.segmentPayload(ctx, s, u.payloadPlace)
			if err != nil && !errors.Is(err, blob.ErrNotFound) {
				return queue.Refuse(queue.Unavailable, "read the payload of job %q: %w", page.Jobs[u.at].ID, err)
			}
			page.Payloads[u.at] = payload
			return nil
		})
	}
	return all.Wait()
}
