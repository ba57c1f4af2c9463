package cli

import (
	"context"
	"errors"
	"slices"

	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/queue"
)

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
	names := make([]string, len(declared))
	for i, d := range declared {
		names[i] = d.Name
	}
	out.Queues = view.ReadQueues(ctx, statusPartTimeout, names, nodes.Stats, error.Error)
	return nil
}
