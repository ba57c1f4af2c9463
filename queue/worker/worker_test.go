package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/queue/worker"
)

// bench is a worker on a queue in memory, in a synctest bubble.
type bench struct {
	*testing.T
	q      *queuetest.Queue
	svc    queue.Consumer // what the worker sees; default q
	cfg    worker.Config
	events []string
	mu     sync.Mutex
	cancel context.CancelFunc
	ended  chan error
}

// bubble runs a test with its own clock.
func bubble(t *testing.T, f func(b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queuetest.New()
		b := &bench{T: t, q: q, svc: q, ended: make(chan error, 1)}
		b.cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
		b.cfg.Hooks = worker.Hooks{
			OnCompleted: func(j queue.Info, _ time.Duration) { b.note("completed %s", j.ID) },
			OnFailed:    func(j queue.Info, err error, s queue.State) { b.note("failed %s %s: %v", j.ID, s, err) },
			OnReleased:  func(j queue.Info) { b.note("released %s", j.ID) },
			OnLost:      func(j queue.Info, err error) { b.note("lost %s", j.ID) },
		}
		f(b)
	})
}

func (b *bench) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, fmt.Sprintf(format, args...))
}

func (b *bench) enqueue(typ string, payloads ...string) {
	b.Helper()
	var jobs []queue.Job
	for _, p := range payloads {
		jobs = append(jobs, queue.Job{Type: typ, Payload: []byte(p)})
	}
	if _, err := b.q.Enqueue(b.Context(), "default", jobs); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) many(typ string, n int) {
	b.Helper()
	b.enqueue(typ, strings.Split(strings.Repeat("{},", n-1)+"{}", ",")...)
}

func (b *bench) worker() *worker.Worker {
	b.Helper()
	w, err := worker.New(b.svc, b.cfg)
	if err != nil {
		b.Fatal(err)
	}
	return w
}

// run starts the worker; stop ends it and returns what Run did.
func (b *bench) run(w *worker.Worker) {
	ctx, cancel := context.WithCancel(b.Context())
	b.cancel = cancel
	go func() { b.ended <- w.Run(ctx) }()
	synctest.Wait()
}

func (b *bench) stop() error {
	b.cancel()
	return <-b.ended
}

func (b *bench) job(id string) *queue.Info {
	b.Helper()
	info, _, err := b.q.Get(b.Context(), "default", id)
	if err != nil {
		b.Fatal(err)
	}
	return info
}

func (b *bench) state(id string, want queue.State) *queue.Info {
	b.Helper()
	synctest.Wait()
	info := b.job(id)
	if info.State != want {
		b.Errorf("%s is %s, want %s: %+v", id, info.State, want, info)
	}
	return info
}

type email struct {
	To string `json:"to"`
}

// TestTypedHandlers: payloads arrive decoded, results are stored, and each type reaches its own
// handler.
func TestTypedHandlers(t *testing.T) {
	bubble(t, func(b *bench) {
		w := b.worker()
		var got []string
		var mu sync.Mutex
		see := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprintf(format, args...))
		}
		worker.Handle(w, "email:send", func(_ context.Context, j worker.Job[email]) error {
			see("%s to %s", j.ID, j.Args.To)
			return nil
		})
		worker.HandleResult(w, "sum", func(_ context.Context, j worker.Job[[]int]) (int, error) {
			return j.Args[0] + j.Args[1], nil
		})
		worker.Handle(w, "raw", func(_ context.Context, j worker.Job[[]byte]) error { see("raw %q", j.Args); return nil })
		worker.Handle(w, "tick", func(context.Context, worker.Job[struct{}]) error { see("tick"); return nil })
		b.enqueue("email:send", `{"to":"a"}`)
		b.enqueue("sum", `[1,2]`)
		b.enqueue("raw", "\xff")
		b.enqueue("tick", "")
		b.enqueue("somebody else's", `1`)
		b.run(w)
		if err := b.stop(); err != nil {
			b.Fatal(err)
		}
		if len(got) != 3 {
			b.Errorf("%q", got)
		}
		if i := b.state("job-2", queue.Completed); string(i.Result) != "3" {
			b.Errorf("result %q", i.Result)
		}
		b.state("job-5", queue.Waiting)
	})
}

