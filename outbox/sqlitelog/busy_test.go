package sqlitelog

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// Whoever waited for a lock until time was up hears what it waited for.
func TestExplainSaysWhatWasWaitedFor(t *testing.T) {
	t.Parallel()
	err := explain("publish", "", errors.Join(context.Canceled, errors.New("database is locked")))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "another transaction writes") {
		t.Errorf("got %v", err)
	}
}
