package sqlite

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestExplainReportsWhatWasWaitedFor checks that the error of a wait for a lock that timed out says what it
// waited for.
func TestExplainReportsWhatWasWaitedFor(t *testing.T) {
	t.Parallel()
	err := explain("publish", "", errors.Join(context.Canceled, errors.New("database is locked")))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "another transaction writes") {
		t.Errorf("got %v", err)
	}
}
