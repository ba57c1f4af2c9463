// Package nats is the sink that publishes messages to streams of NATS JetStream.
//
// # What is published
//
// Each message goes to the subject that it names as its topic, with its ID in Nats-Msg-Id. A stream drops
// repetitions within its duplicate window, which should be longer than a takeover takes: a few times the
// lease. JetStream's default of two minutes is enough for the profiles of emitd. The headers are those of
// package sink (emitd-key, emitd-generation, …) and the message's own, except names that begin with
// nats-, which are commands to the server.
//
// A message counts as taken when the stream has acknowledged it. All messages of a delivery are in flight
// at once, as a chain: each is published on the condition that the newest message of the stream is the
// one before it (Nats-Expected-Last-Msg-Id). If the stream does not take a message, or never gets it, it
// refuses all behind it. Those of other keys are then published in another chain.
//
// A chain needs a stream to which only this sink publishes. Another publisher breaks it, and so does a
// stream with replicas whose fence is used. Without chains, at most one message of each key is in flight, but
// all keys of a delivery are sent at once. The sink tries chains again after a pause of 100 ms to 10 s. The same holds if
// the user may not ask which stream binds a subject, unless Config.Stream names it.
//
// # The fence
//
// With Config.Fence the stream itself rejects a relay that was replaced. For every shard the stream holds
// a marker: an empty message on the subject <fence_subject>.<subscription>.<shard>. The marker's header
// emitd-generation is the epoch of the shard's relay. Fence replaces the markers, by compare-and-set on
// their sequence, unless one has a higher epoch. Every message is published on the condition that its
// shard's marker is still the one that this relay wrote (Nats-Expected-Last-Subject-Sequence for the
// marker's subject). So after a takeover nothing of the earlier relay is stored, whenever it resumes.
//
// The fence has a price. The stream must bind the marker subjects too, and consumers should not bind
// them, or must skip them. In a stream with replicas, messages of one shard go one after the other,
// because it checks one condition on a subject at a time. A marker that the stream's limits removed is written
// again.
//
// # What an error means
//
//	message too large, subject invalid               permanent
//	no stream has the subject                        permanent, if JetStream answers so
//	not connected, login refused, no space (503)     the sink is down
//	too many messages have no answer                 the sink is down
//	the stream is full                               another attempt; Config.Stream: the sink is down
//	another relay's marker                           fenced
//	no acknowledgement within Config.Timeout         that of a call that hangs
//	others                                           another attempt
package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/emitd/emitd/internal/address"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink"
)

// Config configures the sink. Only URL is required.
type Config struct {
	// URL names one or more servers, separated by commas. It may contain credentials, which errors never
	// contain.
	URL sink.Secret `yaml:"url"`
	// Stream is the stream that must take the messages; default: any stream that binds the subject. Required with
	// Fence.
	Stream string `yaml:"stream"`
	// Domain is the JetStream domain; default the server's.
	Domain string `yaml:"domain"`
	// Fence makes the stream reject relays that were replaced.
	Fence bool `yaml:"fence"`
	// FenceSubject is the prefix of the markers' subjects; default emitd.fence.
	FenceSubject string `yaml:"fence_subject"`
	// Timeout bounds the wait for one acknowledgement; default 5 s.
	Timeout time.Duration `yaml:"timeout"`
	// Parallel is how many messages of a delivery may be in flight; default 1,000. With 1 each waits for the
	// one before it.
	Parallel int `yaml:"parallel"`
	// Name is the connection's name as the server shows it; default emitd.
	Name string `yaml:"name"`
	// User and Password, or Token, are the login. Credentials is a .creds file, NKey a file with a seed.
	User        string      `yaml:"user"`
	Password    sink.Secret `yaml:"password"`
	Token       sink.Secret `yaml:"token"`
	Credentials string      `yaml:"credentials"`
	NKey        string      `yaml:"nkey"`
	// TLS is used if it is not nil, even if it is empty, or if the URL begins with tls://.
	TLS *sink.TLS `yaml:"tls"`
}

// Sink publishes messages. It is safe for concurrent use.
type Sink struct {
	cfg     Config
	conn    *nats.Conn
	js      jetstream.JetStream
	sending chan struct{} // held while a chain is sent

	mu      sync.Mutex
	markers map[string]marker // by subject
	denied  map[string]denial // subjects that the server did not allow this user to publish to lately
	// The streams of subjects, and the chains of streams.
	subjects map[string]boundTo
	chains   map[string]chains
}

