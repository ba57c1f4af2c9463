package sink_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kgo"

	sinkpkg "github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/nats"
	"github.com/emitd/emitd/outbox/sink/postgres"
	"github.com/emitd/emitd/outbox/sink/rabbitmq"
	"github.com/emitd/emitd/outbox/sink/sinktest"
	"github.com/emitd/emitd/outbox/sink/webhook"
)

// stormTargets open receivers of their own, by name.
var stormTargets = map[string]func(t *testing.T, s *storm) stormTarget{
	"nats":              stormNATS,
	"kafka":             stormKafka,
	"rabbitmq":          func(t *testing.T, s *storm) stormTarget { return stormRabbitMQ(t, s, false) },
	"rabbitmq-pipeline": func(t *testing.T, s *storm) stormTarget { return stormRabbitMQ(t, s, true) },
	"postgres":          stormPostgres,
	"webhook-binary":    func(t *testing.T, s *storm) stormTarget { return stormWebhook(t, s, webhook.Binary) },
	"webhook-batch":     func(t *testing.T, s *storm) stormTarget { return stormWebhook(t, s, webhook.Batch) },
}

// stormTimeout is how long a sink waits for a receiver.
const stormTimeout = 2 * time.Second

// broken returns the faults of a connection: it breaks, it is late, and it breaks while answers are on their way.
func (s *storm) broken(w *wire) []stormFault {
	return []stormFault{
		{name: "connection broken", do: w.drop},
		{name: "late", do: func() {
			w.hold(true)
			s.pause(50 * time.Millisecond)
			w.hold(false)
		}},
		{name: "broken while late", do: func() {
			w.hold(true)
			s.pause(50 * time.Millisecond)
			w.drop()
			w.hold(false)
		}},
	}
}

func stormNATS(t *testing.T, s *storm) stormTarget {
	b := newBroker(t, &server.Options{})
	w := newWire(t, strings.TrimPrefix(b.server.ClientURL(), "nats://"))
	limit := func(most int64) {
		cfg := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders", "emitd.fence.>"}, MaxMsgs: most, Discard: jetstream.DiscardNew, Duplicates: 10 * time.Minute}
		if _, err := b.js.UpdateStream(t.Context(), cfg); err != nil && t.Context().Err() == nil {
			t.Errorf("limit the stream: %v", err)
		}
	}
	limit(-1)
	return stormTarget{
		once: true, // the stream drops repetitions
		sink: b.open(t, nats.Config{URL: sinkpkg.Secret("nats://" + w.addr()), Timeout: stormTimeout}),
		faults: append(s.broken(w), stormFault{name: "stream full", do: func() {
			limit(int64(s.check.count()) + 100)
			s.pause(50 * time.Millisecond)
			limit(-1)
		}}),
		read: func(ctx context.Context, see func(uuid.UUID)) error {
			c, err := b.js.OrderedConsumer(ctx, "ORDERS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"orders"}})
			if err != nil {
				return err
			}
			messages, err := c.Messages()
			if err != nil {
				return err
			}
			defer context.AfterFunc(ctx, messages.Stop)()
			for {
				m, err := messages.Next()
				if err != nil {
					return err
				}
				id, err := uuid.Parse(m.Headers().Get("Nats-Msg-Id"))
				if err != nil {
					return err
				}
				see(id)
			}
		},
	}
}

func stormKafka(t *testing.T, s *storm) stormTarget {
	k := newCluster(t)
	w := newWire(t, k.ListenAddrs()[0])
	through := kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, w.addr())
	})
	return stormTarget{
		sink: k.open(t, kafka.Config{Timeout: stormTimeout, Options: []kgo.Opt{through}}),
		faults: append(s.broken(w), stormFault{name: "batches refused", do: func() {
			k.fail(t, sinktest.Falter, s.next(3))
			s.pause(50 * time.Millisecond)
			k.fail(t, sinktest.Falter, nil)
		}}),
		read: func(ctx context.Context, see func(uuid.UUID)) error {
			client, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			if err != nil {
				return err
			}
			defer client.Close()
			for {
				fetches := client.PollFetches(ctx)
				if err := errors.Join(ctx.Err(), fetches.Err0()); err != nil {
					return err
				}
				var bad error
				fetches.EachRecord(func(r *kgo.Record) {
					id, err := uuid.Parse(header(r, sinkpkg.ID))
					if err != nil {
						bad = err
						return
					}
					see(id)
				})
				if bad != nil {
					return bad
				}
			}
		},
	}
}

