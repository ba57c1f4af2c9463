package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/broker"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/storage/blob"
)

// objects opens the queues' object store without a node, for reading. It may take as long as its context
// allows.
func (q *queues) objects(ctx context.Context, open func(context.Context, string) (blob.Bucket, error)) (blob.Bucket, error) {
	cfg, err := q.a.loadToRead()
	if err != nil {
		return nil, err
	}
	if cfg.Objects.URL == "" {
		return nil, fault.New(fault.ObjectsURL, "objects.url is not set, so the queues cannot be found")
	}
	return open(ctx, cfg.Objects.URL)
}

// verify needs no node, because it reads the objects themselves.
func (q *queues) verify() *cobra.Command {
	return q.a.outputFlag(&cobra.Command{
		Use: "verify [QUEUE]", Short: "Read all objects of the queues and list those that are damaged or missing",
		Long: "Read all objects of the queues, or of one, compare them with each other, and list each that is missing, differs\n" +
			"from what was written, or is an older version. Nothing is written, and nodes may run. The command reads every\n" +
			"stored object; --timeout does not limit it. The exit code is 6 if an object is missing or\n" +
			"damaged. Needs --objects (or its setting).",
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
			found, err := broker.NewRegistry(bucket, "").Verify(cmd.Context(), name)
			if err != nil {
				return queueFault(err)
			}
			return q.printVerified(found)
		},
	})
}

func (q *queues) printVerified(v *broker.VerifyResult) error {
	d := list(v.Problems, func(p broker.Problem) string { return p.Object }, func(bool) *view.Table { return problemTable(v.Problems) })
	d.whole = v
	if err := q.a.print(d); err != nil {
		return err
	}
	q.a.message("read %d objects of %d queues and %d shards, which hold %d jobs", v.Objects, v.Queues, v.Shards, v.Jobs)
	if len(v.Problems) == 0 {
		return nil
	}
	first := v.Problems[0]
	return fault.New(fault.QueueFaulty, "%d objects are missing or damaged, the first: %s: %s", len(v.Problems), first.Object, first.Text)
}

func problemTable(all []broker.Problem) *view.Table {
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

// repair needs no node, because it works on the objects themselves.
func (q *queues) repair() *cobra.Command {
	var registry, dry bool
	shard := -1
	cmd := &cobra.Command{
		Use: "repair QUEUE | --list", Short: "Repair a damaged queue, without the jobs that are lost",
		Long: "Repair the damaged shards of a queue. Missing or damaged segments of the journal are lost: jobs that were\n" +
			"submitted in them are gone, and jobs that ended in them are delivered again. HEAD is restored from its copies\n" +
			"and a damaged checkpoint from the one before, without loss.\n" +
			"First, every object of the shard is copied below its prefix evidence/<time>, with a report of what is lost.\n" +
			"No node serves the shard until the repair has ended; if the command is interrupted, run it again. Shards that\n" +
			"a node serves are not changed: that node has everything that was acknowledged. Nodes may run and serve the\n" +
			"other shards. --dry-run repairs a copy in memory and shows what would be lost. Needs --objects and --store\n" +
			"(or their settings).\n\n" +
			"With --list: rewrite the list of queues from its copy if it is missing, damaged or an older version; the\n" +
			"former object is kept below v1/damaged/. No job is changed, and nodes may run. Needs --objects.",
		Args: func(cmd *cobra.Command, args []string) error {
			if registry {
				return noArgs(cmd, args)
			}
			return exactly(1, "the name of a queue, or --list")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if registry {
				return q.repairList(cmd.Context(), dry)
			}
			return q.repairQueue(cmd.Context(), args[0], shard, dry)
		},
	}
	cmd.Flags().BoolVar(&registry, "list", false, "repair the list of queues")
	cmd.Flags().IntVar(&shard, "shard", -1, "only this shard; -1: all damaged shards")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only show what would be done")
	cmd.Flags().BoolVarP(&q.a.yes, "yes", "y", false, "do not ask for confirmation")
	return q.a.outputFlag(cmd)
}

// repairList writes the list of queues again, only if it is unchanged meanwhile, so nodes may run.
func (q *queues) repairList(ctx context.Context, dry bool) error {
	if !dry {
		if err := q.a.confirm("the list of queues is rewritten from its copy if it is damaged"); err != nil {
			return err
		}
	}
	open := backend.Bucket
	if dry {
		open = backend.Reader
	}
	bucket, err := q.objects(ctx, open)
	if err != nil {
		return err
	}
	known, kept, err := broker.NewRegistry(bucket, "").Repair(ctx, dry)
	if err != nil {
		return queueFault(err)
	}
	names := []string{}
	for _, set := range known {
		names = append(names, set.Name)
	}
	return q.a.print(data{whole: map[string]any{"queues": names, "kept": kept, "dry_run": dry}, names: names, table: func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "the list has %d queues; the damaged one is kept as %s\n", len(names), cmp.Or(kept, "nothing: no list could be read, or the list is not damaged"))
		return err
	}})
}

