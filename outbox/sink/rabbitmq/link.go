package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	queries chan returnQuery
}

// returnQuery asks watch which of some messages were returned, and why.
type returnQuery struct {
	ids    []string
	answer chan map[string]string // has room for the answer
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
	l := &link{conn: conn, channel: ch, ended: make(chan struct{}), queries: make(chan returnQuery)}
	none := ""
	l.alarm.Store(&none)
	go l.watch(ch.NotifyClose(make(chan *amqp.Error, 1)), ch.NotifyReturn(make(chan amqp.Return)), conn.NotifyBlocked(make(chan amqp.Blocking, 1)))
	return l, nil
}

// watch records returned messages and alarms until the channel ends. The channel of returns has no
// buffer. So when a message's confirmation is seen, its return has been received, and a question asked
// after that finds the record.
func (l *link) watch(ends chan *amqp.Error, returns chan amqp.Return, alarms chan amqp.Blocking) {
	returned := map[string]string{}
	for {
		select {
		case r, open := <-returns:
			if !open {
				returns = nil
				continue
			}
			returned[r.MessageId] = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
		case q := <-l.queries:
			q.answer <- takeAll(returned, q.ids)
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

// takeAll removes what a map has of some keys, and returns it.
func takeAll(from map[string]string, keys []string) (taken map[string]string) {
	for _, key := range keys {
		if len(from) == 0 {
			return taken
		}
		if value, has := from[key]; has {
			if taken == nil {
				taken = map[string]string{}
			}
			taken[key] = value
			delete(from, key)
		}
	}
	return taken
}

// awaitConfirmation waits until the broker has taken a message. A message that comes back as unroutable was taken
// as well: returned says which those are.
func (l *link) awaitConfirmation(ctx context.Context, confirmation *amqp.DeferredConfirmation, id string) error {
	select {
	case <-confirmation.Done():
	case <-l.ended:
		return *l.why.Load()
	case <-ctx.Done():
		go l.forget(confirmation, id)
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

// forget removes the record of a returned message that no caller waits for any more.
func (l *link) forget(confirmation *amqp.DeferredConfirmation, id string) {
	select {
	case <-confirmation.Done():
		_, _ = l.returned(context.Background(), []string{id})
	case <-l.ended:
	}
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

// returned returns which of some confirmed messages were returned, and why.
func (l *link) returned(ctx context.Context, ids []string) (map[string]string, error) {
	q := returnQuery{ids, make(chan map[string]string, 1)}
	select {
	case l.queries <- q:
		return <-q.answer, nil
	case <-l.ended:
		return nil, *l.why.Load()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
