package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestWaitingPagesGoTogether checks that the pages that wait behind a call are delivered by one call, in order.
func TestWaitingPagesGoTogether(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.PageRows = 10
		sizes := s.sized(func(int) time.Duration { return 50 * time.Millisecond })
		s.busy(60)
		if got := *sizes; len(got) > 5 || got[0] != 10 || got[1] != 20 || slices.Max(got) > 20 {
			t.Errorf("calls of %v messages, want two pages that wait in one, and one page in front of the next call", got)
		}
	})
}

// TestSlowSinkGetsSmallCalls checks that no call is made larger than takes a tenth of the page's time limit: a sink
// that reports no progress would be taken for one that hangs.
func TestSlowSinkGetsSmallCalls(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.PageRows = 10
		sizes := s.sized(func(n int) time.Duration { return time.Duration(n) * 100 * time.Millisecond })
		s.busy(60)
		if got := fmt.Sprint(*sizes); got != "[10 10 10 10 10 10]" {
			t.Errorf("calls of %s messages, want pages of 10", got)
		}
	})
}

// TestPositionsAreStoredAtOnce checks that the position of a page is stored when the page is done, although others are in
// flight behind it.
func TestPositionsAreStoredAtOnce(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.PageRows = 10
		s.sized(func(int) time.Duration { return 9 * time.Second })
		for i := range 30 {
			s.log.publish(m("busy", i))
		}
		s.start(1)
		s.after(4 * time.Second)
		for page := range 3 {
			if at := s.log.position("sub"); at != 10*page {
				t.Errorf("%d pages are done, and the position is %d", page, at)
			}
			s.after(9 * time.Second)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// sized makes the sink take each call's messages after a time, and returns the sizes of the calls.
func (s *stage) sized(takes func(rows int) time.Duration) *[]int {
	sizes := &[]int{}
	s.do = func(_ context.Context, d outbox.Delivery) []error {
		*sizes = append(*sizes, len(d.Rows))
		time.Sleep(takes(len(d.Rows)))
		s.take(d.Rows...)
		return nil
	}
	return sizes
}

// busy has n messages of one key delivered, and checks that they come in order.
func (s *stage) busy(n int) {
	s.t.Helper()
	var want []string
	for i := range n {
		s.log.publish(m("busy", i))
		want = append(want, fmt.Sprintf("busy%d@1", i))
	}
	s.start(1)
	s.after(time.Minute)
	s.want("one key", want...)
	if err := s.drain(); err != nil {
		s.t.Error(err)
	}
}

// TestOutcomesStayWithTheirPages has one worker deliver two pages by one call, in which a message of the second page
// fails, while another worker is busy with the first. The log refuses outcomes with the position of another page.
func TestOutcomesStayWithTheirPages(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.PageRows = 10
		var sizes []int // of the calls for key a
		failed := false
		s.do = func(_ context.Context, d outbox.Delivery) []error {
			if d.Rows[0].Key == "b" {
				time.Sleep(1200 * time.Millisecond)
				s.take(d.Rows...)
				return nil
			}
			time.Sleep(500 * time.Millisecond)
			sizes = append(sizes, len(d.Rows))
			bad := slices.IndexFunc(d.Rows, func(r outbox.Row) bool { return string(r.Payload) == "a24" })
			if bad < 0 || failed {
				s.take(d.Rows...)
				return nil
			}
			failed = true
			s.take(d.Rows[:bad]...)
			errs := make([]error, len(d.Rows))
			for i := range errs[bad:] {
				errs[bad+i] = outbox.ErrSkipped
			}
			errs[bad] = errBad
			return errs
		}
		for i := range 30 {
			s.log.publish(m([]string{"a", "b"}[i%2], i))
		}
		s.start(1)
		s.after(time.Minute)
		if len(sizes) < 2 || sizes[1] != 10 {
			t.Errorf("calls for key a of %v messages, want two pages in the second", sizes)
		}
		var first []string
		for _, payload := range s.came() {
			if strings.HasPrefix(payload, "a") {
				first = append(first, payload)
			}
		}
		if want := "[a0@1 a2@1 a4@1 a6@1 a8@1 a10@1 a12@1 a14@1 a16@1 a18@1 a20@1 a22@1 a24@2 a26@1 a28@1]"; fmt.Sprint(first) != want {
			t.Errorf("got %v, want %s", first, want)
		}
		if len(s.came()) != 30 {
			t.Errorf("%d came", len(s.came()))
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}
