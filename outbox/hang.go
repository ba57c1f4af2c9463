package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// hungError is that of a row whose call was cut off before the sink told what became of it.
type hungError struct {
	after time.Duration
	error
}

// Error says what the sink had to say, and when.
func (e hungError) Error() string { return fmt.Sprintf("not taken within %v: %v", e.after, e.error) }

func (e hungError) Unwrap() error { return e.error }

func hung(err error) bool {
	_, is := err.(hungError) //nolint:errorlint // nobody wraps it
	return is
}

func anyHung(errs []error) bool {
	for _, err := range errs {
		if hung(err) {
			return true
		}
	}
	return false
}

// cutOff marks the errors of a call that was cut off. Those of certain kinds would have been the same
// later.
func cutOff(errs []error, after time.Duration) []error {
	for i, err := range errs {
		if err != nil && !errors.Is(err, ErrPermanent) && !errors.Is(err, ErrSinkDown) && !errors.Is(err, ErrFenced) {
			errs[i] = hungError{after, err}
		}
	}
	return errs
}

// search is for the keys that hang in a call.
type search struct {
	s     *session
	from  source
	rows  []Row
	errs  []error
	alive bool         // the sink has answered something
	alone map[int]bool // that hung in a call of one key: there is nothing left to find out
}

// untangle tries what hung in a call again in parts, down to one key. Of a page it stops when
// something was taken, because the rest can wait in lanes; if nothing at all comes through, the sink is
// down. Lanes say nothing about that: perhaps all that hangs is in them.
func (s *session) untangle(ctx context.Context, rows []Row, errs []error, from source) []error {
	h := &search{s: s, from: from, rows: rows, errs: errs, alone: map[int]bool{}}
	at := make([]int, len(rows))
	for i := range at {
		at[i] = i
		h.alive = h.alive || answers(errs[i])
	}
	if at = h.open(at); h.keys(at) < 2 {
		return errs
	}
	dead := !h.alive
	h.halve(ctx, at)
	if dead && h.alive { // what was passed over because the sink seemed to be down
		h.halve(ctx, h.open(at))
	}
	if !h.alive && from == fromPage {
		for i, err := range errs {
			errs[i] = fmt.Errorf("%w: %w", ErrSinkDown, err)
		}
	}
	return errs
}

// answers reports whether a result is a sign of life. That the sink is known to be down is none.
func answers(err error) bool { return !hung(err) && !errors.Is(err, ErrSinkDown) }

// open are the rows of which it is to be found out whether they hang, with what follows in their keys;
// not what follows a failure of another kind.
func (h *search) open(at []int) (open []int) {
	failed := map[string]bool{}
	for _, i := range at {
		key := h.rows[i].Key
		switch {
		case h.errs[i] == nil, h.alone[i]:
		case !hung(h.errs[i]):
			failed[key] = true
		case key == "" || !failed[key]:
			open = append(open, i)
		}
	}
	return open
}

func (h *search) halve(ctx context.Context, at []int) {
	if h.from == fromPage && h.alive || h.keys(at) < 2 {
		return
	}
	left, right := h.split(at)
	for n, half := range [][]int{left, right} {
		part := make([]Row, len(half))
		for i, at := range half {
			part[i] = h.rows[at]
		}
		errs := h.s.once(ctx, part, h.from)
		if ctx.Err() != nil {
			return
		}
		single := h.keys(half) == 1
		for i, at := range half {
			h.errs[at] = nil
			if errs != nil {
				h.errs[at] = errs[i]
			}
			h.alive = h.alive || answers(h.errs[at])
			h.alone[at] = single
		}
		if anyHung(errs) && (h.alive || n == 0) { // else the sink is down, as it seems
			h.halve(ctx, h.open(half))
		}
		if h.from == fromPage && h.alive {
			return
		}
	}
}

// keys counts keys; messages of no key count each.
func (h *search) keys(at []int) int {
	keys := map[string]bool{}
	n := 0
	for _, i := range at {
		if key := h.rows[i].Key; key == "" {
			n++
		} else {
			keys[key] = true
		}
	}
	return n + len(keys)
}

// split parts rows into two by their keys; both keep the order. Of a page the first part is small: it
// is only to be known whether the sink is alive.
func (h *search) split(at []int) (left, right []int) {
	side := map[string]bool{}
	seen, half := 0, h.keys(at)/2
	if h.from == fromPage {
		half = max(half/4, 1)
	}
	for _, i := range at {
		key := h.rows[i].Key
		to, ok := side[key]
		if !ok || key == "" {
			seen++
			to = seen <= half
			side[key] = to
		}
		if to {
			left = append(left, i)
		} else {
			right = append(right, i)
		}
	}
	return left, right
}
