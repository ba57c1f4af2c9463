package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/queue/worker"
)

// TestDrain: when Run's context ends, nothing more is claimed, running handlers may finish, and
// then Run returns.
func TestDrain(t *testing.T) {
	bubble(t, func(b *bench) {
		b.cfg.Concurrency = 2
		w := b.worker()
		var drained atomic.Int64
		worker.Handle(w, "t", func(ctx context.Context, j worker.Job[struct{}]) error {
			begin := time.Now()
			<-j.Draining
			drained.Store(int64(time.Since(begin)))
			time.Sleep(20 * time.Second)
			return ctx.Err()
		})
		b.many("t", 5)
		b.run(w)
		time.Sleep(time.Second)
		begin := time.Now()
		if err := b.stop(); err != nil || time.Since(begin) != 20*time.Second || drained.Load() != int64(time.Second) {
			b.Errorf("%v after %v, told after %v", err, time.Since(begin), time.Duration(drained.Load()))
		}
		if s, _ := b.q.Stats(b.Context(), "default"); s.Completed != 2 || s.Waiting != 3 || s.Active != 0 {
			b.Errorf("%+v", s)
		}
	})
}

// TestHole14DrainHasAnEnd: handlers that do not finish are cancelled and their jobs released at
// once; heartbeats have reported that they began.
func TestHole14DrainHasAnEnd(t *testing.T) {
	bubble(t, func(b *bench) {
		w := b.worker()
		var why error
		worker.Handle(w, "t", func(ctx context.Context, _ worker.Job[struct{}]) error {
			<-ctx.Done()
			why = context.Cause(ctx)
			return errors.New("whatever")
		})
		b.many("t", 1)
		b.run(w)
		begin := time.Now()
		if err := b.stop(); err != nil || time.Since(begin) != 30*time.Second {
			b.Errorf("%v after %v", err, time.Since(begin))
		}
		if i := b.state("job-1", queue.Waiting); i.Attempts != 1 || !errors.Is(why, worker.ErrStopped) {
			b.Errorf("%v %+v", why, i)
		}
	})
}

// TestStubbornHandlersAreNamed: Run returns even if a handler never does, and names it.
func TestStubbornHandlersAreNamed(t *testing.T) {
	bubble(t, func(b *bench) {
		w := b.worker()
		leave := make(chan struct{})
		worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { <-leave; return nil })
		b.many("t", 1)
		b.run(w)
		begin := time.Now()
		err := b.stop()
		if err == nil || !strings.Contains(err.Error(), "job-1 (t)") || time.Since(begin) > 37*time.Second {
			b.Errorf("%v after %v", err, time.Since(begin))
		}
		close(leave)
	})
}

// TestJobsOfALostClaimAnswerAreGivenBack: jobs of a claim call that was cancelled at the stop need
// not time out.
func TestJobsOfALostClaimAnswerAreGivenBack(t *testing.T) {
	bubble(t, func(b *bench) {
		b.svc = lostClaim{b.q}
		w := b.worker()
		worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { return nil })
		b.many("t", 3)
		b.run(w)
		if s, _ := b.q.Stats(b.Context(), "default"); s.Active != 3 {
			b.Fatalf("%+v", s)
		}
		if err := b.stop(); err != nil {
			b.Fatal(err)
		}
		if s, _ := b.q.Stats(b.Context(), "default"); s.Active != 0 || s.Waiting != 3 {
			b.Errorf("%+v", s)
		}
	})
}

// lostClaim loses the answers of waiting claims.
type lostClaim struct{ queue.Consumer }

func (l lostClaim) Claim(ctx context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	out, err := l.Consumer.Claim(ctx, name, r)
	if r.Wait > 0 {
		<-ctx.Done()
		return nil, queue.Refuse(queue.UnknownOutcome, "%w", ctx.Err())
	}
	return out, err
}

// TestClaimErrorsAreRiddenOut: the worker continues when the broker is back, and does not call it
// too often before.
func TestClaimErrorsAreRiddenOut(t *testing.T) {
	bubble(t, func(b *bench) {
		down := &down{Consumer: b.q}
		down.up.Store(false)
		b.svc = down
		w := b.worker()
		worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { return nil })
		b.many("t", 1)
		b.run(w)
		time.Sleep(time.Minute)
		if n := down.calls.Load(); n < 10 || n > 40 {
			b.Errorf("%d claims in a minute", n)
		}
		down.up.Store(true)
		time.Sleep(6 * time.Second)
		b.state("job-1", queue.Completed)
		b.stop()
	})
}

type down struct {
	queue.Consumer
	up    atomic.Bool
	calls atomic.Int32
}

func (d *down) Claim(ctx context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	d.calls.Add(1)
	if !d.up.Load() {
		return nil, queue.Refuse(queue.Unavailable, "down")
	}
	return d.Consumer.Claim(ctx, name, r)
}

