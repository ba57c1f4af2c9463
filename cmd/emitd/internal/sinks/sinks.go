// Package sinks makes sinks of the outbox from settings. It is the only place in the program that knows
// which kinds exist. The settings of a kind are the Config of its package, with the names in its yaml
// tags.
package sinks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/nats"
	"github.com/emitd/emitd/outbox/sink/postgres"
	queuesink "github.com/emitd/emitd/outbox/sink/queue"
	"github.com/emitd/emitd/outbox/sink/rabbitmq"
	"github.com/emitd/emitd/outbox/sink/sns"
	"github.com/emitd/emitd/outbox/sink/sqs"
	"github.com/emitd/emitd/outbox/sink/stdout"
	"github.com/emitd/emitd/outbox/sink/webhook"
	"github.com/emitd/emitd/queue"
)

// Sink is a sink that must be closed after its last delivery.
type Sink interface {
	outbox.Sink
	io.Closer
}

// Queue is the kind that delivers to the queues of this cluster.
const Queue = "queue"

// settings returns the empty settings of each kind.
var settings = map[string]func() any{
	"webhook":  func() any { return new(webhook.Config) },
	"kafka":    func() any { return new(kafka.Config) },
	"nats":     func() any { return new(nats.Config) },
	"rabbitmq": func() any { return new(rabbitmq.Config) },
	"sqs":      func() any { return new(sqs.Config) },
	"sns":      func() any { return new(sns.Config) },
	"postgres": func() any { return new(postgres.Config) },
	Queue:      func() any { return new(queuesink.Config) },
	"stdout":   func() any { return new(stdout.Config) },
}

// Kinds returns the names of all kinds, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(settings)) }

// Settings returns a pointer to the empty settings of a kind.
func Settings(kind string) (any, bool) {
	empty, ok := settings[kind]
	if !ok {
		return nil, false
	}
	return empty(), true
}

// schemes maps the schemes of addresses that need no further settings to the kind whose url they are.
var schemes = map[string]string{
	"http": "webhook", "https": "webhook", "nats": "nats", "tls": "nats",
	"amqp": "rabbitmq", "amqps": "rabbitmq", "postgres": "postgres", "postgresql": "postgres",
}

// Address returns the kind and the settings for a URL alone.
func Address(text string) (kind string, into any, ok bool) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "", nil, false
	}
	if kind, ok = schemes[u.Scheme]; !ok {
		return "", nil, false
	}
	switch kind {
	case "webhook":
		into = &webhook.Config{URL: text}
	case "nats":
		into = &nats.Config{URL: sink.Secret(text)}
	case "rabbitmq":
		into = &rabbitmq.Config{URL: sink.Secret(text)}
	case "postgres":
		into = &postgres.Config{URL: sink.Secret(text)}
	}
	return kind, into, true
}

// Open makes a sink from settings, a pointer as returned by [Settings]. The kind queue delivers to jobs,
// which may be nil for the others. Open does not wait for any connection.
func Open(ctx context.Context, settings any, jobs queue.Producer) (Sink, error) {
	switch c := settings.(type) {
	case *webhook.Config:
		return made(webhook.New(ctx, *c))
	case *kafka.Config:
		return made(kafka.New(ctx, *c))
	case *nats.Config:
		return made(nats.New(ctx, *c))
	case *rabbitmq.Config:
		return made(rabbitmq.New(ctx, *c))
	case *sqs.Config:
		return made(sqs.New(ctx, *c))
	case *sns.Config:
		return made(sns.New(ctx, *c))
	case *postgres.Config:
		return made(postgres.New(ctx, *c))
	case *queuesink.Config:
		own := *c
		own.Producer = jobs
		return made(queuesink.New(ctx, own))
	case *stdout.Config:
		return made(stdout.New(ctx, *c))
	}
	return nil, fmt.Errorf("there is no sink for %T", settings)
}

// Check reports what Open would refuse, as far as that can be known without connecting or creating a
// file.
func Check(ctx context.Context, settings any) error {
	switch settings.(type) {
	case *nats.Config, *stdout.Config: // making one starts to connect, or opens the file
		return nil
	}
	s, err := Open(ctx, settings, noProducer{})
	if err != nil {
		return err
	}
	return s.Close()
}

// noProducer is a Producer that refuses all jobs.
type noProducer struct{}

func (noProducer) Enqueue(context.Context, string, []queue.Job) ([]queue.Receipt, error) {
	return nil, errors.New("no queue is configured")
}

// made keeps a nil sink from becoming a non-nil interface.
func made[S Sink](s S, err error) (Sink, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
