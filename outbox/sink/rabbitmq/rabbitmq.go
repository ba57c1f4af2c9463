// Package rabbitmq is the sink that publishes messages to RabbitMQ, or anything that speaks AMQP 0-9-1.
//
// # What is published
//
// Each message becomes a persistent AMQP message. Its message-id is the message's ID, its type the type,
// its timestamp the time of publishing, and its content-type that of the message's header of this name.
// Its headers are the message's other headers, except CC and BCC, by which RabbitMQ would route it, and
// those of package sink (emitd-key, emitd-generation, …).
// It goes to Config.Exchange with the routing key that Config.RoutingKey gives. By default it goes to the
// default exchange with the topic as routing key, which is the queue of that name.
//
// A message counts as taken when the broker has confirmed it: for durable queues when it is on disk, for
// quorum queues when a majority has it. It is published as mandatory. A message that no queue takes is
// returned, and fails as permanent with the broker's reason, unless Config.Unroutable is set. At most one
// message of a key is in flight, but all keys of a delivery at once.
//
// With Config.Pipeline all messages of a delivery are in flight at once, which makes one busy key many times
// as fast. AMQP has no condition by which the broker would stop behind a message that it refused. So the
// messages of its key that were in flight may arrive before it, and once more after it. Where no message is
// ever refused alone (no queue with a limit that rejects, all messages of a key with the same route), the
// order is kept: a connection or channel that breaks stops everything behind the message that it lost.
//
// The next delivery after a lost connection connects again. Messages that were in flight are not
// confirmed, and are delivered again: consumers drop repetitions by message-id.
//
// # What an error means
//
//	returned as unroutable                          permanent
//	refused (nack): a full queue, a queue that fails another attempt
//	no such exchange, not allowed, login refused    the sink is down
//	not connected, blocked by memory or disk alarm  the sink is down
//	no confirmation within Config.Timeout           that of a call that hangs
//	channel closed for one message: it is too large that of a call that hangs
//
// # What is not promised
//
// A fence, because AMQP has none. A relay that was paused and replaced can still publish what it had
// begun to deliver. Consumers may reject a lower emitd-generation of a shard.
package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/emitd/emitd/internal/address"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink"
)

// Config configures the sink. Only URL is required.
type Config struct {
	// URL is the broker's address: amqp://user:password@host:5672/vhost, or amqps://….
	URL sink.Secret `yaml:"url"`
	// Exchange is the exchange to publish to; default the default exchange, whose routing keys are queues.
	Exchange string `yaml:"exchange"`
	// RoutingKey may contain {topic}, {type} and {key}; default {topic}.
	RoutingKey string `yaml:"routing_key"`
	// Unroutable says that a message that no queue takes counts as delivered, although nobody gets it.
	Unroutable bool `yaml:"unroutable"`
	// Timeout bounds the wait for a confirmation, and connecting; default 10 s.
	Timeout time.Duration `yaml:"timeout"`
	// Heartbeat is the AMQP heartbeat, by which a dead peer is noticed; default 10 s.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Parallel is how many messages of a delivery may be in flight; default 1,000.
	Parallel int `yaml:"parallel"`
	// Pipeline lets several messages of a key be in flight. Then a message that the broker refuses may be
	// overtaken by those of its key that were in flight behind it. They are published again after it.
	Pipeline bool `yaml:"pipeline"`
	// Name is the connection's name as the broker shows it; default emitd.
	Name string `yaml:"name"`
	// TLS is used for amqps.
	TLS sink.TLS `yaml:"tls"`
}

// Sink publishes messages. It is safe for concurrent use.
type Sink struct {
	cfg    Config
	uri    amqp.URI
	tls    *tls.Config
	mu     chan struct{} // held while connecting and while reading the fields below
	link   *link         // nil: not connected
	failed error         // why the last attempt to connect failed
	tried  time.Time     // when that was
	closed bool
}

var _ outbox.Sink = (*Sink)(nil)

// again is the pause after a failure to connect; during it the same error is returned.
const again = time.Second

