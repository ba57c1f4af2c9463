// Package rabbitmq is the sink that publishes messages to RabbitMQ and what speaks AMQP 0-9-1.
//
// # What is published
//
// A persistent message with message-id = the id, type = the type, timestamp = when it was published,
// content-type from the message's header of that name; other headers as headers, with those of package
// sink (emitd-key, emitd-generation, …). It goes to Config.Exchange with the routing key that
// Config.RoutingKey makes of it; by default to the default exchange with the topic as routing key,
// which is the queue of that name.
//
// A message counts as taken when the broker has confirmed it: for durable queues when it is on disk,
// for quorum queues when a majority has it. It is published as mandatory: one that no queue takes is
// returned and is permanent, with the broker's words; Config.Unroutable lets those pass. One message
// of a key is under way at a time, all keys of a delivery at once.
//
// A connection that is lost is made again by the next delivery. Messages that were under way are then
// not confirmed, and are delivered again: consumers drop repetitions by message-id.
//
// # What an error means
//
//	returned as unroutable                          permanent
//	refused (nack): a full queue, a queue that fails another attempt
//	no such exchange, not allowed, login refused    the sink is down
//	not connected, blocked by memory or disk alarm  the sink is down
//	no confirmation within Config.Timeout           another attempt
//
// # What is not promised
//
// A fence: AMQP knows none. A deposed relay that was paused can still publish what it had in hand;
// consumers may refuse a lower emitd-generation of a shard.
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
	"github.com/emitd/emitd/outbox/sink"
)

// Config of the sink. Only URL is required.
type Config struct {
	// URL of the broker: amqp://user:password@host:5672/vhost, or amqps://….
	URL sink.Secret `yaml:"url"`
	// Exchange to publish to; default the default exchange, whose routing keys are queues.
	Exchange string `yaml:"exchange"`
	// RoutingKey may contain {topic}, {type} and {key}; default {topic}.
	RoutingKey string `yaml:"routing_key"`
	// Unroutable says that messages which no queue takes are delivered as they are: to nobody.
	Unroutable bool `yaml:"unroutable"`
	// Timeout of a confirmation, and of connecting; default 10 s.
	Timeout time.Duration `yaml:"timeout"`
	// Heartbeat that notices a dead peer; default 10 s.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Parallel is how many messages are under way at once in a delivery; default 1,000.
	Parallel int `yaml:"parallel"`
	// Name of the connection as the broker shows it; default emitd.
	Name string `yaml:"name"`
	// TLS of amqps.
	TLS sink.TLS `yaml:"tls"`
}

// Sink publishes messages. It is safe for concurrent use.
type Sink struct {
	cfg    Config
	uri    amqp.URI
	tls    *tls.Config
	turn   chan struct{} // held while connecting and while looking at what follows
	link   *link         // nil: not connected
	failed error         // why the last attempt to connect failed
	tried  time.Time     // when
	closed bool
}

var _ outbox.Sink = (*Sink)(nil)

// again is how long a failure to connect is believed before it is tried anew.
const again = time.Second

// New checks the configuration. It does not connect.
func New(_ context.Context, cfg Config) (*Sink, error) {
	s := &Sink{cfg: cfg, turn: make(chan struct{}, 1)}
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
	c.Timeout = sink.Default(c.Timeout, 10*time.Second)
	c.Heartbeat = sink.Default(c.Heartbeat, 10*time.Second)
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

// Close ends the connection. Messages that are under way are not confirmed.
func (s *Sink) Close() error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
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
	return sink.Each(ctx, d.Rows, s.cfg.Parallel, func(ctx context.Context, i int) error {
		return s.publish(ctx, l, d, d.Rows[i])
	})
}

// publish publishes a row and waits for the broker's word.
func (s *Sink) publish(ctx context.Context, l *link, d outbox.Delivery, row outbox.Row) error {
	key := s.routingKey(row)
	if len(key) > 255 {
		return sink.Permanent("publish: the routing key has %d bytes, the limit is 255", len(key))
	}
	what := fmt.Sprintf("publish to %q with routing key %.80q", s.cfg.Exchange, key)
	if why := l.blocked(); why != "" {
		return sink.Down(what, errors.New("the broker blocks publishers: "+why))
	}
	ctx, cancel := sink.Limit(ctx, sink.Deadline{What: "the broker", After: s.cfg.Timeout})
	defer cancel()
	returned, err := l.publish(ctx, s.cfg.Exchange, key, !s.cfg.Unroutable, message(d, row))
	switch {
	case err == nil && returned != "":
		return sink.Permanent("%s: no queue takes it: %s", what, returned)
	case err == nil:
		return nil
	case ctx.Err() != nil && l.blocked() != "":
		return sink.Down(what, errors.New("the broker blocks publishers: "+l.blocked()))
	case ctx.Err() != nil:
		return fmt.Errorf("%s: not confirmed: %w", what, context.Cause(ctx))
	default:
		return classify(what, err)
	}
}

// classify says what an error of a channel or connection means.
func classify(what string, err error) error {
	e, _ := errors.AsType[*amqp.Error](err)
	switch {
	case e == nil:
		return fmt.Errorf("%s: %w", what, err)
	case e.Code == amqp.NotFound, e.Code == amqp.AccessRefused, e.Code == amqp.NotAllowed, e.Code == amqp.ResourceLocked:
		return sink.Down(what, err) // exchange and login are the configuration's
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

func (s *Sink) routingKey(row outbox.Row) string {
	return strings.NewReplacer("{topic}", row.Topic, "{type}", row.Type, "{key}", row.Key).Replace(s.cfg.RoutingKey)
}

func message(d outbox.Delivery, row outbox.Row) amqp.Publishing {
	m := amqp.Publishing{
		MessageId: row.ID.String(), Type: row.Type, Timestamp: row.CreatedAt, DeliveryMode: amqp.Persistent,
		ContentType: sink.ContentType(row, ""), Body: row.Payload, Headers: amqp.Table{},
	}
	for _, h := range sink.Headers(d, row) {
		m.Headers[h.Name] = h.Value
	}
	m.Headers[sink.Topic] = row.Topic
	if len(m.ContentType) > 255 {
		m.ContentType = "" // it is still among the headers
	}
	return m
}
