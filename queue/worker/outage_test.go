package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/queue/worker"
)

// outage is a client that repeats a claim until the broker is back, or the call's time is over.
type outage struct {
	queue.Consumer
	over time.Time
}

func (o outage) Claim(ctx context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	for time.Now().Before(o.over) {
		select {
		case <-ctx.Done():
			return nil, queue.Refuse(queue.UnknownOutcome, "no answer")
		case <-time.After(time.Second):
		}
	}
	return o.Consumer.Claim(ctx, name, r)
}

// TestClaimsAfterAnOutage: a job that is claimed at the end of a long outage has its whole visibility timeout.
func TestClaimsAfterAnOutage(t *testing.T) {
	bubble(t, func(b *bench) {
		b.svc = outage{b.q, time.Now().Add(70 * time.Second)}
		w := b.worker()
		var runs atomic.Int32
		worker.Handle(w, "t", func(ctx context.Context, _ worker.Job[struct{}]) error {
			runs.Add(1)
			time.Sleep(40 * time.Second)
			return ctx.Err()
		})
		b.many("t", 1)
		b.run(w)
		time.Sleep(2 * time.Minute)
		if b.state("job-1", queue.Completed); runs.Load() != 1 {
			b.Errorf("%d runs", runs.Load())
		}
		b.stop()
	})
}

// lostOnce loses the answer of the first claim.
type lostOnce struct {
	queue.Consumer
	calls *atomic.Int32
}

func (l lostOnce) Claim(ctx context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	out, err := l.Consumer.Claim(ctx, name, r)
	if l.calls.Add(1) > 1 {
		return out, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Second):
	}
	return nil, queue.Refuse(queue.UnknownOutcome, "the answer is lost")
}

// TestLostAnswerOfAClaim: jobs of a claim whose answer was lost are worked on at once when the broker answers again, and
// need not time out.
func TestLostAnswerOfAClaim(t *testing.T) {
	bubble(t, func(b *bench) {
		b.svc = lostOnce{b.q, new(atomic.Int32)}
		w := b.worker()
		worker.Handle(w, "t", func(ctx context.Context, _ worker.Job[struct{}]) error {
			time.Sleep(time.Second)
			return ctx.Err()
		})
		b.many("t", 1)
		b.run(w)
		time.Sleep(25 * time.Second)
		b.state("job-1", queue.Completed) // its claim would end after 30 s
		b.stop()
	})
}

// nearlyOver returns claims of which little is left, or nothing.
type nearlyOver struct {
	queue.Service
	cancels bool
}

func (n nearlyOver) Claim(ctx context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	out, err := n.Service.Claim(ctx, name, r)
	for i := range out {
		out[i].For = 3 * time.Second
		if n.cancels {
			if _, err := n.Do(ctx, name, queue.Command{Act: queue.Cancel, IDs: []string{out[i].Job.ID}}); err != nil {
				return nil, err
			}
		}
	}
	return out, err
}

// TestClaimsThatAreNearlyOver: a claim that would end before the next heartbeat is extended before its handler starts. If
// it is over by then, the handler does not start.
func TestClaimsThatAreNearlyOver(t *testing.T) {
	for name, over := range map[string]bool{"extended": false, "over": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.svc = nearlyOver{b.q, over}
				w := b.worker()
				var runs atomic.Int32
				worker.Handle(w, "t", func(ctx context.Context, _ worker.Job[struct{}]) error {
					runs.Add(1)
					time.Sleep(20 * time.Second)
					return ctx.Err()
				})
				b.many("t", 1)
				b.run(w)
				time.Sleep(25 * time.Second)
				want := map[bool]queue.State{false: queue.Completed, true: queue.Cancelled}[over]
				if b.state("job-1", want); (runs.Load() == 0) != over {
					b.Errorf("%d runs", runs.Load())
				}
				b.stop()
			})
		})
	}
}

// unanswered returns claims of which little is left, and answers no heartbeat until some time, or until the caller stops
// waiting.
type unanswered struct {
	nearlyOver
	until time.Time
}

func (u unanswered) Settle(ctx context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	if what[0].Verb != queue.Extend || time.Now().After(u.until) {
		return u.nearlyOver.Settle(ctx, name, what)
	}
	<-ctx.Done()
	return nil, queue.Refuse(queue.UnknownOutcome, "no answer")
}

// TestClaimsThatEndWhileTheyAreExtended: if a claim that is nearly over cannot be extended before it ends, its handler does not
// start: another worker may have the job.
func TestClaimsThatEndWhileTheyAreExtended(t *testing.T) {
	bubble(t, func(b *bench) {
		b.svc = unanswered{nearlyOver{b.q, false}, time.Now().Add(20 * time.Second)}
		w := b.worker()
		var runs atomic.Int32
		worker.Handle(w, "t", func(ctx context.Context, _ worker.Job[struct{}]) error {
			runs.Add(1)
			time.Sleep(time.Second)
			return ctx.Err()
		})
		b.many("t", 1)
		b.run(w)
		time.Sleep(time.Minute)
		if b.state("job-1", queue.Completed); runs.Load() != 1 {
			b.Errorf("%d runs", runs.Load())
		}
		b.stop()
	})
}

