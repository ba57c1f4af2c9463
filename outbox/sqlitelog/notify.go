package sqlitelog

import (
	"context"
	"database/sql"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/emitd/emitd/outbox"
)

// hookBuffer is how many commits Config.OnPublished may be behind.
const hookBuffer = 1024

// commits connects the publishers and logs of a process by the file they share. It is the one thing
// that is global here: a publisher knows only its caller's handle, a log only its path.
var commits = bell{ears: map[string]map[chan struct{}]bool{}}

// bell hints those who listen to a file.
type bell struct {
	mu   sync.Mutex
	ears map[string]map[chan struct{}]bool
}

// ring hints all; one that has a hint needs no second.
func (b *bell) ring(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.ears[path] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// listen returns a channel for hints about a file, until done is called.
func (b *bell) listen(path string) (c chan struct{}, done func()) {
	c = make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ears[path] == nil {
		b.ears[path] = map[chan struct{}]bool{}
	}
	b.ears[path][c] = true
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if delete(b.ears[path], c); len(b.ears[path]) == 0 {
			delete(b.ears, path)
		}
	}
}

// Wake implements [outbox.Log]. There are hints for commits of [Publisher.InTx] and [Publisher.Wrap]
// of this process, for what operators of this process did, and for whatever another process or a
// bare transaction added to the log.
func (l *Log) Wake(ctx context.Context) <-chan struct{} {
	c, done := commits.listen(l.cfg.Path)
	context.AfterFunc(ctx, done)
	if l.cfg.WatchInterval > 0 {
		l.watch.Do(func() { l.wg.Go(l.watchFile) })
	}
	return c
}

// watchFile rings when the log has grown. A changed data version says that another connection has
// committed; only then the end of the log is looked up.
func (l *Log) watchFile() {
	var s *session
	defer func() { s.close() }()
	var version, end int64
	tick := time.NewTicker(l.cfg.WatchInterval)
	defer tick.Stop()
	for {
		var err error
		if s, err = l.usable(l.ctx, s, l.openReader); err == nil {
			q := &query{s: s, ctx: l.ctx}
			if v := q.number("PRAGMA data_version"); v != version {
				grown := q.number("SELECT seq FROM sqlite_sequence WHERE name = '~outbox'") + q.number("SELECT seq FROM sqlite_sequence WHERE name = '~outbox_delayed'")
				if q.err == nil && grown != end {
					commits.ring(l.cfg.Path)
				}
				version, end = v, grown
			}
			if err = q.err; err != nil {
				s.broken = true
			}
		} else {
			s = nil
		}
		if err != nil && !isBusy(err) && l.ctx.Err() == nil {
			l.cfg.Logger.Debug("outbox relays poll until the file can be watched again", "file", l.cfg.Path, "error", err)
		}
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			return
		}
	}
}

// notifier tells relays and hooks of commits, from a goroutine of its own: no caller waits.
type notifier struct {
	db     *sql.DB
	hook   func([]outbox.Message)
	log    *slog.Logger
	signal chan struct{} // a commit since the last ring
	told   chan []outbox.Message
	done   chan struct{} // no more commits
	ctx    context.Context
	stop   context.CancelFunc
	start  sync.Once
	end    sync.Once
	wg     sync.WaitGroup
}

func newNotifier(db *sql.DB, cfg Config) *notifier {
	n := &notifier{
		db: db, hook: cfg.OnPublished, log: cfg.Logger,
		signal: make(chan struct{}, 1), told: make(chan []outbox.Message, hookBuffer), done: make(chan struct{}),
	}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// committed says that messages are there. It never waits.
func (n *notifier) committed(messages []outbox.Message) {
	n.start.Do(func() {
		n.wg.Go(n.ring)
		if n.hook != nil {
			n.wg.Go(n.tell)
		}
	})
	select {
	case n.signal <- struct{}{}:
	default:
	}
	if n.hook == nil || messages == nil {
		return
	}
	select {
	case n.told <- messages:
	default:
		n.log.Warn("outbox hook is too slow; it missed a commit", "hook", "OnPublished", "messages", len(messages))
	}
}

// ring hints the relays of this process. Which file the handle is of is asked once.
func (n *notifier) ring() {
	path := ""
	for {
		select {
		case <-n.signal:
		case <-n.done:
			return
		}
		if path == "" {
			var err error
			if path, err = fileOf(n.ctx, n.db); err != nil && n.ctx.Err() == nil {
				n.log.Debug("outbox wake-up failed; relays find messages by watching the file", "error", err)
			}
		}
		commits.ring(path)
	}
}

// fileOf asks a handle for its file, in the form that a log uses.
func fileOf(ctx context.Context, db *sql.DB) (string, error) {
	var path string
	if err := db.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&path); err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return path, nil
}

// tell calls the hook, in the order of the commits.
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
			n.log.Error("outbox hook panicked", "hook", "OnPublished", "panic", p)
		}
	}()
	n.hook(messages)
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
