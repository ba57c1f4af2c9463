package sinks_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/address"
	outboxpg "github.com/emitd/emitd/outbox/postgres"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/nats"
	"github.com/emitd/emitd/outbox/sink/postgres"
	"github.com/emitd/emitd/outbox/sink/rabbitmq"
	"github.com/emitd/emitd/outbox/sink/sqs"
	"github.com/emitd/emitd/outbox/sink/webhook"
	"github.com/emitd/emitd/storage/blob/gcs"
	"github.com/emitd/emitd/storage/blob/s3"
	store "github.com/emitd/emitd/storage/postgres"
)

// FuzzConstructors checks that no error and no log contains the password of an address, whatever the
// address looks like. Nothing connects, because all contexts have ended.
func FuzzConstructors(f *testing.F) {
	schemes := []string{"postgres://", "https://", "amqp://", "nats://", "s3://", "gs://", "", "host=127.0.0.1 password="}
	for i := range schemes {
		for _, password := range []string{"", "9/", "9#", "9?", "%zz", "@", "9,", " '", " "} {
			f.Add(uint8(i), "u", password, "@127.0.0.1:1/x")
		}
	}
	f.Fuzz(func(t *testing.T, scheme uint8, user, password, rest string) {
		if strings.ContainsAny(user, "@/?#") || strings.Contains(password, "=") {
			return // then it is not a password, but part of a host or path, or another setting
		}
		const planted = "S3CRETS3CRET"
		text := schemes[int(scheme)%len(schemes)] + user + ":" + password + planted + rest
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		check := func(what string, err error) {
			if reported := fmt.Sprint(err) + log.String(); strings.Contains(reported, planted) {
				t.Errorf("%s of %q tells the password: %s", what, text, reported)
			}
		}
		if strings.Contains(rest, "@") { // otherwise it is part of the host, not a password
			_, err := store.OpenConfig(ctx, store.Config{URL: text, Logger: logger})
			check("a store", err)
			_, err = store.MigrationStatus(ctx, store.Config{URL: text, Logger: logger})
			check("a migration", err)
			_, err = outboxpg.Open(ctx, outboxpg.Config{URL: text, Logger: logger})
			check("a log", err)
			_, err = outboxpg.MigrationStatus(ctx, outboxpg.Config{URL: text, Logger: logger})
			check("a migration of a log", err)
			if s, err := postgres.New(ctx, postgres.Config{URL: sink.Secret(text)}); err != nil {
				check("the sink of Postgres", err)
			} else {
				_ = s.Close()
			}
			_, err = rabbitmq.New(ctx, rabbitmq.Config{URL: sink.Secret(text)})
			check("RabbitMQ", err)
			_, err = webhook.New(ctx, webhook.Config{URL: text})
			check("a webhook", err)
			if address.List(text) != nil { // otherwise it would start to connect
				_, err = nats.New(ctx, nats.Config{URL: sink.Secret(text)})
				check("NATS", err)
			}
			_, err = kafka.New(ctx, kafka.Config{Brokers: []string{text}})
			check("Kafka", err)
			c := sqs.Config{}
			c.Region, c.Endpoint = "eu-1", text
			_, err = sqs.New(ctx, c)
			check("SQS", err)
			_, err = s3.ParseURL(text)
			check("S3", err)
			_, err = gcs.ParseURL(text, "")
			check("GCS", err)
		}
	})
}
