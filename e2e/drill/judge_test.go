package drill

import (
	"testing"

	"github.com/emitd/emitd/daemon"
)

func TestEventJudgeBites(t *testing.T) {
	t.Parallel()
	u := daemon.Unit{Daemon: "u", Index: 0}
	assigned := daemon.Event{Seq: 1, Kind: daemon.AssignmentAssigned, Unit: u, Generation: 5}
	for name, events := range map[string][]daemon.Event{
		"gap":                {assigned, {Seq: 3, Kind: daemon.AssignmentActive, Unit: u, Generation: 5}},
		"term repeats":       {{Seq: 1, Kind: daemon.LeaderElected, Term: 7}, {Seq: 2, Kind: daemon.LeaderElected, Term: 7}},
		"generation repeats": {assigned, {Seq: 2, Kind: daemon.AssignmentDeleted, Unit: u}, {Seq: 3, Kind: daemon.AssignmentAssigned, Unit: u, Generation: 5}},
		"assigned twice":     {assigned, {Seq: 2, Kind: daemon.AssignmentAssigned, Unit: u, Generation: 6}},
		"active from free":   {assigned, {Seq: 2, Kind: daemon.AssignmentDeleted, Unit: u}, {Seq: 3, Kind: daemon.AssignmentActive, Unit: u}},
	} {
		if len(JudgeEvents(events)) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
	if bad := JudgeEvents([]daemon.Event{assigned, {Seq: 2, Kind: daemon.AssignmentActive, Unit: u, Generation: 5}}); len(bad) != 0 {
		t.Errorf("a clean start: %v", bad)
	}
}
