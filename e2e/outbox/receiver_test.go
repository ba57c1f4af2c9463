package outbox

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/emitd/emitd/internal/pgtest"
)

// receiver is the destination of the relays.
type receiver struct {
	// sink returns the YAML of the subscription's sink for an address of the receiver.
	sink    func(address string) string
	address string    // host and port of the receiver; "" if no proxy can be put in front of it
	valve   *holdback // of the receiver itself, in that case; may be nil
	args    []string  // of the nodes
	// arrivals returns what readers see, in their order. It is read once, when everything is delivered.
	arrivals func(c *cluster) []arrival
	// arrived reports whether a message has been seen; nil if that is expensive.
	arrived func(id uuid.UUID) bool
	// fenced says that the receiver itself rejects a relay that was replaced.
	fenced bool
	again  repeats // of what readers see
}

// receivers opens fresh receivers, by name.
var receivers = map[string]func(t *testing.T) receiver{
	"webhook":  func(t *testing.T) receiver { return newHook(t).receiver() },
	"postgres": toPostgres,
	"nats":     func(t *testing.T) receiver { return toNATS(t, 2*time.Minute, never) },
	// A stream with a short duplicate window: only its fence rejects late messages.
	"nats, forgetful": func(t *testing.T) receiver { return toNATS(t, 100*time.Millisecond, byHandOver) },
	"kafka":           toKafka,
	"queue":           toQueue,
}

// hook is a service that is posted to.
type hook struct {
	server *httptest.Server
	// answer returns the status for messages of a key; nil means 200.
	answer func(key string) int

	mu   sync.Mutex
	seen []arrival
	at   map[uuid.UUID]time.Time // first arrival
}

func newHook(t *testing.T) *hook {
	h := &hook{at: map[uuid.UUID]time.Time{}}
	h.server = httptest.NewServer(h)
	t.Cleanup(h.server.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if h.answer != nil {
		if code := h.answer(req.Header.Get("ce-partitionkey")); code != http.StatusOK {
			w.WriteHeader(code)
			return
		}
	}
	id, err := uuid.Parse(req.Header.Get("ce-id"))
	generation, err2 := strconv.ParseInt(req.Header.Get("emitd-generation"), 10, 64)
	if err != nil || err2 != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, arrival{id: id, generation: generation})
	if _, again := h.at[id]; !again {
		h.at[id] = time.Now()
	}
}

// arrived returns when a message first arrived.
func (h *hook) arrived(id uuid.UUID) (time.Time, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.at[id]
	return at, ok
}

func (h *hook) receiver() receiver {
	return receiver{
		again: byHandOver, address: h.server.Listener.Addr().String(),
		sink: func(address string) string {
			return fmt.Sprintf(`{kind: webhook, url: "http://%s", parallel: 32}`, address)
		},
		arrivals: func(*cluster) []arrival {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.seen
		},
		arrived: func(id uuid.UUID) bool {
			_, ok := h.arrived(id)
			return ok
		},
	}
}

// toPostgres inserts into a table that would accept a message twice: only the sink prevents that.
func toPostgres(t *testing.T) receiver {
	t.Helper()
	text := pgtest.Database(t)
	target, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(ctx) })
	if _, err := conn.Exec(ctx, `CREATE TABLE received (n bigserial PRIMARY KEY, id uuid NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return receiver{
		fenced: true, again: never,
		address: target.Host,
		sink: func(address string) string {
			through := *target
			through.Host = address
			return fmt.Sprintf(`{kind: postgres, url: %q, create: true, statement: "insert into received (id) values (@id)"}`, through.String())
		},
		arrivals: func(*cluster) []arrival {
			rows, err := conn.Query(ctx, `SELECT id FROM received ORDER BY n`)
			if err != nil {
				t.Fatal(err)
			}
			seen, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a arrival, err error) {
				err = row.Scan(&a.id)
				return a, err
			})
			if err != nil {
				t.Fatal(err)
			}
			return seen
		},
	}
}

// startNATS starts a server.
func startNATS(t *testing.T) (url string, js jetstream.JetStream) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the NATS server does not start")
	}
	conn, err := natsgo.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	return s.ClientURL(), js
}

// toNATS publishes to a stream that also binds the markers of the fence, and drops repetitions within a
// window.
func toNATS(t *testing.T, window time.Duration, again repeats) receiver {
	t.Helper()
	url, js := startNATS(t)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{topic, "emitd.fence.>"}, Storage: jetstream.MemoryStorage, Duplicates: window,
	})
	if err != nil {
		t.Fatal(err)
	}
	return receiver{
		fenced: true, again: again,
		address: strings.TrimPrefix(url, "nats://"),
		sink: func(address string) string {
			return fmt.Sprintf(`{kind: nats, url: "nats://%s", stream: ORDERS, fence: true}`, address)
		},
		arrivals: func(*cluster) []arrival { return inStream(t, js) },
	}
}

// inStream returns the messages of the stream.
func inStream(t *testing.T, js jetstream.JetStream) (seen []arrival) {
	t.Helper()
	for _, m := range messagesIn(t, js) {
		seen = append(seen, parse(t, m.Headers().Get("Nats-Msg-Id"), m.Headers().Get("emitd-generation")))
	}
	return seen
}

// messagesIn reads the stream from its beginning.
func messagesIn(t *testing.T, js jetstream.JetStream) (all []jetstream.Msg) {
	t.Helper()
	stream, err := js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(topic))
	if err != nil {
		t.Fatal(err)
	}
	reader, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := reader.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	for range info.State.Subjects[topic] {
		m, err := messages.Next(jetstream.NextMaxWait(30 * time.Second))
		if err != nil {
			t.Fatalf("after %d messages: %v", len(all), err)
		}
		all = append(all, m)
	}
	return all
}

func parse(t *testing.T, id, generation string) arrival {
	t.Helper()
	a := arrival{}
	var err error
	if a.id, err = uuid.Parse(id); err != nil {
		t.Fatal(err)
	}
	if a.generation, err = strconv.ParseInt(generation, 10, 64); err != nil {
		t.Fatal(err)
	}
	return a
}

// toKafka produces in transactions. A crash after a transaction and before the advance of the cursor
// repeats messages: readers see them twice, but none of a replaced relay.
func toKafka(t *testing.T) receiver {
	t.Helper()
	v := &holdback{}
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, topic), kfake.ListenFn(func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		return tapped{l, v}, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.release(); k.Close() })
	return receiver{
		fenced: true, again: byHandOver, valve: v,
		sink: func(string) string {
			return fmt.Sprintf(`{kind: kafka, brokers: [%q], transactional: true}`, k.ListenAddrs()[0])
		},
		arrivals: func(*cluster) []arrival { return inTopic(t, k) },
	}
}

// inTopic reads the committed records of the topic, in order within each partition.
func inTopic(t *testing.T, k *kfake.Cluster) (seen []arrival) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ends := map[int32]int64{}
	for _, p := range k.PartitionInfos(topic) {
		if p.LastStableOffset > 0 {
			ends[p.Partition] = p.LastStableOffset
		}
	}
	for len(ends) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("the partitions %v do not end", ends)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				a := parse(t, header(r, "emitd-id"), header(r, "emitd-generation"))
				a.partition = r.Partition
				seen = append(seen, a)
			}
			if r.Offset >= ends[r.Partition]-1 {
				delete(ends, r.Partition)
			}
		})
		// Records of an aborted transaction are not returned, so the reader's position shows how far it is.
		for p, at := range client.UncommittedOffsets()[topic] {
			if end, open := ends[p]; open && at.Offset >= end {
				delete(ends, p)
			}
		}
	}
	return seen
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
