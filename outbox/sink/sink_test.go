package sink_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// receiver is the simplest receiver: a list.
type receiver struct {
	mu     sync.Mutex
	taken  []sinktest.Taken
	faults map[uuid.UUID]sinktest.Fault
	down   bool
}

func (r *receiver) take(ctx context.Context, row outbox.Row) error {
	r.mu.Lock()
	fault, down := r.faults[row.ID], r.down
	r.mu.Unlock()
	switch {
	case down:
		return sink.Down("dial", errors.New("refused"))
	case fault == sinktest.Refuse:
		return sink.Permanent("refused")
	case fault == sinktest.Falter:
		return errors.New("try again")
	case fault == sinktest.Hang:
		<-ctx.Done()
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = append(r.taken, sinktest.Taken{ID: row.ID.String(), Key: row.Key})
	return nil
}

func (r *receiver) fail(_ *testing.T, f sinktest.Fault, messages []uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = map[uuid.UUID]sinktest.Fault{}
	r.down = f == sinktest.Down
	for _, id := range messages {
		r.faults[id] = f
	}
}

func (r *receiver) received(*testing.T) []sinktest.Taken {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.taken)
}

func suite(plan sink.Plan) sinktest.Suite {
	return sinktest.Suite{Atomic: plan.Atomic, New: func(*testing.T) *sinktest.Harness {
		r := &receiver{}
		return &sinktest.Harness{Received: r.received, Fail: r.fail, Sink: outbox.SinkFunc(func(ctx context.Context, d outbox.Delivery) []error {
			p := plan
			p.Size = func(i int) int { return len(d.Rows[i].Payload) }
			return sink.Run(ctx, d.Rows, p, func(ctx context.Context, rows []int) []error {
				if p.Atomic {
					return r.whole(ctx, d, rows)
				}
				if p.Ordered {
					return r.inOrder(ctx, d, rows)
				}
				errs := make([]error, len(rows))
				for n, i := range rows {
					errs[n] = r.take(ctx, d.Rows[i])
				}
				return errs
			})
		})}
	}}
}

// inOrder takes no row behind one of its key that it has not taken.
func (r *receiver) inOrder(ctx context.Context, d outbox.Delivery, rows []int) []error {
	errs := make([]error, len(rows))
	failed := map[string]bool{}
	for n, i := range rows {
		key := d.Rows[i].Key
		if failed[key] {
			errs[n] = outbox.ErrSkipped
			continue
		}
		errs[n] = r.take(ctx, d.Rows[i])
		failed[key] = errs[n] != nil && key != ""
	}
	return errs
}

// whole takes all rows or none.
func (r *receiver) whole(ctx context.Context, d outbox.Delivery, rows []int) []error {
	r.mu.Lock()
	probe := &receiver{faults: maps.Clone(r.faults), down: r.down}
	r.mu.Unlock()
	for _, i := range rows {
		if err := probe.take(ctx, d.Rows[i]); err != nil {
			return []error{err}
		}
	}
	for _, i := range rows {
		if err := r.take(ctx, d.Rows[i]); err != nil {
			return []error{err}
		}
	}
	return nil
}

func TestPlansKeepThePromises(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]sink.Plan{
		"one after the other":   {},
		"one a call":            {Parallel: 8},
		"calls of ten":          {Parallel: 3, Rows: 10},
		"calls of few bytes":    {Parallel: 3, Rows: 10, Bytes: 30},
		"whole calls":           {Parallel: 3, Rows: 10, Atomic: true},
		"one whole call":        {Rows: 1000, Atomic: true},
		"calls in order":        {Parallel: 3, Rows: 100, Ordered: true},
		"two targets, in order": {Parallel: 3, Rows: 10, Ordered: true, Target: func(i int) string { return fmt.Sprint(i / 3 % 2) }},
		"two targets":           {Parallel: 3, Rows: 10, Target: func(i int) string { return fmt.Sprint(i % 2) }},
		"two targets, whole":    {Parallel: 3, Rows: 10, Atomic: true, Target: func(i int) string { return fmt.Sprint(i / 3 % 2) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suite(p).Run(t)
		})
	}
}

