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
	inner := &member.TimingError{}
	var timing *TimingError
	if err := runError(fmt.Errorf("stopped: %w", inner)); !errors.As(err, &timing) || timing.Error() != inner.Error() {
		t.Errorf("a member's TimingError is returned as %T: %v", err, err)
	}
	room := &member.SlowStoreError{Nodes: 9}
	var slow *SlowStoreError
	if err := runError(room); !errors.As(err, &slow) || slow.Nodes != 9 || slow.Error() != room.Error() {
		t.Errorf("a member's SlowStoreError is returned as %T: %v", err, err)
	}
	other := errors.New("other")
	if err := runError(other); !errors.Is(err, other) || runError(nil) != nil {
		t.Errorf("another error is returned as %v", err)
	}
}
