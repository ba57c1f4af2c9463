package drill

import (
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
)

// history numbers events from 1 and gives them times one second apart.
func history(events ...daemon.Event) []daemon.Event {
	for i := range events {
		if events[i].Seq == 0 {
			events[i].Seq = int64(i + 1)
		}
		events[i].At = stamp(i)
	}
	return events
}

// stamp returns the time of the i-th event.
func stamp(i int) time.Time { return time.Unix(1_700_000_000+int64(i), 0) }

// The parts of invented histories.
var (
	aUnit = daemon.Unit{Daemon: "u"}
	join  = daemon.Event{Kind: daemon.NodeRegistered, Node: "a", Incarnation: "a1"}
	still = daemon.Event{Kind: "other"}
)

func elected(term int64) daemon.Event {
	return daemon.Event{Kind: daemon.LeaderElected, Node: "a", Incarnation: "a1", Term: term}
}

func step(kind daemon.EventKind, generation, term int64) daemon.Event {
	return daemon.Event{Kind: kind, Unit: aUnit, Node: "a", Incarnation: "a1", Generation: generation, Term: term}
}

func removed(reason string) daemon.Event {
	return daemon.Event{Kind: daemon.NodeRemoved, Node: "a", Incarnation: "a1", Reason: reason}
}

// TestCheckOfEventsFindsViolations checks that CheckEvents finds violations, and nothing else.
func TestCheckOfEventsFindsViolations(t *testing.T) {
	t.Parallel()
	assigned, active := step(daemon.AssignmentAssigned, 5, 7), step(daemon.AssignmentActive, 5, 7)
	deleted := step(daemon.AssignmentDeleted, 5, 7)
	lost := daemon.Event{Kind: daemon.LeaderLost, Node: "a", Incarnation: "a1", Term: 7}
	gap := active
	gap.Seq = 4
	for name, c := range map[string]struct {
		events []daemon.Event
		want   string // of the one complaint; none if empty
	}{
		"a clean start":         {history(join, elected(7), assigned, active), ""},
		"a resumed run":         {history(join, elected(7), assigned, active, step(daemon.AssignmentResumed, 6, 7)), ""},
		"the next leader":       {history(join, elected(7), assigned, lost, elected(9), active, deleted, step(daemon.AssignmentAssigned, 8, 9)), ""},
		"gap":                   {history(elected(7), assigned, gap), "follows event 2"},
		"no beginning":          {[]daemon.Event{{Seq: 2, Kind: daemon.LeaderElected, Term: 7}}, "follows event 0"},
		"term repeats":          {history(elected(7), elected(7)), "term 7 after term 7"},
		"term goes back":        {history(elected(7), elected(6)), "term 6 after term 7"},
		"generation repeats":    {history(elected(7), assigned, deleted, assigned), "given generation 5 after 5"},
		"generation goes back":  {history(elected(7), assigned, active, step(daemon.AssignmentResumed, 4, 7)), "given generation 4 after 5"},
		"assigned twice":        {history(elected(7), assigned, step(daemon.AssignmentAssigned, 6, 7)), "was assigning"},
		"active from free":      {history(elected(7), assigned, deleted, active), "was deleted"},
		"a replaced term":       {history(elected(6), lost, elected(8), assigned), "assigned by term 7 while 8 is the newest (vacant: false)"},
		"a term that is over":   {history(elected(7), lost, assigned), "(vacant: true)"},
		"nobody's term":         {history(assigned), "while 0 is the newest"},
		"dead at once":          {history(join, still, still, removed("no heartbeat for 6s")), "declared dead 3s after a heartbeat"},
		"dead while it leads":   {history(join, still, still, still, still, elected(7), removed("no heartbeat for 6s")), "declared dead 1s after a heartbeat"},
		"dead in time":          {history(join, still, still, still, still, still, removed("no heartbeat for 6s")), ""},
		"left at once":          {history(join, removed("shutdown")), ""},
		"dead and running":      {history(join, elected(7), assigned, removed("process has ended"), active), "a had been removed"},
		"dead and resuming":     {history(join, elected(7), assigned, active, removed("process has ended"), step(daemon.AssignmentResumed, 6, 7)), "a had been removed"},
		"dead and elected":      {history(join, removed("process has ended"), elected(7)), "a had been removed"},
		"dead and here again":   {history(join, removed("process has ended"), join), "a had been removed"},
		"silent and back":       {history(join, still, still, still, still, still, removed("no heartbeat for 6s"), join, elected(7), assigned, active), ""},
		"silent and running":    {history(join, elected(7), assigned, still, still, still, still, removed("no heartbeat for 6s"), active), "a had been removed: no heartbeat"},
		"another of its name":   {history(join, removed("process has ended"), daemon.Event{Kind: daemon.NodeRegistered, Node: "a", Incarnation: "a2"}), ""},
		"freed after its death": {history(join, elected(7), assigned, active, removed("process has ended"), step(daemon.AssignmentForced, 5, 7)), ""},
	} {
		found(t, name, CheckEvents(c.events, lease.Fast()), c.want)
	}
}

// found fails the test unless there is exactly the wanted complaint, or none.
func found(t *testing.T, name string, bad []string, want string) {
	t.Helper()
	if want == "" && len(bad) == 0 {
		return
	}
	if want == "" || len(bad) != 1 || !strings.Contains(bad[0], want) {
		t.Errorf("%s: %q, want %q", name, bad, want)
	}
}

func TestCheckOfDeathsFindsViolations(t *testing.T) {
	t.Parallel()
	events := history(join, removed("no heartbeat for 6s"))
	found(t, "killed", CheckDeaths(events, func(e daemon.Event) bool { return e.Node != "a" }), "")
	found(t, "living", CheckDeaths(events, func(e daemon.Event) bool { return e.Node == "a" }), "a lives, and nobody did it any harm")
}

