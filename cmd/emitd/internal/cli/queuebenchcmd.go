package cli

import (
	"context"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/queue"
)

// bench runs a benchmark against a queue through its API.
func (q *queues) bench() *cobra.Command {
	b := benchmark{}
	var clients []int
	var protocol string
	var random bool
	cmd := &cobra.Command{
		Use: "bench QUEUE", Short: "Measure how fast jobs are submitted, claimed and completed, and what they cost",
		Long: "Submit, claim and complete jobs of the type emitd:bench for a while. Every job that is submitted is also\n" +
			"completed, so only the totals of the queue change. One row for each number of clients shows how long calls\n" +
			"took, how many segments the brokers wrote for 1,000 jobs, and how many calls failed. Other programs that use\n" +
			"the queue meanwhile are counted in the writes. The clients use the processor of this machine.\n\n" +
			"--protocol osqueue makes osqueue's calls to the queue \"default\", also of an osqueue broker (--addr).",
		Args: exactly(1, "the name of a queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := b.check(clients, protocol, args[0]); err != nil {
				return err
			}
			b.payload = samePayload(b.size)
			if random {
				b.payload = randomPayload(b.size)
			}
			return q.benchmark(cmd.Context(), b, clients, protocol == "osqueue", args[0])
		},
	}
	fl := cmd.Flags()
	fl.IntSliceVar(&clients, "clients", []int{16}, "number of concurrent clients; several numbers, such as 1,16,128, are measured in turn")
	fl.IntVar(&b.batch, "batch", 1, "jobs per call")
	fl.IntVar(&b.size, "size", 100, "bytes per payload")
	fl.BoolVar(&random, "random", false, "payloads of random text, which compression does not make smaller")
	fl.Float64Var(&b.rate, "rate", 0, "calls to submit per second, of all clients together; 0: as many as possible")
	fl.DurationVar(&b.length, "duration", 5*time.Second, "duration of the measurement, for each number of clients")
	fl.StringVar(&protocol, "protocol", "own", "own or osqueue")
	return q.a.outputFlag(cmd)
}

// check refuses flags that make no benchmark.
func (b *benchmark) check(clients []int, protocol, name string) error {
	wrong := len(clients) == 0 || slices.Min(clients) < 1 || b.batch < 1 || b.batch > queue.MaxCall || b.size < 0 ||
		b.size > queue.InlinePayload || b.length <= 0 || !(b.rate >= 0)
	switch {
	case wrong:
		return fault.New(fault.Usage, "want --clients 1 or more, --batch 1 to %d, --size 0 to %d, --rate 0 or more, --duration above 0s", queue.MaxCall, queue.InlinePayload)
	case protocol != "own" && protocol != "osqueue":
		return fault.New(fault.Usage, "--protocol is %.40q, want own or osqueue", protocol)
	case protocol == "osqueue" && (b.batch != 1 || name != queue.DefaultQueue):
		return fault.New(fault.Usage, "osqueue's protocol has one job in a call and only the queue %s: want --batch 1 and that queue", queue.DefaultQueue)
	}
	return nil
}

// benchGarbage is the percentage by which the heap of a benchmark may grow between two collections. It is small, and what its
// collections take of the processor is often taken from the server: with Go's default, a seventh of what the clients need.
const benchGarbage = 400

// benchmark runs a benchmark with each number of clients, and prints the results.
func (q *queues) benchmark(ctx context.Context, b benchmark, clients []int, osqueue bool, name string) error {
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(benchGarbage))
	}
	ctx, cancel := context.WithTimeout(ctx, q.a.timeout+time.Duration(len(clients))*2*(b.length+time.Minute))
	defer cancel()
	cfg, err := q.config(ctx, q.nodes)
	if err != nil {
		return err
	}
	c, err := dial(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	var calls benchCalls = ownCalls{c, name}
	if osqueue {
		calls = newOsqueueCalls(cfg, c, slices.Max(clients))
	}
	reaching, stop := context.WithTimeout(ctx, q.a.timeout)
	err = calls.reach(reaching)
	stop()
	if err != nil {
		return queueFault(err)
	}
	var all []benchResult
	for _, n := range clients {
		out, err := b.run(ctx, calls, n)
		if err != nil {
			return queueFault(err)
		}
		all = append(all, out)
	}
	l := list(all, func(benchResult) string { return name }, func(bool) *view.Table { return nil })
	l.table = func(w io.Writer, wide bool) error { return benchTable(all)(w, wide) }
	return q.a.print(l)
}
