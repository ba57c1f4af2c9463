package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/storage"
)

// instruments are the package's metrics, from OpenTelemetry's global provider.
type instruments struct {
	duration metric.Float64Histogram
}

func newInstruments() (*instruments, error) {
	meter := otel.GetMeterProvider().Meter("github.com/emitd/emitd/storage/postgres")
	// The default boundaries are milliseconds and useless for seconds.
	duration, err := meter.Float64Histogram("db.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of calls to the cluster store."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10))
	if err != nil {
		return nil, fmt.Errorf("make db.client.operation.duration: %w", err)
	}
	return &instruments{duration}, nil
}

// record counts one call. Calls that ended early are measured too.
func (i *instruments) record(op string, d time.Duration, err error) {
	ctx := context.Background()
	if !i.duration.Enabled(ctx) {
		return
	}
	attrs := make([]attribute.KeyValue, 0, 3)
	attrs = append(attrs, attribute.String("db.system.name", "postgresql"), attribute.String("db.operation.name", op))
	if err != nil {
		attrs = append(attrs, attribute.String("error.type", errorType(err)))
	}
	i.duration.Record(ctx, d.Seconds(), metric.WithAttributes(attrs...))
}

// errorType is the server's code, or one word for an error that no server sent.
func errorType(err error) string {
	switch c := pgerror.Code(err); {
	case c != "":
		return c
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, storage.ErrUnavailable):
		return "unavailable"
	}
	return "_OTHER"
}
