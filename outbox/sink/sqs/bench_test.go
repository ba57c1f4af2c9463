package sqs_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/logtest"
	"github.com/emitd/emitd/outbox/sink/internal/amazon/amazontest"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// BenchmarkDrain is a relay that empties a backlog into the fake of SQS, which runs in the same process:
// client, server and relay share the processors.
func BenchmarkDrain(b *testing.B) {
	for name, to := range map[string]amazontest.Destination{"standard": amazontest.ByTopic, "fifo": amazontest.FIFO} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			server := amazontest.New(b)
			server.Forget()
			rows := sinktest.Rows("orders", 1000, 500)
			for i := range rows {
				rows[i].Payload = fmt.Appendf(nil, `{"order":%d,"note":"%0150d"}`, i, i)
			}
			log := logtest.NewFree(rows, b.N/len(rows)+1)
			r, err := outbox.NewRelay(outbox.Config{
				Name: "sub", Log: log, Sink: open(b, server, to, 0), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			})
			if err != nil {
				b.Fatal(err)
			}
			a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("sub")}, Generation: 1}, 1, "n", nil)
			done := make(chan error, 1)
			began := time.Now()
			b.ResetTimer()
			go func() { done <- r.Run(b.Context(), a) }()
			<-log.Done()
			b.StopTimer()
			messages := (b.N/len(rows) + 1) * len(rows)
			b.ReportMetric(float64(messages)/time.Since(began).Seconds(), "messages/s")
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
