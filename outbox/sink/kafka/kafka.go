// Package kafka is the sink that produces messages to Apache Kafka, or anything that speaks its protocol.
//
// # What is produced
//
// Each message becomes a record in the topic that the message names, or in Config.Topic. The record has
// the message's key, so messages of a key are in one partition; the partition is chosen as Kafka's own
// Java client does. Messages without a key are spread. The headers are those of package sink (emitd-id,
// emitd-generation, …) and the message's own. An empty payload is an empty value, never a tombstone.
//
// # Idempotent mode, the default
//
// A record counts as taken when all in-sync replicas have it. The client numbers its records, so the
// broker drops the client's own repetitions. The records of a key in a delivery are in one batch, which
// the broker takes or refuses as a whole; what does not fit waits until that batch was taken. So a batch
// that fails never lets a later record of a key overtake an earlier one. If the broker refuses a batch
// for good, it is repeated record by record, and only the record at fault is given up. A batch whose
// answer was lost comes again as a whole.
//
// A relay that is paused while it produces, and is replaced meanwhile, can still produce when it resumes.
// Consumers drop repetitions by the header emitd-id, and may drop lower generations of a shard.
//
// # Transactional mode
//
// With Config.Transactional each delivery is one transaction of the transactional ID
// emitd/<subscription>/<range>. Fence initialises the producer. From then on the broker rejects every
// older producer of that ID and aborts its open transaction: consumers that read committed records see
// nothing of a relay that was replaced. IDs of the same subscription with overlapping ranges, left from
// another number of relays, are fenced too, as far as the brokers list them. A delivery becomes visible
// as a whole. A record that cannot be produced is left out, and the rest is produced again.
//
// Kafka does not know the relays' epochs: the last producer to initialise wins. So a relay that was
// replaced between its claim and Fence would win for a moment. Relays therefore claim again after Fence
// and before the first delivery. The owner that was fenced by mistake claims and fences again.
//
// # When brokers vanish
//
// A delivery that waits checks every half second whether any broker answers. If none does, because
// nothing listens or all are silent for 5 s, the sink is down. The client alone would report that only
// after Config.Timeout, or never for a record whose answer was lost. No more records are given to the
// client until a broker answers. Records that were sent and not answered may have been taken: their
// messages are delivered twice, in the order of their keys. In a transaction they are aborted, unless the
// lost answer was that of a commit.
//
// If one of several brokers vanishes, the partitions that it leads wait until another broker leads them.
// Their messages fail or hang and are tried again, and other messages go on. A broker that is silent, on
// connecting or afterwards, is refused to all clients of the sink for 5 s. So they look for another
// broker and for the new leaders at once, instead of waiting once for each request.
//
// A range has one transaction at a time. A transaction that waits for such a partition holds up the other
// deliveries of the range. If their time ends first, they report that the sink is down, so no attempt of
// their messages is counted. The same holds for deliveries that wait for a producer. The initialisation of
// a producer goes on for up to Config.Timeout when the delivery that began it has no time left, and later
// ones wait for it; so a page timeout below 5 s does not keep a range from going on.
//
// # What an error means
//
//	record too large or invalid, topic's name invalid  permanent
//	no such topic                                      permanent; of Config.Topic: the sink is down
//	no broker answers, login refused                   the sink is down
//	no producer, or other transactions do not end      the sink is down
//	Config.Timeout while brokers answer                another attempt: it is about the topic
//	transactional ID taken over                        fenced
//	topic not allowed, others                          another attempt
package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/emitd/emitd/internal/address"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// Config configures the sink. Only Brokers is required.
type Config struct {
	// Brokers are the addresses, host:port, from which the client learns all brokers.
	Brokers []string `yaml:"brokers"`
	// Topic receives all messages, instead of each message's own topic.
	Topic string `yaml:"topic"`
	// ClientID is the client's name in the brokers' logs; default emitd.
	ClientID string `yaml:"client_id"`
	// Transactional fences relays that were replaced, and costs about two round trips per delivery.
	Transactional bool `yaml:"transactional"`
	// TransactionTimeout is when the broker aborts an open transaction by itself; default 40 s.
	TransactionTimeout time.Duration `yaml:"transaction_timeout"`
	// Timeout bounds producing one record, including repetitions; default 30 s.
	Timeout time.Duration `yaml:"timeout"`
	// Linger is how long a batch of a transaction waits for more records; default none. Without transactions
	// it has no effect.
	Linger time.Duration `yaml:"linger"`
	// MaxBytes bounds a batch, and so a record; default 1,000,012 as in Kafka's clients. It must not exceed
	// max.message.bytes of the topic.
	MaxBytes int `yaml:"max_bytes"`
	// Parallel is how many records a call may have; default 1,000. With 1 each record is a call of its own.
	Parallel int `yaml:"parallel"`
	// Compression is none (default), gzip, snappy, lz4 or zstd.
	Compression string `yaml:"compression"`
	// TLS is used if it is not nil, even if it is empty.
	TLS *sink.TLS `yaml:"tls"`
	// SASL is the login, if one is needed.
	SASL SASL `yaml:"sasl"`
	// Options are added to those of the clients, last. kgo.RequestTimeoutOverhead among them sets the time
	// without an answer after which a broker counts as gone; default 5 s.
	Options []kgo.Opt `yaml:"-"`
}

