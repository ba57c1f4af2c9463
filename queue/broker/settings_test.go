package broker

import (
	"testing"

	"github.com/emitd/emitd/queue"
)

// TestShardSettings: the newest settings win, and those of another queue of the same name say that
// this one was removed.
func TestShardSettings(t *testing.T) {
	t.Parallel()
	f := newShardSettings(&queue.Settings{Name: "q", Incarnation: 4, MaxJobs: 1})
	f.replace(&queue.Settings{Name: "q", Incarnation: 4, MaxJobs: 2})
	f.replace(&queue.Settings{Name: "q", Incarnation: 4, MaxJobs: 3})
	if !f.apply(<-f.changes) || f.MaxJobs != 3 || len(f.changes) != 0 {
		t.Errorf("%+v", f.Settings)
	}
	if f.apply(&queue.Settings{Name: "q", Incarnation: 5, MaxJobs: 4}) || !f.removed || f.MaxJobs != 3 {
		t.Errorf("declared again: %+v, removed: %t", f.Settings, f.removed)
	}
}

// TestSettingsAreRecordedOnce: no second Configure record is made before the first one is durable.
func TestSettingsAreRecordedOnce(t *testing.T) {
	t.Parallel()
	first, other := &batch{}, &batch{}
	f := shardSettings{recording: first}
	if f.applied(other); f.recording != first {
		t.Error("another batch ends the recording")
	}
	if f.applied(first); f.recording != nil {
		t.Error("the batch that is durable does not")
	}
}
