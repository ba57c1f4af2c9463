package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
)

// spread has one shard per node; the shard of a job is the number at the end of its ID.
type spread struct{ addrs []string }

func (s *spread) Broker(_ context.Context, _ string, shard int) (string, int64, error) {
	if s.addrs[shard] == "" {
		return "", 0, errors.New("unassigned")
	}
	return s.addrs[shard], int64(shard + 1), nil
}

func (s *spread) Shards(context.Context, string) (int, error) { return len(s.addrs), nil }

func (s *spread) ShardOfJob(j *queue.Job, shards int) int {
	return int(j.ID[len(j.ID)-1]) % shards
}

func (s *spread) ShardOfSettlement(x *queue.Settlement, shards int) int {
	return s.ShardOfJob(&queue.Job{ID: x.ID}, shards)
}

// sharded returns a forwarder for a queue whose even jobs are on this node and odd ones on another.
func sharded(t testing.TB) (f *api.Forwarder, even, odd *queuetest.Queue, where *spread) {
	t.Helper()
	even, odd = queuetest.New(), queuetest.New()
	h, err := api.New(odd, api.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	where = &spread{addrs: []string{"here:1", listen(t, h).Listener.Addr().String()}}
	f, err = api.NewForwarder(api.ForwarderConfig{Locator: where, Sharding: where, Self: "here:1", Local: even})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, even, odd, where
}

func ids(n int) []queue.Job {
	var jobs []queue.Job
	for i := range n {
		jobs = append(jobs, queue.Job{ID: fmt.Sprintf("j%d", i)})
	}
	return jobs
}

// TestShardsAreOneQueue: a queue on two nodes is one queue to its callers.
func TestShardsAreOneQueue(t *testing.T) {
	t.Parallel()
	f, even, odd, _ := sharded(t)
	ctx := t.Context()
	receipts, err := f.Enqueue(ctx, "q", ids(10))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range receipts {
		if r.ID != fmt.Sprintf("j%d", i) || r.State != queue.Waiting {
			t.Errorf("receipt %d: %+v", i, r)
		}
	}
	for name, q := range map[string]*queuetest.Queue{"even": even, "odd": odd} {
		if s, _ := q.Stats(ctx, "q"); s.Waiting != 5 {
			t.Errorf("%s has %d", name, s.Waiting)
		}
	}
	if r, err := f.Enqueue(ctx, "other", []queue.Job{{}}); err != nil || len(r[0].ID) != 16 {
		t.Errorf("%+v %v", r, err)
	}

	var seen []string
	for cursor, pages := "", 0; ; pages++ {
		p, err := f.List(ctx, "q", queue.Query{Limit: 3, Cursor: cursor})
		if err != nil || pages > 5 {
			t.Fatal(err, pages)
		}
		for _, j := range p.Jobs {
			seen = append(seen, j.ID)
		}
		if cursor = p.Cursor; cursor == "" {
			break
		}
	}
	if slices.Sort(seen); len(slices.Compact(seen)) != 10 {
		t.Errorf("listed %q", seen)
	}

	var claims []queue.Claimed
	for range 2 {
		c, err := f.Claim(ctx, "q", queue.ClaimRequest{Max: 10, RequestID: fmt.Sprint(len(claims))})
		if err != nil || len(c) != 5 {
			t.Fatalf("%d claims, %v", len(c), err)
		}
		claims = append(claims, c...)
	}
	var what []queue.Settlement
	for _, c := range claims {
		what = append(what, queue.Settlement{Verb: queue.Complete, ID: c.Job.ID, Token: c.Token})
	}
	what[3].Token = "forged"
	outcomes, err := f.Settle(ctx, "q", what)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range outcomes {
		if o.ID != what[i].ID || (o.Err != nil) != (i == 3) {
			t.Errorf("outcome %d of %s: %+v", i, what[i].ID, o)
		}
	}
	for _, id := range []string{"j4", "j5"} {
		if info, _, err := f.Get(ctx, "q", id); err != nil || info.ID != id {
			t.Errorf("%s: %+v %v", id, info, err)
		}
	}
	if _, _, err := f.Get(ctx, "q", "none"); queue.TagOf(err) != queue.JobNotFound {
		t.Error(err)
	}
	if s, err := f.Stats(ctx, "q"); err != nil || s.Completed != 9 || s.Active != 1 || s.Shards != 2 {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := f.Do(ctx, "q", queue.Command{Act: queue.Pause}); err != nil {
		t.Fatal(err)
	}
	for _, q := range []*queuetest.Queue{even, odd} {
		if s, _ := q.Stats(ctx, "q"); !s.Paused {
			t.Error("a shard goes on")
		}
	}
}

// TestClaimsReachEveryShard: a waiting claim is answered on whichever node the job arrives.
func TestClaimsReachEveryShard(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"j0", "j1"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			f, _, _, _ := sharded(t)
			got := make(chan []queue.Claimed, 1)
			go func() {
				claims, err := f.Claim(context.WithoutCancel(t.Context()), "q", queue.ClaimRequest{Wait: 20 * time.Second, Worker: "w"})
				if err != nil {
					t.Error(err)
				}
				got <- claims
			}()
			if _, err := f.Enqueue(t.Context(), "q", []queue.Job{{ID: id}}); err != nil {
				t.Fatal(err)
			}
			select {
			case claims := <-got:
				if len(claims) != 1 || claims[0].Job.ID != id {
					t.Errorf("%+v", claims)
				}
			case <-time.After(15 * time.Second):
				t.Error("no answer")
			}
		})
	}
}

