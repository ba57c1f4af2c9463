package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// reshardPoll is how often a command reads how far a change of the number of shards is.
const reshardPoll = 200 * time.Millisecond

func (q *queues) reshard() *cobra.Command {
	var shards int
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "reshard QUEUE", Short: "Change the number of a queue's shards",
		Long: "Change the number of a queue's shards while it is used. The jobs move to the new shards; those of one group\n" +
			"keep their order, and claims, dead letters and the IDs that are recognised move as well. While they move, calls\n" +
			"wait or are refused with QueueUnavailable: about a second, and more for a large backlog. The command returns at\n" +
			"once; with --wait it waits for the end. A change that is being prepared is cancelled with the present number of\n" +
			"shards. All nodes must run a version that has this command.",
		Args: exactly(1, "the name of a queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("shards") {
				return fault.New(fault.Usage, "--shards is missing: how many shards should the queue have?")
			}
			return q.with(cmd.Context(), wait, func(ctx context.Context, c *client.Client) error {
				set, err := c.Reshard(ctx, args[0], shards)
				if err == nil && wait > 0 {
					set, err = q.untilResharded(ctx, c, set, wait)
				}
				if err != nil {
					return err
				}
				return q.printReshard(set)
			})
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&shards, "shards", 0, "number of shards, 1 to 256")
	fl.DurationVar(&wait, "wait", 0, "how long to wait for the end of the change; 0: do not wait")
	return q.a.outputFlag(cmd)
}

// untilResharded waits until the change has ended, at most this long. It returns the settings that it saw last.
func (q *queues) untilResharded(ctx context.Context, c *client.Client, set queue.Settings, wait time.Duration) (queue.Settings, error) {
	for end := time.Now().Add(wait); set.Resharding.Stage != "" && time.Now().Before(end); {
		if err := backoff.Sleep(ctx, reshardPoll); err != nil {
			return set, err
		}
		all, err := c.Queues(ctx)
		if err != nil {
			return set, err
		}
		for _, s := range all {
			if s.Name == set.Name {
				set = s
			}
		}
	}
	return set, nil
}

func (q *queues) printReshard(set queue.Settings) error {
	d := wire.DeclarationOf(set)
	return q.a.print(data{whole: d, names: []string{d.Name}, table: func(w io.Writer, _ bool) error {
		text := fmt.Sprintf("%s has %d shards", view.Line(d.Name), d.Shards)
		if d.Resharding != nil {
			text = fmt.Sprintf("%s is being resharded from %d to %d shards: %s", view.Line(d.Name), d.Resharding.From, d.Resharding.To, d.Resharding.Stage)
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}})
}
