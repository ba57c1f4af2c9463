package sqlite

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// watch collects wake-ups until the test ends.
func watch(t *testing.T, s *Store) <-chan storage.WakeUp {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	wakeUps, done := make(chan storage.WakeUp, 100), make(chan error, 1)
	started := make(chan struct{})
	go func() {
		close(started)
		done <- s.Watch(ctx, func(w storage.WakeUp) { wakeUps <- w })
	}()
	<-started
	t.Cleanup(func() {
		cancel()
		refused(t, <-done, context.Canceled)
	})
	return wakeUps
}

// Watch needs no statement: it works while no statement can run.
func TestWatchRunsNoStatement(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "store.db"), WatchInterval: 2 * time.Millisecond}
	s, other := mustOpen(t, cfg), mustOpen(t, cfg)
	writer := <-s.writer
	var readers []*session
	for range maxReaders {
		readers = append(readers, <-s.readers)
	}
	wakeUps := watch(t, s)
	if n := s.db.Stats().OpenConnections; n != 1 {
		t.Errorf("%d connections are open, want the writer's", n)
	}
	// A wake-up may come before the first check, so the changes go on until one is seen.
	timeout := time.After(30 * time.Second)
	for heard := false; !heard; {
		runsCommand(t, other)
		select {
		case w := <-wakeUps:
			if heard = true; len(w.Nodes) != 0 || !w.Leader {
				t.Errorf("wake-up is %+v, want one for everybody", w)
			}
		case <-time.After(5 * time.Millisecond):
		case <-timeout:
			t.Fatal("no wake-up came")
		}
	}
	s.writer <- writer
	for _, c := range readers {
		s.readers <- c
	}
}

// runsCommand makes a change that other processes wait for.
func runsCommand(t testing.TB, s *Store) {
	t.Helper()
	snap := snapshot(t, s)
	if !snap.Term.Held() {
		runs(t, s, someone("leader"))
	}
	_, err := s.Submit(context.Background(), storage.Command{ID: string(someone("").ID), Kind: daemon.CommandResign})
	ok(t, err)
}

// A heartbeat that changes nothing sends no wake-up.
func TestHeartbeatWakesNobody(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	who := someone("a")
	term, _ := runs(t, s, who)
	before := s.wakes.stat()
	for seq := range 5 {
		beat(t, s, storage.Heartbeat{Node: who, Seq: uint64(seq + 2), TermRequest: storage.TermRequest{Renew: term.Number, Lease: time.Hour}})
	}
	if now := s.wakes.stat(); now != before {
		t.Errorf("the wake file went from %v to %v", before, now)
	}
	runsCommand(t, s)
	if now := s.wakes.stat(); now == before {
		t.Error("a command did not change the wake file")
	}
}

// The wake file takes no space, and its size repeats late.
func TestWakeFile(t *testing.T) {
	t.Parallel()
	w := wakeFile{path: filepath.Join(t.TempDir(), "x.wake"), log: slog.New(slog.DiscardHandler)}
	if seen := w.stat(); seen.size != 0 {
		t.Errorf("a file that is not there has size %d", seen.size)
	}
	last := int64(0)
	// A change that writes no event has the number of the event before.
	for _, head := range []int64{1, 2, 2, 2, 2, 3, wakeSizes - 1, wakeSizes - 1, wakeSizes, wakeSizes + 1, 1 << 40, 1 << 40} {
		w.touch(head)
		if size := w.stat().size; size == last || size == 0 || size > 2*wakeSizes {
			t.Errorf("size %d after %d", size, last)
		} else {
			last = size
		}
	}
}

// A wake file that cannot be written is logged once and does no harm.
func TestWakeFileCannotBeWritten(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	path := filepath.Join(t.TempDir(), "store.db")
	ok(t, os.Mkdir(path+".wake", 0o755)) // cannot be written as a file
	s := mustOpen(t, Config{Path: path, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	runs(t, s, someone("a"))
	runsCommand(t, s)
	runsCommand(t, s)
	if n := strings.Count(log.String(), "wake file"); n != 1 {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Calls are measured by operation; answers do not count as errors.
func TestTimings(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	reader := metric.NewManualReader()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db"), Meter: metric.NewMeterProvider(metric.WithReader(reader))})
	runs(t, s, someone("a"))
	snapshot(t, s)
	_, err := s.Heartbeat(ctx, storage.Heartbeat{Node: someone("b"), Seq: 1})
	refused(t, err, storage.ErrNotRegistered)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = s.Snapshot(ended)
	refused(t, err, context.Canceled)

	var got metricdata.ResourceMetrics
	ok(t, reader.Collect(ctx, &got))
	m := got.ScopeMetrics[0].Metrics[0]
	if m.Name != "db.client.operation.duration" || m.Unit != "s" {
		t.Errorf("metric %q in %q", m.Name, m.Unit)
	}
	counts := map[string]uint64{}
	for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
		operation, _ := p.Attributes.Value("db.operation.name")
		kind, _ := p.Attributes.Value("error.type")
		counts[operation.AsString()+"/"+kind.AsString()] += p.Count
	}
	for name, want := range map[string]uint64{"heartbeat/": 2, "commit/": 1, "snapshot/": 1, "snapshot/canceled": 1} {
		if counts[name] != want {
			t.Errorf("%s was measured %d times, want %d (%v)", name, counts[name], want, counts)
		}
	}
}

func TestErrorTypes(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"": storage.ErrTermLost, "timeout": context.DeadlineExceeded, "unavailable": storage.ErrUnavailable,
		"canceled": context.Canceled, "_OTHER": errors.New("boom"),
	} {
		if got := errorType(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}
