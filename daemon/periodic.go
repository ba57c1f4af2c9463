package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/schedule"
)

// MissedPolicy says what a [Periodic] does about due times that passed without a call: because no node had the unit,
// or because the call before took too long. Each of them that is not made up for is in the event periodic.missed.
type MissedPolicy string

// The policies.
const (
	MissedOnce MissedPolicy = "once" // calls once, for the newest of them; the default
	MissedSkip MissedPolicy = "skip" // calls for none that is more than a minute late
	MissedAll  MissedPolicy = "all"  // calls for the newest Periodic.CatchUp of them, the oldest first
)

// Periodic is an [Agent] that calls a function at the due times of a schedule, one call at a time. Each unit of the
// daemon has a schedule of its own. A daemon with one instance, the default, therefore makes each call on one node.
// Make one with [Every] or [Cron] and set the other fields before it is registered.
//
// The store has the due time that is next and the call that is under way, so both survive restarts and changes of the
// node and of the leader. The due times are those of the node's wall clock. A due time whose call has ended does not
// come again. A call whose end was not recorded, because its process was killed, is repeated: calls happen at least
// once. The due time tells a repetition, and the fence refuses one that was paused.
//
// A call that returns an error or panics is repeated after 10 s, then after pauses that double up to 5 min, until
// Attempts were made or the next due time comes (with MissedAll, the next one waits). [ErrRelease] also gives the unit to
// another node. A drain waits for the call that is under way, up to the drain timeout. Spec.StallTimeout must be longer
// than 10 s, because progress is shown only so often between calls.
//
// The history has what happened: the events periodic.scheduled, .started, .ended, .failed and .missed.
type Periodic struct {
	// Interval is the time between two due times: a second or more. The first due time is one interval after the
	// daemon began.
	Interval time.Duration
	// Cron is a cron line instead: minute, hour, day of month, month, day of week, or @hourly, @daily, @weekly,
	// @monthly, @yearly.
	//
	// If it gives the hours, a due time that the local clock skips when it is set forward comes at the end of the
	// gap, and one that it shows twice comes once. A line for every hour ("*" or "*/n") follows the hours that pass.
	Cron string
	// TimeZone is that of Cron, by a name such as "Europe/Berlin"; default UTC.
	TimeZone string
	// Missed is what is done about due times that passed without a call; default MissedOnce.
	Missed MissedPolicy
	// CatchUp bounds MissedAll; default 10, at most 100.
	CatchUp int
	// Attempts is how many calls are made for one due time until one succeeds; default 3.
	Attempts int
	// Do is the function. It must return soon after ctx is cancelled. Nil means that the due time is done with, also
	// then: if the work was cut short, return an error (ctx.Err() will do), and the due time is called again.
	Do func(ctx context.Context, a *Assignment, due time.Time) error
	// Logger defaults to slog.Default. It gets the failures.
	Logger *slog.Logger
}

// Every makes an agent that calls fn each interval, on one node of the cluster.
func Every(interval time.Duration, fn func(ctx context.Context, a *Assignment, due time.Time) error) *Periodic {
	return &Periodic{Interval: interval, Do: fn}
}

// Cron makes an agent that calls fn at the times of a cron line, on one node of the cluster. The time zone is UTC,
// unless Periodic.TimeZone names another one.
func Cron(line string, fn func(ctx context.Context, a *Assignment, due time.Time) error) *Periodic {
	return &Periodic{Cron: line, Do: fn}
}

// maxCatchUp bounds Periodic.CatchUp.
const maxCatchUp = 100

// Validate reports why the agent cannot run, or nil. A coordinator calls it when the agent is registered.
func (p *Periodic) Validate() error {
	_, err := p.rules()
	return err
}

// rules returns the schedule and the other settings with their defaults.
func (p *Periodic) rules() (schedule.Rules, error) {
	r := schedule.Rules{
		Missed:   schedule.Policy(cmp.Or(p.Missed, MissedOnce)),
		CatchUp:  cmp.Or(p.CatchUp, 10),
		Attempts: cmp.Or(p.Attempts, 3),
	}
	var err error
	switch {
	case p.Do == nil:
		err = errors.New("it has no function")
	case p.Interval != 0 && p.Cron != "":
		err = errors.New("it has an interval and a cron line: give one of them")
	case p.Cron == "" && p.TimeZone != "":
		err = errors.New("it has a time zone without a cron line: an interval has none")
	case r.Missed != schedule.Once && r.Missed != schedule.Skip && r.Missed != schedule.All:
		err = fmt.Errorf("its policy for missed due times is %q, want once, skip or all", p.Missed)
	case r.CatchUp < 1 || r.CatchUp > maxCatchUp:
		err = fmt.Errorf("it catches up %d missed due times, want 1 to %d", p.CatchUp, maxCatchUp)
	case r.Attempts < 1:
		err = fmt.Errorf("it makes %d attempts, want 1 or more", p.Attempts)
	case p.Cron != "":
		r.Schedule, err = schedule.Cron(p.Cron, p.TimeZone)
	default:
		r.Schedule, err = schedule.Every(p.Interval)
	}
	if err != nil {
		return r, fmt.Errorf("periodic daemon: %w", err)
	}
	return r, nil
}

// Run calls the function at its due times until the assignment drains or ctx ends.
func (p *Periodic) Run(ctx context.Context, a *Assignment) error {
	rules, err := p.rules()
	if err != nil {
		return err
	}
	log := cmp.Or(p.Logger, slog.Default()).With("unit", a.Unit.String(), "generation", a.Generation)
	r := &periodicRun{p: p, a: a, rules: rules, log: log, now: wallClock}
	r.states, _ = ctx.Value(statesKey{}).(StateStore)
	if r.states == nil {
		return errors.New("periodic daemon: the store does not keep states of units")
	}
	if err := r.load(ctx); err != nil {
		return err
	}
	a.Ready()
	return r.loop(ctx)
}

