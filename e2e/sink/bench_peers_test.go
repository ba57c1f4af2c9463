package sink_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// countdown counts deliveries down and closes a channel at the last one.
type countdown struct {
	left atomic.Int64
	done chan struct{}
}

func newCountdown(n int) *countdown {
	e := &countdown{done: make(chan struct{})}
	e.left.Store(int64(n))
	return e
}

func (e *countdown) one() {
	if e.left.Add(-1) == 0 {
		close(e.done)
	}
}

// wait fails if the deliveries come to a standstill.
func (e *countdown) wait(b *testing.B, who string) {
	b.Helper()
	tick := time.NewTicker(standstill)
	defer tick.Stop()
	for before := e.left.Load(); ; {
		select {
		case <-e.done:
			return
		case <-tick.C:
			if left := e.left.Load(); left == before {
				b.Fatalf("%s: nothing was delivered for %v, with %d messages to go", who, standstill, left)
			} else {
				before = left
			}
		}
	}
}

// watermillTopic is the table that Watermill's forwarder reads.
const watermillTopic = "forwarded"

// watermillPublisher is a publisher of Watermill for a receiver. It sends one message after the other, as the
// forwarder hands them over.
type watermillPublisher struct {
	send func(context.Context, []plainRow) error
	all  *countdown
}

func (p watermillPublisher) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		id, err := uuid.Parse(m.UUID)
		if err != nil {
			return err
		}
		if err := p.send(m.Context(), []plainRow{{Dedup: id, Key: m.Metadata["key"], Payload: m.Payload}}); err != nil {
			return err
		}
		p.all.one()
	}
	return nil
}

func (watermillPublisher) Close() error { return nil }

// watermill stores n messages by the forwarder's publisher, and returns how long Watermill's forwarder takes to
// publish them to the receiver. Its schema and batch size are the defaults. It keeps the order of the table.
func (w *benchWorld) watermill(b *testing.B, send func(context.Context, []plainRow) error, n, keys int) time.Duration {
	b.Helper()
	db := watermillsql.BeginnerFromPgx(w.pool)
	schema, offsets := watermillsql.DefaultPostgreSQLSchema{}, watermillsql.DefaultPostgreSQLOffsetsAdapter{}
	store, err := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, watermill.NopLogger{})
	must(b, err)
	wrapped := forwarder.NewPublisher(store, forwarder.PublisherConfig{ForwarderTopic: watermillTopic})
	for i := 0; i < n; {
		var batch []*message.Message
		for ; i < n && len(batch) < 1000; i++ {
			m := message.NewMessage(uuid.NewString(), benchPayload)
			m.Metadata["key"] = fmt.Sprint("key-", i%keys)
			batch = append(batch, m)
		}
		must(b, wrapped.Publish("orders", batch...))
	}
	from, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{SchemaAdapter: schema, OffsetsAdapter: offsets, InitializeSchema: true}, watermill.NopLogger{})
	must(b, err)
	to := watermillPublisher{send, newCountdown(n)}
	f, err := forwarder.NewForwarder(from, to, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: watermillTopic})
	must(b, err)
	over := make(chan error, 1)
	began := time.Now()
	go func() { over <- f.Run(b.Context()) }()
	to.all.wait(b, "watermill")
	took := time.Since(began)
	must(b, errors.Join(f.Close(), <-over, wrapped.Close()))
	return took
}

// riverArgs is a job of River that sends a message.
type riverArgs struct {
	ID      uuid.UUID `json:"id"`
	Key     string    `json:"key"`
	Payload []byte    `json:"payload"`
}

// Kind implements [river.JobArgs].
func (riverArgs) Kind() string { return "send" }

// riverWorker sends the message of a job.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	send func(context.Context, []plainRow) error
	all  *countdown
}

// Work implements [river.Worker].
func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverArgs]) error {
	if err := w.send(ctx, []plainRow{{Dedup: job.Args.ID, Key: job.Args.Key, Payload: job.Args.Payload}}); err != nil {
		return err
	}
	w.all.one()
	return nil
}

// riverJobs is how many jobs a client of River works on at once: the page of the plain poller.
const riverJobs = 1000

// river inserts n jobs and returns how long a client of River takes to send their messages. It fetches as often as
// River allows, instead of ten times a second. It keeps no order.
func (w *benchWorld) river(b *testing.B, send func(context.Context, []plainRow) error, n, keys int) time.Duration {
	b.Helper()
	worker := &riverWorker{send: send, all: newCountdown(n)}
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	client, err := river.NewClient(riverpgxv5.New(w.pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverJobs}}, Workers: workers,
		FetchCooldown: river.FetchCooldownMin, FetchPollInterval: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	must(b, err)
	for i := 0; i < n; {
		var batch []river.InsertManyParams
		for ; i < n && len(batch) < 5000; i++ {
			batch = append(batch, river.InsertManyParams{Args: riverArgs{uuid.New(), fmt.Sprint("key-", i%keys), benchPayload}})
		}
		_, err := client.InsertManyFast(b.Context(), batch)
		must(b, err)
	}
	began := time.Now()
	must(b, client.Start(b.Context()))
	worker.all.wait(b, "river")
	took := time.Since(began)
	must(b, client.Stop(b.Context()))
	_, err = w.pool.Exec(b.Context(), "truncate river_job")
	must(b, err)
	return took
}

// migrateRiver makes River's tables.
func (w *benchWorld) migrateRiver(b *testing.B) {
	b.Helper()
	m, err := rivermigrate.New[pgx.Tx](riverpgxv5.New(w.pool), nil)
	must(b, err)
	_, err = m.Migrate(b.Context(), rivermigrate.DirectionUp, nil)
	must(b, err)
}