// TestOneShardDown: calls for the other shard still work. A call on both has an unknown outcome,
// and its repetition duplicates nothing.
func TestOneShardDown(t *testing.T) {
	t.Parallel()
	f, even, _, where := sharded(t)
	ctx := t.Context()
	up := where.addrs[1]
	where.addrs[1] = ""
	if _, err := f.Enqueue(ctx, "q", ids(1)); err != nil {
		t.Error(err)
	}
	_, err := f.Enqueue(ctx, "q", ids(4))
	if queue.TagOf(err) != queue.UnknownOutcome || !strings.Contains(err.Error(), "unassigned") {
		t.Error(err)
	}
	if _, err := f.Enqueue(ctx, "q", []queue.Job{{ID: "j1"}}); queue.TagOf(err) != queue.Unavailable {
		t.Error(err)
	}
	if c, err := f.Claim(ctx, "q", queue.ClaimRequest{Max: 9, Wait: time.Second}); err != nil || len(c) != 2 {
		t.Errorf("%d claims, %v", len(c), err)
	}
	if c, err := f.Claim(ctx, "q", queue.ClaimRequest{}); err != nil || len(c) != 0 {
		t.Errorf("%d claims, %v", len(c), err)
	}
	if _, _, err := f.Get(ctx, "q", "j1"); queue.TagOf(err) != queue.Unavailable {
		t.Error(err) // it may be there
	}
	where.addrs[1] = up
	r, err := f.Enqueue(ctx, "q", ids(4))
	if err != nil || !r[0].Duplicate || r[1].Duplicate || !r[2].Duplicate {
		t.Errorf("%+v %v", r, err)
	}
	if s, _ := even.Stats(ctx, "q"); s.Enqueued != 2 {
		t.Errorf("%d jobs", s.Enqueued)
	}
	where.addrs[0], where.addrs[1] = "", ""
	if _, err := f.Claim(ctx, "q", queue.ClaimRequest{}); queue.TagOf(err) != queue.Unavailable {
		t.Error(err)
	}
}

