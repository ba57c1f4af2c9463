package memory

import (
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// eventsAfter returns the events after a number that were not dropped, oldest first. The slice is
// shared.
func (s *state) eventsAfter(after int64) []daemon.Event {
	if after >= s.head {
		return nil
	}
	from := max(after+1-s.oldest, 0)
	return slices.Clip(s.events[from:])
}

// eventPage returns at most limit events after a number, and where the history begins and ends.
func (s *state) eventPage(after int64, limit int) *storage.EventPage {
	page := &storage.EventPage{Events: s.eventsAfter(after), Head: s.head}
	if len(page.Events) > max(limit, 0) {
		page.Events = slices.Clip(page.Events[:max(limit, 0)])
	}
	if len(s.events) > 0 {
		page.Oldest = s.oldest
	}
	return page
}

// memberEventsAfter returns the membership events after a number. The reader is behind if an event after
// that number is gone, or if it has seen events that this store never had (a failover lost them).
// Either way it reads the member list.
func (s *state) memberEventsAfter(after int64) (out []daemon.Event, behind bool) {
	i, _ := slices.BinarySearch(s.memberEvents, after+1)
	for _, seq := range s.memberEvents[i:min(len(s.memberEvents), i+maxRoll)] {
		out = append(out, s.events[seq-s.oldest])
	}
	return out, after+1 < s.oldest || after > s.head
}

// trimEvents drops the oldest events beyond n.
func (s *state) trimEvents(n int) {
	if over := len(s.events) - n; over > 0 {
		s.dropEvents(over)
	}
}

// dropEvents drops the n oldest events. It always drops the beginning and never from the middle, so
// readers see no gap.
func (s *state) dropEvents(n int) {
	s.events = s.events[n:]
	s.oldest += int64(n)
	i, _ := slices.BinarySearch(s.memberEvents, s.oldest)
	s.memberEvents = s.memberEvents[i:]
}
