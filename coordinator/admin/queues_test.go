package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/storage/memory"
)

// declaredQueues are queues in memory.
type declaredQueues struct {
	*queuetest.Queue
	names []string
	down  error
	// moving is the number of shards to which the queue mail is being resharded; 0: to none.
	moving int
}

// Reshard has the rules of the list of queues, for queues with one shard.
func (d *declaredQueues) Reshard(_ context.Context, name string, shards int) (queue.Settings, error) {
	switch {
	case shards < 1:
		return queue.Settings{}, queue.Refuse(queue.BadRequest, "shards is %d", shards)
	case d.moving != 0 && shards > 1 && shards != d.moving:
		return queue.Settings{}, queue.Refuse(queue.ReshardConflict, "queue %q is being resharded to %d shards", name, d.moving)
	case shards == 1:
		shards = 0
	}
	d.moving = shards
	return d.settings(name), nil
}

func (d *declaredQueues) settings(name string) queue.Settings {
	set := queue.Settings{Name: name, Shards: 1}
	if name == "mail" && d.moving != 0 {
		set.Resharding = queue.Resharding{Stage: queue.Preparing, Shards: d.moving, Incarnation: 2}
	}
	return set
}

// Stats adds rates, which the queue in memory does not count.
func (d *declaredQueues) Stats(ctx context.Context, name string) (*queue.Stats, error) {
	s, err := d.Queue.Stats(ctx, name)
	if err == nil {
		s.EnqueueRate, s.CompleteRate = 2.5, 1.5
	}
	return s, err
}

func (d *declaredQueues) Queues(context.Context) ([]queue.Settings, error) {
	var out []queue.Settings
	for _, name := range d.names {
		out = append(out, d.settings(name))
	}
	return out, d.down
}

// deadJobs puts jobs into the queue mail, the first of which have died.
func deadJobs(t *testing.T, q *queuetest.Queue, dead, waiting int) {
	t.Helper()
	for i := range dead + waiting {
		id := fmt.Sprintf("job-%02d", i)
		if _, err := q.Enqueue(t.Context(), "mail", []queue.Job{{ID: id, Type: "email", Payload: []byte(`{"to": "<script>"}`)}}); err != nil {
			t.Fatal(err)
		}
		if i >= dead {
			continue
		}
		claimed, err := q.Claim(t.Context(), "mail", queue.ClaimRequest{Worker: "w", Max: 1})
		if err != nil || len(claimed) != 1 {
			t.Fatal(claimed, err)
		}
		if _, err := q.Settle(t.Context(), "mail", []queue.Settlement{{Verb: queue.Fail, ID: id, Token: claimed[0].Token, Cause: "no such address", Dead: true}}); err != nil {
			t.Fatal(err)
		}
	}
}

func queueAPI(t *testing.T) (*API, *declaredQueues) {
	t.Helper()
	q := &declaredQueues{Queue: queuetest.New(), names: []string{"mail", "reports"}}
	deadJobs(t, q.Queue, 7, 5)
	return api(t, memory.Open(memory.Config{}), func(c *Config) { c.Queues = q }), q
}

