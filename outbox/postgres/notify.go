package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/pgschema"
	"github.com/emitd/emitd/outbox/internal/wakeup"
)

// wakeups wakes the listeners of one Log.
type wakeups struct {
	mu        sync.Mutex
	listeners map[chan struct{}]bool
}

// wakeAll wakes all listeners. A listener with a pending wake-up gets no second one.
func (b *wakeups) wakeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.listeners {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// subscribe returns a channel that receives wake-ups until ctx ends.
func (b *wakeups) subscribe(ctx context.Context) <-chan struct{} {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners == nil {
		b.listeners = map[chan struct{}]bool{}
	}
	b.listeners[c] = true
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners, c)
	})
	return c
}

// WakeUps implements [outbox.Log]. Commits of [Publisher.InTx] and [Publisher.Wrap] in any process wake
// relays, and so do changes by operators. Behind a pooler only this log's own wake-ups arrive.
func (l *Log) WakeUps(ctx context.Context) <-chan struct{} {
	if l.cfg.Notify == NotifyAuto && !l.pooled {
		l.listen.Do(func() { l.wg.Go(l.listenOn) })
	}
	return l.listeners.subscribe(ctx)
}

// reconnects are the pauses before a listener that lost its connection reconnects.
var reconnects = backoff.Policy{First: 100 * time.Millisecond, Limit: 15 * time.Second}

// listenOn listens until the log is closed. While it cannot listen, relays poll.
func (l *Log) listenOn() {
	for failures := 1; l.ctx.Err() == nil; failures++ {
		began := time.Now()
		err := l.listenOnce()
		if l.ctx.Err() != nil {
			return
		}
		l.cfg.Logger.Debug("outbox relays poll until notifications arrive again", "error", l.cfg.explain("listen", err))
		if time.Since(began) > time.Minute {
			failures = 1
		}
		_ = backoff.Sleep(l.ctx, reconnects.Jittered(failures))
	}
}

// listenOnce listens on one connection. It first wakes all relays, for commits from before it listened.
func (l *Log) listenOnce() error {
	cc := l.pool.Config().ConnConfig
	cc.RuntimeParams["statement_timeout"] = "0"
	conn, err := pgx.ConnectConfig(l.ctx, cc)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(l.ctx))
	if _, err := conn.Exec(l.ctx, "listen "+pgx.Identifier{l.names.channel()}.Sanitize()); err != nil {
		return err
	}
	for {
		l.listeners.wakeAll()
		if _, err := conn.WaitForNotification(l.ctx); err != nil {
			return err
		}
	}
}

// notifyPause is the shortest time between two notifications of a publisher. More of them would only cost.
const notifyPause = 25 * time.Millisecond

// newNotifier returns the notifier of commits. Each notification uses a connection of the pool.
func newNotifier(pool *pgxpool.Pool, cfg Config) *wakeup.Notifier {
	c := wakeup.Config{Pause: notifyPause, OnPublished: cfg.OnPublished, Logger: cfg.Logger}
	if cfg.Notify == NotifyAuto && pool != nil {
		text := "select pg_catalog.pg_notify(" + pgschema.Literal(cfg.names().channel()) + ", '')"
		c.WakeRelays = func(ctx context.Context) {
			timed, cancel := context.WithTimeout(ctx, cfg.QueryTimeout)
			defer cancel()
			if _, err := pool.Exec(timed, text, pgx.QueryExecModeSimpleProtocol); err != nil && ctx.Err() == nil {
				cfg.Logger.Debug("outbox wake-up failed; relays find messages by polling", "error", cfg.explain("notify", err))
			}
		}
	}
	return wakeup.New(c)
}
