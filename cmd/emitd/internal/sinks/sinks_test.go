package sinks

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/rabbitmq"
	"github.com/emitd/emitd/outbox/sink/sns"
	"github.com/emitd/emitd/outbox/sink/sqs"
	"github.com/emitd/emitd/outbox/sink/stdout"
	"github.com/emitd/emitd/queue"
)

// least returns the settings without which a kind cannot be made.
func least(t *testing.T, kind string) any {
	t.Helper()
	urls := map[string]string{"webhook": "http://127.0.0.1:1/x", "nats": "nats://127.0.0.1:1", "postgres": "postgres://127.0.0.1:1/x"}
	if text, ok := urls[kind]; ok {
		got, settings, ok := Address(text)
		if got != kind || !ok {
			t.Fatalf("%s is a %s", text, got)
		}
		return settings
	}
	settings, ok := Settings(kind)
	if !ok {
		t.Fatalf("%s is no kind", kind)
	}
	switch c := settings.(type) {
	case *kafka.Config:
		c.Brokers = []string{"127.0.0.1:1"}
	case *rabbitmq.Config:
		c.URL = "amqp://127.0.0.1:1"
	case *sqs.Config:
		c.Region, c.AccessKey, c.SecretKey = "x", "x", "x"
	case *sns.Config:
		c.Region, c.AccessKey, c.SecretKey = "x", "x", "x"
	case *stdout.Config:
		c.File = t.TempDir() + "/x"
	}
	return settings
}

// TestEveryKindIsMade makes each kind while nothing listens.
func TestEveryKindIsMade(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds() {
		settings := least(t, kind)
		if err := Check(t.Context(), settings); err != nil {
			t.Errorf("check %s: %v", kind, err)
		}
		s, err := Open(t.Context(), settings, noProducer{})
		if err != nil {
			t.Errorf("open %s: %v", kind, err)
			continue
		}
		if err := s.Close(); err != nil {
			t.Errorf("close %s: %v", kind, err)
		}
	}
}

// TestWhatIsMissingIsReported checks the error for missing settings, and that the sink is a nil interface
// then.
func TestWhatIsMissingIsReported(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{
		"webhook": "url must begin", "kafka": "brokers is empty", "nats": "url is empty", "rabbitmq": "url must be", "postgres": "url is empty",
	} {
		settings, _ := Settings(kind)
		s, err := Open(t.Context(), settings, nil)
		if s != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", kind, s, err)
		}
	}
	if _, err := Open(t.Context(), 7, nil); err == nil {
		t.Error("a number is a sink")
	}
	if _, ok := Settings("nosuch"); ok {
		t.Error("nosuch is a kind")
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "stdout", "http://", "https:///x", "redis://h", "kafka://h:1", "%zz://h", "://"} {
		if kind, _, ok := Address(text); ok {
			t.Errorf("%q is a %s", text, kind)
		}
	}
}

var _ queue.Producer = noProducer{}