var (
	_ outbox.Sink   = (*Sink)(nil)
	_ outbox.Fencer = (*Sink)(nil)
)

// New checks the configuration and starts to connect. A server that cannot be reached is not an error:
// the sink is down until the connection succeeds.
func New(_ context.Context, cfg Config) (*Sink, error) {
	s := &Sink{
		cfg: cfg, sending: make(chan struct{}, 1), markers: map[string]marker{}, denied: map[string]denial{},
		subjects: map[string]boundTo{}, chains: map[string]chains{},
	}
	opts, err := s.options()
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	if s.conn, err = nats.Connect(string(cfg.URL), opts...); err != nil {
		if _, bad := errors.AsType[*url.Error](err); bad {
			err = address.ErrMalformed
		}
		return nil, fmt.Errorf("nats: connect: %s", s.redact(err))
	}
	js := []jetstream.JetStreamOpt{
		jetstream.WithPublishAsyncMaxPending(16 * s.cfg.Parallel),
		jetstream.WithPublishAsyncTimeout(s.silence()), // else those without an answer would fill the client for ever
	}
	if cfg.Domain != "" {
		s.js, err = jetstream.NewWithDomain(s.conn, cfg.Domain, js...)
	} else {
		s.js, err = jetstream.New(s.conn, js...)
	}
	if err != nil {
		s.conn.Close()
		return nil, fmt.Errorf("nats: %w", err)
	}
	return s, nil
}

// options sets the defaults, validates the configuration and makes the connection's options.
func (s *Sink) options() ([]nats.Option, error) {
	c := &s.cfg
	switch {
	case c.URL == "":
		return nil, errors.New("url is empty")
	case address.List(string(c.URL)) != nil:
		return nil, fmt.Errorf("url %w", address.List(string(c.URL)))
	case c.Fence && c.Stream == "":
		return nil, errors.New("fence needs stream: the stream with the markers and the messages")
	case c.Timeout < 0 || c.Parallel < 0:
		return nil, errors.New("timeout and parallel must not be negative")
	}
	c.Timeout = sink.DurationOr(c.Timeout, 5*time.Second)
	if c.Parallel == 0 {
		c.Parallel = 1000
	}
	if c.FenceSubject == "" {
		c.FenceSubject = "emitd.fence"
	}
	if !valid(c.FenceSubject) {
		return nil, fmt.Errorf("fence_subject %q is not a valid subject", c.FenceSubject)
	}
	if c.Name == "" {
		c.Name = "emitd"
	}
	opts := []nats.Option{
		nats.Name(c.Name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(time.Second), nats.Timeout(c.Timeout),
		nats.ReconnectBufSize(-1), // without a connection a publish fails at once
		nats.ErrorHandler(s.asyncError),
	}
	if c.User != "" || c.Password != "" {
		opts = append(opts, nats.UserInfo(c.User, string(c.Password)))
	}
	if c.Token != "" {
		opts = append(opts, nats.Token(string(c.Token)))
	}
	if c.Credentials != "" {
		opts = append(opts, nats.UserCredentials(c.Credentials))
	}
	if c.NKey != "" {
		key, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return nil, fmt.Errorf("read nkey: %w", err)
		}
		opts = append(opts, key)
	}
	if c.TLS != nil {
		cfg, err := c.TLS.Config()
		if err != nil {
			return nil, err
		}
		opts = append(opts, nats.Secure(cfg))
	}
	return opts, nil
}

// silence is how long a message without an answer is remembered; one that is forgotten counts as unanswered.
func (s *Sink) silence() time.Duration { return 3 * s.cfg.Timeout }

// Close ends the connection.
func (s *Sink) Close() error {
	s.conn.Close()
	return nil
}

// Deliver publishes the rows.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	if len(d.Rows) == 0 {
		return nil
	}
	if ctx.Err() == nil && !s.conn.IsConnected() {
		if err := s.awaitConnection(ctx); err != nil {
			return []error{err}
		}
	}
	streams := map[string]string{}
	for _, row := range d.Rows {
		if _, known := streams[row.Topic]; !known {
			streams[row.Topic] = s.streamOf(ctx, row.Topic)
		}
	}
	plan := sink.Plan{
		Parallel: callsAtOnce, Rows: s.cfg.Parallel, Ordered: true,
		Target: func(i int) string { return streams[d.Rows[i].Topic] },
	}
	return sink.Run(ctx, d.Rows, plan, func(ctx context.Context, rows []int) []error {
		if stream := streams[d.Rows[rows[0]].Topic]; stream != "" && s.cfg.Parallel > 1 {
			return s.publishChained(ctx, d, rows, stream)
		}
		return s.publishSerially(ctx, d, rows)
	})
}

