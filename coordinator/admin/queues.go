package admin

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	"github.com/emitd/emitd/internal/admin/audit"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
)

// queueOperations lists the calls about queues and jobs.
func queueOperations() []operation {
	return []operation{
		get("listQueues", "/queues", "The queues that the caller may read, with their counts, by name", (*API).queues).authorizing(),
		get("getQueue", "/queues/{queue}", "One queue: its settings and counts", (*API).queue),
		get("listJobs", "/queues/{queue}/jobs", "The jobs of a queue, the oldest first", (*API).jobs),
		get("getJob", "/queues/{queue}/jobs/{job}", "One job, with its payload", (*API).job),
		call("doQueue", http.MethodPost, "/queues/{queue}/actions", "Cancel, retry, redrive or purge jobs; pause or resume a queue", (*API).actOnQueue),
		call("reshardQueue", http.MethodPut, "/queues/{queue}/shards", "Begin to change the number of a queue's shards; the present number cancels a change that is being prepared", (*API).reshard).forAdmins(),
	}
}

// Queues are the queues for an API.
type Queues interface {
	queue.Operator
	// Queues returns the declared queues, sorted by name.
	Queues(ctx context.Context) ([]queue.Settings, error)
	// Reshard begins to change the number of a queue's shards, and returns the settings at once.
	Reshard(ctx context.Context, name string, shards int) (queue.Settings, error)
}

// readQueues asks for the state of all queues. A problem is part of the result; nil means that there are none.
func (a *API) readQueues(ctx context.Context) (*view.Queues, error) {
	return a.readQueuesIf(ctx, func(string) bool { return true })
}

// readQueuesIf is readQueues for some of the queues.
func (a *API) readQueuesIf(ctx context.Context, wanted func(name string) bool) (*view.Queues, error) {
	if a.cfg.Queues == nil {
		return nil, nil
	}
	within := min(partTimeout, a.cfg.Timeout)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	out := &view.Queues{Queues: []view.QueueStats{}}
	all, err := a.cfg.Queues.Queues(ctx)
	if err != nil {
		f := a.fault(err)
		out.Problem = string(f.Code) + ": " + f.What
		return out, nil
	}
	var names []string
	for _, s := range all {
		if wanted(s.Name) {
			names = append(names, s.Name)
		}
	}
	out.Queues = view.ReadQueues(ctx, within, names, a.cfg.Queues.Stats, func(err error) string { return a.fault(err).What })
	return out, nil
}

// queuesOf asks for the state of the queues that a limited caller may read; nil if there is none. It is not shared with other
// callers, because another node decides by this caller's token.
func (a *API) queuesOf(ctx context.Context, r *http.Request) (*view.Queues, error) {
	some, err := a.readQueuesIf(ctx, func(name string) bool { return a.authorize(r, Access{Role: RoleRead, Queue: name}) == nil })
	switch {
	case err != nil || some == nil:
		return nil, err
	case some.Problem != "":
		return nil, unknown(some.Problem)
	case len(some.Queues) == 0:
		return nil, nil
	}
	return some, nil
}

type queuesIn struct{ fromRequest }

// queuesAnswer is the queues.
type queuesAnswer struct {
	Queues *view.Queues `json:"queues"` // null if this server shows no queues
}

func (a *API) queues(ctx context.Context, in *queuesIn) (*queuesAnswer, error) {
	refusal := a.authorize(in.r, Access{Role: RoleRead})
	switch {
	case queue.TagOf(refusal) == queue.Unauthorized:
		return nil, refusal
	case refusal != nil:
		some, err := a.queuesOf(ctx, in.r)
		if err == nil && some == nil {
			err = refusal
		}
		return &queuesAnswer{some}, err
	}
	all, err := a.queueReads.get(ctx)
	return &queuesAnswer{all}, err
}

type queueIn struct {
	// Queue is the name of a queue.
	Queue string `path:"queue"`
}

// queueAnswer is one queue.
type queueAnswer struct {
	Settings wire.Declaration `json:"settings"`
	Stats    wire.Stats       `json:"stats"`
}

// declared returns the settings of a queue, which must exist.
func (a *API) declared(ctx context.Context, name string) (queue.Settings, error) {
	if a.cfg.Queues == nil {
		return queue.Settings{}, fault.New(fault.NoQueue, "this server shows no queues")
	}
	all, err := a.cfg.Queues.Queues(ctx)
	if err != nil {
		return queue.Settings{}, fmt.Errorf("read the queues: %w", err)
	}
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return queue.Settings{}, fault.New(fault.NoQueue, "there is no queue %.200q", name)
}

func (a *API) queue(ctx context.Context, in *queueIn) (*queueAnswer, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	s, err := a.declared(ctx, in.Queue)
	if err != nil {
		return nil, err
	}
	stats, err := a.cfg.Queues.Stats(ctx, in.Queue)
	if err != nil {
		return nil, fmt.Errorf("read queue %s: %w", in.Queue, err)
	}
	return &queueAnswer{wire.DeclarationOf(s), wire.StatsOf(stats)}, nil
}

