package coordinator

import (
	"errors"
	"fmt"
	"testing"

	"github.com/emitd/emitd/internal/coordinator/member"
)

// Run returns errors of this package, with the texts of the member's; others stay as they are.
func TestRunErrorsArePublic(t *testing.T) {
	t.Parallel()
	room := &member.SlowStoreError{Nodes: 9}
	var slow *SlowStoreError
	if err := runError(fmt.Errorf("stopped: %w", room)); !errors.As(err, &slow) || slow.Nodes != 9 || slow.Error() != room.Error() {
		t.Errorf("a member's SlowStoreError is returned as %T: %v", err, err)
	}
	other := errors.New("other")
	if err := runError(other); !errors.Is(err, other) || runError(nil) != nil {
		t.Errorf("another error is returned as %v", err)
	}
}