// callsAtOnce is how many calls of one delivery may be made at once.
const callsAtOnce = 4

// publishSerially publishes rows, at most one of a key at a time. It returns nil, or an error for each.
func (s *Sink) publishSerially(ctx context.Context, all outbox.Delivery, rows []int) []error {
	d := all
	d.Rows = make([]outbox.Row, len(rows))
	for n, i := range rows {
		d.Rows[n] = all.Rows[i]
	}
	publish := func(inner context.Context, n int) error {
		err := s.publish(inner, d, d.Rows[n])
		if err == nil {
			progress.Taken(ctx, rows[n])
		}
		return err
	}
	plan := sink.Plan{Parallel: s.cfg.Parallel}
	if s.cfg.Fence {
		plan.OrderKey = func(n int) string { return s.markerSubject(d.Subscription, d.Rows[n].Shard) }
	}
	errs := sink.Run(ctx, d.Rows, plan, func(ctx context.Context, r []int) []error { return []error{publish(ctx, r[0])} })
	if !s.cfg.Fence || len(errs) == 0 {
		return errs
	}
	return s.otherKeys(ctx, d, errs, publish)
}

// otherKeys publishes rows that were held up only because another key of their shard failed.
func (s *Sink) otherKeys(ctx context.Context, d outbox.Delivery, errs []error, publish func(ctx context.Context, n int) error) []error {
	for ctx.Err() == nil {
		failed := map[string]bool{}
		var again []int
		for i, err := range errs {
			key := d.Rows[i].Key
			switch {
			case err == nil:
			case errors.Is(err, outbox.ErrSinkDown), errors.Is(err, outbox.ErrFenced):
				return errs
			case errors.Is(err, outbox.ErrSkipped) && (key == "" || !failed[key]):
				again = append(again, i)
			case key != "":
				failed[key] = true
			}
		}
		if len(again) == 0 {
			return errs
		}
		rows := make([]outbox.Row, len(again))
		for n, i := range again {
			rows[n] = d.Rows[i]
		}
		part := sink.Run(ctx, rows, sink.Plan{
			Parallel: s.cfg.Parallel, OrderKey: func(n int) string { return s.markerSubject(d.Subscription, rows[n].Shard) },
		}, func(ctx context.Context, r []int) []error { return []error{publish(ctx, again[r[0]])} })
		for n, i := range again {
			errs[i] = nil
			if len(part) > 0 {
				errs[i] = part[n]
			}
		}
	}
	return errs
}

// awaitConnection waits for a connection, for at most Config.Timeout.
func (s *Sink) awaitConnection(ctx context.Context) error {
	bounded, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the server", After: s.cfg.Timeout})
	defer cancel()
	changes := s.conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer s.conn.RemoveStatusListener(changes)
	for !s.conn.IsConnected() && !s.conn.IsClosed() {
		select {
		case <-changes:
		case <-bounded.Done():
			return s.errNotConnected()
		}
	}
	if s.conn.IsClosed() {
		return sink.Down("publish", errors.New("the connection is closed"))
	}
	return nil
}

// errNotConnected returns the error of a sink without a connection, with its cause.
func (s *Sink) errNotConnected() error {
	if err := s.conn.LastError(); err != nil {
		return sink.Down("publish", errors.New("not connected: "+s.redact(err)))
	}
	return sink.Down("publish", errors.New("not connected"))
}

// redact removes the credentials, including those in the URL, from a library's error.
func (s *Sink) redact(err error) string {
	secrets := []sink.Secret{s.cfg.Password, s.cfg.Token}
	for one := range strings.SplitSeq(string(s.cfg.URL), ",") {
		if login, _, has := strings.Cut(one, "@"); has {
			_, login, _ = strings.Cut(login, "://")
			secrets = append(secrets, sink.Secret(login))
			if _, password, has := strings.Cut(login, ":"); has {
				secrets = append(secrets, sink.Secret(password))
			}
		}
	}
	return sink.Redact(err.Error(), secrets...)
}

// valid reports whether a message can be published to a subject.
func valid(subject string) bool {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || strings.ContainsAny(token, " \t\r\n*>") {
			return false
		}
	}
	return true
}
