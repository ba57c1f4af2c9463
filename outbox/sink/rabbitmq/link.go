package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/emitd/emitd/outbox/sink"
)

// link is one connection with one channel in confirm mode.
type link struct {
	conn    *amqp.Connection
	channel *amqp.Channel
	ended   chan struct{}          // closed when the channel has ended
	why     atomic.Pointer[error]  // why the channel ended; set before ended is closed
	alarm   atomic.Pointer[string] // why the broker blocks publishing, "" if it does not
	// received is received from by watch when it has recorded all returns that it has received.
	received chan struct{}

	mu sync.Mutex
	// published are the publications whose sender still waits, by message-id.
	published map[string][]*publication
}

// publication is one message that was published once. What a broker returns has the message-id, and nothing that tells
// one publication from another. So a return counts for all publications of the message that somebody waits for: then
// none can count as taken by mistake, although a message that was given up and published again may come twice.
type publication struct {
	id           string
	confirmation *amqp.DeferredConfirmation
	returned     string // why it came back, "" if it did not; under link.mu
}

// connect returns the current link, or makes a new one.
func (s *Sink) connect(ctx context.Context) (*link, error) {
	select {
	case s.mu <- struct{}{}:
		defer func() { <-s.mu }()
	case <-ctx.Done():
		return nil, fmt.Errorf("publish: not attempted: %w", context.Cause(ctx))
	}
	switch {
	case s.closed:
		return nil, sink.Down("publish", errors.New("the sink is closed"))
	case s.link != nil && s.link.alive():
		return s.link, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("publish: not attempted: %w", context.Cause(ctx))
	case s.failed != nil && time.Since(s.tried) < again:
		return nil, s.failed
	}
	if s.link != nil {
		s.link.close()
		s.link = nil
	}
	l, err := s.dial(ctx)
	s.tried, s.failed = time.Now(), nil
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("connect to %s: %w", sink.Host(string(s.cfg.URL)), context.Cause(ctx))
		}
		// The library's error may repeat the password that was refused.
		text := sink.Redact(err.Error(), sink.Secret(s.uri.Password))
		s.failed = sink.Down("connect to "+sink.Host(string(s.cfg.URL)), errors.New(text))
		return nil, s.failed
	}
	s.link = l
	return l, nil
}

// dial connects, logs in and opens the channel.
func (s *Sink) dial(ctx context.Context) (*link, error) {
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the broker", After: s.cfg.Timeout})
	defer cancel()
	// The library has no timeout during the login, so a silent peer would block the caller: the end of ctx
	// closes the connection.
	keep := func() bool { return true }
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(s.cfg.Name)
	conn, err := amqp.DialConfig(string(s.cfg.URL), amqp.Config{
		Heartbeat: s.cfg.Heartbeat, TLSClientConfig: s.tls, Properties: properties, Locale: "en_US",
		Dial: func(network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			g := newGathering(c)
			keep = context.AfterFunc(ctx, func() { _ = g.Close() })
			return g, nil
		},
	})
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	l, err := newLink(conn)
	if err != nil {
		_ = conn.CloseDeadline(time.Now().Add(time.Second))
		return nil, err
	}
	if !keep() {
		return nil, context.Cause(ctx)
	}
	return l, nil
}

func newLink(conn *amqp.Connection) (*link, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("ask for confirmations: %w", err)
	}
	l := unconnected()
	l.conn, l.channel = conn, ch
	go l.watch(ch.NotifyClose(make(chan *amqp.Error, 1)), ch.NotifyReturn(make(chan amqp.Return)), conn.NotifyBlocked(make(chan amqp.Blocking, 1)))
	return l, nil
}

// unconnected returns a link of which only the bookkeeping works.
func unconnected() *link {
	l := &link{ended: make(chan struct{}), received: make(chan struct{}), published: map[string][]*publication{}}
	l.alarm.Store(new(string))
	return l
}

// watch records returned messages and alarms until the channel ends. The channel of returns has no
// buffer. So when a message's confirmation is seen, its return has been received; the next receive from
// l.received says that it is recorded.
func (l *link) watch(ends chan *amqp.Error, returns chan amqp.Return, alarms chan amqp.Blocking) {
	for {
		select {
		case r, open := <-returns:
			if !open {
				returns = nil
				continue
			}
			l.record(r)
		case l.received <- struct{}{}:
		case b, open := <-alarms:
			if !open {
				alarms = nil
				continue
			}
			reason := ""
			if b.Active {
				reason = "alarm: " + b.Reason
			}
			l.alarm.Store(&reason)
		case e := <-ends: // nil if this side closed it
			err := errors.New("the channel was closed")
			if e != nil {
				err = e
			}
			l.why.Store(&err)
			close(l.ended)
			return
		}
	}
}

// alive reports whether the channel can be used to publish.
func (l *link) alive() bool {
	select {
	case <-l.ended:
		return false
	default:
		return !l.channel.IsClosed()
	}
}

func (l *link) blocked() string { return *l.alarm.Load() }

func (l *link) close() { _ = l.conn.CloseDeadline(time.Now().Add(time.Second)) }

// errNack is the broker's refusal, which has no reason.
var errNack = errors.New("the broker refused the message (nack): the queue may be full or failing")

// publish publishes a message. Until the publication is forgotten, its return is recorded.
func (l *link) publish(exchange, key string, mandatory bool, m amqp.Publishing) (*publication, error) {
	p := l.expect(m.MessageId)
	var err error
	if p.confirmation, err = l.channel.PublishWithDeferredConfirm(exchange, key, mandatory, false, m); err != nil {
		l.forget(p)
		return nil, err
	}
	return p, nil
}

// expect records returns of a message from now on.
func (l *link) expect(id string) *publication {
	p := &publication{id: id}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published[id] = append(l.published[id], p)
	return p
}

func (l *link) record(r amqp.Return) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.published[r.MessageId] {
		p.returned = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
	}
}

// forget ends the wait for a publication, whose returns are no longer recorded. It returns why the message came back, ""
// if it did not.
func (l *link) forget(p *publication) (returned string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := slices.DeleteFunc(l.published[p.id], func(other *publication) bool { return other == p })
	if l.published[p.id] = left; len(left) == 0 {
		delete(l.published, p.id)
	}
	return p.returned
}

// awaitConfirmation waits until the broker has taken a message. A message that comes back as unroutable was taken
// as well: awaitReturns says when that is known.
func (l *link) awaitConfirmation(ctx context.Context, confirmation *amqp.DeferredConfirmation) error {
	select {
	case <-confirmation.Done():
	case <-l.ended:
		return *l.why.Load()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if confirmation.Acked() {
		return nil
	}
	if !l.alive() { // when the channel ends, the library settles open confirmations as refused
		return l.cause(ctx, errNack)
	}
	return errNack
}

// cause waits for the reason why the channel ended, which says more than the library's error.
func (l *link) cause(ctx context.Context, err error) error {
	if !l.channel.IsClosed() {
		return err
	}
	select {
	case <-l.ended:
		return *l.why.Load()
	case <-ctx.Done():
		return err
	}
}

// awaitReturns waits until the returns of all confirmed messages are recorded.
func (l *link) awaitReturns(ctx context.Context) error {
	select {
	case <-l.received:
		return nil
	case <-l.ended:
		return *l.why.Load()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