// TestOneShardDoesNotAnswer: a node that is down or hangs does not keep the others' answers to heartbeats and reports from
// the caller.
func TestOneShardDoesNotAnswer(t *testing.T) {
	t.Parallel()
	hanging := listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	for name, addr := range map[string]string{"down": "", "hangs": hanging.Listener.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _, _, where := sharded(t)
			ctx := t.Context()
			if _, err := f.Enqueue(ctx, "q", ids(4)); err != nil {
				t.Fatal(err)
			}
			var what []queue.Settlement
			for range 2 {
				claims, err := f.Claim(ctx, "q", queue.ClaimRequest{Max: 9})
				if err != nil || len(claims) != 2 {
					t.Fatal(claims, err)
				}
				for _, c := range claims {
					what = append(what, queue.Settlement{Verb: queue.Extend, ID: c.Job.ID, Token: c.Token})
				}
			}
			where.addrs[1] = addr
			begun := time.Now()
			out, err := f.Settle(ctx, "q", what)
			if err != nil || len(out) != 4 {
				t.Fatal(out, err)
			}
			if took := time.Since(begun); took > 8*time.Second {
				t.Errorf("it took %v", took)
			}
			for _, o := range out {
				odd := o.ID[1]%2 == 1
				if odd != (o.Err != nil) || odd && o.Err.Tag != queue.Unavailable && o.Err.Tag != queue.UnknownOutcome {
					t.Errorf("%+v: %v", o, o.Err)
				}
			}
			var odd []queue.Settlement
			for _, x := range what {
				if x.ID[1]%2 == 1 {
					odd = append(odd, x)
				}
			}
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := f.Settle(short, "q", odd); err == nil {
				t.Error("no error although nobody answered")
			}
		})
	}
}

// moved is a spread of a queue that has had another number of shards: the token of j2 names shard 0, and the job is on
// shard 2.
type moved struct{ spread }

func (m *moved) Layout(context.Context, string) (uint64, error) { return 1, nil }

func (m *moved) ShardOfSettlement(x *queue.Settlement, shards int) int {
	if x.ID == "j2" {
		return 0
	}
	return m.spread.ShardOfSettlement(x, shards)
}

// unknowing is a broker that knows no job.
type unknowing struct{ *queuetest.Queue }

func (unknowing) Settle(_ context.Context, _ string, what []queue.Settlement) ([]queue.Outcome, error) {
	out := make([]queue.Outcome, len(what))
	for i := range what {
		out[i] = queue.Outcome{ID: what[i].ID, Err: queue.Refuse(queue.JobNotFound, "no job")}
	}
	return out, nil
}

