// Package rules is the part of the log's contract that is about values and not about how a log keeps
// them: which claims are refused, how they cut the rows of a subscription's cursors, where a message
// waits, and what an operator may ask for. The logs share it, so that each rule is written once;
// [outbox.Log] says what the rules are for. A rule takes values and returns values.
package rules

import (
	"errors"
	"fmt"

	"github.com/emitd/emitd/outbox"
)

// SkipCause is what a dead letter says that an operator made.
const SkipCause = "skipped by an operator"

// Listing returns what to list, with its default limit.
func Listing(f outbox.Filter) (outbox.Filter, error) {
	switch f.Kind {
	case "", outbox.Waiting, outbox.Held, outbox.Behind, outbox.Dead:
	default:
		return f, fmt.Errorf("%q is not what is kept, want %q, %q, %q or %q", f.Kind, outbox.Waiting, outbox.Held, outbox.Behind, outbox.Dead)
	}
	if f.Limit < 0 {
		return f, errors.New("the limit is negative")
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	return f, nil
}
