// Package webhook is the sink that posts messages to a URL as CloudEvents, signed by the rules of
// Standard Webhooks.
//
// # What is sent
//
// A POST per message. In the mode Binary the payload is the body and the event's attributes are
// ce-… headers; in the mode Structured the body is the event as one JSON object; in the mode Batch it
// is a JSON array of events, which the receiver takes or refuses as a whole. The attributes:
//
//	id               the message's id, the same in every attempt
//	source           Config.Source, or emitd/<subscription>
//	type             the message's type, or emitd.message
//	time             when it was published, by the outbox's clock
//	subject          the topic
//	partitionkey     the key, if any
//	traceparent      and tracestate, if any
//	datacontenttype  the message's header content-type; else application/json if the payload is
//	                 JSON; else application/octet-stream
//
// The message's headers travel as headers in the mode Binary, except those that HTTP needs itself (host,
// connection, content-length, content-encoding, user-agent, …), those of this protocol (ce-…, webhook-…,
// proxy-…, idempotency-key), and names that HTTP does not know, which only publishers other than in Go
// can give; in the other modes as the attribute emitdheaders, a JSON object in a string.
//
// Besides there are the headers emitd-subscription, emitd-shard (not in a batch) and
// emitd-generation: the epoch of the relay. A receiver that remembers the highest generation per
// subscription and shard can refuse a deposed relay.
//
// # Signature
//
// With secrets, webhook-id (the message's id; of a batch a digest of its ids), webhook-timestamp
// (seconds since 1970) and webhook-signature are sent. The signature is "v1," and the base64 of
// HMAC-SHA256 over "<id>.<timestamp>.<body>"; one for each secret, separated by spaces, so that
// secrets can be changed without a gap. A secret is "whsec_" and base64.
//
// # What an answer means
//
//	2xx                         taken
//	408, 425, 429, 5xx          another attempt, not before Retry-After if there is one
//	401, 407, Config.DownOn     the sink is down: no message is given up over a wrong password. A 401
//	                            where {topic} is in the URL is about that topic: another attempt
//	other 4xx                   permanent
//	1xx, 3xx                    another attempt; see below
//	no connection, bad TLS      the sink is down
//	silence, garbage, hang-up   another attempt: the message may be the cause
//
// Redirects are followed when they keep method and body (307, 308) and stay on the same host and
// scheme, three times; others are not, because signatures and credentials would go elsewhere. Of an
// answer's body the first 4 KiB are read and 200 bytes are kept for the cause.
//
// # What is not promised
//
// Exactly once: the receiver drops repetitions by webhook-id or the event's id.
package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/address"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// Mode is how an event is put into a request.
type Mode string

// The modes.
const (
	Binary     Mode = "binary"
	Structured Mode = "structured"
	Batch      Mode = "batch"
)

// Config of the sink. Only URL is required.
type Config struct {
	// URL to post to; {topic} in its path or query is replaced by the message's topic.
	URL string `yaml:"url"`
	// Mode of the events; default Binary.
	Mode Mode `yaml:"mode"`
	// Source of the events; default emitd/<subscription>. A URI reference.
	Source string `yaml:"source"`
	// Secrets sign; several while one is replaced by another. None: no signature.
	Secrets []sink.Secret `yaml:"secrets"`
	// Headers are sent with every request, e.g. Authorization. Their values are kept out of errors.
	Headers map[string]sink.Secret `yaml:"headers"`
	// Timeout of one request, answer included; default 10 s. A receiver that needs longer is tried
	// again and again: let it answer 202 first and work afterwards.
	Timeout time.Duration `yaml:"timeout"`
	// Parallel is how many requests are under way at once, over all deliveries; default 16.
	Parallel int `yaml:"parallel"`
	// BatchRows and BatchBytes bound a request of the mode Batch; default 100 and 1 MiB.
	BatchRows  int `yaml:"batch_rows"`
	BatchBytes int `yaml:"batch_bytes"`
	// DownOn are answers that say that no message can be delivered, e.g. 503 of a gateway: then no
	// attempt is counted and no key is parked. Default none, because one message that crashes the
	// receiver would otherwise stop all.
	DownOn []int `yaml:"down_on"`
	// TLS of https URLs.
	TLS sink.TLS `yaml:"tls"`
}

// Sink posts messages. It is safe for concurrent use.
type Sink struct {
	cfg    Config
	keys   [][]byte // of the secrets
	client *http.Client
	slots  chan struct{} // one for each request under way
	now    func() time.Time
}

var _ outbox.Sink = (*Sink)(nil)

// New checks the configuration. It does not connect.
func New(_ context.Context, cfg Config) (*Sink, error) {
	s := &Sink{cfg: cfg, now: time.Now}
	if err := s.configure(); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	transport, err := s.transport()
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	s.client = &http.Client{Transport: transport, CheckRedirect: sameHost}
	s.slots = make(chan struct{}, s.cfg.Parallel)
	return s, nil
}

