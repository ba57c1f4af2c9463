package view

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/queue"
)

// TestReadQueues: queues that do not answer keep no other from being read. If there are too many of them, those that
// were not read say so.
func TestReadQueues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		queues, silent int
		notRead        bool
	}{{30, 10, false}, {1000, 300, false}, {5000, 4999, true}} {
		synctest.Test(t, func(t *testing.T) {
			names := make([]string, c.queues)
			silent := map[string]bool{}
			for i := range names {
				names[i] = fmt.Sprintf("q%04d", i)
				silent[names[i]] = i < c.silent
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begun := time.Now()
			out := ReadQueues(ctx, time.Second, names, func(ctx context.Context, name string) (*queue.Stats, error) {
				if silent[name] {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				time.Sleep(time.Millisecond)
				return &queue.Stats{Waiting: 1}, nil
			}, error.Error)
			if took := time.Since(begun); took != time.Second {
				t.Errorf("%d queues were read in %v", c.queues, took)
			}
			notRead := 0
			for i, q := range out {
				switch {
				case q.Queue != names[i]:
					t.Errorf("%s is in the place of %s", q.Queue, names[i])
				case q.NotRead:
					notRead++
				case silent[q.Queue] != (q.Problem == "no answer within 1.0s") || silent[q.Queue] != (q.Waiting == 0):
					t.Errorf("of %d queues, %d do not answer: %+v", c.queues, c.silent, q)
				}
			}
			if c.notRead != (notRead > 0) {
				t.Errorf("of %d queues, %d do not answer: %d were not read", c.queues, c.silent, notRead)
			}
		})
	}
}

// TestWhatIsReadLaterNeedsAttention checks that problems of queues and the outbox give notices, each with
// the reason and what to do, and change the exit code with --exit-code. Healthy ones give none.
func TestWhatIsReadLaterNeedsAttention(t *testing.T) {
	t.Parallel()
	const limit = 5 * time.Minute
	old := (12 * time.Minute).Milliseconds()
	for name, c := range map[string]struct {
		queues *Queues
		box    *Outbox
		want   string // severity, text and command of each notice, one per line
	}{
		"no queue, no outbox": {},
		"all is well": {
			&Queues{Queues: []QueueStats{{Queue: "q", Waiting: 4, Active: 1, OldestAgeMS: 1000, Broker: "a"}}},
			OutboxOf("sqlite", []outbox.Stats{{Subscription: "s", Pending: 3, PendingExact: true, OldestAt: now.Add(-time.Second), Now: now}}), "",
		},
		"dead jobs":          {&Queues{Queues: []QueueStats{{Queue: "q", Dead: 2}}}, nil, "warning queue q has 2 dead jobs: all attempts were used -> emitd queue peek q --state dead"},
		"nobody claims":      {&Queues{Queues: []QueueStats{{Queue: "q", Waiting: 7, OldestAgeMS: old}}}, nil, "failing queue q keeps its oldest job waiting for 12m00s, 7 wait: no job is active; check that workers run -> emitd queue stats q"},
		"paused":             {&Queues{Queues: []QueueStats{{Queue: "q", Waiting: 7, OldestAgeMS: old, Paused: true}}}, nil, "failing queue q keeps its oldest job waiting for 12m00s, 7 wait: the queue is paused -> emitd queue resume q"},
		"no broker":          {&Queues{Queues: []QueueStats{{Queue: "q", Problem: "no node serves it\nnow"}}}, nil, "failing queue q does not answer: no node serves it -> emitd queue stats q"},
		"no time":            {&Queues{Queues: []QueueStats{{Queue: "q", Problem: "it was not read", NotRead: true}}}, nil, "warning the state of queue q is not known: it was not read -> emitd queue stats q"},
		"no node answers":    {&Queues{Problem: "connection refused"}, nil, "warning the state of the queues is not known: connection refused -> emitd queue ls"},
		"a token is missing": {&Queues{Problem: "want a token", Denied: true}, nil, ""},
		"outbox unknown":     {nil, NoOutbox("E5101: unreachable"), "failing the state of the outbox is not known: E5101: unreachable -> emitd doctor"},
		"sink down": {nil, OutboxOf("sqlite", []outbox.Stats{{
			Subscription: "s", Pending: 3, PendingExact: true, OldestAt: now.Add(-12 * time.Minute), Now: now,
			Cursors: []outbox.CursorStats{{Node: "a", Problem: "sink is down: dial tcp: refused\nmore"}},
		}}), "failing outbox s: the sink is down, says a, 3 wait, the oldest for 12m00s: dial tcp: refused -> check the receiver; emitd outbox stats s -o wide"},
		"dead messages": {
			nil, OutboxOf("sqlite", []outbox.Stats{{Subscription: "s", PendingExact: true, Now: now, Dead: 1, HeldKeys: 2}}),
			"warning outbox s has 1 dead message: given up or skipped -> emitd outbox ls s --kind dead\n" +
				"warning outbox s holds 2 keys: each key waits for an operator, because one of its messages cannot be delivered -> emitd outbox ls s --kind held",
		},
		"no relay": {
			nil, OutboxOf("sqlite", []outbox.Stats{{Subscription: "s", Pending: 3, OldestAt: now.Add(-12 * time.Minute), Now: now}}),
			"failing outbox s keeps its oldest message waiting for 12m00s, ~3 wait: no relay reads it -> emitd daemon explain emit:outbox/s",
		},
	} {
		s := Of(healthy(), reader)
		s.AddQueues(c.queues, limit)
		s.AddOutbox(c.box, limit)
		var got []string
		for _, n := range s.Attention {
			got = append(got, string(n.Severity)+" "+n.Text+" -> "+n.Action)
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), c.want)
		}
		var table bytes.Buffer
		if err := s.Table(&table, false); err != nil || strings.Count(table.String(), "\n! ") != len(got) {
			t.Errorf("%s: %v\n%s", name, err, table.String())
		}
	}
}