// TestQueues: the counts of all queues, the jobs page by page, and one job with its payload. What is not there is 404.
func TestQueues(t *testing.T) {
	t.Parallel()
	a, q := queueAPI(t)
	var all queuesAnswer
	do(t, a, request(t, "GET", root+"/queues", ""), &all)
	if all.Queues == nil || len(all.Queues.Queues) != 2 || all.Queues.Queues[0].Dead != 7 || all.Queues.Queues[0].Waiting != 5 ||
		all.Queues.Queues[0].EnqueueRate != 2.5 || all.Queues.Queues[0].CompleteRate != 1.5 {
		t.Errorf("%+v", all.Queues)
	}
	var ids []string
	for next := ""; ; {
		var p jobPage
		do(t, a, request(t, "GET", root+"/queues/mail/jobs?state=dead&limit=3&cursor="+next, ""), &p)
		for _, j := range p.Jobs {
			ids = append(ids, j.ID)
		}
		if p.Cursor == nil {
			break
		}
		next = *p.Cursor
	}
	if len(ids) != 7 || !slices.IsSorted(ids) {
		t.Errorf("%v", ids)
	}
	var one jobAnswer
	do(t, a, request(t, "GET", root+"/queues/mail/jobs/job-00", ""), &one)
	if one.Job.Cause != "no such address" || string(one.Job.Payload) != `{"to":"<script>"}` {
		t.Errorf("%+v", one.Job)
	}
	for path, code := range map[string]fault.Code{"/queues/none": fault.NoQueue, "/queues/none/jobs": fault.NoQueue, "/queues/mail/jobs/none": fault.NoJob} {
		var p fault.Problem
		if w := do(t, a, request(t, "GET", root+path, ""), &p); w.Code != http.StatusNotFound || p.Code != code {
			t.Errorf("%s: %d %+v", path, w.Code, p)
		}
	}
	q.down = errors.New("the object store is down")
	a.queueReads.forget()
	do(t, a, request(t, "GET", root+"/queues", ""), &all)
	if all.Queues.Problem == "" {
		t.Errorf("%+v", all.Queues)
	}
	var s view.Status
	do(t, a, request(t, "GET", root+"/status", ""), &s)
	if s.Queues == nil || s.Queues.Problem == "" {
		t.Errorf("%+v", s.Queues)
	}
}

// TestQueueActions: a dry run counts and changes nothing; an action says how many jobs it has changed; one without a
// selection is refused.
func TestQueueActions(t *testing.T) {
	t.Parallel()
	a, q := queueAPI(t)
	do := func(body string) (int, queueActionAnswer) {
		var out queueActionAnswer
		w := do(t, a, request(t, "POST", root+"/queues/mail/actions", body), &out)
		return w.Code, out
	}
	for _, tc := range []struct {
		body   string
		status int
		count  int
	}{
		{`{"action": "redrive", "all": true, "dry_run": true}`, 200, 7},
		{`{"action": "redrive", "ids": ["job-00", "job-01", "job-09"], "dry_run": true}`, 200, 2},
		{`{"action": "redrive", "ids": ["job-00", "job-01"]}`, 200, 2},
		{`{"action": "redrive", "all": true, "dry_run": true}`, 200, 5},
		{`{"action": "purge", "state": "waiting", "dry_run": true}`, 200, 7},
		{`{"action": "cancel", "type": "email", "dry_run": true}`, 200, 7},
		{`{"action": "purge", "state": "dead"}`, 200, 5},
		{`{"action": "pause"}`, 200, 0},
		{`{"action": "resume"}`, 200, 0},
		{`{"action": "explode"}`, 400, 0},
		{`{"action": "purge"}`, 400, 0},
		{`{"action": "purge", "ids": ["job-00"]}`, 400, 0},
		{`{"action": "redrive", "all": true, "type": "email"}`, 400, 0},
		{`{"action": "redrive", "state": "dead"}`, 400, 0},
		{`{"action": "pause", "all": true}`, 400, 0},
		{`{"action": "purge", "state": "done"}`, 400, 0},
	} {
		before, err := q.Stats(t.Context(), "mail")
		if err != nil {
			t.Fatal(err)
		}
		status, got := do(tc.body)
		after, err := q.Stats(t.Context(), "mail")
		if err != nil {
			t.Fatal(err)
		}
		if status != tc.status || got.Count != tc.count && got.Action != queue.Pause && got.Action != queue.Resume {
			t.Errorf("%s: %d %+v", tc.body, status, got)
		}
		if changed := before.Waiting != after.Waiting || before.Dead != after.Dead; changed && (got.DryRun || status != 200) {
			t.Errorf("%s: changed %+v to %+v", tc.body, before, after)
		}
	}
}
