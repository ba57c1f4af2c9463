package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/cmd/emitd/internal/view"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/broker"
	"github.com/emitd/emitd/queue/client"
)

func (q *queues) enqueue() *cobra.Command {
	var j queue.Job
	var runAt string
	cmd := &cobra.Command{
		Use: "enqueue QUEUE PAYLOAD", Short: "Submit a job, or one for each line of standard input",
		Long: "Submit a job. The payload is any text, JSON by custom; - reads standard input, where each line is the\n" +
			"payload of one job. A job submitted again with the same --id or --key is no second job.",
		Args: exactly(2, "the name of a queue and a payload, or - for one payload a line of standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if runAt != "" {
				at, err := time.Parse(time.RFC3339, runAt)
				if err != nil {
					return fault.New(fault.Usage, "--run-at %s is not a time such as 2030-01-31T09:00:00Z", runAt)
				}
				j.RunAt = at
			}
			if args[1] == "-" && (j.ID != "" || j.Key != "") {
				return fault.New(fault.Usage, "--id and --key name one job, and standard input may hold many")
			}
			return q.connected(cmd.Context(), func(c *client.Client) error {
				if args[1] != "-" {
					j.Payload = []byte(args[1])
					return q.submit(cmd.Context(), c, args[0], []queue.Job{j})
				}
				return q.submitLines(cmd.Context(), c, args[0], j)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&j.ID, "id", "", "id of the job; drawn by default")
	fl.StringVar(&j.Key, "key", "", "idempotency key, for who has no id")
	fl.StringVar(&j.Type, "type", "", "type, by which workers claim")
	fl.StringVar(&j.Group, "group", "", "jobs of one group keep their order, also with many shards")
	fl.IntVar(&j.Priority, "priority", 0, "-128 to 127; the higher one is claimed first")
	fl.DurationVar(&j.Delay, "delay", 0, "not before so long from now")
	fl.StringVar(&runAt, "run-at", "", "not before this time (RFC 3339)")
	fl.DurationVar(&j.TTL, "ttl", 0, "give up what has waited so long; 0s never")
	fl.IntVar(&j.Retry.MaxAttempts, "max-attempts", 0, "before the job is dead; 0: the queue's")
	return q.a.outputFlag(cmd)
}

// callBytes is the approximate number of payload bytes in one call.
const callBytes = 8 << 20

// submitLines submits the lines of standard input, many per call. Before it waits for more input, it
// submits what it has read.
func (q *queues) submitLines(ctx context.Context, c *client.Client, name string, like queue.Job) error {
	lines := bufio.NewReaderSize(q.a.In, 1<<20)
	var jobs []queue.Job
	size := 0
	for {
		line, err := lines.ReadString('\n')
		if text := strings.TrimRight(line, "\r\n"); text != "" {
			j := like
			j.Payload = []byte(text)
			jobs, size = append(jobs, j), size+len(text)
		}
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return fmt.Errorf("read standard input: %w", err)
		}
		if ready, _ := lines.Peek(lines.Buffered()); len(jobs) < queue.MaxCall && size < callBytes && bytes.IndexByte(ready, '\n') >= 0 {
			continue
		}
		if len(jobs) > 0 {
			if err := q.submit(ctx, c, name, jobs); err != nil {
				return err
			}
		}
		if end {
			return nil
		}
		jobs, size = nil, 0
	}
}

func (q *queues) submit(ctx context.Context, c *client.Client, name string, jobs []queue.Job) error {
	receipts, err := q.call(ctx, c, name, jobs)
	if err != nil {
		return err
	}
	items := field(wire.AppendReceipts(nil, receipts), "jobs")
	d := data{whole: items, items: items, table: func(w io.Writer, _ bool) error {
		for _, r := range receipts {
			note := ""
			if r.Duplicate {
				note = " (was there already, " + string(r.State) + ")"
			}
			if _, err := fmt.Fprintln(w, view.Line(r.ID)+note); err != nil {
				return err
			}
		}
		return nil
	}}
	for _, r := range receipts {
		d.names = append(d.names, r.ID)
	}
	return q.a.print(d)
}

func (q *queues) importing() *cobra.Command {
	return q.a.outputFlag(&cobra.Command{
		Use: "import QUEUE FILE", Short: "Submit the jobs of an osqueue queue.json",
		Long: "Submit the jobs of the file queue.json in which osqueue keeps its state. Jobs keep their ids, so importing\n" +
			"a file twice submits nothing twice; jobs that were in progress are submitted as waiting ones. Jobs that the\n" +
			"queue cannot take are named and left out, and the exit code says so.",
		Args: exactly(2, "the name of a queue and the path of a queue.json"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[1])
			if err != nil {
				return fault.New(fault.BadJob, "read the file: %w", err)
			}
			file, err := broker.ParseOsqueue(text)
			if err != nil {
				return queueFault(err)
			}
			for _, note := range slices.Concat(file.Changed, file.Left) {
				q.a.say("%s", note)
			}
			return q.connected(cmd.Context(), func(c *client.Client) error { return q.submitFile(cmd.Context(), c, args[0], file) })
		},
	})
}

