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

// link is one connection with one channel that confirms.
type link struct {
	conn    *amqp.Connection
	channel *amqp.Channel
	ended   chan struct{}          // closed when the channel has ended
	why     atomic.Pointer[error]  // of the end; set before ended is closed
	alarm   atomic.Pointer[string] // why the broker blocks, "" when it does not
	asked   chan question
}

// question asks whether a message was returned.
type question struct {
	id     string
	answer chan string
}

// connect returns the living link, or makes one.
func (s *Sink) connect(ctx context.Context) (*link, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
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
		// What the library says may repeat the password that was refused.
		text := sink.Redact(err.Error(), sink.Secret(s.uri.Password))
		s.failed = sink.Down("connect to "+sink.Host(string(s.cfg.URL)), errors.New(text))
		return nil, s.failed
	}
	s.link = l
	return l, nil
}

// dial connects, logs in and opens the channel.
func (s *Sink) dial(ctx context.Context) (*link, error) {
	ctx, cancel := sink.Limit(ctx, sink.Deadline{What: "the broker", After: s.cfg.Timeout})
	defer cancel()
	// The library keeps no time while it logs in: a silent peer would hold us.
	keep := func() bool { return true }
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(s.cfg.Name)
	conn, err := amqp.DialConfig(string(s.cfg.URL), amqp.Config{
		Heartbeat: s.cfg.Heartbeat, TLSClientConfig: s.tls, Properties: properties, Locale: "en_US",
		Dial: func(network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err == nil {
				keep = context.AfterFunc(ctx, func() { _ = c.Close() })
			}
			return c, err
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
	l := &link{conn: conn, channel: ch, ended: make(chan struct{}), asked: make(chan question)}
	none := ""
	l.alarm.Store(&none)
	go l.watch(ch.NotifyClose(make(chan *amqp.Error, 1)), ch.NotifyReturn(make(chan amqp.Return)), conn.NotifyBlocked(make(chan amqp.Blocking, 1)))
	return l, nil
}

// watch notes what the broker says about messages and about the channel, until that ends. Returns are
// taken off a channel without a buffer: when a message's confirmation is seen, its return has been
// taken, and a question asked after it finds the note.
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
		case q := <-l.asked:
			q.answer <- returned[q.id]
			delete(returned, q.id)
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
		case e := <-ends: // nil when we closed it
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

// alive reports whether the channel can be published on.
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

// errNack is a broker's refusal without a reason.
var errNack = errors.New("the broker refused it (nack): the queue may be full, or fail")

// publish publishes a message and waits until the broker has confirmed it. A message that was
// returned is confirmed, too: returned says why.
func (l *link) publish(ctx context.Context, exchange, key string, mandatory bool, m amqp.Publishing) (returned string, err error) {
	sent := make(chan *amqp.DeferredConfirmation, 1)
	failed := make(chan error, 1)
	go func() { // a peer that does not read holds the library's write for ever
		confirmation, err := l.channel.PublishWithDeferredConfirm(exchange, key, mandatory, false, m)
		if err != nil {
			failed <- err
			return
		}
		sent <- confirmation
	}()
	var confirmation *amqp.DeferredConfirmation
	select {
	case confirmation = <-sent:
	case err := <-failed:
		return "", l.cause(ctx, err)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	select {
	case <-confirmation.Done():
	case <-l.ended:
		return "", *l.why.Load()
	case <-ctx.Done():
		go l.forget(confirmation, m.MessageId)
		return "", context.Cause(ctx)
	}
	if !confirmation.Acked() {
		if !l.alive() { // the library settles what is open when the channel ends
			return "", l.cause(ctx, errNack)
		}
		return "", errNack
	}
	if !mandatory {
		return "", nil
	}
	return l.returned(ctx, m.MessageId)
}

// forget takes the note of a message that nobody waits for any more.
func (l *link) forget(confirmation *amqp.DeferredConfirmation, id string) {
	select {
	case <-confirmation.Done():
		_, _ = l.returned(context.Background(), id)
	case <-l.ended:
	}
}

// cause waits for the reason why the channel ended, which says more than what the library returned.
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

// returned asks whether the confirmed message came back.
func (l *link) returned(ctx context.Context, id string) (string, error) {
	q := question{id, make(chan string, 1)}
	select {
	case l.asked <- q:
		return <-q.answer, nil
	case <-l.ended:
		return "", *l.why.Load()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
