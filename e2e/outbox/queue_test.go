package outbox

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/outbox"
	queuesink "github.com/emitd/emitd/outbox/sink/queue"
	"github.com/emitd/emitd/outbox/sink/sinktest"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/storage/sqlite"
)

// dial makes a client of the live nodes.
func dial(t *testing.T, c *drill.Cluster) *client.Client {
	t.Helper()
	var addresses []string
	for _, n := range c.Nodes() {
		if n.Alive() {
			until(t, time.Minute, n.Name+" listens", func() bool { return n.Address() != "" })
			addresses = append(addresses, n.Address())
		}
	}
	q, err := client.New(client.Config{Addresses: addresses, RetryFor: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

// toQueue submits jobs to the nodes' own broker, which dies with the relay if both are on one node. The
// queue drops repetitions.
func toQueue(t *testing.T) receiver {
	t.Helper()
	return receiver{
		again:    never,
		sink:     func(string) string { return `{kind: queue, queue: default}` },
		args:     []string{"--objects", "file://" + t.TempDir()},
		arrivals: func(c *cluster) []arrival { return inQueue(t, dial(t, c.Cluster)) },
	}
}

// inQueue claims all jobs, in the order in which the queue delivers them: that of their submission.
func inQueue(t *testing.T, q queue.Consumer) (seen []arrival) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		jobs, err := q.Claim(ctx, queue.DefaultQueue, queue.ClaimRequest{Worker: "judge", Max: 500, RequestID: client.NewID(), Visibility: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if len(jobs) == 0 {
			return seen
		}
		for _, j := range jobs {
			id, err := uuid.Parse(j.Job.ID)
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, arrival{id: id})
		}
	}
}

// TestQueueSink runs the suite of sinks against a node's broker. A missing queue is the fault Refuse. The
// faults that concern one job do not exist, because the broker takes a call as a whole.
func TestQueueSink(t *testing.T) {
	t.Parallel()
	sinktest.Suite{
		Atomic: true, Dedup: true, Unsupported: []sinktest.Fault{sinktest.Falter, sinktest.Hang},
		New: func(t *testing.T) *sinktest.Harness {
			c := brokerNode(t)
			q := dial(t, c)
			to, err := queuesink.New(t.Context(), queuesink.Config{Producer: q, Rows: 10, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			a := &altered{to: to, bad: map[uuid.UUID]bool{}}
			return &sinktest.Harness{Topic: queue.DefaultQueue, Sink: a, Received: func(t *testing.T) (taken []sinktest.Taken) {
				for _, j := range jobs(t, q) {
					taken = append(taken, sinktest.Taken{ID: j.ID, Key: j.Group})
				}
				return taken
			}, Fail: func(_ *testing.T, f sinktest.Fault, ids []uuid.UUID) {
				if f == sinktest.Down {
					c.Nodes()[0].Kill()
				}
				clear(a.bad) // each call replaces what fails
				for _, id := range ids {
					a.bad[id] = true
				}
			}}
		},
	}.Run(t)
}

// altered sends chosen messages to a queue that does not exist.
type altered struct {
	to  outbox.Sink
	bad map[uuid.UUID]bool
}

func (a *altered) Deliver(ctx context.Context, d outbox.Delivery) []error {
	rows := make([]outbox.Row, len(d.Rows))
	for i, r := range d.Rows {
		if a.bad[r.ID] {
			r.Topic = "nowhere"
		}
		rows[i] = r
	}
	d.Rows = rows
	return a.to.Deliver(ctx, d)
}

// brokerNode is one node with the default queue.
func brokerNode(t *testing.T) *drill.Cluster {
	t.Helper()
	path := filepath.Join(t.TempDir(), "emitd.db")
	store, err := sqlite.Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	c := drill.New(t, "sqlite://"+path, store)
	c.Instances, c.Args = 0, []string{"--objects", "file://" + t.TempDir()}
	c.Start("n")
	return c
}

// jobs lists the default queue, oldest first.
func jobs(t *testing.T, q queue.Operator) (all []queue.Info) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for cursor := ""; ; {
		page, err := q.List(ctx, queue.DefaultQueue, queue.Query{Cursor: cursor, Limit: queue.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page.Jobs...)
		if cursor = page.Cursor; cursor == "" {
			return all
		}
	}
}

// TestQueueJob checks the job that arrives: the ID, the group, the type, and, in an envelope, everything
// else.
func TestQueueJob(t *testing.T) {
	t.Parallel()
	q := dial(t, brokerNode(t))
	rows := sinktest.Rows(queue.DefaultQueue, 2, 1)
	rows[1].Key = strings.Repeat("long", 30) // longer than a group may be
	for i, envelope := range []bool{false, true} {
		to, err := queuesink.New(t.Context(), queuesink.Config{Producer: q, Envelope: envelope})
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range to.Deliver(t.Context(), sinktest.Delivery(rows[i:i+1])) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	claimed, err := q.Claim(t.Context(), queue.DefaultQueue, queue.ClaimRequest{Worker: "w", Max: 2})
	if err != nil || len(claimed) != 2 {
		t.Fatalf("%d jobs, %v", len(claimed), err)
	}
	for i, c := range claimed {
		if c.Job.ID != rows[i].ID.String() || c.Job.Type != "order.placed" || c.Job.Group == "" {
			t.Errorf("job %d is %+v", i, c.Job)
		}
	}
	if claimed[0].Job.Group != "key-0" || string(claimed[0].Payload) != `{"n":0}` {
		t.Errorf("group %q, payload %s", claimed[0].Job.Group, claimed[0].Payload)
	}
	if want := fmt.Sprintf(`"key":%q`, rows[1].Key); !strings.Contains(string(claimed[1].Payload), want) {
		t.Errorf("the envelope %s has no %s", claimed[1].Payload, want)
	}
}
