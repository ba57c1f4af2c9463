package outbox_test

import (
	"sync/atomic"
	"testing"
	"time"
)

// polls makes the log count the reads.
func (s *stage) polls() *atomic.Int64 {
	var n atomic.Int64
	s.log.fail = func(call string) error {
		if call == "next" {
			n.Add(1)
		}
		return nil
	}
	return &n
}

// TestPublishersThatWakeNobody checks that their messages are found within 22 ms while they publish once in
// a while, also after a long pause for all but the first of them, and that an idle relay reads once a second.
func TestPublishersThatWakeNobody(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.MaxPoll, s.log.wake = time.Second, nil
		n := s.polls()
		s.start(1)
		s.after(time.Minute)
		s.log.publish(m("a", 0))
		s.after(time.Second + 10*time.Millisecond)
		s.want("after an idle minute", "a0@1")
		for i := 1; i < 20; i++ {
			for _, gap := range []time.Duration{time.Second, 4 * time.Second, 137 * time.Millisecond, 3 * time.Millisecond} {
				s.after(gap)
				s.log.publish(m("a", i))
				s.after(22 * time.Millisecond)
				if got := s.keys(); got != string(m("a", i).Payload) {
					t.Fatalf("after a gap of %v came %q, want message %d", gap, got, i)
				}
			}
		}
		s.after(20 * time.Second)
		before := n.Load()
		s.after(time.Minute)
		if reads := n.Load() - before; reads < 58 || reads > 62 {
			t.Errorf("an idle relay has read %d times in a minute", reads)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestWakeUpsNeedNoPolling checks that a relay whose publishers wake it does not poll fast.
func TestWakeUpsNeedNoPolling(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.MaxPoll = time.Second
		n := s.polls()
		s.start(1)
		s.after(time.Minute)
		before := n.Load()
		for i := range 60 {
			s.log.publish(m("a", i))
			s.after(time.Second)
		}
		if got := len(s.came()); got != 60 {
			t.Errorf("%d of 60 messages came", got)
		}
		if reads := n.Load() - before; reads > 60*12 {
			t.Errorf("%d reads for 60 messages", reads)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}
