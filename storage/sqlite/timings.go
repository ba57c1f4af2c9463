package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// timings measures calls under the name of the semantic conventions for databases.
type timings struct{ duration metric.Float64Histogram }

func newTimings(p metric.MeterProvider) (timings, error) {
	if p == nil {
		p = otel.GetMeterProvider()
	}
	h, err := p.Meter("github.com/emitd/emitd/storage/sqlite").Float64Histogram("db.client.operation.duration",
		metric.WithUnit("s"), metric.WithDescription("Duration of calls to the cluster store."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10))
	if err != nil {
		return timings{}, fmt.Errorf("metric db.client.operation.duration: %w", err)
	}
	return timings{h}, nil
}

// record records the duration of a call that began at began.
func (t timings) record(ctx context.Context, operation string, began time.Time, err error) {
	attrs := []attribute.KeyValue{attribute.String("db.system.name", "sqlite"), attribute.String("db.operation.name", operation)}
	if kind := errorType(err); kind != "" {
		attrs = append(attrs, attribute.String("error.type", kind))
	}
	t.duration.Record(context.WithoutCancel(ctx), time.Since(began).Seconds(), metric.WithAttributes(attrs...))
}

// errorType names the kind of a failure. Answers are not failures.
func errorType(err error) string {
	switch {
	case err == nil, errors.Is(err, storage.ErrTermLost), errors.Is(err, storage.ErrStaleSeq), errors.Is(err, storage.ErrStoreChanged),
		errors.Is(err, storage.ErrNotRegistered), errors.Is(err, storage.ErrIDInUse), errors.Is(err, storage.ErrOtherCluster), errors.Is(err, storage.ErrNodesLive), errors.Is(err, storage.ErrLocked), errors.Is(err, storage.ErrLockLost),
		errors.Is(err, daemon.ErrStale):
		return ""
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, storage.ErrUnavailable):
		return "unavailable"
	}
	return "_OTHER"
}

// call is one measured call that writes, within its timeout.
func (s *Store) call(ctx context.Context, operation string, fn func(*step) error) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	began := time.Now()
	err := s.write(ctx, fn)
	s.timings.record(ctx, operation, began, err)
	return err
}

// readCall is one measured call that reads, within its timeout.
func (s *Store) readCall(ctx context.Context, operation string, fn func(*view)) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	began := time.Now()
	err := s.read(ctx, fn)
	s.timings.record(ctx, operation, began, err)
	return err
}