type jobsIn struct {
	queueIn
	paging
	// State selects the jobs in one state.
	State queue.State `query:"state" enum:"waiting,delayed,active,dead"`
	// Type selects the jobs of one type.
	Type string `query:"type"`
}

// jobPage is a page of jobs.
type jobPage struct {
	Jobs   []wire.Info `json:"jobs"`
	Cursor *string     `json:"cursor"` // of the next page; null at the end
}

func (a *API) jobs(ctx context.Context, in *jobsIn) (*jobPage, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	const list = "jobs"
	from, _, err := after[string](in.paging, list)
	if err != nil {
		return nil, err
	}
	if _, err := a.declared(ctx, in.Queue); err != nil {
		return nil, err
	}
	p, err := a.cfg.Queues.List(ctx, in.Queue, queue.Query{State: in.State, Type: in.Type, Cursor: from, Limit: in.Limit})
	if err != nil {
		return nil, fmt.Errorf("read the jobs of %s: %w", in.Queue, err)
	}
	out := &jobPage{Jobs: []wire.Info{}}
	for i := range p.Jobs {
		out.Jobs = append(out.Jobs, wire.InfoOf(&p.Jobs[i]))
	}
	if p.Cursor != "" {
		out.Cursor = cursor(list, p.Cursor)
	}
	return out, nil
}

type jobIn struct {
	queueIn
	// Job is the ID of a job.
	Job string `path:"job"`
}

// jobAnswer is one job.
type jobAnswer struct {
	Job wire.JobView `json:"job"`
}

func (a *API) job(ctx context.Context, in *jobIn) (*jobAnswer, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	if _, err := a.declared(ctx, in.Queue); err != nil {
		return nil, err
	}
	info, payload, err := a.cfg.Queues.Get(ctx, in.Queue, in.Job)
	if err != nil {
		return nil, fmt.Errorf("read job %s: %w", in.Job, err)
	}
	return &jobAnswer{wire.JobViewOf(info, payload)}, nil
}

// queueAction is what to do with a queue or its jobs.
type queueAction struct {
	// Action is what to do: cancel, retry (delayed jobs are waiting at once), redrive (dead jobs are waiting again) or purge
	// (remove) jobs, or pause or resume the queue.
	Action queue.Act `json:"action"`
	// IDs are the jobs (cancel, retry, redrive).
	IDs []string `json:"ids,omitempty"`
	// Type selects the jobs of one type instead.
	Type string `json:"type,omitempty"`
	// State selects the jobs in one state (purge).
	State queue.State `json:"state,omitempty"`
	// All selects all jobs to which the action applies.
	All bool `json:"all,omitempty"`
	// DryRun changes nothing and only counts the jobs, up to 10,000.
	DryRun bool `json:"dry_run,omitempty"`
}

type queueActionIn struct {
	queueIn
	fromRequest
	Body queueAction `body:"json"`
}

// queueActionAnswer says what was done.
type queueActionAnswer struct {
	Queue  string    `json:"queue"`
	Action queue.Act `json:"action"`
	DryRun bool      `json:"dry_run"`
	// Count is how many jobs were changed or, for a dry run, would be. More says that a dry run stopped counting.
	Count int  `json:"count"`
	More  bool `json:"more"`
}

func (a *API) actOnQueue(ctx context.Context, in *queueActionIn) (*queueActionAnswer, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	act := in.Body
	if err := act.check(); err != nil {
		return nil, err
	}
	if _, err := a.declared(ctx, in.Queue); err != nil {
		return nil, err
	}
	out := &queueActionAnswer{Queue: in.Queue, Action: act.Action, DryRun: act.DryRun}
	var err error
	if act.DryRun {
		out.Count, out.More, err = a.wouldChange(ctx, in.Queue, act)
	} else {
		defer a.queueReads.forget()
		out.Count, err = a.changeQueue(ctx, in)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", act.Action, in.Queue, err)
	}
	return out, nil
}

// changeQueue carries an action out, and records it in the history.
func (a *API) changeQueue(ctx context.Context, in *queueActionIn) (n int, err error) {
	act := in.Body
	c := audit.Change{Kind: audit.Queue + string(act.Action), Subject: in.Queue, By: a.by(in.r), Args: act.selection()}
	c.Before = a.counts(ctx, in.Queue)
	n, err = a.cfg.Queues.Do(ctx, in.Queue, queue.Command{Act: act.Action, IDs: act.IDs, State: act.State, Type: act.Type})
	c.After, c.Count, c.Err = a.counts(ctx, in.Queue), n, err
	audit.Record(ctx, a.cfg.Store, a.cfg.Logger, c)
	return n, err
}