func TestCheckOfTrustFindsViolations(t *testing.T) {
	t.Parallel()
	boot := func(at time.Time) int64 { return int64(at.Sub(stamp(0))) }
	run := func(generation int64, end time.Duration) []Run {
		return []Run{{Unit: aUnit.String(), Generation: generation, Node: "a", End: int64(end)}}
	}
	assigned, active := step(daemon.AssignmentAssigned, 5, 7), step(daemon.AssignmentActive, 5, 7)
	for name, c := range map[string]struct {
		last daemon.Event // 2 s after the assignment
		runs []Run
		want string
	}{
		"still its own":       {active, run(5, time.Minute), ""},
		"ended before":        {step(daemon.AssignmentForced, 5, 7), run(5, 2*time.Second), ""},
		"taken away":          {step(daemon.AssignmentForced, 5, 7), run(5, 3*time.Second), "went on for 1s after event 3"},
		"given back":          {step(daemon.AssignmentDeleted, 5, 7), run(5, 3*time.Second), "(assignment.deleted)"},
		"failed":              {step(daemon.AssignmentFailed, 5, 7), run(5, 3*time.Second), "(assignment.failed)"},
		"another's":           {step(daemon.AssignmentAssigned, 6, 7), run(5, 3*time.Second), "(assignment.assigned)"},
		"resumed beside":      {step(daemon.AssignmentResumed, 6, 7), run(5, 3*time.Second), "(assignment.resumed)"},
		"resumed":             {step(daemon.AssignmentResumed, 6, 7), run(6, time.Minute), ""},
		"abandoned":           {step(daemon.AssignmentAbandoned, 5, 7), run(5, 3*time.Second), ""},
		"taken from the next": {step(daemon.AssignmentForced, 5, 7), run(6, 3*time.Second), ""},
	} {
		found(t, name, CheckValidity(c.runs, history(assigned, active, c.last), boot), c.want)
	}
}

func TestCheckOfFailoversFindsViolations(t *testing.T) {
	t.Parallel()
	assigned := func(generation, term int64) daemon.Event { return step(daemon.AssignmentAssigned, generation, term) }
	forced := step(daemon.AssignmentForced, 5, 7)
	kept := []daemon.Event{join, elected(7), assigned(5, 7)}
	lost := []daemon.Event{elected(9), forced, assigned(10, 9)}
	for name, c := range map[string]struct {
		after []daemon.Event
		want  string
	}{
		"nothing yet":         {nil, ""},
		"higher numbers":      {[]daemon.Event{elected(11), forced, assigned(12, 11)}, ""},
		"the term again":      {[]daemon.Event{elected(9), still}, "term 9 after term 9"},
		"a lower term":        {[]daemon.Event{elected(8)}, "term 8 after term 9"},
		"the generation":      {[]daemon.Event{elected(11), forced, assigned(10, 11)}, "given generation 10 after 10"},
		"a lower generation":  {[]daemon.Event{elected(11), step(daemon.AssignmentResumed, 6, 7)}, "given generation 6 after 10"},
		"its own numbers too": {[]daemon.Event{elected(11), elected(11)}, "term 11 after term 11"},
	} {
		before := history(append(append([]daemon.Event{}, kept...), lost...)...)
		after := history(append(append([]daemon.Event{}, kept...), c.after...)...)
		for i := len(kept); i < len(after); i++ {
			after[i].At = after[i].At.Add(time.Minute)
		}
		found(t, name, CheckFailover(before, after), c.want)
	}
}

// TestBounds checks which figures break a promise about durations, with the full counts and without.
func TestBounds(t *testing.T) {
	t.Parallel()
	fast := Bound{P50: 50 * time.Millisecond, P99: 250 * time.Millisecond, Max: time.Second}
	if got, want := fast.String(), "p50 ≤ 50ms, p99 ≤ 250ms, ≤ 1s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	long := Bound{Max: 2 * time.Minute, Other: "as long as two"}
	if got, want := long.String(), "≤ 2m0s, as long as two"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var took []time.Duration
	for i := range 200 {
		took = append(took, time.Duration(200-i)*time.Millisecond)
	}
	if got, want := spreadOf(took), (spread{101 * time.Millisecond, 199 * time.Millisecond, 200 * time.Millisecond}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	for name, c := range map[string]struct {
		bound Bound
		got   spread
		full  bool
		want  string
	}{
		"kept":                 {fast, spread{50 * time.Millisecond, 250 * time.Millisecond, time.Second}, true, ""},
		"slow half of a time":  {fast, spread{51 * time.Millisecond, 51 * time.Millisecond, 51 * time.Millisecond}, true, "p50 is 51ms, more than 50ms"},
		"slow at times":        {fast, spread{time.Millisecond, 251 * time.Millisecond, time.Second}, true, "p99 is 251ms, more than 250ms"},
		"slow once":            {fast, spread{time.Millisecond, time.Millisecond, 2 * time.Second}, true, "max is 2s, more than 1s"},
		"slow on a busy one":   {fast, spread{9 * time.Second, 9 * time.Second, 9 * time.Second}, false, ""},
		"too slow on any":      {fast, spread{time.Second, time.Second, 11 * time.Second}, false, "max is 11s, more than 10s"},
		"long on a busy one":   {long, spread{time.Minute, time.Minute, 20 * time.Minute}, false, ""},
		"too long on any":      {long, spread{time.Minute, time.Minute, 21 * time.Minute}, false, "max is 21m0s, more than 20m0s"},
		"nothing was promised": {Bound{Other: "reported"}, spread{time.Hour, time.Hour, time.Hour}, true, ""},
	} {
		found(t, name, c.bound.broken(c.got, c.full), c.want)
	}
}