// TestMovedBehindOneThatDoesNotAnswer: a job whose token names a former shard is found, although a node that may have it as
// well is down or hangs. If none has it, it is not said to be gone.
func TestMovedBehindOneThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	hanging := listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	for name, addr := range map[string]string{"down": "", "hangs": hanging.Listener.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			two := queuetest.New()
			h, err := api.New(two, api.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			m := &moved{spread{addrs: []string{"here:1", addr, listen(t, h).Listener.Addr().String()}}}
			f, err := api.NewForwarder(api.ForwarderConfig{Locator: m, Sharding: m, Self: "here:1", Local: unknowing{queuetest.New()}})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			ctx := t.Context()
			if _, err := two.Enqueue(ctx, "q", []queue.Job{{ID: "j2"}}); err != nil {
				t.Fatal(err)
			}
			c, err := two.Claim(ctx, "q", queue.ClaimRequest{Max: 1, Worker: "w"})
			if err != nil || len(c) != 1 {
				t.Fatal(c, err)
			}
			begun := time.Now()
			out, err := f.Settle(ctx, "q", []queue.Settlement{
				{Verb: queue.Extend, ID: "j2", Token: c[0].Token}, {Verb: queue.Extend, ID: "j3", Token: "x"}, {Verb: queue.Extend, ID: "j9", Token: "x"},
			})
			if err != nil || len(out) != 3 || out[0].Err != nil || out[1].Err == nil || out[2].Err == nil || out[2].Err.Tag == queue.JobNotFound {
				t.Errorf("%+v, %v", out, err)
			}
			if took := time.Since(begun); took > 9*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// refusing is a broker that refuses commands.
type refusing struct{ *queuetest.Queue }

func (refusing) Do(context.Context, string, queue.Command) (int, error) {
	return 0, queue.Refuse(queue.BadRequest, "job \"j0\" cannot be redriven")
}

// TestRefusedCommandOnNamedJobs: a shard refuses a command on its job, and the others do not have the job. Nothing has
// happened then. A command that has changed something elsewhere has an unknown outcome; but a redrive has done all that it
// can, as it has at one broker.
func TestRefusedCommandOnNamedJobs(t *testing.T) {
	t.Parallel()
	_, _, odd, where := sharded(t)
	f, err := api.NewForwarder(api.ForwarderConfig{Locator: where, Sharding: where, Self: "here:1", Local: refusing{queuetest.New()}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx := t.Context()
	if n, err := f.Do(ctx, "q", queue.Command{Act: queue.Redrive, IDs: []string{"j0"}}); queue.TagOf(err) != queue.BadRequest || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := odd.Enqueue(ctx, "q", []queue.Job{{ID: "j1"}}); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Do(ctx, "q", queue.Command{Act: queue.Cancel, IDs: []string{"j0", "j1"}}); queue.TagOf(err) != queue.UnknownOutcome || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := odd.Enqueue(ctx, "q", []queue.Job{{ID: "j3"}}); err != nil {
		t.Fatal(err)
	}
	claims, err := odd.Claim(ctx, "q", queue.ClaimRequest{Worker: "w"})
	if err != nil || len(claims) != 1 {
		t.Fatal(claims, err)
	}
	if _, err := odd.Settle(ctx, "q", []queue.Settlement{{Verb: queue.Fail, ID: "j3", Token: claims[0].Token, Dead: true}}); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Do(ctx, "q", queue.Command{Act: queue.Redrive, IDs: []string{"j0", "j3"}}); err != nil || n != 1 {
		t.Errorf("a job that can be redriven, beside one that cannot: %d, %v", n, err)
	}
}

// claimer is a broker whose answers to claims the test decides.
type claimer struct {
	*queuetest.Queue
	claim func(req queue.ClaimRequest) ([]queue.Claimed, error)
}

func (c *claimer) Claim(_ context.Context, _ string, req queue.ClaimRequest) ([]queue.Claimed, error) {
	return c.claim(req)
}

// claimers returns a forwarder for a queue on two nodes with these answers to claims.
func claimers(t *testing.T, here, there func(req queue.ClaimRequest) ([]queue.Claimed, error)) *api.Forwarder {
	t.Helper()
	h, err := api.New(&claimer{queuetest.New(), there}, api.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	where := &spread{addrs: []string{"here:1", listen(t, h).Listener.Addr().String()}}
	f, err := api.NewForwarder(api.ForwarderConfig{Locator: where, Sharding: where, Self: "here:1", Local: &claimer{queuetest.New(), here}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestClaimThatAllRefuse: a claim that every broker refuses is refused, at once if waiting would not help. If one of them
// answers that there is no job, that is the answer.
func TestClaimThatAllRefuse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		here, there queue.Tag
		wait        time.Duration
		want        queue.Tag
	}{
		"one has no job":           {"", queue.QueueFull, 20 * time.Millisecond, ""},
		"none has memory":          {queue.QueueFull, queue.QueueFull, 0, queue.QueueFull},
		"none has memory, waiting": {queue.QueueFull, queue.QueueFull, 20 * time.Millisecond, queue.QueueFull},
		"a mistake":                {queue.BadRequest, queue.BadRequest, queue.MaxWait, queue.BadRequest},
		"one sees a mistake":       {queue.Unavailable, queue.BadRequest, 20 * time.Millisecond, queue.BadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := func(tag queue.Tag) func(req queue.ClaimRequest) ([]queue.Claimed, error) {
				return func(req queue.ClaimRequest) ([]queue.Claimed, error) {
					if req.Wait < 0 {
						t.Errorf("a node was called with the wait %v", req.Wait)
					}
					if tag == "" {
						return nil, nil
					}
					return nil, queue.Refuse(tag, "no")
				}
			}
			begun := time.Now()
			got, err := claimers(t, node(c.here), node(c.there)).Claim(t.Context(), "q", queue.ClaimRequest{Wait: c.wait, Worker: "w"})
			if len(got) != 0 || queue.TagOf(err) != c.want || c.want == "" && err != nil {
				t.Errorf("%d jobs, %v", len(got), err)
			}
			if took := time.Since(begun); took > queue.MaxWait/2 {
				t.Errorf("it took %v", took)
			}
		})
	}
}
