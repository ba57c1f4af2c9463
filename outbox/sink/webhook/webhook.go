// Package webhook is the sink that posts messages to a URL as CloudEvents, signed by the rules of
// Standard Webhooks.
//
// # What is sent
//
// In mode Binary each message is a POST: the payload is the body, and the event's attributes are ce-…
// headers. In mode Structured each message is a POST whose body is the event as one JSON object. In mode
// Batch the body is a JSON array of events, which the receiver takes or refuses as a whole. The
// attributes are:
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
// In mode Binary the message's headers are sent as HTTP headers, with three exceptions: headers that HTTP
// itself needs (host, connection, content-length, content-encoding, user-agent, …), those of this
// protocol (ce-…, webhook-…, proxy-…, idempotency-key), and names that are invalid in HTTP, which only a
// publisher in another language can write. In the other modes the headers are the attribute emitdheaders,
// a JSON object in a string.
//
// Every request also has the headers emitd-subscription, emitd-shard (not in a batch) and
// emitd-generation, the epoch of the relay. A receiver that remembers the highest generation per
// subscription and shard can reject a relay that was replaced.
//
// # Signature
//
// With secrets, each request has webhook-id (the message's ID; for a batch a digest of its IDs),
// webhook-timestamp (seconds since 1970) and webhook-signature. The signature is "v1," and the base64 of
// HMAC-SHA256 over "<id>.<timestamp>.<body>". There is one for each secret, separated by spaces, so that
// secrets can be replaced without a gap. A secret is "whsec_" and base64.
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
//	garbage                     another attempt: the message may be the cause
//	silence, hang-up            the sink is down if none of several keys gets an answer; else another attempt
//
// Redirects are followed up to three times if they keep method and body (307, 308) and stay on the same
// host and scheme. Others are not followed, because signatures and credentials would go elsewhere. The
// first 4 KiB of an answer's body are read, and 200 bytes are kept for the cause.
//
// # What is not promised
//
// Exactly-once delivery: the receiver drops repetitions by webhook-id or the event's ID.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/internal/address"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// Mode is how an event is encoded in a request.
type Mode string

// The modes.
const (
	Binary     Mode = "binary"
	Structured Mode = "structured"
	Batch      Mode = "batch"
)

// Config configures the sink. Only URL is required.
type Config struct {
	// URL is where events are posted; {topic} in its path or query is replaced by the message's topic. Errors contain
	// neither the password in it nor its path and query, whose parts of 8 bytes or more are hidden wherever a receiver
	// repeats them.
	URL string `yaml:"url"`
	// Mode is the encoding of the events; default Binary.
	Mode Mode `yaml:"mode"`
	// Source is the source of the events, a URI reference; default emitd/<subscription>.
	Source string `yaml:"source"`
	// Secrets sign the requests; several while one is being replaced. Without secrets there is no signature.
	Secrets []sink.Secret `yaml:"secrets"`
	// Headers are sent with every request, e.g. Authorization. Errors never contain their values.
	Headers map[string]sink.Secret `yaml:"headers"`
	// Timeout bounds one request and its answer; default 10 s. A receiver that needs longer gets its
	// messages again and again: it should answer 202 first and work afterwards.
	Timeout time.Duration `yaml:"timeout"`
	// Parallel is how many requests may be in flight, over all deliveries. By default the sink finds out: it
	// begins with 16, allows up to 256 while answers do not take longer for it, and fewer, down to 4, when they
	// do or the receiver answers 429 or 503.
	Parallel int `yaml:"parallel"`
	// BatchRows and BatchBytes bound a request in mode Batch; default 100 and 1 MiB.
	BatchRows  int `yaml:"batch_rows"`
	BatchBytes int `yaml:"batch_bytes"`
	// DownOn lists status codes that mean that no message can be delivered, e.g. 503 of a gateway. Then no
	// attempt is counted and no key is parked. Default none, because otherwise one message that crashes the
	// receiver would stop all others.
	DownOn []int `yaml:"down_on"`
	// TLS is used for https URLs.
	TLS sink.TLS `yaml:"tls"`
}

// Sink posts messages. It is safe for concurrent use.
type Sink struct {
	cfg    Config
	keys   [][]byte      // of the secrets
	hidden []sink.Secret // what no error may contain
	login  string        // the header for the login in the URL, "" if there is none
	slots  *limiter
	now    func() time.Time

	transport *http.Transport
	client    *http.Client // follows redirects, which costs a copy of each header
	redirects atomic.Bool  // the receiver has redirected a request
}

var _ outbox.Sink = (*Sink)(nil)

// New checks the configuration. It does not connect.
func New(_ context.Context, cfg Config) (*Sink, error) {
	s := &Sink{cfg: cfg, now: time.Now}
	if err := s.configure(); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	var err error
	if s.transport, err = s.newTransport(); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	s.client = &http.Client{Transport: s.transport, CheckRedirect: sameHost}
	s.slots = newLimiter(s.cfg.Parallel)
	return s, nil
}

// configure sets the defaults and validates the configuration.
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
		return fmt.Errorf("mode is %q, want binary, structured or batch", c.Mode)
	}
	s.hidden, s.login = credentials(c, u.User), login(u.User)
	for i, secret := range c.Secrets {
		key, err := decodeSecret(secret)
		if err != nil {
			return fmt.Errorf("secrets[%d] %w", i, err)
		}
		s.keys = append(s.keys, key)
	}
	for _, code := range c.DownOn {
		if code < 400 || code > 599 {
			return fmt.Errorf("down_on: %d is not an HTTP error status", code)
		}
	}
	if c.Timeout < 0 || c.Parallel < 0 || c.BatchRows < 0 || c.BatchBytes < 0 {
		return errors.New("timeout, parallel, batch_rows and batch_bytes must not be negative")
	}
	c.Timeout = sink.DurationOr(c.Timeout, 10*time.Second)
	for _, n := range []struct {
		field *int
		value int
	}{{&c.BatchRows, 100}, {&c.BatchBytes, 1 << 20}} {
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	return nil
}

