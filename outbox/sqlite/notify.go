package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/outbox/internal/wakeup"
)

// commits connects the publishers and logs of a process that share a file. It is a global variable
// because a publisher knows only its caller's handle and a log only its path.
var commits = wakeups{listeners: map[string]map[chan struct{}]bool{}, logs: map[*Log]bool{}}

// wakeups wakes the listeners of files.
type wakeups struct {
	mu        sync.Mutex
	listeners map[string]map[chan struct{}]bool
	logs      map[*Log]bool // that are open
}

// opened keeps account of an open log, and closed ends that.
func (b *wakeups) opened(l *Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.logs[l] = true
}

func (b *wakeups) closed(l *Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.logs, l)
}

// logsOf returns the open logs of a file.
func (b *wakeups) logsOf(path string) (logs []*Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.logs {
		if l.cfg.Path == path {
			logs = append(logs, l)
		}
	}
	return logs
}

// wakeAll wakes all listeners of a file. A listener with a pending wake-up gets no second one.
func (b *wakeups) wakeAll(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.listeners[path] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// listen returns a channel that receives wake-ups for a file until done is called.
func (b *wakeups) listen(path string) (c chan struct{}, done func()) {
	c = make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners[path] == nil {
		b.listeners[path] = map[chan struct{}]bool{}
	}
	b.listeners[path][c] = true
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if delete(b.listeners[path], c); len(b.listeners[path]) == 0 {
			delete(b.listeners, path)
		}
	}
}

// WakeUps implements [outbox.Log]. In this process, commits of [Publisher.InTx] and [Publisher.Wrap] and
// changes by operators wake relays at once. What other processes or other transactions add to the log is
// found by watching the file.
func (l *Log) WakeUps(ctx context.Context) <-chan struct{} {
	c, done := commits.listen(l.cfg.Path)
	context.AfterFunc(ctx, done)
	if l.cfg.WatchInterval > 0 {
		l.watch.Do(func() { l.wg.Go(l.watchFile) })
	}
	return c
}

// watchFile wakes relays when the log has grown. A changed data version says that another connection has
// committed; only then it queries the end of the log.
func (l *Log) watchFile() {
	var s *sqlitefile.Session
	defer func() { s.Close() }()
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
					commits.wakeAll(l.cfg.Path)
				}
				version, end = v, grown
			}
			if err = q.err; err != nil {
				s.Broken = true
			}
		} else {
			s = nil
		}
		if err != nil && !sqlitefile.IsBusy(err) && l.ctx.Err() == nil {
			l.cfg.Logger.Debug("outbox relays poll until the database file can be watched again", "file", l.cfg.Path, "error", err)
		}
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			return
		}
	}
}

// newNotifier returns the notifier of commits. It asks the handle for its file once.
func newNotifier(db *sql.DB, cfg Config) *wakeup.Notifier {
	path := ""
	return wakeup.New(wakeup.Config{OnPublished: cfg.OnPublished, Logger: cfg.Logger, WakeRelays: func(ctx context.Context) {
		if path == "" {
			var err error
			if path, err = fileOf(ctx, db); err != nil && ctx.Err() == nil {
				cfg.Logger.Debug("outbox wake-up failed; relays find messages by watching the file", "error", err)
			}
		}
		commits.wakeAll(path)
	}})
}

// fileOf returns the path of the file of a handle or transaction, in the form that a log uses.
func fileOf(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
},
) (string, error) {
	var path string
	if err := db.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&path); err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return path, nil
}
