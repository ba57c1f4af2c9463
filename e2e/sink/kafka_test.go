package sink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/emitd/emitd/outbox"
	sinkpkg "github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// cluster is a Kafka cluster in this process.
type cluster struct {
	*kfake.Cluster
	mu      sync.Mutex
	bad     map[string]sinktest.Fault // by ID
	release chan struct{}
}

func newCluster(t testing.TB, opts ...kfake.Opt) *cluster {
	t.Helper()
	k, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(4, "orders")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Cluster: k, release: make(chan struct{})}
	t.Cleanup(func() { c.fail(nil, "", nil); k.Close() })
	k.ControlKey(int16(kmsg.Produce), c.produce)
	return c
}

// produce makes a request fail as a whole if it contains a record with a fault, because brokers refuse
// whole batches.
func (c *cluster) produce(req kmsg.Request) (kmsg.Response, error, bool) {
	c.KeepControl()
	p := req.(*kmsg.ProduceRequest)
	switch fault := c.faultOf(p); fault {
	case sinktest.Hang:
		c.mu.Lock()
		release := c.release
		c.mu.Unlock()
		c.SleepControl(func() { <-release })
	case sinktest.Refuse:
		return answer(p, kerr.InvalidRecord.Code), nil, true
	case sinktest.Falter:
		return answer(p, kerr.PolicyViolation.Code), nil, true
	}
	return nil, nil, false
}

func (c *cluster) faultOf(p *kmsg.ProduceRequest) sinktest.Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, topic := range p.Topics {
		for _, partition := range topic.Partitions {
			for id, fault := range c.bad {
				if bytes.Contains(partition.Records, []byte(id)) {
					return fault
				}
			}
		}
	}
	return ""
}

func answer(p *kmsg.ProduceRequest, code int16) kmsg.Response {
	resp := p.ResponseKind().(*kmsg.ProduceResponse)
	for _, topic := range p.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
		for _, partition := range topic.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = partition.Partition, code
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (c *cluster) fail(_ *testing.T, f sinktest.Fault, ids []uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bad = map[string]sinktest.Fault{}
	for _, id := range ids {
		c.bad[id.String()] = f
	}
	if ids == nil {
		select {
		case <-c.release:
		default:
			close(c.release)
		}
	}
}

// failToo adds a fault to those of fail.
func (c *cluster) failToo(f sinktest.Fault, id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bad[id.String()] = f
}

// records reads the committed records of a topic.
func (c *cluster) records(t *testing.T, topic string) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), sinktest.Bound)
	defer cancel()
	ends := map[int32]int64{}
	for _, p := range c.PartitionInfos(topic) {
		if p.LastStableOffset > 0 {
			ends[p.Partition] = p.LastStableOffset
		}
	}
	var out []*kgo.Record
	for len(ends) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("the partitions %v did not end", ends)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
			if r.Offset >= ends[r.Partition]-1 {
				delete(ends, r.Partition)
			}
		})
		// Records of an aborted transaction are not returned, so the reader's position shows how far it is.
		for topic, partitions := range client.UncommittedOffsets() {
			_ = topic
			for p, at := range partitions {
				if end, open := ends[p]; open && at.Offset >= end {
					delete(ends, p)
				}
			}
		}
	}
	return out
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func (c *cluster) received(t *testing.T) []sinktest.Taken {
	t.Helper()
	return c.taken(t, "orders")
}

func (c *cluster) taken(t *testing.T, topic string) []sinktest.Taken {
	t.Helper()
	var out []sinktest.Taken
	for _, r := range c.records(t, topic) {
		out = append(out, sinktest.Taken{ID: header(r, sinkpkg.ID), Key: string(r.Key)})
	}
	return out
}

func (c *cluster) open(t testing.TB, cfg kafka.Config) *kafka.Sink {
	t.Helper()
	if cfg.Brokers == nil {
		cfg.Brokers = c.ListenAddrs()
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 3 * time.Second
	}
	s, err := kafka.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestKafka(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]kafka.Config{
		"plain": {}, "small batches": {MaxBytes: 10_000}, "one record a call": {Parallel: 1}, "transactional": {Transactional: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sinktest.Suite{Atomic: true, New: func(t *testing.T) *sinktest.Harness {
				c := newCluster(t)
				n := newNetwork(t, c)
				cfg := cfg
				cfg.Options = []kgo.Opt{kgo.Dialer(n.dial)}
				return &sinktest.Harness{
					Sink:     c.open(t, cfg),
					Received: c.received,
					Fail: func(t *testing.T, f sinktest.Fault, ids []uuid.UUID) {
						if f == sinktest.Down { // refused; the port stays reserved
							n.lose(refusing, c.ListenAddrs()...)
							return
						}
						c.fail(t, f, ids)
					},
				}
			}}.Run(t)
		})
	}
}

