package sink_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/emitd/emitd/outbox"
	sinkpkg "github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/nats"
	"github.com/emitd/emitd/outbox/sink/postgres"
	"github.com/emitd/emitd/outbox/sink/rabbitmq"
	"github.com/emitd/emitd/outbox/sink/webhook"
)

func benchReceivers() []benchReceiver {
	return []benchReceiver{benchNATS(), benchKafka(), benchRabbitMQ(false), benchRabbitMQ(true), benchPostgres(), benchWebhook(webhook.Binary), benchWebhook(webhook.Batch)}
}

func benchNATS() benchReceiver {
	return benchReceiver{
		name:   "nats",
		oneKey: 100_000, manyKeys: 100_000,
		start: func(b *testing.B) string {
			return strings.TrimPrefix(newBroker(b, &server.Options{}).server.ClientURL(), "nats://")
		},
		sink: func(b *testing.B, addr string) outbox.Sink {
			s, err := nats.New(b.Context(), nats.Config{URL: sinkpkg.Secret("nats://" + addr)})
			must(b, err)
			b.Cleanup(func() { _ = s.Close() })
			return s
		},
		send: func(b *testing.B, addr string) func(context.Context, []plainRow) error {
			conn, err := natsgo.Connect("nats://" + addr)
			must(b, err)
			b.Cleanup(conn.Close)
			js, err := jetstream.New(conn)
			must(b, err)
			return func(ctx context.Context, rows []plainRow) error {
				acks := make([]jetstream.PubAckFuture, len(rows))
				for i, row := range rows {
					m := &natsgo.Msg{Subject: "orders", Data: row.Payload, Header: natsgo.Header{"key": {row.Key}}}
					if row.Alike {
						for _, h := range row.headers() {
							m.Header[h.Name] = []string{h.Value}
						}
					}
					ack, err := js.PublishMsgAsync(m, jetstream.WithMsgID(row.Dedup.String()))
					if err != nil {
						return err
					}
					acks[i] = ack
				}
				for _, ack := range acks {
					select {
					case <-ack.Ok():
					case err := <-ack.Err():
						return err
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			}
		},
	}
}

func benchKafka() benchReceiver {
	// The cluster names its own address to clients, so a dialer leads them through the proxy.
	through := func(addr string) kgo.Opt {
		return kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		})
	}
	return benchReceiver{
		name:   "kafka",
		oneKey: 300_000, manyKeys: 300_000,
		start: func(b *testing.B) string { return newCluster(b).ListenAddrs()[0] },
		sink: func(b *testing.B, addr string) outbox.Sink {
			s, err := kafka.New(b.Context(), kafka.Config{Brokers: []string{addr}, Options: []kgo.Opt{through(addr)}})
			must(b, err)
			b.Cleanup(func() { _ = s.Close() })
			return s
		},
		send: func(b *testing.B, addr string) func(context.Context, []plainRow) error {
			client, err := kgo.NewClient(kgo.SeedBrokers(addr), through(addr), kgo.ProducerLinger(0), kgo.DisableClientMetrics())
			must(b, err)
			b.Cleanup(client.Close)
			return func(ctx context.Context, rows []plainRow) error {
				records := make([]*kgo.Record, len(rows))
				for i, row := range rows {
					records[i] = &kgo.Record{Topic: "orders", Key: []byte(row.Key), Value: row.Payload, Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(row.Dedup.String())}}}
					if row.Alike {
						records[i].Headers = nil
						for _, h := range row.headers() {
							records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)})
						}
					}
				}
				return client.ProduceSync(ctx, records...).FirstErr()
			}
		},
	}
}

func benchRabbitMQ(pipeline bool) benchReceiver {
	name, one := "rabbitmq", 1_000 // one after another
	if pipeline {
		name, one = "rabbitmq-pipeline", 30_000
	}
	var v *vhost
	through := func(addr string) string { return strings.Replace(v.url, v.target, addr, 1) }
	return benchReceiver{
		name:   name,
		oneKey: one, manyKeys: 30_000,
		start: func(b *testing.B) string {
			v = newVhost(b)
			return v.target
		},
		clean: func(b *testing.B) {
			_, err := v.channel.QueuePurge("orders", false)
			must(b, err)
		},
		sink: func(b *testing.B, addr string) outbox.Sink {
			return v.open(b, rabbitmq.Config{URL: sinkpkg.Secret(through(addr)), Pipeline: pipeline})
		},
		send: func(b *testing.B, addr string) func(context.Context, []plainRow) error {
			conn, err := amqp.Dial(through(addr))
			must(b, err)
			b.Cleanup(func() { conn.Close() })
			ch, err := conn.Channel()
			must(b, err)
			must(b, ch.Confirm(false))
			return func(ctx context.Context, rows []plainRow) error {
				waits := make([]*amqp.DeferredConfirmation, len(rows))
				for i, row := range rows {
					m := amqp.Publishing{MessageId: row.Dedup.String(), DeliveryMode: amqp.Persistent, Body: row.Payload, Headers: amqp.Table{"key": row.Key}}
					if row.Alike {
						m.Headers = amqp.Table{}
						for _, h := range row.headers() {
							m.Headers[h.Name] = h.Value
						}
					}
					wait, err := ch.PublishWithDeferredConfirm("", "orders", true, false, m)
					if err != nil {
						return err
					}
					waits[i] = wait
				}
				for _, wait := range waits {
					if _, err := wait.WaitContext(ctx); err != nil {
						return err
					}
				}
				return nil
			}
		},
	}
}

