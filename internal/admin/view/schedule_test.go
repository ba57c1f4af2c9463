package view

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/schedule"
)

// stateOf returns a unit's state in the store.
func stateOf(t *testing.T, id daemon.ID, index int, s schedule.State) daemon.UnitState {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return daemon.UnitState{Unit: daemon.Unit{Daemon: id, Index: index}, Generation: 7, Revision: 12, Data: data}
}

// TestSchedules: what is shown of periodic daemons between calls, during one, between attempts and after the last.
func TestSchedules(t *testing.T) {
	t.Parallel()
	called := &schedule.Call{Due: ago(time.Hour), Attempt: 1, StartedAt: ago(time.Hour), EndedAt: ago(59 * time.Minute)}
	gaveUp := &schedule.Call{Due: ago(time.Hour), Attempt: 3, StartedAt: ago(time.Hour), EndedAt: ago(59 * time.Minute), Error: "no disk\nsecond line"}
	at := now.Add(3 * time.Hour)
	for name, s := range map[string]schedule.State{
		"schedule_new":      {Schedule: "every 3h", Last: now, Next: at},
		"schedule_waits":    {Schedule: "cron 0 3 * * * Europe/Berlin", Last: ago(time.Hour), Next: at, Ended: called},
		"schedule_runs":     {Schedule: "every 3h", Last: ago(time.Minute), Next: at, Due: ago(time.Minute), Attempt: 2, StartedAt: ago(5 * time.Second), Ended: gaveUp},
		"schedule_repeats":  {Schedule: "every 3h", Last: ago(time.Minute), Next: at, Due: ago(time.Minute), Attempt: 1, RetryAt: now.Add(8 * time.Second), Ended: gaveUp},
		"schedule_given_up": {Schedule: "every 3h", Last: ago(time.Hour), Next: at, Ended: gaveUp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			snap := healthy()
			v := Of(snap, reader)
			v.AddSchedules([]daemon.UnitState{stateOf(t, "acme:reports", 1, s), {Unit: daemon.Unit{Daemon: "acme:reports"}, Data: []byte(`{"of":"another kind"}`)}}, nil)
			var b bytes.Buffer
			if err := v.Table(&b, true); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&b)
			if err := v.UnitTable(false).Write(&b); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&b)
			u := v.Daemons[1]
			if err := (Explained{Unit: u, Plan: Explain(snap, reader, u.Unit)}).Table(&b, v); err != nil {
				t.Fatal(err)
			}
			text, err := json.MarshalIndent(u.Schedule, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", append(b.Bytes(), append(append([]byte("\n"), text...), '\n')...))
			if v.Daemons[0].Schedule != nil || v.Daemons[2].Schedule != nil {
				t.Error("a unit without a schedule has one")
			}
		})
	}
}

// A store that does not give the states (a role without the right to read them) hides nothing else.
func TestSchedulesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	v := Of(healthy(), reader)
	v.AddSchedules(nil, errors.New("permission denied"))
	var b bytes.Buffer
	if err := v.Table(&b, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "! the schedules of periodic daemons are not known: permission denied") || strings.Contains(b.String(), "NEXT CALL") {
		t.Error(b.String())
	}
}
