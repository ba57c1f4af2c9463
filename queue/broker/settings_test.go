package broker

import (
	"testing"

	"github.com/emitd/emitd/queue"
)

// TestShardSettings: the newest settings win, and those of another queue of the same name say that
// this one was removed.
func TestShardSettings(t *testing.T) {
	t.Parallel()
	wake := make(chan struct{}, 1)
	s := &shard{wake: wake, settings: shardSettings{Settings: &queue.Settings{Name: "q", Incarnation: 4, MaxJobs: 1}}}
	f := &s.settings
	s.replaceSettings(&queue.Settings{Name: "q", Incarnation: 4, MaxJobs: 2})
	s.replaceSettings(&queue.Settings{Name: "q", Incarnation: 4, MaxJobs: 3})
	if len(wake) != 1 || !f.apply(f.next.Load()) || f.MaxJobs != 3 {
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