// configure fills in defaults and says what is wrong.
func (s *Sink) configure() error {
	c := &s.cfg
	u, err := address.URL(strings.ReplaceAll(c.URL, "{topic}", "topic"))
	switch {
	case err != nil:
		return fmt.Errorf("url %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return errors.New("url must begin with http:// or https:// and name a host")
	}
	if c.Mode == "" {
		c.Mode = Binary
	}
	if !slices.Contains([]Mode{Binary, Structured, Batch}, c.Mode) {
		return fmt.Errorf("mode %q is none of binary, structured, batch", c.Mode)
	}
	for i, secret := range c.Secrets {
		key, err := decodeSecret(secret)
		if err != nil {
			return fmt.Errorf("secrets[%d] %w", i, err)
		}
		s.keys = append(s.keys, key)
	}
	for _, code := range c.DownOn {
		if code < 400 || code > 599 {
			return fmt.Errorf("down_on: %d is no failure of HTTP", code)
		}
	}
	if c.Timeout < 0 || c.Parallel < 0 || c.BatchRows < 0 || c.BatchBytes < 0 {
		return errors.New("timeout, parallel, batch_rows and batch_bytes must not be negative")
	}
	c.Timeout = sink.Default(c.Timeout, 10*time.Second)
	for _, n := range []struct {
		field *int
		value int
	}{{&c.Parallel, 16}, {&c.BatchRows, 100}, {&c.BatchBytes, 1 << 20}} {
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	return nil
}

func (s *Sink) transport() (*http.Transport, error) {
	cfg, err := s.cfg.TLS.Config()
	if err != nil {
		return nil, err
	}
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:errcheck // what net/http documents
	t.TLSClientConfig = cfg
	t.ForceAttemptHTTP2 = true
	t.MaxIdleConnsPerHost = s.cfg.Parallel
	t.MaxConnsPerHost = 0 // slots bound the requests; HTTP/2 shares a connection
	t.MaxResponseHeaderBytes = 64 << 10
	return t, nil
}

// sameHost follows redirects that repeat the request where it was sent.
func sameHost(req *http.Request, via []*http.Request) error {
	first, code := via[0], req.Response.StatusCode
	kept := code == http.StatusTemporaryRedirect || code == http.StatusPermanentRedirect
	if !kept || len(via) > 3 || req.URL.Host != first.URL.Host || req.URL.Scheme != first.URL.Scheme {
		return http.ErrUseLastResponse
	}
	return nil
}

// Close lets go of idle connections.
func (s *Sink) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Deliver posts the rows: rows of one key one after the other, others at the same time.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	if s.cfg.Mode != Batch {
		return sink.Each(ctx, d.Rows, s.cfg.Parallel, func(ctx context.Context, i int) error {
			return s.single(ctx, d, d.Rows[i])
		})
	}
	plan := sink.Plan{
		Parallel: s.cfg.Parallel, Rows: s.cfg.BatchRows, Bytes: s.cfg.BatchBytes, Whole: true,
		Size: func(i int) int { return size(d.Rows[i]) },
	}
	if s.byTopic() {
		plan.Target = func(i int) string { return d.Rows[i].Topic }
	}
	return sink.Run(ctx, d.Rows, plan, func(ctx context.Context, rows []int) []error {
		return []error{s.batch(ctx, d, rows)}
	})
}

// byTopic reports whether messages of other topics go to other URLs.
func (s *Sink) byTopic() bool { return strings.Contains(s.cfg.URL, "{topic}") }

// size is about how long a row's event is in JSON: the payload may be base64.
func size(row outbox.Row) int {
	n := 512 + len(row.Payload)*4/3 + len(row.Topic) + len(row.Key) + len(row.Type) + len(row.TraceState)
	for name, value := range row.Headers {
		n += len(name) + len(value) + 8
	}
	return n
}

// single posts one message.
func (s *Sink) single(ctx context.Context, d outbox.Delivery, row outbox.Row) error {
	e := s.event(d, row)
	h := http.Header{}
	body := row.Payload
	if s.cfg.Mode == Structured {
		body = e.structured()
		h.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	} else {
		e.binary(h)
	}
	h.Set(sink.Shard, fmt.Sprint(row.Shard))
	setTrace(h, row)
	return s.post(ctx, d, request{topic: row.Topic, id: row.ID.String(), header: h, body: body})
}

// batch posts several.
func (s *Sink) batch(ctx context.Context, d outbox.Delivery, rows []int) error {
	var body bytes.Buffer
	body.WriteByte('[')
	for n, i := range rows {
		if n > 0 {
			body.WriteByte(',')
		}
		body.Write(s.event(d, d.Rows[i]).structured())
	}
	body.WriteByte(']')
	h := http.Header{"Content-Type": {"application/cloudevents-batch+json; charset=utf-8"}}
	return s.post(ctx, d, request{topic: d.Rows[rows[0]].Topic, id: batchID(d, rows), header: h, body: body.Bytes()})
}

// request is one POST, but for what all have in common.
type request struct {
	topic, id string
	header    http.Header
	body      []byte
}

// post waits for a slot and posts.
func (s *Sink) post(ctx context.Context, d outbox.Delivery, r request) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return fmt.Errorf("post: not attempted: %w", context.Cause(ctx))
	}
	ctx, cancel := sink.Limit(ctx, sink.Deadline{What: "the receiver", After: s.cfg.Timeout})
	defer cancel()
	target := strings.ReplaceAll(s.cfg.URL, "{topic}", url.PathEscape(r.topic))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(r.body))
	if err != nil {
		return sink.Permanent("post: the topic %.80q makes no URL", r.topic)
	}
	req.Header = r.header
	// An empty one is not sent, and lets the transport repeat a request over a connection that
	// turned out to be closed: the id makes repetitions harmless.
	req.Header["Idempotency-Key"] = []string{}
	req.Header.Set("User-Agent", "emitd")
	req.Header.Set(sink.Subscription, d.Subscription)
	req.Header.Set(sink.Generation, fmt.Sprint(d.Epoch))
	for name, value := range s.cfg.Headers {
		req.Header.Set(name, string(value))
	}
	s.sign(req.Header, r.id, r.body)
	return s.send(ctx, req)
}
