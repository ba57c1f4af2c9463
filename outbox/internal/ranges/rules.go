// Package ranges is the part of the log's contract that does not depend on how a log stores its data:
// which claims are refused, how a claim splits the cursor rows of a subscription, which lane a message
// belongs to, and what an operator may list. The logs share it, so that each rule is written once;
// [outbox.Log] gives the reasons. Every rule takes values and returns values.
package ranges

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
)

// SkipCause is the cause stored with a dead letter that an operator made.
const SkipCause = "skipped by an operator"

// Skipped returns the cause of a dead letter that an operator made, given the stored cause of its lane.
func Skipped(cause string) string {
	return strings.TrimSuffix(SkipCause+": "+strings.TrimPrefix(cause, Resumes), ": ")
}

// ValidFilter validates a filter and sets its default limit, 100.
func ValidFilter(f outbox.Filter) (outbox.Filter, error) {
	switch f.Kind {
	case "", outbox.Waiting, outbox.Held, outbox.Behind, outbox.Dead:
	default:
		return f, fmt.Errorf("%q is not a kind of stored message, want %q, %q, %q or %q", f.Kind, outbox.Waiting, outbox.Held, outbox.Behind, outbox.Dead)
	}
	switch {
	case f.Limit < 0:
		return f, errors.New("the limit is negative")
	case strings.Contains(strings.TrimSuffix(f.Topic, "*"), "*"):
		return f, fmt.Errorf("the topic is %.80q, want a topic, or a prefix followed by *", f.Topic)
	case !f.Until.IsZero() && !f.Since.Before(f.Until):
		return f, fmt.Errorf("no time is between since %s and until %s", f.Since.UTC().Format(time.RFC3339), f.Until.UTC().Format(time.RFC3339))
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	return f, nil
}
