package sqs_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/logtest"
	"github.com/emitd/emitd/outbox/sink/internal/amazon/amazontest"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// BenchmarkFake measures the capacity of the fake server and its connections: prepared calls of ten
// messages as large as those of BenchmarkDrain, from as many goroutines. The rest of the processor time
// is that of the sink and the relay.
func BenchmarkFake(b *testing.B) {
	server := amazontest.New(b)
	server.Forget()
	var text []byte
	text = append(text, `{"Entries":[`...)
	for i := range 10 {
		if i > 0 {
			text = append(text, ',')
		}
		text = fmt.Appendf(text, `{"Id":"%d","MessageBody":"{\"order\":%d,\"note\":\"%0150d\"}","MessageAttributes":{`, i, i, i)
		for n := range 8 {
			text = fmt.Appendf(text, `"emitd-attribute-%d":{"DataType":"String","StringValue":"%020d"},`, n, i)
		}
		text = append(text[:len(text)-1], "}}"...)
	}
	text = append(text, `],"QueueUrl":"http://127.0.0.1/1/orders"}`...)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, WriteBufferSize: 16 << 10}}
	defer client.CloseIdleConnections()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	began := time.Now()
	for range 16 {
		wg.Go(func() {
			for left.Add(-10) >= 0 {
				req, _ := http.NewRequestWithContext(b.Context(), http.MethodPost, server.URL, bytes.NewReader(text))
				req.Header.Set("X-Amz-Target", "AmazonSQS.SendMessageBatch")
				answer, err := client.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				if n, err := io.Copy(io.Discard, answer.Body); err != nil || n < 500 {
					b.Errorf("an answer of %d bytes: %v", n, err)
				}
				_ = answer.Body.Close()
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "messages/s")
}

// BenchmarkDrain measures a relay that delivers a backlog to the fake SQS in the same process. Client,
// server and relay share the processors.
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