// TestAnyPlanAnyFaults checks random plans and faults: keys stay in order, nothing is sent behind a
// failure, limits hold, every row is sent at most once per part, and every row has a result.
func TestAnyPlanAnyFaults(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 60).Draw(t, "rows")
		rows := sinktest.Rows("t", n, rapid.IntRange(0, 6).Draw(t, "keys"))
		bad := map[int]bool{}
		for _, i := range rapid.SliceOf(rapid.IntRange(0, 59)).Draw(t, "bad") {
			bad[i] = true
		}
		p := sink.Plan{
			Parallel: rapid.IntRange(0, 5).Draw(t, "parallel"), Rows: rapid.IntRange(0, 12).Draw(t, "per call"),
			Bytes: rapid.IntRange(0, 100).Draw(t, "bytes"), Size: func(i int) int { return 1 + i%20 },
		}
		targets := rapid.IntRange(1, 4).Draw(t, "targets")
		p.Target = func(i int) string { return fmt.Sprint(i % targets) }
		var mu sync.Mutex
		requested := map[int]int{}
		last := map[string]int{}
		errs := sink.Run(context.Background(), rows, p, func(_ context.Context, call []int) []error {
			mu.Lock()
			defer mu.Unlock()
			bytes, keys, out := 0, map[string]bool{}, make([]error, len(call))
			for m, i := range call {
				requested[i]++
				bytes += p.Size(i)
				if p.Target(i) != p.Target(call[0]) {
					t.Fatalf("call %v has two targets", call)
				}
				key := rows[i].Key
				if key != "" && (keys[key] || i < last[key]) {
					t.Fatalf("call %v breaks the order of %s", call, key)
				}
				keys[key], last[key] = true, i
				if bad[i] {
					out[m] = errors.New("no")
				}
			}
			if len(call) > max(p.Rows, 1) || p.Bytes > 0 && bytes > p.Bytes && len(call) > 1 {
				t.Fatalf("call of %d rows, %d bytes", len(call), bytes)
			}
			return out
		})
		failed := map[string]bool{}
		for i, err := range sinktest.Spread(errs, n) {
			behind := rows[i].Key != "" && failed[rows[i].Key]
			switch {
			case behind != errors.Is(err, outbox.ErrSkipped), behind == (requested[i] == 1):
				t.Fatalf("row %d: asked %d times, %v", i, requested[i], err)
			case !behind && bad[i] != (err != nil):
				t.Fatalf("row %d: %v", i, err)
			}
			failed[rows[i].Key] = failed[rows[i].Key] || err != nil
		}
	})
}

func TestNothingBeginsOnceTheSinkIsDown(t *testing.T) {
	t.Parallel()
	for _, kind := range []error{outbox.ErrSinkDown, outbox.ErrFenced} {
		calls := 0
		errs := sink.Each(t.Context(), sinktest.Rows("t", 100, 5), 1, func(context.Context, int) error {
			if calls++; calls == 10 {
				return fmt.Errorf("%w: gone", kind)
			}
			return nil
		})
		if calls != 10 {
			t.Errorf("%v: %d calls", kind, calls)
		}
		taken := 0
		for i, err := range errs {
			if err == nil {
				taken++
			} else if !errors.Is(err, kind) {
				t.Errorf("row %d: %v", i, err)
			}
		}
		if taken != 9 {
			t.Errorf("%v: %d taken", kind, taken)
		}
	}
}

// TestADeafReceiverIsLeftBehind checks that a receiver that ignores the end of its context does not hold
// up the delivery.
func TestADeafReceiverIsLeftBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		rows := sinktest.Rows("t", 3, 0)
		start := time.Now()
		errs := sink.Each(ctx, rows, 3, func(_ context.Context, i int) error {
			if i == 1 {
				<-release
			}
			return nil
		})
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %v", took)
		}
		close(release)
		synctest.Wait()
		if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], context.DeadlineExceeded) {
			t.Errorf("%v", errs)
		}
	})
}

func TestParallelIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		sink.Each(t.Context(), sinktest.Rows("t", 50, 0), 4, func(context.Context, int) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Second) // of the bubble's clock
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		})
		if most != 4 {
			t.Errorf("%d calls at once, want 4", most)
		}
	})
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	row := sinktest.Rows("t", 1, 1)[0]
	row.TraceParent = "00-a-b-01"
	row.Headers = map[string]string{"b": "2", "a": "1", "Emitd-Generation": "99", "Traceparent": "forged", "tracestate": "kept"}
	var got []string
	for _, h := range sink.Headers(sinktest.Delivery(nil), row) {
		got = append(got, h.Name+"="+h.Value)
	}
	want := []string{
		"emitd-id=" + row.ID.String(), "emitd-subscription=billing", fmt.Sprintf("emitd-shard=%d", row.Shard), "emitd-generation=7",
		"emitd-key=key-0", "emitd-type=order.placed", "traceparent=00-a-b-01", "a=1", "b=2", "tracestate=kept",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRange(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]outbox.Range{"0-31": {Lo: 0, Hi: 31}, "7": {Lo: 7, Hi: 7}, "63": {Lo: 63, Hi: 63}} {
		if got, err := sink.Range(name); err != nil || got != want || got.String() != name {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "-1", "a", "3-1", "0-64", "1-2-3"} {
		if got, err := sink.Range(name); err == nil {
			t.Errorf("%q is %v", name, got)
		}
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	cfg := struct{ Password sink.Secret }{"hunter2"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if got := fmt.Sprintf(format, cfg); strings.Contains(got, "hunter2") {
			t.Errorf("%s: %s", format, got)
		}
	}
	if got := sink.Redact("login with hunter2 refused", cfg.Password, ""); got != "login with *** refused" {
		t.Errorf("redacted: %s", got)
	}
	if got := sink.Host("amqp://user:hunter2@mq:5672/v?token=x"); got != "amqp://mq:5672" {
		t.Errorf("host: %s", got)
	}
}

// few allows some goroutines of all deliveries together, and one of each.
type few struct {
	mu                   sync.Mutex
	limit, callers, most int
}

func (f *few) start(first bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.callers >= f.limit && !first {
		return false
	}
	f.callers++
	f.most = max(f.most, f.callers)
	return true
}

func (f *few) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.callers--
}

// TestCallersAreShared checks that two deliveries together have no more goroutines than are allowed, that each has one,
// and that one uses what the other leaves.
func TestCallersAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &few{limit: 4}
		var all sync.WaitGroup
		deliver := func(rows int) (answers chan<- bool) {
			calls := make(chan bool)
			all.Go(func() {
				plan := sink.Plan{Parallel: 50, StartCaller: f.start, EndCaller: f.end}
				errs := sink.Run(t.Context(), sinktest.Rows("t", rows, 0), plan, func(context.Context, []int) []error {
					<-calls
					return nil
				})
				if errs != nil {
					t.Error(errs)
				}
			})
			return calls
		}
		expect := func(when string, callers int) {
			t.Helper()
			if synctest.Wait(); f.callers != callers {
				t.Errorf("%s: %d goroutines, want %d", when, f.callers, callers)
			}
		}
		first := deliver(5)
		expect("one delivery", 4)
		second := deliver(20)
		expect("two", 5)
		for range 5 {
			first <- true
		}
		expect("the first has ended", 1)
		second <- true
		expect("the second goes on", 4)
		for range 19 {
			second <- true
		}
		all.Wait()
		if expect("the end", 0); f.most != 5 {
			t.Errorf("up to %d goroutines", f.most)
		}
	})
}