// SASL holds the login.
type SASL struct {
	Mechanism string      `yaml:"mechanism"` // plain, scram-sha-256 or scram-sha-512; empty: no login
	User      string      `yaml:"user"`
	Password  sink.Secret `yaml:"password"`
}

// Sink produces messages. It is safe for concurrent use.
type Sink struct {
	cfg    Config
	opts   []kgo.Opt
	codec  kgo.CompressionCodec
	client *kgo.Client  // sends requests other than those of producers
	watch  *brokerWatch // checks through client whether brokers answer

	batchBytes int // bound of the records of one batch

	mu        sync.Mutex
	idle      []*batcher            // without records
	batchers  map[*batcher]struct{} // all
	producers map[string]*producer  // by transactional id
	openings  map[string]*opening   // by transactional ID
	closed    bool
}

var (
	_ outbox.Sink   = (*Sink)(nil)
	_ outbox.Fencer = (*Sink)(nil)
)

// New checks the configuration. It does not connect.
func New(_ context.Context, cfg Config) (*Sink, error) {
	s := &Sink{cfg: cfg, producers: map[string]*producer{}, batchers: map[*batcher]struct{}{}, openings: map[string]*opening{}}
	if err := s.configure(); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	d, err := newDialer(s.opts)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", s.redacted(err))
	}
	s.opts = append(s.opts, d.options()...)
	if s.client, err = s.newClient(); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s.watch = &brokerWatch{client: s.client, redact: s.redacted, silence: d.silence}
	s.batchBytes = s.cfg.MaxBytes
	if set, ok := s.client.OptValue(kgo.ProducerBatchMaxBytes).(int32); ok { // Config.Options may have changed it
		s.batchBytes = int(set)
	}
	s.batchBytes = max(s.batchBytes-batchHead, 1)
	return s, nil
}