// TestHole14ConcurrencyIsReachedAndKept: as many handlers as allowed run at once, not one per poll,
// and never more, however slowly claims are answered.
func TestHole14ConcurrencyIsReachedAndKept(t *testing.T) {
	for _, concurrency := range []int{1, 50} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.cfg.Concurrency = concurrency
				b.svc = slow{b.q, 700 * time.Millisecond}
				w := b.worker()
				var now, most atomic.Int32
				worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error {
					if n := now.Add(1); n > most.Load() {
						most.Store(n)
					}
					time.Sleep(10 * time.Second)
					now.Add(-1)
					return nil
				})
				b.many("t", 4*concurrency)
				b.run(w)
				begin := time.Now()
				time.Sleep(time.Second)
				if n := now.Load(); int(n) != concurrency {
					b.Errorf("%d handlers run after the first claim, want %d", n, concurrency)
				}
				for s, _ := b.q.Stats(b.Context(), "default"); int(s.Completed) < 4*concurrency; s, _ = b.q.Stats(b.Context(), "default") {
					time.Sleep(100 * time.Millisecond)
				}
				if took := time.Since(begin); took > 50*time.Second {
					b.Errorf("took %v", took)
				}
				if int(most.Load()) != concurrency {
					b.Errorf("%d at once, want %d", most.Load(), concurrency)
				}
				if err := b.stop(); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// slow answers claims late.
type slow struct {
	queue.Consumer
	by time.Duration
}

func (s slow) Claim(ctx context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	out, err := s.Consumer.Claim(ctx, name, r)
	time.Sleep(s.by)
	return out, err
}

// TestLimitsOfTypes: a type keeps its own limit, and does not delay other types.
func TestLimitsOfTypes(t *testing.T) {
	bubble(t, func(b *bench) {
		b.cfg.Concurrency, b.cfg.Limits = 10, map[string]int{"heavy": 2}
		w := b.worker()
		var heavy, most, light atomic.Int32
		worker.Handle(w, "heavy", func(context.Context, worker.Job[struct{}]) error {
			most.Store(max(most.Load(), heavy.Add(1)))
			time.Sleep(10 * time.Second)
			heavy.Add(-1)
			return nil
		})
		worker.Handle(w, "light", func(context.Context, worker.Job[struct{}]) error {
			light.Add(1)
			time.Sleep(time.Second)
			return nil
		})
		b.many("heavy", 6)
		b.many("light", 40)
		b.run(w)
		time.Sleep(8 * time.Second)
		if n := light.Load(); n < 40 {
			b.Errorf("%d light jobs while heavy ones ran", n)
		}
		time.Sleep(30 * time.Second)
		if s, _ := b.q.Stats(b.Context(), "default"); s.Completed != 46 || most.Load() != 2 {
			b.Errorf("%d completed, %d heavy at once", s.Completed, most.Load())
		}
		b.stop()
	})
}