// submitFile submits the jobs of a file, many per call. Jobs that cannot be submitted are reported as an
// error at the end.
func (q *queues) submitFile(ctx context.Context, c *client.Client, name string, file *broker.Osqueue) error {
	fresh := 0
	for rest := file.Jobs; len(rest) > 0; {
		n, size := 0, 0
		for ; n < min(len(rest), queue.MaxCall) && (n == 0 || size+len(rest[n].Payload) <= callBytes); n++ {
			size += len(rest[n].Payload)
		}
		receipts, err := q.call(ctx, c, name, rest[:n])
		if err != nil {
			return err
		}
		for _, r := range receipts {
			if !r.Duplicate {
				fresh++
			}
		}
		rest = rest[n:]
	}
	err := q.a.print(data{
		whole: map[string]int{"jobs": len(file.Jobs) + len(file.Left), "submitted": fresh, "left_out": len(file.Left)}, names: []string{name},
		table: func(w io.Writer, _ bool) error {
			_, err := fmt.Fprintf(w, "%d of %d jobs submitted, the others were there already\n", fresh, len(file.Jobs))
			return err
		},
	})
	if err == nil && len(file.Left) > 0 {
		return fault.New(fault.BadJob, "%d of %d jobs of the file were left out; the others are in the queue", len(file.Left), len(file.Jobs)+len(file.Left)).
			Hint("submit them in another way: the queue does not take them as they are")
	}
	return err
}

