package view

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
)

// QueueStats is the state of a queue.
type QueueStats struct {
	Queue       string `json:"queue"`
	Waiting     int64  `json:"waiting"`
	Delayed     int64  `json:"delayed"`
	Active      int64  `json:"active"`
	Dead        int64  `json:"dead"`
	OldestAgeMS int64  `json:"oldest_age_ms"` // of the oldest waiting job
	// The rates are in jobs per second.
	EnqueueRate  float64 `json:"enqueue_rate"`
	CompleteRate float64 `json:"complete_rate"`
	Paused       bool    `json:"paused"`
	Broker       string  `json:"broker"` // the node that serves it; empty if none does
	// Problem says why the queue's state is unknown; empty if it is known.
	Problem string `json:"problem"`
	// NotRead says that the problem is that of other queues, which have taken all the time.
	NotRead bool `json:"-"`
}

// Queues is the state of a cluster's queues.
type Queues struct {
	// Problem says why the state is unknown; empty if it is known.
	Problem string       `json:"problem"`
	Queues  []QueueStats `json:"queues"`
	// Denied says that the problem is missing permission, not the queues.
	Denied bool `json:"-"`
}

const (
	queuesAtOnce = 64 // whose state is read at the same time
	// queueSlotTime is after how long a queue no longer keeps others from being read: those of a host that was lost do
	// not answer at all, and they may be many.
	queueSlotTime = 50 * time.Millisecond
)

// ReadQueues reads the state of queues by their names, until ctx ends after that time. Why says to people why one cannot be read.
func ReadQueues(ctx context.Context, within time.Duration, names []string, read func(ctx context.Context, name string) (*queue.Stats, error), why func(error) string) []QueueStats {
	out := make([]QueueStats, len(names))
	slots := make(chan struct{}, queuesAtOnce)
	var reads sync.WaitGroup
	for i, name := range names {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			out[i] = QueueStats{Queue: name, NotRead: true, Problem: "it was not read, because others have not answered within " + Exact(within)}
			continue
		}
		reads.Go(func() {
			leave := sync.OnceFunc(func() { <-slots })
			defer leave()
			defer time.AfterFunc(queueSlotTime, leave).Stop()
			got, err := read(ctx, name)
			switch {
			case err == nil:
				out[i] = queueStatsOf(name, got)
			case ctx.Err() != nil:
				out[i] = QueueStats{Queue: name, Problem: "no answer within " + Exact(within)}
			default:
				out[i] = QueueStats{Queue: name, Problem: firstLine(why(err))}
			}
		})
	}
	reads.Wait()
	return out
}

func queueStatsOf(name string, got *queue.Stats) QueueStats {
	s := wire.StatsOf(got)
	return QueueStats{
		Queue: name, Waiting: s.Waiting, Delayed: s.Delayed, Active: s.Active, Dead: s.Dead, OldestAgeMS: s.OldestAgeMS,
		EnqueueRate: s.EnqueueRate, CompleteRate: s.CompleteRate, Paused: s.Paused, Broker: s.Broker,
	}
}

// cell returns the queues' line in a status.
func (q *Queues) cell() string {
	const name = "       QUEUE "
	switch {
	case q == nil:
		return ""
	case q.Problem != "":
		return name + "unknown: " + Line(q.Problem)
	}
	var waiting, active, dead int64
	for _, s := range q.Queues {
		waiting, active, dead = waiting+s.Waiting, active+s.Active, dead+s.Dead
	}
	text := fmt.Sprintf("%s%d waiting, %d active", name, waiting, active)
	if dead > 0 {
		text += fmt.Sprintf(", %d dead", dead)
	}
	return text
}

// AddQueues adds the queues and their notices to a status. A job that has waited longer than limit gives
// a notice.
func (s *Status) AddQueues(q *Queues, limit time.Duration) {
	s.Queues = q
	if q == nil {
		return
	}
	s.addNotices(func(add notify) {
		if q.Problem != "" && !q.Denied {
			add(warning, "queues", "emitd queue ls", "the state of the queues is not known: %s", q.Problem)
		}
		for _, one := range q.Queues {
			one.addUnserved(add)
			one.dead(add)
			one.waiting(limit, add)
		}
	})
}

// addUnserved adds a notice about a queue whose state is unknown.
func (q QueueStats) addUnserved(add notify) {
	switch {
	case q.NotRead:
		add(warning, "queue "+q.Queue, "emitd queue stats "+q.Queue, "the state of queue %s is not known: %s", q.Queue, q.Problem)
	case q.Problem != "":
		add(failing, "queue "+q.Queue, "emitd queue stats "+q.Queue, "queue %s does not answer: %s", q.Queue, firstLine(q.Problem))
	}
}

// dead adds a notice about jobs that have used up their attempts.
func (q QueueStats) dead(add notify) {
	if q.Dead > 0 {
		add(warning, "queue "+q.Queue, "emitd queue peek "+q.Queue+" --state dead", "queue %s has %s: all attempts were used", q.Queue, several(q.Dead, "dead job"))
	}
}

// waiting adds a notice about a job that has waited too long.
func (q QueueStats) waiting(limit time.Duration, add notify) {
	age := time.Duration(q.OldestAgeMS) * time.Millisecond
	if q.Waiting == 0 || limit == 0 || age <= limit {
		return
	}
	why, do := "no job is active; check that workers run", "emitd queue stats "+q.Queue
	switch {
	case q.Paused:
		why, do = "the queue is paused", "emitd queue resume "+q.Queue
	case q.Active > 0:
		why = fmt.Sprintf("%d active: the workers are too slow", q.Active)
	}
	add(failing, "queue "+q.Queue, do, "queue %s keeps its oldest job waiting for %s, %d wait: %s", q.Queue, Short(age), q.Waiting, why)
}

// several formats a number of things.
func several(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
