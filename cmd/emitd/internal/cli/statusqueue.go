package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// queuesAtOnce is how many queues are queried at the same time.
const queuesAtOnce = 8

// readQueues asks a node for the state of the queues, within statusPartTimeout. A problem is part of the result;
// nil means that no node serves queues.
func (q *queues) readQueues(ctx context.Context, c *cluster) *view.Queues {
	if !slices.ContainsFunc(c.status().Nodes, func(n view.Node) bool { return slices.Contains(n.Kinds, queue.Kind) }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusPartTimeout)
	defer cancel()
	out := &view.Queues{Queues: []view.QueueStats{}}
	if err := q.readCounts(ctx, c, out); err != nil {
		out.Problem = firstLine(err.Error())
		if refused, ok := errors.AsType[*queue.Error](err); ok && refused.Tag == queue.Unauthorized {
			out.Problem, out.Denied = "the nodes require a token: use --token-file", true
		}
	}
	return out
}

// readCounts reads the list of queues and the counts of each.
func (q *queues) readCounts(ctx context.Context, c *cluster, out *view.Queues) error {
	nodes, err := q.client(ctx, func(context.Context) ([]string, error) { return serving(c) })
	if err != nil {
		return err
	}
	defer nodes.Close()
	declared, err := nodes.Queues(ctx)
	if err != nil {
		return err
	}
	out.Queues = make([]view.QueueStats, len(declared))
	var reads sync.WaitGroup
	slots := make(chan struct{}, queuesAtOnce)
	for i, d := range declared {
		reads.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out.Queues[i] = readQueue(ctx, nodes, d.Name)
		})
	}
	reads.Wait()
	return nil
}

// readQueue reads the counts of one queue. A problem is part of the result.
func readQueue(ctx context.Context, c *client.Client, name string) view.QueueStats {
	got, err := c.Stats(ctx, name)
	if err != nil {
		problem := firstLine(err.Error())
		if ctx.Err() != nil {
			problem = fmt.Sprintf("no answer within %s", view.Exact(statusPartTimeout.Round(time.Second)))
		}
		return view.QueueStats{Queue: name, Problem: problem}
	}
	s := wire.StatsOf(got)
	return view.QueueStats{
		Queue: name, Waiting: s.Waiting, Delayed: s.Delayed, Active: s.Active, Dead: s.Dead, OldestAgeMS: s.OldestAgeMS,
		EnqueueRate: s.EnqueueRate, CompleteRate: s.CompleteRate, Paused: s.Paused, Broker: s.Broker,
	}
}