// TestStopWhileClaimsAreExtended: a worker that is stopped while it extends new claims starts no handler, and releases the jobs.
func TestStopWhileClaimsAreExtended(t *testing.T) {
	bubble(t, func(b *bench) {
		var failures atomic.Int32
		b.cfg.Hooks.OnError = func(error) { failures.Add(1) }
		b.svc = unanswered{nearlyOver{b.q, false}, time.Now().Add(time.Hour)}
		w := b.worker()
		worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error {
			b.Error("the handler starts")
			return nil
		})
		b.many("t", 1)
		b.run(w)
		time.Sleep(time.Second)
		if err := b.stop(); err != nil || failures.Load() != 0 {
			b.Errorf("%v, %d failures", err, failures.Load())
		}
		b.state("job-1", queue.Waiting)
	})
}

// TestErrorsWithoutAHook: a worker that can claim nothing says so in the log, not too often. Where the program has a hook for errors,
// that decides.
func TestErrorsWithoutAHook(t *testing.T) {
	var seen atomic.Int32
	for name, c := range map[string]struct {
		hooks worker.Hooks
		lines int
	}{
		"no hook":   {worker.Hooks{}, 4},
		"two empty": {worker.Tee(worker.Hooks{}, worker.Hooks{}), 4},
		"a hook":    {worker.Tee(worker.Hooks{}, worker.Hooks{OnError: func(error) { seen.Add(1) }}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				var text bytes.Buffer
				b.cfg.Logger, b.cfg.Hooks, b.cfg.Queue = slog.New(slog.NewTextHandler(&text, nil)), c.hooks, "missing"
				b.svc = absent{b.q}
				w := b.worker()
				worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { return nil })
				b.run(w)
				time.Sleep(3*time.Minute + 30*time.Second)
				b.stop()
				if n := strings.Count(text.String(), "there is no queue"); n != c.lines || c.lines == 0 && seen.Load() < 10 {
					b.Errorf("%d lines, %d calls of the hook:\n%s", n, seen.Load(), text.String())
				}
			})
		})
	}
}

// absent is a broker without the queue.
type absent struct{ queue.Consumer }

func (absent) Claim(context.Context, string, queue.ClaimRequest) ([]queue.Claimed, error) {
	return nil, queue.Refuse(queue.QueueNotFound, "there is no queue")
}

// nodesInOrder is a queue on two nodes, which are called one after the other. The answer of the first claim is lost, and then the
// first node has a job.
type nodesInOrder struct {
	nodes [2]*queuetest.Queue
	calls *atomic.Int32
}

func (n nodesInOrder) Claim(ctx context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	r.Wait = 0
	for i, node := range n.nodes {
		got, err := node.Claim(ctx, name, r)
		switch {
		case n.calls.Load() == 0 && len(got) > 0:
			n.calls.Store(1)
			_, err = n.nodes[1-i].Enqueue(ctx, name, []queue.Job{{ID: "new", Type: "t", Payload: []byte("{}")}})
			return nil, errors.Join(queue.Refuse(queue.UnknownOutcome, "the answer is lost"), err)
		case err != nil || len(got) > 0:
			return got, err
		}
	}
	return nil, nil
}

func (n nodesInOrder) Settle(ctx context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	out, err := n.nodes[0].Settle(ctx, name, what)
	if err != nil || what[0].ID == "new" {
		return out, err
	}
	return n.nodes[1].Settle(ctx, name, what)
}

// TestLostAnswerOnTwoNodes: the job of a claim whose answer was lost does not time out because another node has jobs.
func TestLostAnswerOnTwoNodes(t *testing.T) {
	bubble(t, func(b *bench) {
		n := nodesInOrder{[2]*queuetest.Queue{queuetest.New(), b.q}, new(atomic.Int32)}
		b.svc, b.cfg.Concurrency = n, 1
		w := b.worker()
		worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { return nil })
		b.many("t", 1)
		b.run(w)
		time.Sleep(10 * time.Second)
		b.state("job-1", queue.Completed)
		b.stop()
		if got := strings.Join(b.events, ", "); got != "completed job-1, completed new" {
			b.Errorf("%s", got)
		}
	})
}

// silentNode is a queue on two nodes, which are called one after the other. The first one does not answer. Every other claim begins
// with the second one.
type silentNode struct {
	*queuetest.Queue
	begins map[string]int // by request
}

func (n silentNode) Claim(ctx context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	begin, known := n.begins[r.RequestID]
	if !known {
		begin = len(n.begins) % 2
		n.begins[r.RequestID] = begin
	}
	if r.Wait = 0; begin == 1 {
		if got, err := n.Queue.Claim(ctx, name, r); err != nil || len(got) > 0 {
			return got, err
		}
	}
	time.Sleep(time.Second)
	return nil, queue.Refuse(queue.UnknownOutcome, "no answer")
}

// TestSilentNode: one node that does not answer keeps a worker from the jobs of the others only for as long as the claims may
// last that its calls have made.
func TestSilentNode(t *testing.T) {
	bubble(t, func(b *bench) {
		b.svc = silentNode{b.q, map[string]int{}}
		w := b.worker()
		worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { return nil })
		b.many("t", 1)
		b.run(w)
		time.Sleep(2 * time.Minute)
		b.state("job-1", queue.Completed)
		b.stop()
	})
}
