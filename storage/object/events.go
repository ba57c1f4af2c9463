package object

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
)

// perSegment is how many events leave the cluster object together. The object keeps at least that
// many, and fewer than twice that many plus the events of one step.
const perSegment = 256

// maxSegment bounds the number of events in a segment that a reader accepts.
const maxSegment = 1 << 16

// segment is an object of events that the cluster object no longer holds. It is written before they
// leave the cluster object, under a name that no other writer uses. It counts from the moment when
// the cluster object names it. Any other object under ev/ is left over from a failed attempt.
type segment struct {
	First int64     `json:"first"` // number of its first event
	Count int       `json:"count"`
	Nonce uint64    `json:"nonce"`
	At    time.Time `json:"at"` // time of its first event
}

// last is the number of its last event.
func (g segment) last() int64 { return g.First + int64(g.Count) - 1 }

func (g segment) key() string { return fmt.Sprintf("%s%020d-%016x", segmentPrefix, g.First, g.Nonce) }

// eventBatch is the content of a segment: a batch of events.
type eventBatch struct {
	Events []daemon.Event `json:"events"`
}

// maxBatches is how many batches of events may wait in the cluster object while segments cannot be
// written. Up to then, no heartbeat fails because of the history.
const maxBatches = 8

// writeSegments writes the oldest events of the ring to segments while the ring is too long. Only events up
// to committed may leave, because the later ones have not happened yet.
func (s *Store) writeSegments(ctx context.Context, c *cluster, committed int64) error {
	for len(c.Ring) >= 2*perSegment && c.Ring[perSegment-1].Seq <= committed {
		out := c.Ring[:perSegment]
		g := segment{First: out[0].Seq, Count: len(out), Nonce: rand.Uint64(), At: out[0].At}
		if s.lastSegment.id == c.StoreID && s.lastSegment.segment.First == g.First {
			g = s.lastSegment.segment // written by an attempt that failed later
		} else if err := s.writeSegment(ctx, g, out); err != nil {
			if len(c.Ring) < maxBatches*perSegment {
				return nil
			}
			return fmt.Errorf("write events %d to %d: %w", g.First, g.last(), err)
		}
		s.lastSegment.id, s.lastSegment.segment = c.StoreID, g
		c.Segments = append(c.Segments, g)
		c.Ring = slices.Clone(c.Ring[perSegment:])
	}
	return nil
}

// writeSegment creates a segment, in one attempt. Its name was drawn for this segment, so an object
// that already exists under it must be the same. It is read to verify that, because the events are
// about to leave the cluster object.
func (s *Store) writeSegment(ctx context.Context, g segment, events []daemon.Event) error {
	data, err := seal(kindEvents, eventBatch{events})
	if err != nil {
		return err
	}
	_, err = s.bucket.Create(ctx, g.key(), data)
	if errors.Is(err, blob.ErrExists) {
		_, err = s.readSegment(ctx, g)
	}
	return err
}

// readSegment reads a segment and checks that its content is the named one.
func (s *Store) readSegment(ctx context.Context, g segment) ([]daemon.Event, error) {
	var l eventBatch
	err := s.retry(ctx, func() error {
		o, err := s.bucket.Read(ctx, g.key())
		if err != nil {
			return err
		}
		l = eventBatch{}
		if err := open(kindEvents, o.Data, &l); err != nil {
			return err
		}
		return corrupt(kindEvents, g.fits(l.Events))
	})
	if err != nil {
		return nil, fmt.Errorf("read events %d to %d: %w", g.First, g.last(), err)
	}
	return l.Events, nil
}

func (g segment) fits(events []daemon.Event) error {
	if len(events) != g.Count {
		return fmt.Errorf("it has %d events, not %d", len(events), g.Count)
	}
	for i, e := range events {
		if e.Seq != g.First+int64(i) {
			return fmt.Errorf("event %d stands in the place of %d", e.Seq, g.First+int64(i))
		}
	}
	return nil
}

// history passes the events after a number to yield, oldest first, until yield returns false. It
// reads only the segments that it needs.
func (s *Store) history(ctx context.Context, c *cluster, after int64, yield func(daemon.Event) bool) error {
	after = max(after, c.Oldest-1)
	for _, g := range c.Segments {
		if g.last() <= after {
			continue
		}
		events, err := s.readSegment(ctx, g)
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Seq > after && !yield(e) {
				return nil
			}
		}
	}
	for _, e := range c.Ring {
		if e.Seq > after && !yield(e) {
			return nil
		}
	}
	return nil
}

// page reads at most limit events after a number.
func (s *Store) page(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	for range tries {
		c, err := s.readCluster(ctx)
		if err != nil {
			return nil, err
		}
		page := &storage.EventPage{Head: c.Head}
		if c.Oldest <= c.Head {
			page.Oldest = c.Oldest
		}
		if after >= c.Head || limit <= 0 {
			return page, nil
		}
		err = s.history(ctx, c, after, func(e daemon.Event) bool {
			page.Events = append(page.Events, e)
			return len(page.Events) < limit
		})
		if !errors.Is(err, blob.ErrNotFound) {
			return page, err
		} // otherwise a sweep deleted the segment meanwhile: try again
	}
	return nil, fmt.Errorf("%w: the history is swept faster than it can be read", blob.ErrUnavailable)
}

// aboutMembers reports whether an event is about members, and so is part of heartbeat replies.
func aboutMembers(e daemon.Event) bool { return strings.HasPrefix(string(e.Kind), "node.") }

// maxMemberEvents bounds the number of membership events in one reply. maxMemberEventSegments bounds how many
// segments are searched for them. A reader that is further behind reads the member list, which costs
// less.
const (
	maxMemberEvents        = 500
	maxMemberEventSegments = 8
)

// addMemberEvents adds the membership events after a number to a reply. The reader is behind if an event after
// that number is gone, or if it has seen events that this store never had.
func (s *Store) addMemberEvents(ctx context.Context, c *cluster, after int64, r *storage.Reply) error {
	r.EventsMissing = after+1 < c.Oldest || after > c.Head
	if after >= c.LastMemberEvent {
		return nil // an idle node's cursor does not move, however many other events followed
	}
	if n := len(c.Segments); n > maxMemberEventSegments && c.Segments[n-maxMemberEventSegments-1].last() > after {
		r.EventsMissing = true
		after = c.Segments[n-maxMemberEventSegments-1].last()
	}
	err := s.history(ctx, c, after, func(e daemon.Event) bool {
		if aboutMembers(e) {
			r.Events = append(r.Events, e)
		}
		return len(r.Events) < maxMemberEvents
	})
	if errors.Is(err, blob.ErrNotFound) {
		r.Events, r.EventsMissing = nil, true // swept meanwhile
		return nil
	}
	return err
}