const (
	silence     = 5 * time.Second // after which a connection of HTTP/2 is tested
	pingTimeout = 5 * time.Second // for the answer to the test
)

func (s *Sink) newTransport() (*http.Transport, error) {
	cfg, err := s.cfg.TLS.Config()
	if err != nil {
		return nil, err
	}
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:errcheck // what net/http documents
	t.TLSClientConfig = cfg
	t.ForceAttemptHTTP2 = true
	// All requests share a connection of HTTP/2. If the network loses it without a word, each would wait on it, for up to 15 minutes.
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: pingTimeout}
	t.DisableCompression = true // answers are short, and mostly not read
	t.MaxIdleConnsPerHost = s.mostAtOnce()
	t.MaxIdleConns = 0    // no other bound
	t.MaxConnsPerHost = 0 // slots bound the requests; HTTP/2 shares a connection
	t.MaxResponseHeaderBytes = 64 << 10
	return t, nil
}

// sameHost allows only redirects that repeat the request on the same host.
func sameHost(req *http.Request, via []*http.Request) error {
	first, code := via[0], req.Response.StatusCode
	kept := code == http.StatusTemporaryRedirect || code == http.StatusPermanentRedirect
	if !kept || len(via) > 3 || req.URL.Host != first.URL.Host || req.URL.Scheme != first.URL.Scheme {
		return http.ErrUseLastResponse
	}
	return nil
}

// Close closes idle connections.
func (s *Sink) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Deliver posts the rows. Rows of one key are posted one after the other, other rows at the same time.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	plan := sink.Plan{Parallel: s.mostAtOnce(), StartCaller: s.slots.startCaller, EndCaller: s.slots.endCaller}
	if s.cfg.Mode != Batch {
		return sink.Run(ctx, d.Rows, plan, func(ctx context.Context, rows []int) []error {
			return []error{s.single(ctx, d, d.Rows[rows[0]])}
		})
	}
	plan.Rows, plan.Bytes, plan.Atomic = s.cfg.BatchRows, s.cfg.BatchBytes, true
	plan.Size = func(i int) int { return size(d.Rows[i]) }
	if s.byTopic() {
		plan.Target = func(i int) string { return d.Rows[i].Topic }
	}
	return sink.Run(ctx, d.Rows, plan, func(ctx context.Context, rows []int) []error {
		return []error{s.batch(ctx, d, rows)}
	})
}

// mostAtOnce is how many requests may ever be in flight.
func (s *Sink) mostAtOnce() int { return cmp.Or(s.cfg.Parallel, mostParallel) }

// byTopic reports whether the URL depends on the message's topic.
func (s *Sink) byTopic() bool { return strings.Contains(s.cfg.URL, "{topic}") }

// size returns the approximate length of a row's event in JSON; the payload may become base64.
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
	f := s.newFields(len(row.Headers))
	body := row.Payload
	if s.cfg.Mode == Structured {
		body = e.structured()
		f.set("Content-Type", "application/cloudevents+json; charset=utf-8")
	} else {
		e.binary(f)
	}
	f.set("Emitd-Shard", strconv.Itoa(row.Shard))
	setTrace(f, row)
	return s.post(ctx, d, request{topic: row.Topic, id: row.ID.String(), fields: f, body: body})
}

// batch posts several messages in one request.
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
	f := s.newFields(0)
	f.set("Content-Type", "application/cloudevents-batch+json; charset=utf-8")
	return s.post(ctx, d, request{topic: d.Rows[rows[0]].Topic, id: batchID(d, rows), fields: f, body: body.Bytes()})
}

// request holds the parts of a POST that differ from request to request.
type request struct {
	topic, id string
	fields    *fields
	body      []byte
}

// post waits for a slot and posts.
func (s *Sink) post(ctx context.Context, d outbox.Delivery, r request) error {
	if !s.slots.enter(ctx) {
		return fmt.Errorf("post: not attempted: %w", context.Cause(ctx))
	}
	began, overloaded := time.Now(), false
	defer func() { s.slots.leave(time.Since(began), overloaded) }()
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the receiver", After: s.cfg.Timeout})
	defer cancel()
	target := s.cfg.URL
	if s.byTopic() {
		target = strings.ReplaceAll(target, "{topic}", url.PathEscape(r.topic))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(r.body))
	if err != nil {
		return sink.Permanent("post: the topic %.80q does not give a valid URL", r.topic)
	}
	req.Header = r.fields.Header
	// An empty value is not sent, but it lets the transport repeat a request whose connection turned out to
	// be closed. Repetitions are harmless because of the ID.
	req.Header["Idempotency-Key"] = []string{}
	r.fields.set("User-Agent", "emitd")
	r.fields.set("Emitd-Subscription", d.Subscription)
	r.fields.set("Emitd-Generation", strconv.FormatInt(d.Epoch, 10))
	if s.login != "" {
		r.fields.set("Authorization", s.login)
	}
	for name, value := range s.cfg.Headers {
		req.Header.Set(name, string(value))
	}
	s.sign(req.Header, r.id, r.body)
	overloaded, err = s.send(ctx, req)
	return err
}
