package view

import (
	"fmt"
	"time"
)

// QueueStats is how a queue is.
type QueueStats struct {
	Queue       string `json:"queue"`
	Waiting     int64  `json:"waiting"`
	Delayed     int64  `json:"delayed"`
	Active      int64  `json:"active"`
	Dead        int64  `json:"dead"`
	OldestAgeMS int64  `json:"oldest_age_ms"` // of waiting ones
	Paused      bool   `json:"paused"`
	Broker      string `json:"broker"` // the node that serves it; empty if none does
	// Problem says why nothing is known of it; empty if it is.
	Problem string `json:"problem"`
}

// Queues is how the queues of a cluster are.
type Queues struct {
	// Problem says why nothing is known; empty if it is.
	Problem string       `json:"problem"`
	Queues  []QueueStats `json:"queues"`
	// Denied says that the problem is who asks, not the queues.
	Denied bool `json:"-"`
}

// cell is the queues in the line of a status.
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

// AddQueues adds the queues and what is wrong with them. A job that waits longer than limit is told.
func (s *Status) AddQueues(q *Queues, limit time.Duration) {
	s.Queues = q
	if q == nil {
		return
	}
	s.attend(func(add notify) {
		if q.Problem != "" && !q.Denied {
			add(warning, "queues", "emitd queue ls", "nothing is known of the queues: %s", q.Problem)
		}
		for _, one := range q.Queues {
			one.unserved(add)
			one.dead(add)
			one.waiting(limit, add)
		}
	})
}

// unserved tells of a queue of which nothing is known.
func (q QueueStats) unserved(add notify) {
	if q.Problem != "" {
		add(failing, "queue "+q.Queue, "emitd queue stats "+q.Queue, "queue %s does not answer: %s", q.Queue, firstLine(q.Problem))
	}
}

// dead tells of jobs that have used up their attempts.
func (q QueueStats) dead(add notify) {
	if q.Dead > 0 {
		add(warning, "queue "+q.Queue, "emitd queue peek "+q.Queue+" --state dead", "queue %s has %s: no attempt of it is left", q.Queue, several(q.Dead, "dead job"))
	}
}

// waiting tells of a job that has waited for too long.
func (q QueueStats) waiting(limit time.Duration, add notify) {
	age := time.Duration(q.OldestAgeMS) * time.Millisecond
	if q.Waiting == 0 || limit == 0 || age <= limit {
		return
	}
	why, do := "is any worker claiming?", "emitd queue stats "+q.Queue
	switch {
	case q.Paused:
		why, do = "the queue is paused", "emitd queue resume "+q.Queue
	case q.Active > 0:
		why = fmt.Sprintf("%d active: the workers do not keep up", q.Active)
	}
	add(failing, "queue "+q.Queue, do, "queue %s keeps its oldest job waiting for %s, %d wait: %s", q.Queue, short(age), q.Waiting, why)
}

// several writes a number of things.
func several(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