// TestResultsThatCannotBeKept: the work is done, so the job is completed even if its result cannot
// be stored.
func TestResultsThatCannotBeKept(t *testing.T) {
	bubble(t, func(b *bench) {
		var reported []string
		b.cfg.Hooks = worker.Tee(b.cfg.Hooks, worker.Hooks{OnError: func(err error) { b.mu.Lock(); reported = append(reported, err.Error()); b.mu.Unlock() }})
		w := b.worker()
		worker.HandleResult(w, "big", func(context.Context, worker.Job[struct{}]) (string, error) {
			return strings.Repeat("x", queue.MaxResult+1), nil
		})
		worker.HandleResult(w, "odd", func(context.Context, worker.Job[struct{}]) (chan int, error) { return nil, nil })
		worker.HandleResult(w, "raw", func(context.Context, worker.Job[struct{}]) (json.RawMessage, error) {
			return json.RawMessage(`{"a":1}`), nil
		})
		b.enqueue("big", "{}")
		b.enqueue("odd", "{}")
		b.enqueue("raw", "{}")
		b.run(w)
		for _, id := range []string{"job-1", "job-2"} {
			if i := b.state(id, queue.Completed); i.Result != nil {
				b.Errorf("%s: %.20q", id, i.Result)
			}
		}
		if i := b.state("job-3", queue.Completed); string(i.Result) != `{"a":1}` || len(reported) != 2 {
			b.Errorf("%q, %q", i.Result, reported)
		}
		b.stop()
	})
}

// TestManyShortJobsCostFewCalls: reports that come together are sent in one call.
func TestManyShortJobsCostFewCalls(t *testing.T) {
	bubble(t, func(b *bench) {
		b.cfg.Concurrency = 500
		f := &faulty{Consumer: b.q}
		f.fail(func([]queue.Settlement) error { time.Sleep(50 * time.Millisecond); return nil })
		b.svc = f
		w := b.worker()
		worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { return nil })
		b.many("t", 500)
		b.run(w)
		time.Sleep(10 * time.Second)
		if s, _ := b.q.Stats(b.Context(), "default"); s.Completed != 500 || b.q.Calls("Settle") > 20 {
			b.Errorf("%d completed in %d calls", s.Completed, b.q.Calls("Settle"))
		}
		b.stop()
	})
}

// TestMisuse: a configuration that cannot work is refused at once.
func TestMisuse(t *testing.T) {
	t.Parallel()
	for _, c := range []worker.Config{
		{Concurrency: -1},
		{Visibility: time.Millisecond},
		{Wait: time.Hour},
		{Limits: map[string]int{"t": 0}},
		{Name: strings.Repeat("n", 65)},
		{Name: "\xff"},
		{Queue: "Q!"},
		{Visibility: 25 * time.Hour},
		{StopTimeout: -1},
	} {
		if _, err := worker.New(queuetest.New(), c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	w, err := worker.New(queuetest.New(), worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil {
		t.Error("ran without handlers")
	}
	nothing := func(context.Context, worker.Job[struct{}]) error { return nil }
	worker.Handle(w, "t", nothing)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := w.Run(ctx); err == nil {
		t.Error("ran twice")
	}
	unused, err := worker.New(queuetest.New(), worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for what, handle := range map[string]func(){
		"a second handler":         func() { worker.Handle(w, "t", nothing) },
		"a handler of a long type": func() { worker.Handle(unused, strings.Repeat("t", queue.MaxType+1), nothing) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was taken", what)
				}
			}()
			handle()
		}()
	}
	many, err := worker.New(queuetest.New(), worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range queue.MaxCall + 1 {
		worker.Handle(many, fmt.Sprint("t", i), nothing)
	}
	if err := many.Run(ctx); err == nil {
		t.Error("ran with more types than a claim can have")
	}
}

// TestInstruments: handlers are counted and timed by type and kind of failure.
func TestInstruments(t *testing.T) {
	bubble(t, func(b *bench) {
		reader := sdk.NewManualReader()
		b.cfg.MeterProvider = sdk.NewMeterProvider(sdk.WithReader(reader))
		w := b.worker()
		worker.Handle(w, "good", func(context.Context, worker.Job[struct{}]) error { return nil })
		worker.Handle(w, "bad", func(context.Context, worker.Job[struct{}]) error { panic("x") })
		b.many("good", 3)
		b.many("bad", 1)
		b.run(w)
		var data metricdata.ResourceMetrics
		if err := reader.Collect(b.Context(), &data); err != nil {
			b.Fatal(err)
		}
		got := map[string]uint64{}
		for _, m := range data.ScopeMetrics[0].Metrics {
			if h, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "messaging.process.duration" {
				for _, p := range h.DataPoints {
					typ, _ := p.Attributes.Value("emitd.job.type")
					kind, _ := p.Attributes.Value("error.type")
					got[typ.AsString()+" "+kind.AsString()] = p.Count
				}
			}
		}
		if got["good "] != 3 || got["bad panic"] != 1 || len(got) != 2 {
			b.Errorf("%v", got)
		}
		b.stop()
	})
}
