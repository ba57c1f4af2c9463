package sink_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/nats"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// TestNATSTwoBadOfOneKey checks that the first bad message of a key is the one that fails, although the second is too large
// to be sent, and so fails before the stream has answered for the first.
func TestNATSTwoBadOfOneKey(t *testing.T) {
	t.Parallel()
	b := newBroker(t, &server.Options{MaxPayload: 4096})
	b.stream(t, jetstream.StreamConfig{Name: "SMALL", Subjects: []string{"small"}, MaxMsgSize: 1000})
	s := b.open(t, nats.Config{})
	rows := sinktest.Rows("small", 4, 1)
	rows[3].Key = "other"
	for i := range rows[:3] {
		rows[i].Key = "k"
	}
	rows[0].Payload, rows[1].Payload = make([]byte, 2000), make([]byte, 5000)
	errs := deliver(t, s, "0-63", 5, rows)
	for i, kind := range []error{outbox.ErrPermanent, outbox.ErrSkipped, outbox.ErrSkipped, nil} {
		if !errors.Is(errs[i], kind) {
			t.Errorf("row %d: %v, want %v", i, errs[i], kind)
		}
	}
}

// TestNATSGoesOnBeforeAFailure checks that a message whose chain broke before it is published again although a later one
// of its key has failed.
func TestNATSGoesOnBeforeAFailure(t *testing.T) {
	t.Parallel()
	b := newBroker(t, &server.Options{MaxPayload: 4096})
	b.stream(t, jetstream.StreamConfig{Name: "SMALL", Subjects: []string{"small"}, MaxMsgSize: 1000})
	s := b.open(t, nats.Config{})
	rows := sinktest.Rows("small", 3, 1)
	rows[0].Key, rows[1].Key, rows[2].Key = "other", "k", "k"
	rows[0].Payload, rows[2].Payload = make([]byte, 2000), make([]byte, 5000) // the chain breaks at the first
	errs := deliver(t, s, "0-63", 5, rows)
	for i, kind := range []error{outbox.ErrPermanent, nil, outbox.ErrPermanent} {
		if !errors.Is(errs[i], kind) {
			t.Errorf("row %d: %v, want %v", i, errs[i], kind)
		}
	}
}