// repairQueue repairs the shards of a queue that no node serves.
func (q *queues) repairQueue(ctx context.Context, name string, shard int, dry bool) error {
	how := broker.RepairOptions{Shard: shard, Served: func(ctx context.Context, shard int, generation int64) (bool, error) {
		return q.served(ctx, name, shard, generation)
	}}
	open := backend.Bucket
	if dry {
		how.RehearsalBucket, open = mem.New(mem.Config{}), backend.Reader
	} else {
		effect := fmt.Sprintf("jobs of queue %s in damaged or missing segments are lost, and jobs that ended in those segments are delivered again", name)
		if err := q.a.confirm(effect); err != nil {
			return err
		}
	}
	bucket, err := q.objects(ctx, open)
	if err != nil {
		return err
	}
	var cfg broker.Config
	err = q.a.withCluster(ctx, false, func(_ context.Context, c *cluster) error {
		ahead := time.Until(c.snap.Now)
		cfg = broker.Config{
			Bucket: bucket, StoreID: backend.LastingID(c.snap.StoreID), Owner: "repair-" + client.NewID(),
			Now: func() time.Time { return time.Now().Add(ahead) }, Logger: q.a.commandLog(c.cfg),
		}
		return nil
	})
	if err != nil {
		return err
	}
	b, err := broker.New(cfg)
	if err != nil {
		return err
	}
	done, err := b.Repair(ctx, name, how)
	if err != nil {
		return queueFault(err)
	}
	return q.printRepaired(name, done, dry)
}

// served reports whether a live node runs a shard's unit under a generation, according to the store.
func (q *queues) served(ctx context.Context, name string, shard int, generation int64) (yes bool, err error) {
	unit := daemon.Unit{Daemon: daemon.ID(string(queue.Kind) + "/" + name), Index: shard}
	err = q.a.withCluster(ctx, false, func(_ context.Context, c *cluster) error {
		for _, r := range c.snap.Units {
			if r.Unit != unit || r.Generation != generation || r.State == daemon.Unassigned || r.State == daemon.Deleted {
				continue
			}
			for _, n := range c.snap.Nodes {
				yes = yes || n.Present() && n.LeaderState == "" && n.Identity == r.Holder
			}
		}
		return nil
	})
	return yes, err
}

func (q *queues) printRepaired(name string, done []broker.RepairResult, dry bool) error {
	d := list(done, func(r broker.RepairResult) string { return fmt.Sprintf("%s/%d", r.Queue, r.Shard) }, func(bool) *view.Table {
		t := &view.Table{Head: []string{"QUEUE", "SHARD", "JOBS", "LOST SLOTS", "VOID RECORDS", "DAMAGED OBJECTS", "EVIDENCE"}}
		for _, r := range done {
			lost := []string{}
			for _, l := range r.Lost {
				lost = append(lost, fmt.Sprintf("%d-%d", l.From, l.To))
			}
			if r.Served {
				t.Add(r.Queue, fmt.Sprint(r.Shard), "-", "served", "-", fmt.Sprint(len(r.Problems)), "-")
				continue
			}
			t.Add(r.Queue, fmt.Sprint(r.Shard), fmt.Sprint(r.Jobs), cmp.Or(strings.Join(lost, " "), "none"), fmt.Sprint(r.RejectedRecords), fmt.Sprint(len(r.Problems)), r.Evidence)
		}
		return t
	})
	if err := q.a.print(d); err != nil {
		return err
	}
	left, served := 0, []string{}
	for _, r := range done {
		left += len(r.Remaining)
		if r.Served {
			served = append(served, fmt.Sprint(r.Shard))
		}
		for _, key := range r.NotCopied {
			q.a.message("shard %d: %s could not be kept", r.Shard, key)
		}
		for _, key := range r.CopiedRaw {
			q.a.message("shard %d: %s cannot be decoded and was kept unchanged", r.Shard, key)
		}
		for _, p := range r.Problems {
			q.a.message("shard %d: %s is %s: %s", r.Shard, p.Object, p.What, p.Text)
		}
	}
	switch {
	case len(served) > 0:
		return fault.New(fault.Usage, "shard %s of queue %s is damaged, but a node serves it; it was not repaired", strings.Join(served, ", "), name).
			Hint("its broker has everything that was acknowledged in memory, and its next checkpoints replace the damaged objects; to repair it anyway, stop its node first")
	case len(done) == 0:
		q.a.message("the journals of queue %s are not damaged; nothing was done", name)
	case dry:
		q.a.message("nothing was changed: this is what a repair would do")
	case left > 0:
		return fault.New(fault.QueueFaulty, "%d objects of queue %s are still damaged: see emitd queue verify %s", left, name, name)
	}
	return nil
}