// TestVerdicts: what a handler returns decides what happens to the job.
func TestVerdicts(t *testing.T) {
	bubble(t, func(b *bench) {
		w := b.worker()
		boom := errors.New("boom")
		for typ, f := range map[string]func() error{
			"fails":     func() error { return boom },
			"permanent": func() error { return fmt.Errorf("send: %w", worker.Permanent(boom)) },
			"later":     func() error { return worker.RetryAfter(time.Hour, boom) },
			"never":     func() error { return worker.RetryAfter(-1, worker.RetryAfter(1<<62, boom)) },
			"panics":    func() error { panic("oh") },
			"exits":     func() error { runtime.Goexit(); return nil },
			"long":      func() error { return errors.New(strings.Repeat("ä", queue.MaxCause)) },
		} {
			worker.Handle(w, typ, func(context.Context, worker.Job[struct{}]) error { return f() })
		}
		worker.Handle(w, "decodes", func(context.Context, worker.Job[email]) error { b.Error("poison was handled"); return nil })
		for _, typ := range []string{"fails", "permanent", "later", "panics", "exits", "long", "never"} {
			b.enqueue(typ, "{}")
		}
		b.enqueue("decodes", `{"to":5}`, `not json`, "")
		b.run(w)
		cause := func(id string, state queue.State, message string) *queue.Info {
			b.Helper()
			i := b.state(id, state)
			if !strings.Contains(i.Cause, message) {
				b.Errorf("%s: cause %.100q does not say %q", id, i.Cause, message)
			}
			return i
		}
		if i := cause("job-1", queue.Delayed, "boom"); i.Attempts != 1 {
			b.Errorf("attempts %d", i.Attempts)
		}
		cause("job-2", queue.Dead, "send: boom")
		if i := cause("job-3", queue.Delayed, "boom"); time.Until(i.RunAt) < 59*time.Minute {
			b.Errorf("again in %v", time.Until(i.RunAt))
		}
		cause("job-4", queue.Delayed, "panic: oh at ")
		cause("job-4", queue.Delayed, "worker_test.go:")
		cause("job-5", queue.Delayed, "ended its goroutine")
		if i := cause("job-6", queue.Delayed, "ää"); len(i.Cause) > queue.MaxCause || strings.Contains(i.Cause, "\ufffd") {
			b.Errorf("cause of %d bytes", len(i.Cause))
		}
		for _, id := range []string{"job-8", "job-9", "job-10"} {
			if i := cause(id, queue.Dead, "does not decode"); i.Result != nil {
				b.Errorf("%s has a result", id)
			}
		}
		b.stop()
	})
}

// TestHeartbeatsKeepAClaim: a handler that takes longer than the visibility timeout keeps its job.
func TestHeartbeatsKeepAClaim(t *testing.T) {
	bubble(t, func(b *bench) {
		w := b.worker()
		var given atomic.Int32
		worker.Handle(w, "t", func(ctx context.Context, _ worker.Job[struct{}]) error {
			given.Add(1)
			time.Sleep(5 * time.Minute)
			return ctx.Err()
		})
		b.many("t", 1)
		b.run(w)
		time.Sleep(5*time.Minute + time.Second)
		if b.state("job-1", queue.Completed); given.Load() != 1 {
			b.Errorf("handed out %d times", given.Load())
		}
		b.stop()
	})
}

// TestHole08LostClaimCancels: when the broker says that a claim is over, the handler's context ends
// with that cause at the next heartbeat, and nothing is reported.
func TestHole08LostClaimCancels(t *testing.T) {
	bubble(t, func(b *bench) {
		w := b.worker()
		var why error
		var after time.Duration
		worker.Handle(w, "t", func(ctx context.Context, _ worker.Job[struct{}]) error {
			begin := time.Now()
			<-ctx.Done()
			why, after = context.Cause(ctx), time.Since(begin)
			return ctx.Err()
		})
		b.many("t", 1)
		b.run(w)
		if _, err := b.q.Do(b.Context(), "default", queue.Command{Act: queue.Cancel, IDs: []string{"job-1"}}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if !errors.Is(why, worker.ErrClaimLost) || queue.TagOf(why) != queue.StaleClaim || after > 10*time.Second {
			b.Errorf("%v after %v", why, after)
		}
		if len(b.events) != 1 || b.events[0] != "lost job-1" {
			b.Errorf("%q", b.events)
		}
		b.state("job-1", queue.Cancelled)
		b.stop()
	})
}

// faulty fails calls when the test says so.
type faulty struct {
	queue.Consumer
	settle atomic.Pointer[func([]queue.Settlement) error]
	after  bool // the call takes effect, its answer is lost
}

func (f *faulty) Settle(ctx context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	if fail := f.settle.Load(); fail != nil {
		if err := (*fail)(what); err != nil {
			if f.after {
				_, _ = f.Consumer.Settle(ctx, name, what)
			}
			return nil, err
		}
	}
	return f.Consumer.Settle(ctx, name, what)
}

func (f *faulty) fail(do func([]queue.Settlement) error) { f.settle.Store(&do) }

// TestUnansweredHeartbeatsLoseTheClaim: without answers, the handler's context ends before the
// broker can give the job to another worker.
func TestUnansweredHeartbeatsLoseTheClaim(t *testing.T) {
	bubble(t, func(b *bench) {
		f := &faulty{Consumer: b.q}
		f.fail(func([]queue.Settlement) error { return errors.New("unreachable") })
		b.svc = f
		w := b.worker()
		var why error
		var after time.Duration
		var runs atomic.Int32
		worker.Handle(w, "t", func(ctx context.Context, _ worker.Job[struct{}]) error {
			if runs.Add(1) > 1 {
				return nil
			}
			begin := time.Now()
			<-ctx.Done()
			why, after = context.Cause(ctx), time.Since(begin)
			return ctx.Err()
		})
		b.many("t", 1)
		b.run(w)
		time.Sleep(30*time.Second + time.Millisecond)
		synctest.Wait()
		if !errors.Is(why, worker.ErrClaimLost) || after != 30*time.Second {
			b.Errorf("%v after %v", why, after)
		}
		f.settle.Store(nil)
		time.Sleep(time.Minute)
		b.state("job-1", queue.Completed)
		b.stop()
	})
}

// TestHole14FailedCompleteIsRepeated: if a complete gets no answer, the handler's success is never
// reported as a failure, and the job never runs again.
func TestHole14FailedCompleteIsRepeated(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprintf("applied=%v", applied), func(t *testing.T) {
			bubble(t, func(b *bench) {
				failures := 15 // over several heartbeats, which are refused once the complete has taken effect
				f := &faulty{Consumer: b.q, after: applied}
				f.fail(func(what []queue.Settlement) error {
					for _, s := range what {
						if s.Verb == queue.Fail {
							b.Error("a failure is reported")
						}
						if s.Verb == queue.Complete && failures > 0 {
							failures--
							return queue.Refuse(queue.UnknownOutcome, "no answer")
						}
					}
					return nil
				})
				b.svc = f
				w := b.worker()
				var runs atomic.Int32
				worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { runs.Add(1); return nil })
				b.many("t", 1)
				b.run(w)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if runs.Load() != 1 || len(b.events) != 1 || b.events[0] != "completed job-1" {
					b.Errorf("%d runs, %q", runs.Load(), b.events)
				}
				b.state("job-1", queue.Completed)
				b.stop()
			})
		})
	}
}

