package sqlitefile_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/sqlitefile"
)

// If a call waits for a lock until its time is up, the error says what it waited for, even if the
// time ends in the middle of an attempt.
func TestRetryBusyReportsWhy(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	attempts := 0
	err := sqlitefile.RetryBusy(ctx, func() error {
		if attempts++; attempts == 1 {
			return errors.New("database is locked")
		}
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || !sqlitefile.IsBusy(err) || !strings.Contains(err.Error(), "database is locked") {
		t.Errorf("got %v", err)
	}
}