func (q *queues) claim() *cobra.Command {
	var r queue.ClaimRequest
	cmd := &cobra.Command{
		Use: "claim QUEUE", Short: "Take jobs into your hands",
		Args: exactly(1, "the name of a queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return q.with(cmd.Context(), r.Wait, func(ctx context.Context, c *client.Client) error {
				claimed, err := c.Claim(ctx, args[0], r)
				if err != nil {
					return err
				}
				items := field(wire.AppendClaims(nil, claimed), "jobs")
				d := data{whole: items, items: items, table: func(w io.Writer, _ bool) error {
					t := &view.Table{Head: []string{"JOB", "TYPE", "ATTEMPT", "FOR", "TOKEN", "PAYLOAD"}}
					for _, j := range claimed {
						t.Add(j.Job.ID, j.Job.Type, fmt.Sprint(j.Job.Attempts+1), view.Exact(j.For), j.Token, string(j.Payload))
					}
					return t.Write(w)
				}}
				if items == nil {
					d.whole, d.items = []any{}, []any{}
				}
				for _, j := range claimed {
					d.names = append(d.names, j.Job.ID)
				}
				return q.a.print(d)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&r.Types, "type", nil, "only jobs of these types")
	fl.IntVar(&r.Max, "max", 1, "how many at most")
	fl.DurationVar(&r.Wait, "wait", 0, "wait so long for a job")
	fl.DurationVar(&r.Visibility, "visibility", 0, "how long the claim lasts; 0s: the queue's")
	fl.StringVar(&r.Worker, "worker", actor(), "who claims, for people")
	return q.a.outputFlag(cmd)
}

var verbs = map[queue.Verb]string{
	queue.Complete: "Say that a claimed job is done",
	queue.Fail:     "Say that a claimed job failed",
	queue.Release:  "Give a claimed job back",
	queue.Extend:   "Keep a claimed job for longer",
}

func (q *queues) settle(verb queue.Verb) *cobra.Command {
	s := queue.Settlement{Verb: verb}
	var result string
	var after time.Duration
	cmd := &cobra.Command{
		Use: string(verb) + " QUEUE JOB --token TOKEN", Short: verbs[verb],
		Args: exactly(2, "the name of a queue and the id of a job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.ID = args[1]
			if cmd.Flags().Changed("retry-after") {
				s.RetryAfter = &after
			}
			if result != "" {
				s.Result = []byte(result)
			}
			return q.with(cmd.Context(), 0, func(ctx context.Context, c *client.Client) error {
				out, err := c.Settle(ctx, args[0], []queue.Settlement{s})
				if err != nil {
					return err
				}
				if len(out) == 1 && out[0].Err != nil {
					return out[0].Err
				}
				items := field(wire.AppendOutcomes(nil, out), "outcomes")
				return q.a.print(data{whole: items, items: items, names: []string{s.ID}, table: func(w io.Writer, _ bool) error {
					_, err := fmt.Fprintf(w, "%s %s\n", view.Line(s.ID), out[0].State)
					return err
				}})
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&s.Token, "token", "", "the token of the claim")
	fl.StringVar(&s.Worker, "worker", "", "the worker of a claim without token")
	switch verb {
	case queue.Complete:
		fl.StringVar(&result, "result", "", "what came of it, kept within the dedup window")
	case queue.Fail:
		fl.StringVar(&s.Cause, "cause", "", "why")
		fl.DurationVar(&after, "retry-after", 0, "try again after so long; by the queue's policy unless given")
		fl.BoolVar(&s.Dead, "dead", false, "do not try again")
	case queue.Extend:
		fl.DurationVar(&s.Visibility, "visibility", 0, "for so long from now; 0s: as long as the claim")
	}
	return q.a.outputFlag(cmd)
}

// bench runs a benchmark against a queue through its API.
func (q *queues) bench() *cobra.Command {
	b := benchmark{}
	cmd := &cobra.Command{
		Use: "bench QUEUE", Short: "Submit, claim and complete jobs as fast as it goes, and say how fast that was",
		Long: "Submit, claim and complete jobs of the type emitd:bench for a while. The queue is left as it was, but for\n" +
			"its totals: what is submitted is worked on.",
		Args: exactly(1, "the name of a queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if b.clients < 1 || b.batch < 1 || b.batch > queue.MaxCall || b.size < 0 || b.size > queue.InlinePayload || b.time <= 0 {
				return fault.New(fault.Usage, "want --clients 1 or more, --batch 1 to %d, --size 0 to %d, --duration above 0s", queue.MaxCall, queue.InlinePayload)
			}
			b.payload = bytes.Repeat([]byte("x"), b.size)
			return q.with(cmd.Context(), 2*b.time+time.Minute, func(ctx context.Context, c *client.Client) error {
				out, err := b.run(ctx, c, args[0])
				if err != nil {
					return err
				}
				return q.a.print(data{whole: out, names: []string{args[0]}, table: out.table})
			})
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&b.clients, "clients", 16, "clients at once")
	fl.IntVar(&b.batch, "batch", 1, "jobs a call")
	fl.IntVar(&b.size, "size", 100, "bytes of a payload")
	fl.DurationVar(&b.time, "duration", 5*time.Second, "for how long")
	return q.a.outputFlag(cmd)
}