func benchPostgres() benchReceiver {
	var d *database
	through := func(addr string) string {
		cfg, err := pgx.ParseConfig(d.url)
		if err != nil {
			panic(err)
		}
		return strings.Replace(d.url, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))), addr, 1)
	}
	return benchReceiver{
		name:   "postgres",
		oneKey: 100_000, manyKeys: 100_000,
		start: func(b *testing.B) string {
			d = newDatabase(b)
			d.exec(b, "drop trigger failing on emitd_sink.message")
			d.exec(b, "create table plain_target (id uuid primary key, key text not null, payload bytea not null)")
			cfg, err := pgx.ParseConfig(d.url)
			must(b, err)
			return net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
		},
		sink: func(b *testing.B, addr string) outbox.Sink {
			s, err := postgres.New(b.Context(), postgres.Config{URL: sinkpkg.Secret(through(addr))})
			must(b, err)
			b.Cleanup(func() { _ = s.Close() })
			return s
		},
		send: func(b *testing.B, addr string) func(context.Context, []plainRow) error {
			cfg, err := pgxpool.ParseConfig(through(addr))
			must(b, err)
			cfg.MaxConns = 32 // for the jobs of River, each of which has its own transaction
			pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
			must(b, err)
			b.Cleanup(pool.Close)
			return func(ctx context.Context, rows []plainRow) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					batch := &pgx.Batch{}
					for _, row := range rows {
						batch.Queue("insert into plain_target (id, key, payload) values ($1, $2, $3) on conflict do nothing", row.Dedup, row.Key, row.Payload)
					}
					return tx.SendBatch(ctx, batch).Close()
				})
			}
		},
	}
}

// cloudEvent are the headers of a CloudEvent, without those for what the sinks' headers say.
var cloudEvent = []string{"Content-Type", "Ce-Specversion", "Ce-Source", "Ce-Type", "Ce-Time"}

// benchWebhook posts to a server that answers 204. The plain poller sends 64 requests at once, and so does
// not keep the order of a key.
func benchWebhook(mode webhook.Mode) benchReceiver {
	one, many := 1_000, 50_000 // one request for each message
	if mode == webhook.Batch {
		one, many = 100_000, 100_000
	}
	return benchReceiver{
		name:   "webhook-" + string(mode),
		oneKey: one, manyKeys: many,
		start: func(b *testing.B) string {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
			b.Cleanup(server.Close)
			return server.Listener.Addr().String()
		},
		sink: func(b *testing.B, addr string) outbox.Sink {
			s, err := webhook.New(b.Context(), webhook.Config{URL: "http://" + addr + "/", Mode: mode})
			must(b, err)
			b.Cleanup(func() { _ = s.Close() })
			return s
		},
		send: func(b *testing.B, addr string) func(context.Context, []plainRow) error {
			transport := &http.Transport{MaxIdleConnsPerHost: riverJobs}
			client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
			b.Cleanup(transport.CloseIdleConnections)
			return func(ctx context.Context, rows []plainRow) error {
				post := func(row plainRow) error {
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/", bytes.NewReader(row.Payload))
					if err != nil {
						return err
					}
					req.Header.Set("id", row.Dedup.String())
					if row.Alike {
						for _, name := range cloudEvent {
							req.Header.Set(name, row.Key)
						}
						for _, h := range row.headers() {
							req.Header.Set(h.Name, h.Value)
						}
					}
					resp, err := client.Do(req)
					if err != nil {
						return err
					}
					return resp.Body.Close()
				}
				errs := make([]error, min(64, len(rows)))
				var all sync.WaitGroup
				for w := range errs {
					all.Go(func() {
						for i := w; i < len(rows) && errs[w] == nil; i += len(errs) {
							errs[w] = post(rows[i])
						}
					})
				}
				all.Wait()
				return errors.Join(errs...)
			}
		},
	}
}
