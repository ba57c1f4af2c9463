package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
)

// world is a bucket and the brokers that share it.
type world struct {
	t      testing.TB
	bucket blob.Bucket
	ctx    context.Context
	gen    int64
	clock  func() time.Time
	prefix string
}

// node is a process that may serve shards.
type node struct {
	*Broker
	w     *world
	owner string
	trust func() time.Duration
	runs  []*run
}

type run struct {
	a      *daemon.Assignment
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	held   int64 // the generation that it reported as refused
	trust  atomic.Int64
}

func newWorld(t testing.TB, bucket blob.Bucket) *world {
	if bucket == nil {
		bucket = mem.New(mem.Config{})
	}
	return &world{t: t, bucket: bucket, ctx: context.WithoutCancel(t.Context()), clock: time.Now}
}

// failing returns a world whose bucket is unavailable to some calls while the switch is on.
func failing(t testing.TB, cfg mem.Config, calls func(c mem.Call) bool) (*world, *atomic.Bool) {
	on := new(atomic.Bool)
	cfg.Faults = func(c mem.Call) mem.Fault {
		if on.Load() && calls(c) {
			return mem.Fault{Kind: mem.Unavailable}
		}
		return mem.Fault{}
	}
	return newWorld(t, mem.New(cfg)), on
}

func isCreate(c mem.Call) bool { return c.Op == mem.Create }