func stormRabbitMQ(t *testing.T, s *storm, pipeline bool) stormTarget {
	v := newVhost(t)
	w := newWire(t, v.target)
	faults := append(s.broken(w), stormFault{name: "memory alarm", seldom: true, do: func() {
		rabbit.alarm.Lock()
		defer rabbit.alarm.Unlock()
		s.slowly(func() { rabbit.node.watermark(t, "0.00001") })
		s.pause(time.Second)
		rabbit.node.watermark(t, "0.6")
	}})
	if !pipeline { // with it, a message that is refused alone is overtaken
		policy := "/api/policies/" + v.name + "/full"
		faults = append(faults, stormFault{name: "queue full", do: func() {
			must(t, rabbit.node.call(http.MethodPut, policy, `{"pattern":"orders","definition":{"max-length":1,"overflow":"reject-publish"}}`))
			s.pause(100 * time.Millisecond)
			must(t, rabbit.node.call(http.MethodDelete, policy, ""))
		}})
	}
	return stormTarget{
		sink:   v.open(t, rabbitmq.Config{URL: v.through(w), Pipeline: pipeline, Timeout: stormTimeout}),
		faults: faults,
		read: func(ctx context.Context, see func(uuid.UUID)) error {
			arrivals, err := v.channel.ConsumeWithContext(ctx, "orders", "", true, false, false, false, nil)
			if err != nil {
				return err
			}
			for {
				var m amqp.Delivery
				var open bool
				select {
				case m, open = <-arrivals:
				case <-ctx.Done():
					return ctx.Err()
				}
				if !open {
					return errors.New("the channel has ended")
				}
				id, err := uuid.Parse(m.MessageId)
				if err != nil {
					return err
				}
				see(id)
			}
		},
	}
}

// stormPostgres inserts into a table that would take a message twice. The reader deletes what it has seen, so that
// rows of transactions that end late are not missed.
func stormPostgres(t *testing.T, s *storm) stormTarget {
	d := newDatabase(t)
	d.exec(t, "create table received (n bigserial primary key, id uuid not null)")
	d.exec(t, "create trigger failing before insert on received for each row execute function failing()")
	direct, err := url.Parse(d.url)
	must(t, err)
	w := newWire(t, direct.Host)
	through := *direct
	through.Host = w.addr()
	sink, err := postgres.New(t.Context(), postgres.Config{URL: sinkpkg.Secret(through.String()), Statement: "insert into received (id) values (@id)", Timeout: stormTimeout})
	must(t, err)
	t.Cleanup(func() { _ = sink.Close() })
	return stormTarget{
		sink: sink, once: true,
		faults: append(s.broken(w), stormFault{name: "rows refused", do: func() {
			d.fail(t, sinktest.Falter, s.next(3))
			s.pause(50 * time.Millisecond)
			d.fail(t, sinktest.Falter, nil)
		}}),
		read: func(ctx context.Context, see func(uuid.UUID)) error {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return ctx.Err()
				}
				rows, err := d.pool.Query(ctx, "with gone as (delete from received returning n, id) select id from gone order by n")
				if err != nil {
					return err
				}
				ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
				if err != nil {
					return err
				}
				for _, id := range ids {
					see(id)
				}
			}
		},
	}
}

// stormWebhook posts to a server that sometimes answers 503, breaks connections, or breaks them after it has taken
// what was posted.
func stormWebhook(t *testing.T, s *storm, mode webhook.Mode) stormTarget {
	var state atomic.Value
	state.Store("")
	h := http.HandlerFunc(func(answer http.ResponseWriter, req *http.Request) {
		now := state.Load()
		switch now {
		case "hangs up":
			panic(http.ErrAbortHandler)
		case "refuses":
			answer.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		ids, err := posted(req, mode)
		if err != nil { // the connection broke in the middle of the body
			panic(http.ErrAbortHandler)
		}
		for _, id := range ids {
			s.check.see(id)
		}
		if now == "takes and hangs up" {
			panic(http.ErrAbortHandler)
		}
		answer.WriteHeader(http.StatusNoContent)
	})
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	w := newWire(t, server.Listener.Addr().String())
	sink, err := webhook.New(t.Context(), webhook.Config{URL: "http://" + w.addr() + "/", Mode: mode, Timeout: stormTimeout})
	must(t, err)
	t.Cleanup(func() { _ = sink.Close() })
	faults := s.broken(w)
	for _, name := range []string{"hangs up", "refuses", "takes and hangs up"} {
		faults = append(faults, stormFault{name: name, do: func() {
			state.Store(name)
			s.pause(20 * time.Millisecond)
			state.Store("")
		}})
	}
	return stormTarget{sink: sink, faults: faults}
}

// posted returns the IDs of the messages in a request.
func posted(req *http.Request, mode webhook.Mode) ([]uuid.UUID, error) {
	if mode == webhook.Binary {
		id, err := uuid.Parse(req.Header.Get("Ce-Id"))
		return []uuid.UUID{id}, err
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var events []struct{ ID uuid.UUID }
	err = json.Unmarshal(body, &events)
	ids := make([]uuid.UUID, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	return ids, err
}
