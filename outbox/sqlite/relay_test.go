package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/outbox"
)

// relay runs the real relay on a log until the test ends or stop is called, which drains it.
func (w *world) relay(t testing.TB, cfg outbox.Config) (stop func()) {
	t.Helper()
	cfg.Name, cfg.Log, cfg.Logger = "s", w.Log, cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	r, err := outbox.NewRelay(cfg)
	ok(t, err)
	a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("s")}, Generation: 1}, 1, "n", nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- errors.Join(r.Run(ctx, a), r.Close(context.Background())) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			a.BeginDrain()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("the relay ended with %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("the relay does not end")
			}
			cancel()
		})
	}
	t.Cleanup(stop)
	return stop
}

// TestRelay runs relay, publisher and log together. Some keys fail at first, some always. The others must
// be delivered, everything in order, and in the end the log has only the dead letters.
func TestRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	var mu sync.Mutex
	got, failed := map[string][]string{}, map[string]bool{}
	count := 0
	sink := outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		mu.Lock()
		defer mu.Unlock()
		errs := make([]error, len(d.Rows))
		bad := map[string]bool{}
		for i, r := range d.Rows {
			switch {
			case bad[r.Key]:
				errs[i] = errors.New("behind a failure")
			case r.Key == "k3":
				errs[i] = fmt.Errorf("never: %w", outbox.ErrPermanent)
			case r.Key == "k5" && !failed[string(r.Payload)]:
				failed[string(r.Payload)], bad[r.Key] = true, true
				errs[i] = errors.New("not yet")
			default:
				got[r.Key] = append(got[r.Key], string(r.Payload))
				count++
			}
		}
		return errs
	})
	w.relay(t, outbox.Config{Sink: sink, Policy: outbox.Skip, Retry: outbox.Retry{Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}})
	const keys, each = 8, 25
	want := map[string][]string{}
	for n := range each {
		for k := range keys {
			key := fmt.Sprint("k", k)
			w.publish(t, text(key, fmt.Sprintf("%s/%d", key, n)))
			want[key] = append(want[key], fmt.Sprintf("%s/%d", key, n))
		}
	}
	eventually(t, "everything is delivered", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return count >= (keys-1)*each
	})
	eventually(t, "the log is empty", func() bool {
		s, err := w.Stats(t.Context(), "s")
		ok(t, err)
		return s[0].Pending == 0 && s[0].ParkedKeys == 0 && s[0].Dead == each
	})
	mu.Lock()
	defer mu.Unlock()
	for key, all := range want {
		if key != "k3" && !slices.Equal(got[key], all) {
			t.Errorf("key %s: got %v", key, got[key])
		}
	}
}

// BenchmarkRelay measures the real relay with a sink that takes everything, from a backlog.
func BenchmarkRelay(b *testing.B) {
	w := newWorld(b, Config{})
	fill(b, w, (b.N/2000+1)*2000) // at least b.N
	var n atomic.Int64
	done := make(chan struct{})
	sink := outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		if n.Add(int64(len(d.Rows))) >= int64(b.N) {
			select {
			case <-done:
			default:
				close(done)
			}
		}
		return nil
	})
	b.ResetTimer()
	before := testproc.ProcessTime()
	stop := w.relay(b, outbox.Config{Sink: sink, Parallel: 1})
	<-done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	b.ReportMetric(float64((testproc.ProcessTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/message")
	stop()
}

// BenchmarkLatency measures the time from the commit of InTx to the sink, one message at a time.
func BenchmarkLatency(b *testing.B) {
	w := newWorld(b, Config{})
	arrived := make(chan struct{}, 1)
	w.relay(b, outbox.Config{Sink: outbox.SinkFunc(func(context.Context, outbox.Delivery) []error {
		arrived <- struct{}{}
		return nil
	})})
	var all []time.Duration
	b.ResetTimer()
	for b.Loop() {
		w.publish(b, text("k", "x"))
		committed := time.Now()
		<-arrived
		all = append(all, time.Since(committed))
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
}
