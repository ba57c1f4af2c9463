package sink_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/emitd/emitd/outbox"
	sinkpkg "github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/nats"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// broker is a NATS server in this process.
type broker struct {
	server *server.Server
	js     jetstream.JetStream
}

func newBroker(t testing.TB, opts *server.Options) *broker {
	t.Helper()
	opts.Host, opts.Port, opts.JetStream, opts.StoreDir, opts.NoSigs, opts.NoLog = "127.0.0.1", -1, true, t.TempDir(), true, true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	if !s.ReadyForConnections(sinktest.Bound) {
		t.Fatal("the NATS server does not start")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	b := &broker{server: s}
	var conn *natsgo.Conn
	if opts.Authorization != "" {
		conn, err = natsgo.Connect(s.ClientURL(), natsgo.Token(opts.Authorization))
	} else {
		conn, err = natsgo.Connect(s.ClientURL())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if b.js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	b.stream(t, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders", "emitd.fence.>"}})
	return b
}

func (b *broker) stream(t testing.TB, cfg jetstream.StreamConfig) {
	t.Helper()
	if _, err := b.js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

func (b *broker) open(t testing.TB, cfg nats.Config) *nats.Sink {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = sinkpkg.Secret(b.server.ClientURL())
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 3 * time.Second
	}
	s, err := nats.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (b *broker) messages(t *testing.T) []*jetstream.RawStreamMsg {
	t.Helper()
	stream, err := b.js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	var out []*jetstream.RawStreamMsg
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject == "orders" {
			out = append(out, m)
		}
	}
	return out
}

func (b *broker) received(t *testing.T) []sinktest.Taken {
	t.Helper()
	var out []sinktest.Taken
	for _, m := range b.messages(t) {
		out = append(out, sinktest.Taken{ID: m.Header.Get("Nats-Msg-Id"), Key: m.Header.Get(sinkpkg.Key)})
	}
	return out
}

func TestNATS(t *testing.T) {
	t.Parallel()
	for _, fence := range []bool{false, true} {
		t.Run(fmt.Sprintf("fence=%v", fence), func(t *testing.T) {
			t.Parallel()
			sinktest.Suite{Dedup: true, New: func(t *testing.T) *sinktest.Harness {
				b := newBroker(t, &server.Options{})
				// A full stream, and a subject whose only listener never answers.
				b.stream(t, jetstream.StreamConfig{Name: "FULL", Subjects: []string{"full"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
				if _, err := b.js.Publish(t.Context(), "full", nil); err != nil {
					t.Fatal(err)
				}
				if _, err := b.js.Conn().Subscribe("silent", func(*natsgo.Msg) {}); err != nil {
					t.Fatal(err)
				}
				cfg := nats.Config{Fence: fence}
				if fence {
					cfg.Stream = "ORDERS"
				}
				a := &altered{Sink: b.open(t, cfg)}
				topics := map[sinktest.Fault]string{sinktest.Refuse: "nowhere", sinktest.Falter: "full", sinktest.Hang: "silent"}
				if fence {
					// With Config.Stream, a message to another stream would be refused for good.
					topics[sinktest.Falter] = "silent"
				}
				return &sinktest.Harness{Sink: a, Received: b.received, Fail: func(_ *testing.T, f sinktest.Fault, ids []uuid.UUID) {
					if f == sinktest.Down {
						b.server.Shutdown()
						return
					}
					a.to(topics[f], ids)
				}}
			}}.Run(t)
		})
	}
}

func TestNATSFence(t *testing.T) {
	t.Parallel()
	b := newBroker(t, &server.Options{})
	t.Run("story", fence{
		topic: "orders", compares: true, received: b.received,
		open: func(t *testing.T) fencer { return b.open(t, nats.Config{Fence: true, Stream: "ORDERS"}) },
	}.run)
}

// TestNATSMarkersMayExpire checks that a marker which the stream's limits removed is written again, by
// its owner only.
func TestNATSMarkersMayExpire(t *testing.T) {
	t.Parallel()
	b := newBroker(t, &server.Options{})
	s := b.open(t, nats.Config{Fence: true, Stream: "ORDERS"})
	rows := sinktest.Rows("orders", 20, 3)
	all(t, []error{raise(t, s, "0-63", 6)}, nil)
	all(t, deliver(t, s, "0-63", 6, rows[:10]), nil)
	stream, err := b.js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("emitd.fence.>")); err != nil {
		t.Fatal(err)
	}
	all(t, deliver(t, s, "0-63", 6, rows[10:]), nil)
	all(t, deliver(t, b.open(t, nats.Config{Fence: true, Stream: "ORDERS"}), "0-63", 5, rows[:10]), outbox.ErrFenced)
}

func TestNATSMessage(t *testing.T) {
	t.Parallel()
	b := newBroker(t, &server.Options{})
	s := b.open(t, nats.Config{})
	row := sinktest.Rows("orders", 1, 1)[0]
	row.TraceParent = "00-a-b-01"
	row.Headers["Nats-Expected-Stream"] = "OTHER" // a command to the server, not a header
	all(t, deliver(t, s, "0-63", 5, []outbox.Row{row}), nil)
	m := b.messages(t)[0]
	for name, want := range map[string]string{
		"Nats-Msg-Id": row.ID.String(), "emitd-key": "key-0", "emitd-type": "order.placed", "emitd-generation": "5",
		"emitd-subscription": "billing", "tenant": "acme", "traceparent": "00-a-b-01",
	} {
		if got := m.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if string(m.Data) != `{"n":0}` {
		t.Errorf("data %q", m.Data)
	}
}

func TestNATSErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		cfg     nats.Config
		opts    server.Options
		change  func(*outbox.Row)
		kind    error
		message string
	}{
		{name: "no stream", change: func(r *outbox.Row) { r.Topic = "nowhere" }, kind: outbox.ErrMissing, message: "no stream has this subject"},
		{name: "no subject", change: func(r *outbox.Row) { r.Topic = "a..b" }, kind: outbox.ErrPermanent, message: "is not a valid subject"},
		{name: "wildcard", change: func(r *outbox.Row) { r.Topic = "orders.*" }, kind: outbox.ErrPermanent, message: "is not a valid subject"},
		{name: "too large", opts: server.Options{MaxPayload: 4096}, change: func(r *outbox.Row) { r.Payload = make([]byte, 5000) }, kind: outbox.ErrPermanent, message: "maximum payload"},
		{name: "other stream", cfg: nats.Config{Stream: "OTHER"}, kind: outbox.ErrPermanent, message: "does not belong to the stream OTHER"},
		{name: "stream of the fence is missing", cfg: nats.Config{Stream: "OTHER", Fence: true}, kind: outbox.ErrSinkDown, message: "there is no stream OTHER"},
		{name: "stream without markers", cfg: nats.Config{Stream: "ORDERS", Fence: true, FenceSubject: "elsewhere"}, kind: outbox.ErrSinkDown, message: "add elsewhere.>"},
		{name: "nobody there", cfg: nats.Config{URL: "nats://u:hunter2@127.0.0.1:1", Timeout: time.Second}, kind: outbox.ErrSinkDown, message: "not connected"},
		{name: "wrong token", opts: server.Options{Authorization: "right"}, cfg: nats.Config{Token: "hunter2", Timeout: time.Second}, kind: outbox.ErrSinkDown, message: "not connected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newBroker(t, &c.opts).open(t, c.cfg)
			row := sinktest.Rows("orders", 1, 1)[0]
			if c.change != nil {
				c.change(&row)
			}
			err := deliver(t, s, "0-63", 5, []outbox.Row{row})[0]
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.message) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v, want %v with %s", err, c.kind, c.message)
			}
		})
	}
}

// TestNATSComesBack checks that the sink reconnects to a server that comes back.
func TestNATSComesBack(t *testing.T) {
	t.Parallel()
	b := newBroker(t, &server.Options{})
	addr := strings.TrimPrefix(b.server.ClientURL(), "nats://")
	w := newWire(t, addr)
	s := b.open(t, nats.Config{URL: sinkpkg.Secret("nats://" + w.addr())})
	rows := sinktest.Rows("orders", 20, 3)
	all(t, deliver(t, s, "0-63", 5, rows[:10]), nil)
	w.drop()
	eventually(t, "it is delivered again", func() bool {
		for _, err := range deliver(t, s, "0-63", 5, rows[10:]) {
			if err != nil {
				return false
			}
		}
		return true
	})
	if n := len(b.received(t)); n != 20 {
		t.Errorf("%d messages, want 20", n)
	}
}

func TestNATSConfig(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]nats.Config{
		"url is empty":           {},
		"fence needs":            {URL: "nats://x", Fence: true},
		"must not be negative":   {URL: "nats://x", Parallel: -1},
		"is not a valid subject": {URL: "nats://x", FenceSubject: "a.*"},
		"nats: ":                 {URL: "nats://u:hunter2@[::1", NKey: ""},
		"read nkey":              {URL: "nats://x", NKey: "/does/not/exist"},
	} {
		if _, err := nats.New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want …%s…", err, want)
		}
	}
}
