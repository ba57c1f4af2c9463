package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/logtest"
)

// BenchmarkRelay measures the cost of the relay itself: a log and a sink that do nothing, pages of 1,000.
func BenchmarkRelay(b *testing.B) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct {
		name string
		rows []outbox.Row
		cfg  outbox.Config
	}{
		{"keyed", benchRows(500, ""), outbox.Config{}},
		{"unkeyed", benchRows(0, ""), outbox.Config{}},
		{"one worker", benchRows(500, ""), outbox.Config{Parallel: 1}},
		{"topics", benchRows(500, ""), outbox.Config{Topics: []string{"users", "orders.*"}}},
		{"metrics", benchRows(500, ""), outbox.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))}},
		{"metrics and spans", benchRows(500, parent), outbox.Config{
			MeterProvider:  metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())),
			TracerProvider: trace.NewTracerProvider(),
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			log := logtest.NewFree(c.rows, b.N/len(c.rows)+1)
			c.cfg.Name, c.cfg.Log, c.cfg.Logger = "sub", log, quiet
			c.cfg.Sink = outbox.SinkFunc(func(context.Context, outbox.Delivery) []error { return nil })
			r, err := outbox.NewRelay(c.cfg)
			if err != nil {
				b.Fatal(err)
			}
			a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("sub")}, Generation: 1}, 1, "n", nil)
			done := make(chan error, 1)
			b.ResetTimer()
			go func() { done <- r.Run(b.Context(), a) }()
			<-log.Done()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			a.BeginDrain()
			if err := <-done; err != nil {
				b.Error(err)
			}
			if err := r.Close(context.Background()); err != nil {
				b.Error(err)
			}
		})
	}
}

// benchRows returns a page of small events.
func benchRows(keys int, parent string) []outbox.Row {
	rows := make([]outbox.Row, 1000)
	for i := range rows {
		msg := outbox.Message{ID: uuid.New(), Topic: "orders.placed", Type: "placed", Payload: make([]byte, 200), TraceParent: parent}
		if keys > 0 {
			msg.Key = fmt.Sprint("customer-", i%keys)
		}
		rows[i] = outbox.Row{Message: msg, Seq: int64(i + 1), Shard: msg.Shard(), CreatedAt: time.Now(), Attempt: 1}
	}
	return rows
}