// New checks the configuration. It does not connect.
func New(_ context.Context, cfg Config) (*Sink, error) {
	s := &Sink{cfg: cfg, mu: make(chan struct{}, 1)}
	c := &s.cfg
	var err error
	if _, err := address.URL(string(c.URL)); err != nil {
		return nil, fmt.Errorf("rabbitmq: url %w", err)
	}
	if s.uri, err = amqp.ParseURI(string(c.URL)); err != nil {
		return nil, errors.New("rabbitmq: url must be amqp://user:password@host:port/vhost, or amqps://…")
	}
	if c.Timeout < 0 || c.Heartbeat < 0 || c.Parallel < 0 {
		return nil, errors.New("rabbitmq: timeout, heartbeat and parallel must not be negative")
	}
	c.Timeout = sink.DurationOr(c.Timeout, 10*time.Second)
	c.Heartbeat = sink.DurationOr(c.Heartbeat, 10*time.Second)
	if c.Parallel == 0 {
		c.Parallel = 1000
	}
	if c.RoutingKey == "" {
		c.RoutingKey = "{topic}"
	}
	if c.Name == "" {
		c.Name = "emitd"
	}
	if s.tls, err = c.TLS.Config(); err != nil {
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	if s.tls.ServerName == "" {
		s.tls.ServerName = s.uri.Host
	}
	return s, nil
}

// Close closes the connection. Messages in flight are not confirmed.
func (s *Sink) Close() error {
	s.mu <- struct{}{}
	defer func() { <-s.mu }()
	s.closed = true
	if s.link != nil {
		s.link.close()
		s.link = nil
	}
	return nil
}

// Deliver publishes the rows.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	if len(d.Rows) == 0 {
		return nil
	}
	l, err := s.connect(ctx)
	if err != nil {
		return []error{err}
	}
	plan := sink.Plan{Rows: min(s.cfg.Parallel, rowsInCall), Parallel: max(s.cfg.Parallel/rowsInCall, 1)}
	if s.cfg.Pipeline {
		plan = sink.Plan{Rows: s.cfg.Parallel, Ordered: true}
	}
	return sink.Run(ctx, d.Rows, plan, func(ctx context.Context, rows []int) []error { return s.publish(ctx, l, d, rows) })
}

// rowsInCall is how many messages, each of another key, one call has. Several calls of a delivery go on at the same
// time, so keys need not wait for each other.
const rowsInCall = 64

// check returns the routing key of a row, or why it cannot be published now.
func (s *Sink) check(l *link, row outbox.Row) (key string, err error) {
	key = s.routingKey(row)
	if len(key) > 255 {
		return "", sink.Permanent("publish: the routing key has %d bytes, the limit is 255", len(key))
	}
	if why := l.blocked(); why != "" {
		return "", sink.Down(s.what(key), errors.New("the broker blocks publishers: "+why))
	}
	return key, nil
}

func (s *Sink) what(key string) string {
	return fmt.Sprintf("publish to %q with routing key %.80q", s.cfg.Exchange, key)
}

// outcome returns the error of a message that was published.
func (s *Sink) outcome(ctx context.Context, l *link, key, returned string, err error) error {
	if err == nil && returned == "" {
		return nil
	}
	what := s.what(key)
	switch {
	case err == nil:
		return sink.Missing("%s: no queue is bound to receive it: %s", what, returned)
	case ctx.Err() != nil && l.blocked() != "":
		return sink.Down(what, errors.New("the broker blocks publishers: "+l.blocked()))
	case ctx.Err() != nil:
		return fmt.Errorf("%s: not confirmed: %w", what, context.Cause(ctx))
	default:
		return classify(what, err)
	}
}

// classify returns the kind of an error of a channel or connection.
func classify(what string, err error) error {
	e, _ := errors.AsType[*amqp.Error](err)
	switch {
	case e == nil:
		return fmt.Errorf("%s: %w", what, err)
	case e.Code == amqp.NotFound, e.Code == amqp.AccessRefused, e.Code == amqp.NotAllowed, e.Code == amqp.ResourceLocked:
		return sink.Down(what, err) // exchange and login are configured, so this holds for all messages
	case e.Code == amqp.PreconditionFailed: // by one message, and with it ended all that were in flight
		return progress.Unanswered(fmt.Errorf("%s: %w", what, err))
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

func (s *Sink) routingKey(row outbox.Row) string {
	if s.cfg.RoutingKey == "{topic}" {
		return row.Topic
	}
	return strings.NewReplacer("{topic}", row.Topic, "{type}", row.Type, "{key}", row.Key).Replace(s.cfg.RoutingKey)
}

func message(d outbox.Delivery, row outbox.Row) amqp.Publishing {
	m := amqp.Publishing{
		MessageId: row.ID.String(), Type: row.Type, Timestamp: row.CreatedAt, DeliveryMode: amqp.Persistent,
		ContentType: sink.ContentType(row, ""), Body: row.Payload, Headers: amqp.Table{},
	}
	for _, h := range sink.Headers(d, row) {
		if h.Name != "CC" && h.Name != "BCC" { // by these the broker routes, and they must be lists
			m.Headers[h.Name] = h.Value
		}
	}
	m.Headers[sink.Topic] = row.Topic
	if len(m.ContentType) > 255 {
		m.ContentType = "" // it remains among the headers
	}
	return m
}
