package worker

import (
	"sync"
	"time"

	"github.com/emitd/emitd/queue"
)

// logEvery is the least time between two log lines about the same kind of error.
const logEvery = time.Minute

// errorLog limits how often each kind of error is logged.
type errorLog struct {
	mu   sync.Mutex
	last map[string]time.Time // when each kind was last logged
}

// due reports whether an error of this kind is to be logged now.
func (l *errorLog) due(kind string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if last, logged := l.last[kind]; logged && now.Sub(last) < logEvery {
		return false
	}
	if l.last == nil {
		l.last = map[string]time.Time{}
	}
	l.last[kind] = now
	return true
}

// failed tells OnError what has failed. Without it, the log is told, so that a worker that gets no jobs does not stay silent.
func (w *Worker) failed(what string, err error) {
	switch {
	case w.cfg.Hooks.OnError != nil:
		w.cfg.Hooks.OnError(err)
	case w.logged.due(what + string(queue.TagOf(err))):
		w.cfg.Logger.Warn("an error in a worker, which goes on", "queue", w.cfg.Queue, "worker", w.cfg.Name, "error", err)
	}
}