// loop does what is due until the assignment drains or ctx ends.
func (r *periodicRun) loop(ctx context.Context) error {
	for {
		if err := r.round(ctx); err != nil || !r.wait(ctx) {
			return err
		}
	}
}

// periodicRun is one run of a unit.
type periodicRun struct {
	p      *Periodic
	a      *Assignment
	rules  schedule.Rules
	states StateStore
	log    *slog.Logger
	now    func() time.Time

	state    schedule.State
	revision int64 // of what the store has
}

// callTimeout bounds each call to the store.
const callTimeout = 10 * time.Second

// load reads the state that earlier runs left.
func (r *periodicRun) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := r.states.UnitStates(ctx, r.a.Unit)
	if err != nil {
		return fmt.Errorf("periodic daemon: read the state: %w", err)
	}
	if len(found) == 0 {
		return nil
	}
	r.revision = found[0].Revision
	if err := json.Unmarshal(found[0].Data, &r.state); err != nil {
		return fmt.Errorf("periodic daemon: the stored state of %s is not readable: %w", r.a.Unit, err)
	}
	return nil
}

// round does what is due.
func (r *periodicRun) round(ctx context.Context) error {
	state, happened := r.rules.Begin(r.state, r.now())
	if err := r.save(ctx, state, happened); err != nil || r.draining() {
		return err
	}
	state, happened = r.rules.Start(r.state, r.now())
	if err := r.save(ctx, state, happened); err != nil || r.state.StartedAt.IsZero() {
		return err
	}
	failed := r.call(ctx)
	if err := r.ended(ctx, failed); err != nil {
		return err
	}
	if errors.Is(failed, ErrRelease) {
		return ErrRelease
	}
	return nil
}

// call calls the function. A panic is an error.
func (r *periodicRun) call(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			r.log.Error("periodic call panicked", "error", err, "stack", string(debug.Stack()))
		}
	}()
	return r.p.Do(ctx, r.a, r.rules.Schedule.Local(r.state.Due))
}

// lastWords is how long a run that was cancelled tries to record the end of its call.
const lastWords = 500 * time.Millisecond

// ended records the end of a call. It tries briefly even if ctx has ended: should another run have begun, the store
// refuses.
func (r *periodicRun) ended(ctx context.Context, failed error) error {
	text := ""
	if failed != nil {
		text = boundText(failed.Error())
		r.log.Warn("periodic call failed", "due", r.state.Due, "attempt", r.state.Attempt, "of", r.rules.Attempts, "error", text)
	}
	state, happened := r.rules.End(r.state, r.now(), text)
	if ctx.Err() == nil {
		if err := r.save(ctx, state, happened); err == nil || ctx.Err() == nil {
			return err
		}
	}
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	_ = r.save(brief, state, happened) // the next run finds that the end was not recorded
	return ctx.Err()
}

// save writes a state and its events, and goes on until the store answers: a repetition of a write that has happened
// changes nothing. No event means that there is nothing to write.
func (r *periodicRun) save(ctx context.Context, state schedule.State, happened []schedule.Event) error {
	if len(happened) == 0 {
		return nil
	}
	data, events, err := encode(state, happened)
	for n := 1; err == nil; n++ {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err = r.states.SaveUnitState(call, r.a.Fence(), UnitState{Revision: r.revision + 1, Data: data}, events...)
		cancel()
		if err == nil {
			r.state = state
			r.revision++
			return nil
		}
		if errors.Is(err, ErrStale) || errors.Is(err, ErrStateRevision) || ctx.Err() != nil {
			break
		}
		pause := saveAgain.Jittered(n)
		r.log.Warn("state of a periodic daemon not saved", "attempt", n, "retry_in", pause, "error", err)
		r.a.Progress(0) // it waits for the store, and does not stall
		if backoff.Sleep(ctx, pause) == nil {
			err = nil
		}
	}
	return fmt.Errorf("periodic daemon: save the state: %w", err)
}

// saveAgain is the pause after a write that was not answered.
var saveAgain = backoff.Policy{First: 100 * time.Millisecond, Limit: 5 * time.Second}

// encode returns what the store keeps of a state and its events.
func encode(state schedule.State, happened []schedule.Event) (data []byte, events []Event, err error) {
	if data, err = json.Marshal(state); err != nil {
		return nil, nil, err
	}
	for _, e := range happened {
		detail, err := json.Marshal(e.Detail)
		if err != nil {
			return nil, nil, err
		}
		events = append(events, Event{Kind: EventKind(e.Kind), Reason: e.Reason, Detail: detail})
	}
	return data, events, nil
}

// wait waits until something is to be done by the wall clock. It returns false if the assignment drains or ctx ends.
func (r *periodicRun) wait(ctx context.Context) bool {
	for {
		if ctx.Err() != nil || r.draining() {
			return false
		}
		left := r.rules.Left(r.state, r.now())
		if left <= 0 {
			return true
		}
		r.a.Progress(0)
		t := time.NewTimer(min(left, schedule.ReadClockEvery))
		select {
		case <-t.C:
		case <-r.a.Draining():
		case <-ctx.Done():
		}
		t.Stop()
	}
}

func (r *periodicRun) draining() bool {
	select {
	case <-r.a.Draining():
		return true
	default:
		return false
	}
}

// wallClock reads the wall clock. Rounding removes the reading of the monotonic clock, by which Go would compare otherwise,
// and which does not show that the wall clock was set.
func wallClock() time.Time { return time.Now().Round(0).UTC() }

// boundText bounds the text of an error that goes into the store.
func boundText(text string) string {
	const most = 300
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "")
}
