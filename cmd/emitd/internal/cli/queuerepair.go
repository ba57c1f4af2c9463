package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/cmd/emitd/internal/view"
	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/storage/blob"
)

// objects opens the object store with the queues, without a node. It is for those who read, and may
// take as long as its context.
func (q *queues) objects(ctx context.Context, open func(context.Context, string) (blob.Bucket, error)) (blob.Bucket, error) {
	cfg, err := q.a.loadToRead()
	if err != nil {
		return nil, err
	}
	if cfg.Objects.URL == "" {
		return nil, fault.New(fault.ObjectsURL, "objects.url is not set: where are the queues?")
	}
	return open(ctx, cfg.Objects.URL)
}

// verify needs no node: it reads the objects themselves.
func (q *queues) verify() *cobra.Command {
	return q.a.outputFlag(&cobra.Command{
		Use: "verify [QUEUE]", Short: "Read all objects of the queues and name what is damaged or missing",
		Long: "Read all objects of the queues, or of one, compare them with each other, and name each that is missing, is not\n" +
			"what was written, or is an older one. Nothing is written, and nodes may run. It reads everything that is\n" +
			"stored, so it takes as long as that does: --timeout does not bound it. The exit code is 6 if something is\n" +
			"wrong. Needs --objects (or its setting).",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return exactly(1, "the name of a queue, or nothing for all")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			bucket, err := q.objects(cmd.Context(), backend.Reader)
			if err != nil {
				return err
			}
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			found, err := queue.NewRegistry(bucket, "").Verify(cmd.Context(), name)
			if err != nil {
				return queueFault(err)
			}
			return q.printVerified(found)
		},
	})
}

func (q *queues) printVerified(v *queue.Verified) error {
	d := list(v.Problems, func(p queue.Problem) string { return p.Object }, func(bool) *view.Table { return problemTable(v.Problems) })
	d.whole = v
	if err := q.a.print(d); err != nil {
		return err
	}
	q.a.say("%d objects of %d queues and %d shards were read, %d jobs are stored in them", v.Objects, v.Queues, v.Shards, v.Jobs)
	if len(v.Problems) == 0 {
		return nil
	}
	first := v.Problems[0]
	return fault.New(fault.QueueFaulty, "%d objects are not as they should be, the first: %s: %s", len(v.Problems), first.Object, first.Text)
}

func problemTable(all []queue.Problem) *view.Table {
	t := &view.Table{Head: []string{"QUEUE", "SHARD", "OBJECT", "IS", "LOST", "WHY"}}
	for _, p := range all {
		name, shard, lost := p.Queue, fmt.Sprint(p.Shard), "no"
		if name == "" {
			name, shard = "-", "-"
		}
		if p.Lost {
			lost = "yes"
		}
		t.Add(name, shard, p.Object, p.What, lost, p.Text)
	}
	return t
}

// repair needs no node: it writes the list of queues itself, only if unchanged, so nodes may run.
func (q *queues) repair() *cobra.Command {
	var registry, dry bool
	cmd := &cobra.Command{
		Use: "repair --list", Short: "Write a damaged list of queues anew from its copy",
		Long: "Write the list of queues anew, from its copy, when it is gone, damaged or an older one; what stood in its place\n" +
			"is kept below v1/damaged/. No job is touched, and nodes may run. Needs --objects (or its setting).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !registry {
				return fault.New(fault.Usage, "--list is not given: there is nothing else that this command repairs")
			}
			if !dry {
				if err := q.a.confirm("the list of queues is written anew from its copy if it is damaged"); err != nil {
					return err
				}
			}
			open := backend.Bucket
			if dry {
				open = backend.Reader
			}
			bucket, err := q.objects(cmd.Context(), open)
			if err != nil {
				return err
			}
			known, kept, err := queue.NewRegistry(bucket, "").Repair(cmd.Context(), dry)
			if err != nil {
				return queueFault(err)
			}
			names := []string{}
			for _, set := range known {
				names = append(names, set.Name)
			}
			return q.a.print(data{whole: map[string]any{"queues": names, "kept": kept, "dry_run": dry}, names: names, table: func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "the list has %d queues; the damaged one is kept as %s\n", len(names), cmp.Or(kept, "nothing: there was none that could be read, or none was damaged"))
				return err
			}})
		},
	}
	cmd.Flags().BoolVar(&registry, "list", false, "repair the list of queues")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be done, and do nothing")
	cmd.Flags().BoolVarP(&q.a.yes, "yes", "y", false, "do not ask")
	return q.a.outputFlag(cmd)
}