// TestRefusedReportHarmsNoOther: a report that the broker refuses does not affect the other reports
// of its call.
func TestRefusedReportHarmsNoOther(t *testing.T) {
	bubble(t, func(b *bench) {
		f := &faulty{Consumer: b.q}
		f.fail(func(what []queue.Settlement) error {
			time.Sleep(100 * time.Millisecond) // so that several reports wait
			for _, s := range what {
				if s.ID == "job-7" {
					return queue.Refuse(queue.BadRequest, "nonsense")
				}
			}
			return nil
		})
		b.svc, b.cfg.Concurrency = f, 20
		w := b.worker()
		worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { return nil })
		b.many("t", 20)
		b.run(w)
		time.Sleep(20 * time.Second)
		if s, _ := b.q.Stats(b.Context(), "default"); s.Completed != 19 {
			b.Errorf("%d completed", s.Completed)
		}
		b.stop()
	})
}

// shy answers the first few completes one by one with a refusal that decides nothing.
type shy struct {
	queue.Consumer
	times atomic.Int32
}

func (s *shy) Settle(ctx context.Context, name string, what []queue.Settlement) ([]queue.Outcome, error) {
	if what[0].Verb == queue.Complete && s.times.Add(-1) >= 0 {
		return []queue.Outcome{{ID: what[0].ID, Err: queue.Refuse(queue.QueueNotOwner, "moving")}}, nil
	}
	return s.Consumer.Settle(ctx, name, what)
}

// TestOutcomesThatAreNoVerdict: a broker that cannot answer now is asked again.
func TestOutcomesThatAreNoVerdict(t *testing.T) {
	bubble(t, func(b *bench) {
		s := &shy{Consumer: b.q}
		s.times.Store(5)
		b.svc = s
		w := b.worker()
		worker.Handle(w, "t", func(context.Context, worker.Job[struct{}]) error { return nil })
		b.many("t", 1)
		b.run(w)
		time.Sleep(20 * time.Second)
		b.state("job-1", queue.Completed)
		if len(b.events) != 1 || b.events[0] != "completed job-1" {
			b.Errorf("%q", b.events)
		}
		b.stop()
	})
}