func TestKafkaFence(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	t.Run("story", fence{
		topic: "orders", received: c.received,
		open: func(t *testing.T) fencer { return c.open(t, kafka.Config{Transactional: true}) },
	}.run)
}

// TestKafkaTakeOverAbortsWhatIsOpen stops a relay in the middle of a transaction, with its records in
// Kafka's log. A takeover must abort them, and nothing that the relay does later may commit them.
func TestKafkaTakeOverAbortsWhatIsOpen(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	old, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.TransactionalID("emitd/billing/0-63"))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := old.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := old.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Key: []byte("key-0"), Value: []byte("zombie")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	young := c.open(t, kafka.Config{Transactional: true})
	all(t, []error{raise(t, young, "0-63", 6)}, nil)
	rows := sinktest.Rows("orders", 5, 1)
	all(t, deliver(t, young, "0-63", 6, rows), nil)
	if err := old.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
		t.Error("the deposed relay committed")
	}
	if n := len(c.received(t)); n != 5 {
		t.Errorf("readers see %d records, want 5", n)
	}
}

// TestKafkaFencedOwnerComesBackByFence checks that a relay that was fenced by a newer producer publishes
// nothing until Fence is called again.
func TestKafkaFencedOwnerComesBackByFence(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	rows := sinktest.Rows("orders", 6, 2)
	owner, late := c.open(t, kafka.Config{Transactional: true}), c.open(t, kafka.Config{Transactional: true})
	all(t, []error{raise(t, owner, "0-63", 6)}, nil)
	all(t, []error{raise(t, late, "0-63", 5)}, nil) // replaced before, but Kafka cannot know that
	all(t, deliver(t, owner, "0-63", 6, rows), outbox.ErrFenced)
	all(t, deliver(t, owner, "0-63", 6, rows), outbox.ErrFenced)
	all(t, []error{raise(t, owner, "0-63", 6)}, nil)
	all(t, deliver(t, owner, "0-63", 6, rows), nil)
	all(t, deliver(t, late, "0-63", 5, rows), outbox.ErrFenced)
	if n := len(c.received(t)); n != 6 {
		t.Errorf("readers see %d records, want 6", n)
	}
}

// TestKafkaTransactionIsWhole checks that nothing of a request that failed becomes visible.
func TestKafkaTransactionIsWhole(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.open(t, kafka.Config{Transactional: true, Linger: 50 * time.Millisecond})
	rows := sinktest.Rows("orders", 20, 3)
	c.fail(t, sinktest.Falter, []uuid.UUID{rows[19].ID})
	for i, err := range deliver(t, s, "0-63", 5, rows) {
		if err == nil {
			t.Errorf("row %d counts as delivered", i)
		}
	}
	if n := len(c.received(t)); n != 0 {
		t.Errorf("readers see %d records of an aborted transaction", n)
	}
}

func TestKafkaRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(2, "all"))
	s := c.open(t, kafka.Config{Topic: "all", Compression: "zstd"})
	rows := sinktest.Rows("orders", 2, 0)
	rows[0].Key, rows[0].Payload, rows[0].TraceParent = "k", nil, "00-a-b-01"
	all(t, deliver(t, s, "0-63", 5, rows), nil)
	for _, r := range c.records(t, "all") {
		first := header(r, sinkpkg.ID) == rows[0].ID.String()
		if first && (string(r.Key) != "k" || r.Value == nil || header(r, "traceparent") == "") || !first && (r.Key != nil || string(r.Value) != `{"n":1}`) {
			t.Errorf("key %q value %q headers %v", r.Key, r.Value, r.Headers)
		}
		for name, want := range map[string]string{"emitd-topic": "orders", "emitd-type": "order.placed", "emitd-generation": "5", "emitd-subscription": "billing", "tenant": "acme"} {
			if header(r, name) != want {
				t.Errorf("%s: %q, want %q", name, header(r, name), want)
			}
		}
	}
}

func TestKafkaErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		cfg     kafka.Config
		change  func(*outbox.Row)
		opts    []kfake.Opt
		kind    error
		message string
	}{
		{name: "no such topic", change: func(r *outbox.Row) { r.Topic = "nowhere" }, kind: outbox.ErrMissing, message: "no such topic"},
		{name: "no such topic of the configuration", cfg: kafka.Config{Topic: "nowhere"}, kind: outbox.ErrSinkDown, message: "UNKNOWN_TOPIC"},
		{name: "too large", cfg: kafka.Config{MaxBytes: 2000}, change: func(r *outbox.Row) { r.Payload = make([]byte, 3000) }, kind: outbox.ErrPermanent, message: "MESSAGE_TOO_LARGE"},
		{
			name: "wrong password", cfg: kafka.Config{SASL: kafka.SASL{Mechanism: "plain", User: "u", Password: "hunter2"}},
			opts: []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "right")}, kind: outbox.ErrSinkDown, message: "reach any broker",
		},
	} {
		for _, transactional := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, transactional=%v", c.name, transactional), func(t *testing.T) {
				t.Parallel()
				cfg := c.cfg
				cfg.Transactional = transactional
				s := newCluster(t, c.opts...).open(t, cfg)
				row := sinktest.Rows("orders", 1, 1)[0]
				if c.change != nil {
					c.change(&row)
				}
				err := deliver(t, s, "0-63", 5, []outbox.Row{row})[0]
				message := c.message
				if transactional && errors.Is(c.kind, outbox.ErrSinkDown) && c.cfg.Topic == "" {
					message = "fence emitd/billing/0-63"
				}
				if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), message) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("%v, want %v with %s", err, c.kind, message)
				}
			})
		}
	}
}

// TestKafkaStuckTopic checks a topic that takes no records because its partition has too few replicas. It
// may hold up only its own messages, whether the record's time ends first or the delivery's. If no broker
// answers by then, the sink is down.
func TestKafkaStuckTopic(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		limit  time.Duration // of the delivery; that of a record is 4 s
		silent bool
	}{
		{name: "record", limit: time.Minute},
		{name: "delivery", limit: 2500 * time.Millisecond},
		{name: "silent", limit: time.Minute, silent: true},
	} {
		for _, transactional := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, transactional=%v", c.name, transactional), func(t *testing.T) {
				t.Parallel()
				k := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "good", "stuck"))
				must(t, k.MoveTopicPartition("good", 0, 0))
				must(t, k.MoveTopicPartition("stuck", 0, 1))
				var silent atomic.Bool
				release := make(chan struct{})
				defer close(release)
				k.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
					k.KeepControl()
					if silent.Load() {
						k.SleepControl(func() { <-release })
					}
					return nil, nil, false
				})
				k.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
					k.KeepControl()
					if k.CurrentNode() != 1 {
						return nil, nil, false
					}
					silent.Store(c.silent)
					return answer(req.(*kmsg.ProduceRequest), kerr.NotEnoughReplicas.Code), nil, true
				})
				s := k.open(t, kafka.Config{Timeout: 4 * time.Second, Transactional: transactional})
				rows := sinktest.Rows("good", 4, 4)
				if transactional {
					must(t, raise(t, s, "0-63", 5))
				}
				for i, err := range deliver(t, s, "0-63", 5, rows) {
					if err != nil {
						t.Fatalf("row %d, when nothing is wrong: %v", i, err)
					}
				}
				rows[0].Topic = "stuck"
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				d := sinktest.Delivery(rows)
				d.Range, d.Epoch = "0-63", 5
				for i, err := range sinktest.Spread(s.Deliver(ctx, d), len(rows)) {
					failed := i == 0 || transactional && c.name != "record" // a transaction is whole
					if (err != nil) != failed || errors.Is(err, outbox.ErrSinkDown) != (failed && c.silent) || errors.Is(err, outbox.ErrPermanent) {
						t.Errorf("row %d of %s: %v", i, rows[i].Topic, err)
					}
				}
			})
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestKafkaInnocentsOfABatch checks that records that shared a refused batch are not blamed for it.
func TestKafkaInnocentsOfABatch(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.open(t, kafka.Config{Linger: 50 * time.Millisecond})
	rows := sinktest.Rows("orders", 50, 0)
	c.fail(t, sinktest.Refuse, []uuid.UUID{rows[7].ID})
	errs := deliver(t, s, "0-63", 5, rows)
	if !errors.Is(errs[7], outbox.ErrPermanent) {
		t.Errorf("the refused record: %v", errs[7])
	}
	all(t, slices.Delete(errs, 7, 8), nil)
}

func TestKafkaConfig(t *testing.T) {
	t.Parallel()
	b := []string{"localhost:1"}
	for want, cfg := range map[string]kafka.Config{
		"brokers is empty":        {},
		"compression is \"rar\"":  {Brokers: b, Compression: "rar"},
		"must not be negative":    {Brokers: b, Timeout: -1},
		"no mechanism":            {Brokers: b, SASL: kafka.SASL{User: "u"}},
		"sasl.mechanism is \"x\"": {Brokers: b, SASL: kafka.SASL{Mechanism: "x", Password: "hunter2"}},
		"read tls.ca":             {Brokers: b, TLS: &sinkpkg.TLS{CA: "/does/not/exist"}},
	} {
		if _, err := kafka.New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want …%s…", err, want)
		}
	}
}