// declare declares a queue and returns its settings.
func (w *world) declare(set queue.Settings) queue.Settings {
	w.t.Helper()
	if set.Name == "" {
		set.Name = queue.DefaultQueue
	}
	made, err := NewRegistry(w.bucket, w.prefix).Declare(w.ctx, set)
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

// settings returns those of the default queue.
func (w *world) settings() *queue.Settings {
	w.t.Helper()
	set, err := NewRegistry(w.bucket, w.prefix).get(w.ctx, queue.DefaultQueue, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return set
}

func (w *world) node(owner string) *node {
	w.t.Helper()
	b, err := New(Config{
		Bucket: w.bucket, Root: w.prefix, StoreID: "store", Owner: owner, Address: owner + ":7070", Now: func() time.Time { return w.clock() },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	b.damagedWait = 0 // runs end at once
	return &node{Broker: b, w: w, owner: owner}
}

// begin starts a run of a shard with the next generation, and does not wait until it serves.
func (n *node) begin(queue string, index int) *run {
	n.w.gen++
	return n.beginAt(queue, index, n.w.gen)
}

func (n *node) beginAt(queue string, index int, gen int64) *run {
	r := &run{done: make(chan struct{})}
	unit := daemon.Unit{Daemon: daemon.ID(daemonPrefix + queue), Index: index}
	r.a = daemon.NewAssignment(daemon.Fence{Unit: unit, Generation: gen}, 1, n.owner, func(held int64) { r.held = held })
	ctx, cancel := context.WithCancel(n.w.ctx)
	r.trust.Store(int64(24 * time.Hour))
	ctx = daemon.WithValidity(ctx, func() time.Duration {
		if n.trust != nil {
			return n.trust()
		}
		return time.Duration(r.trust.Load())
	})
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.err = n.Run(ctx, r.a)
	}()
	n.runs = append(n.runs, r)
	n.w.t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// serve starts a run and waits until it serves.
func (n *node) serve(queue string, index int) *run {
	n.w.t.Helper()
	r := n.begin(queue, index)
	r.ready(n.w.t)
	n.noneRejected(queue, index)
	return r
}

// noneRejected checks that the replay rejected no record.
func (n *node) noneRejected(queue string, index int) {
	n.w.t.Helper()
	if s := n.shard(queue, index); s != nil && s.counts.rejected != 0 {
		n.w.t.Errorf("%d records did not apply at the takeover by %s", s.counts.rejected, n.owner)
	}
}

func (r *run) ready(t testing.TB) {
	t.Helper()
	select {
	case <-r.a.ReadyDone():
	case <-r.done:
		t.Fatalf("the run ended: %v", r.err)
	case <-time.After(time.Minute):
		t.Fatal("the run is not ready")
	}
}

// kill ends a run as if the process had crashed: nothing is flushed.
func (r *run) kill() {
	r.cancel()
	<-r.done
}

// drain ends a run cleanly.
func (r *run) drain(t testing.TB) {
	t.Helper()
	r.a.BeginDrain()
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		t.Fatal("the run does not drain")
	}
	if r.err != nil {
		t.Fatalf("drained: %v", r.err)
	}
}

// serving returns a world with one queue and one node that serves it.
func serving(t testing.TB, set queue.Settings) (*world, *node, *run) {
	t.Helper()
	w := newWorld(t, nil)
	w.declare(set)
	n := w.node("n1")
	return w, n, n.serve(queue.DefaultQueue, 0)
}

func (n *node) enqueue(jobs ...queue.Job) []queue.Receipt {
	n.w.t.Helper()
	got, err := n.Enqueue(n.w.ctx, queue.DefaultQueue, jobs)
	if err != nil {
		n.w.t.Fatal(err)
	}
	return got
}

func (n *node) claim(req queue.ClaimRequest) []queue.Claimed {
	n.w.t.Helper()
	got, err := n.Claim(n.w.ctx, queue.DefaultQueue, req)
	if err != nil {
		n.w.t.Fatal(err)
	}
	return got
}

// claimOne claims a job, which must have this ID.
func (n *node) claimOne(id string) queue.Claimed {
	n.w.t.Helper()
	got := n.claim(queue.ClaimRequest{Worker: "w"})
	if len(got) != 1 || got[0].Job.ID != id {
		n.w.t.Fatalf("claimed %+v, want %s", got, id)
	}
	return got[0]
}

// settle settles one claim.
func (n *node) settle(verb queue.Verb, c queue.Claimed, change ...func(*queue.Settlement)) queue.Outcome {
	n.w.t.Helper()
	x := queue.Settlement{Verb: verb, ID: c.Job.ID, Token: c.Token, Worker: "w"}
	for _, f := range change {
		f(&x)
	}
	out, err := n.Settle(n.w.ctx, queue.DefaultQueue, []queue.Settlement{x})
	if err != nil {
		n.w.t.Fatal(err)
	}
	return out[0]
}

func (n *node) stats() *queue.Stats {
	n.w.t.Helper()
	st, err := n.Stats(n.w.ctx, queue.DefaultQueue)
	if err != nil {
		n.w.t.Fatal(err)
	}
	return st
}

// servedSettings returns the settings of the default queue as a broker's calls have them.
func servedSettings(n *node) *queue.Settings {
	_, set := n.served(queue.DefaultQueue)
	return set
}

func (n *node) get(id string) *queue.Info {
	n.w.t.Helper()
	i, _, err := n.Get(n.w.ctx, queue.DefaultQueue, id)
	if err != nil {
		n.w.t.Fatal(err)
	}
	return i
}

func (n *node) command(cmd queue.Command) int {
	n.w.t.Helper()
	met, err := n.Do(n.w.ctx, queue.DefaultQueue, cmd)
	if err != nil {
		n.w.t.Fatal(err)
	}
	return met
}

// wantOutcome checks a settlement's outcome.
func wantOutcome(t testing.TB, o queue.Outcome, s queue.State, tag queue.Tag) {
	t.Helper()
	got := queue.Tag("")
	if o.Err != nil {
		got = o.Err.Tag
	}
	if o.State != s && tag == "" || got != tag {
		t.Fatalf("outcome %+v (%v), want %s %s", o, o.Err, s, tag)
	}
}

func wantRefusal(t testing.TB, err error, tag queue.Tag) {
	t.Helper()
	if queue.TagOf(err) != tag || !errors.Is(err, &queue.Error{Tag: tag}) {
		t.Fatalf("error %v, want %s", err, tag)
	}
}

func jobsWithIDs(n int) []queue.Job {
	jobs := make([]queue.Job, n)
	for i := range jobs {
		jobs[i] = queue.Job{ID: fmt.Sprintf("j%d", i), Payload: []byte(fmt.Sprint("payload ", i))}
	}
	return jobs
}