// selection is what an action is about; nil for a whole queue.
func (q queueAction) selection() any {
	if len(q.IDs) == 0 && q.Type == "" && q.State == "" && !q.All {
		return nil
	}
	return struct {
		IDs   []string    `json:"ids,omitempty"`
		Type  string      `json:"type,omitempty"`
		State queue.State `json:"state,omitempty"`
		All   bool        `json:"all,omitempty"`
	}{q.IDs, q.Type, q.State, q.All}
}

type reshardIn struct {
	queueIn
	fromRequest
	Body wire.ReshardRequest `body:"json"`
}

// reshardAnswer says how far the change of the number of shards is.
type reshardAnswer struct {
	Settings wire.Declaration `json:"settings"`
}

func (a *API) reshard(ctx context.Context, in *reshardIn) (*reshardAnswer, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	before, err := a.declared(ctx, in.Queue)
	if err != nil {
		return nil, err
	}
	c := audit.Change{Kind: audit.Reshard, Subject: in.Queue, By: a.by(in.r), Args: in.Body, Before: wire.DeclarationOf(before)}
	if c.By.Role != "" {
		c.By.Role = string(RoleAdmin)
	}
	after, err := a.cfg.Queues.Reshard(ctx, in.Queue, in.Body.Shards)
	if err != nil {
		return nil, fmt.Errorf("reshard %s: %w", in.Queue, err)
	}
	if out := wire.DeclarationOf(after); !reflect.DeepEqual(c.Before, out) {
		defer a.queueReads.forget()
		c.After = out
		audit.Record(ctx, a.cfg.Store, a.cfg.Logger, c)
	}
	return &reshardAnswer{wire.DeclarationOf(after)}, nil
}

// counts are the counts of a queue for the history; nil if they are not known.
func (a *API) counts(ctx context.Context, name string) any {
	s, err := a.cfg.Queues.Stats(ctx, name)
	if err != nil {
		return nil
	}
	return audit.CountsOf(s)
}

// check refuses an action with fields that contradict each other or have no effect.
func (q queueAction) check() error {
	ways := 0
	for _, given := range []bool{len(q.IDs) > 0, q.Type != "" || q.State != "", q.All} {
		if given {
			ways++
		}
	}
	onJobs := slices.Contains([]queue.Act{queue.Cancel, queue.RunNow, queue.Redrive, queue.Purge}, q.Action)
	switch {
	case !onJobs && q.Action != queue.Pause && q.Action != queue.Resume:
		return badCall("action is %.100q, want cancel, retry, redrive, purge, pause or resume", string(q.Action))
	case onJobs && ways != 1:
		return badCall("%s needs one of ids, a type or state, and all", q.Action)
	case !onJobs && ways > 0:
		return badCall("%s has none of ids, type, state and all", q.Action)
	case q.Action == queue.Purge && len(q.IDs) > 0:
		return badCall("purge has no ids; cancel ends single jobs")
	case q.Action != queue.Purge && q.State != "":
		return badCall("%s has no state", q.Action)
	case !slices.Contains([]queue.State{"", queue.Waiting, queue.Delayed, queue.Active, queue.Dead}, q.State):
		return badCall("state is %.100q, want waiting, delayed, active or dead", string(q.State))
	case len(q.IDs) > queue.MaxPage:
		return badCall("ids has %d entries, at most %d are allowed", len(q.IDs), queue.MaxPage)
	}
	return nil
}

// mostCounted is how many jobs a dry run counts.
const mostCounted = 10_000

// wouldChange counts the jobs that an action would change now.
func (a *API) wouldChange(ctx context.Context, name string, act queueAction) (n int, more bool, err error) {
	states := act.states()
	if len(act.IDs) > 0 {
		for _, id := range act.IDs {
			info, _, err := a.cfg.Queues.Get(ctx, name, id)
			if err != nil {
				return 0, false, err
			}
			if slices.Contains(states, info.State) {
				n++
			}
		}
		return n, false, nil
	}
	for _, state := range states {
		q := queue.Query{State: state, Type: act.Type, Limit: queue.MaxPage}
		for {
			p, err := a.cfg.Queues.List(ctx, name, q)
			if err != nil {
				return n, false, err
			}
			if n += len(p.Jobs); n >= mostCounted {
				return n, p.Cursor != "", nil
			}
			if q.Cursor = p.Cursor; q.Cursor == "" {
				break
			}
		}
	}
	return n, false, nil
}

// states lists the states of the jobs that an action changes.
func (q queueAction) states() []queue.State {
	switch {
	case q.State != "":
		return []queue.State{q.State}
	case q.Action == queue.RunNow:
		return []queue.State{queue.Delayed}
	case q.Action == queue.Redrive:
		return []queue.State{queue.Dead}
	case q.Action == queue.Purge:
		return []queue.State{queue.Waiting, queue.Delayed, queue.Dead}
	case q.Action == queue.Cancel:
		return []queue.State{queue.Waiting, queue.Delayed, queue.Active}
	}
	return nil
}
