package pglog

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/outbox"
)

// hookBuffer is how many commits Config.OnPublished may be behind.
const hookBuffer = 1024

// bell hints those who listen.
type bell struct {
	mu   sync.Mutex
	ears map[chan struct{}]bool
}

// ring hints all; one that has a hint needs no second.
func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.ears {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// ear returns a channel for hints until ctx ends.
func (b *bell) ear(ctx context.Context) <-chan struct{} {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ears == nil {
		b.ears = map[chan struct{}]bool{}
	}
	b.ears[c] = true
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.ears, c)
	})
	return c
}

// Wake implements [outbox.Log]. There are hints for commits of [Publisher.InTx] and [Publisher.Wrap],
// of any process, and for what operators did; behind a pooler, of this log alone.
func (l *Log) Wake(ctx context.Context) <-chan struct{} {
	if l.cfg.Notify == NotifyAuto && !l.pooled {
		l.listen.Do(func() { l.wg.Go(l.listenOn) })
	}
	return l.bell.ear(ctx)
}

// Pauses of a listener that has lost its connection.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 15 * time.Second
)

// listenOn listens until the log is closed. Where that is not possible relays poll.
func (l *Log) listenOn() {
	for pause := firstPause; l.ctx.Err() == nil; pause = min(2*pause, lastPause) {
		began := time.Now()
		err := l.listenOnce()
		if l.ctx.Err() != nil {
			return
		}
		l.cfg.Logger.Debug("outbox relays poll until notifications can be heard again", "error", l.cfg.explain("listen", err))
		if time.Since(began) > time.Minute {
			pause = firstPause
		}
		t := time.NewTimer(pause/2 + rand.N(pause)) //nolint:gosec // jitter is no secret
		select {
		case <-t.C:
		case <-l.ctx.Done():
			t.Stop()
		}
	}
}

// listenOnce listens on one connection. What was committed before it listened is hinted at once.
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
		l.bell.ring()
		if _, err := conn.WaitForNotification(l.ctx); err != nil {
			return err
		}
	}
}

// between is the least time between two notifications of a publisher: more would only cost.
const between = 25 * time.Millisecond

// notifier tells relays and the hook of commits, from goroutines of its own: no caller waits.
type notifier struct {
	pool   *pgxpool.Pool
	cfg    Config
	signal chan struct{} // a commit since the last notification
	told   chan []outbox.Message
	done   chan struct{} // no more commits
	ctx    context.Context
	stop   context.CancelFunc
	start  sync.Once
	end    sync.Once
	wg     sync.WaitGroup
}

func newNotifier(pool *pgxpool.Pool, cfg Config) *notifier {
	n := &notifier{pool: pool, cfg: cfg, signal: make(chan struct{}, 1), told: make(chan []outbox.Message, hookBuffer), done: make(chan struct{})}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// committed says that messages are there. It never waits.
func (n *notifier) committed(messages []outbox.Message) {
	n.start.Do(func() {
		if n.cfg.Notify == NotifyAuto && n.pool != nil {
			n.wg.Go(n.notify)
		}
		if n.cfg.OnPublished != nil {
			n.wg.Go(n.tell)
		}
	})
	select {
	case n.signal <- struct{}{}:
	default:
	}
	if n.cfg.OnPublished == nil || messages == nil {
		return
	}
	select {
	case n.told <- messages:
	default:
		n.cfg.Logger.Warn("outbox hook is too slow; it missed a commit", "hook", "OnPublished", "messages", len(messages))
	}
}

// notify sends the first hint at once, and then one for all commits of a moment.
func (n *notifier) notify() {
	text := "select pg_notify(" + literal(n.cfg.names().channel()) + ", '')"
	for {
		select {
		case <-n.signal:
		case <-n.done:
			return
		}
		ctx, cancel := context.WithTimeout(n.ctx, n.cfg.QueryTimeout)
		if _, err := n.pool.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol); err != nil && n.ctx.Err() == nil {
			n.cfg.Logger.Debug("outbox wake-up failed; relays find messages by polling", "error", n.cfg.explain("notify", err))
		}
		cancel()
		t := time.NewTimer(between)
		select {
		case <-t.C:
		case <-n.done:
			t.Stop()
			return
		}
	}
}

// tell calls the hook, in the order in which it was told.
func (n *notifier) tell() {
	for {
		select {
		case m := <-n.told:
			n.call(m)
		case <-n.done:
			for {
				select {
				case m := <-n.told:
					n.call(m)
				default:
					return
				}
			}
		}
	}
}

func (n *notifier) call(messages []outbox.Message) {
	defer func() {
		if p := recover(); p != nil {
			n.cfg.Logger.Error("outbox hook panicked", "hook", "OnPublished", slog.Any("panic", p))
		}
	}()
	n.cfg.OnPublished(messages)
}

// close waits until what was told is told, or ctx ends.
func (n *notifier) close(ctx context.Context) error {
	n.start.Do(func() {}) // nothing starts any more
	n.end.Do(func() { close(n.done) })
	ended := make(chan struct{})
	go func() { n.wg.Wait(); close(ended) }()
	defer n.stop()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
