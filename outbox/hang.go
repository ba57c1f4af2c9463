package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/outbox/internal/progress"
)

// hungError is the error of a row for which there was no answer: its call was cut off before the sink reported the
// row's outcome, or the receiver broke the connection.
type hungError struct {
	after time.Duration // 0: the call was not cut off
	error
}

// Error returns the time limit and the sink's error.
func (e hungError) Error() string {
	if e.after == 0 {
		return e.error.Error()
	}
	return fmt.Sprintf("not taken within %v: %v", e.after, e.error)
}

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

// markHung marks the errors of rows for which there was no answer. Of a call that was cut off after some time these
// are all, otherwise those that the sink marked, and those that it skipped. ErrPermanent, ErrSinkDown and ErrFenced
// stay unmarked, because more time would not have changed them.
func markHung(errs []error, after time.Duration) []error {
	if after == 0 && !slices.ContainsFunc(errs, progress.IsUnanswered) {
		return errs
	}
	for i, err := range errs {
		if err == nil || after == 0 && !progress.IsUnanswered(err) && !errors.Is(err, ErrSkipped) {
			continue
		}
		if !errors.Is(err, ErrPermanent) && !errors.Is(err, ErrSinkDown) && !errors.Is(err, ErrFenced) {
			errs[i] = hungError{after, err}
		}
	}
	return errs
}

// hangSearch finds the keys that hang in a call, by repeating parts of the call.
type hangSearch struct {
	s         *session
	from      source
	rows      []Row
	errs      []error
	answered  bool         // the sink has answered for some row
	hungAlone map[int]bool // rows that hung in a call of one key: nothing is left to find out
}

// findHangingKeys repeats a call that hung in parts. For rows of a page it stops as soon as the sink has
// answered for any row, because the others can wait in their lanes. If it answers for none, the sink
// counts as down. For rows of lanes it continues down to single keys, and never concludes that the sink
// is down: perhaps all keys that hang are in lanes.
func (s *session) findHangingKeys(ctx context.Context, rows []Row, errs []error, from source) []error {
	h := &hangSearch{s: s, from: from, rows: rows, errs: errs, hungAlone: map[int]bool{}}
	at := make([]int, len(rows))
	for i := range at {
		at[i] = i
		h.answered = h.answered || answers(errs[i])
	}
	if at = h.open(at); h.keys(at) < 2 {
		return errs
	}
	dead := !h.answered
	h.bisect(ctx, at)
	if dead && h.answered { // halves that were skipped while the sink seemed to be down
		h.bisect(ctx, h.open(at))
	}
	if !h.answered && from == fromPage {
		for i, err := range errs {
			errs[i] = fmt.Errorf("%w: %w", ErrSinkDown, err)
		}
	}
	return errs
}

// answers reports whether a result shows that the sink works. An error that says it is down does not.
func answers(err error) bool { return !hung(err) && !errors.Is(err, ErrSinkDown) }

// open returns the rows that may hang and are still to be tested, with the rows behind them in the same
// keys. Rows behind a failure of another kind are left out.
func (h *hangSearch) open(at []int) (open []int) {
	failed := map[string]bool{}
	for _, i := range at {
		key := h.rows[i].Key
		switch {
		case h.errs[i] == nil, h.hungAlone[i]:
		case !hung(h.errs[i]):
			failed[key] = true
		case key == "" || !failed[key]:
			open = append(open, i)
		}
	}
	return open
}

// bisect tries the rows in two parts and repeats this for each part that hangs. While the sink has
// answered nothing, it follows only the first part. So a sink that is down costs few calls.
func (h *hangSearch) bisect(ctx context.Context, at []int) {
	if h.from == fromPage && h.answered || h.keys(at) < 2 {
		return
	}
	left, right := h.split(at)
	for n, half := range [][]int{left, right} {
		part := make([]Row, len(half))
		for i, at := range half {
			part[i] = h.rows[at]
		}
		errs := h.s.callOnce(ctx, part, h.from)
		if ctx.Err() != nil {
			return
		}
		single := h.keys(half) == 1
		for i, at := range half {
			h.errs[at] = nil
			if errs != nil {
				h.errs[at] = errs[i]
			}
			h.answered = h.answered || answers(h.errs[at])
			h.hungAlone[at] = single
		}
		if anyHung(errs) && (h.answered || n == 0) { // otherwise the sink seems to be down
			h.bisect(ctx, h.open(half))
		}
		if h.from == fromPage && h.answered {
			return
		}
	}
}

// keys counts the distinct keys. Each message without a key counts as one.
func (h *hangSearch) keys(at []int) int {
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

// split divides rows into two parts by their keys; both keep the order. For rows of a page the first part
// is small, because it only has to show whether the sink answers.
func (h *hangSearch) split(at []int) (left, right []int) {
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