// configure sets the defaults, validates the configuration and makes the client's options.
func (s *Sink) configure() error {
	c := &s.cfg
	if len(c.Brokers) == 0 {
		return errors.New("brokers is empty")
	}
	for i, broker := range c.Brokers {
		if err := address.HostPort(broker); err != nil {
			return fmt.Errorf("brokers[%d] %w", i, err)
		}
	}
	if c.Timeout < 0 || c.Linger < 0 || c.MaxBytes < 0 || c.Parallel < 0 || c.TransactionTimeout < 0 {
		return errors.New("timeout, transaction_timeout, linger, max_bytes and parallel must not be negative")
	}
	c.Timeout = sink.DurationOr(c.Timeout, 30*time.Second)
	c.TransactionTimeout = sink.DurationOr(c.TransactionTimeout, 40*time.Second)
	if c.MaxBytes == 0 {
		c.MaxBytes = 1_000_012
	}
	if c.Parallel == 0 {
		c.Parallel = 1000
	}
	if c.ClientID == "" {
		c.ClientID = "emitd"
	}
	var err error
	if s.codec, err = codecOf(c.Compression); err != nil {
		return err
	}
	s.opts = []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...), kgo.ClientID(c.ClientID), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordDeliveryTimeout(c.Timeout), kgo.RetryTimeout(c.Timeout), kgo.ProducerLinger(c.Linger),
		kgo.ProducerBatchMaxBytes(int32(min(c.MaxBytes, 1<<30))), // bounded
		kgo.DialTimeout(silent), kgo.RequestTimeoutOverhead(silent), kgo.UnknownTopicRetries(8), kgo.MetadataMinAge(500 * time.Millisecond), kgo.DisableClientMetrics(),
	}
	if c.TLS != nil {
		var cfg *tls.Config
		if cfg, err = c.TLS.Config(); err != nil {
			return err
		}
		s.opts = append(s.opts, kgo.DialTLSConfig(cfg))
	}
	login, err := c.SASL.mechanism()
	if err != nil {
		return err
	}
	if login != nil {
		s.opts = append(s.opts, kgo.SASL(login))
	}
	s.opts = append(s.opts, c.Options...)
	return nil
}

func codecOf(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "", "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	}
	return kgo.CompressionCodec{}, fmt.Errorf("compression is %q, want none, gzip, snappy, lz4 or zstd", name)
}

func (a SASL) mechanism() (sasl.Mechanism, error) {
	user, password := a.User, string(a.Password)
	switch a.Mechanism {
	case "":
		if user != "" || password != "" {
			return nil, errors.New("sasl has a user or password, but no mechanism")
		}
		return nil, nil
	case "plain":
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case "scram-sha-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("sasl.mechanism is %q, want plain, scram-sha-256 or scram-sha-512", a.Mechanism)
}

// Close closes the connections. Records in flight fail.
func (s *Sink) Close() error {
	s.mu.Lock()
	s.closed = true
	producers, batchers := s.producers, maps.Clone(s.batchers)
	s.producers = map[string]*producer{}
	s.mu.Unlock()
	for _, p := range producers {
		p.close()
	}
	for b := range batchers {
		b.client.Close()
	}
	s.client.Close()
	return nil
}

// Deliver produces the rows.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	if len(d.Rows) == 0 {
		return nil
	}
	if s.cfg.Transactional {
		return s.deliverInTx(ctx, d)
	}
	ctx, stop := s.watch.withBroker(ctx)
	defer stop()
	records := make([]*kgo.Record, len(d.Rows))
	for i, row := range d.Rows {
		records[i] = s.record(d, row)
	}
	plan := sink.Plan{
		Parallel: callsAtOnce, Rows: s.cfg.Parallel, Bytes: s.batchBytes, Ordered: true,
		Size:   func(i int) int { return maxSize(records[i]) },
		Target: func(i int) string { return records[i].Topic }, // a key has one partition in each topic
	}
	return sink.Run(ctx, d.Rows, plan, func(ctx context.Context, rows []int) []error {
		return s.produceTogether(ctx, records, rows)
	})
}

// topic returns the topic of a row's record.
func (s *Sink) topic(row outbox.Row) string { return cmp.Or(s.cfg.Topic, row.Topic) }

// record returns the record of a row.
func (s *Sink) record(d outbox.Delivery, row outbox.Row) *kgo.Record {
	r := &kgo.Record{Topic: s.topic(row), Value: row.Payload}
	if s.cfg.Topic != "" {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: sink.Topic, Value: []byte(row.Topic)})
	}
	if row.Key != "" {
		r.Key = []byte(row.Key)
	}
	if r.Value == nil {
		r.Value = []byte{}
	}
	headers := sink.Headers(d, row)
	size := 0
	for _, h := range headers {
		size += len(h.Value)
	}
	r.Headers = slices.Grow(r.Headers, len(headers))
	values := make([]byte, 0, size) // of all headers: one allocation
	for _, h := range headers {
		if h.Name != sink.Key {
			from := len(values)
			values = append(values, h.Value...)
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Name, Value: values[from:len(values):len(values)]})
		}
	}
	return r
}
