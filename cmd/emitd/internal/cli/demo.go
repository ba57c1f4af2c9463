package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/host"
	"github.com/emitd/emitd/cmd/emitd/internal/sinks"
	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/lock"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox"
	queuesink "github.com/emitd/emitd/outbox/sink/queue"
	"github.com/emitd/emitd/outbox/sink/webhook"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/worker"
	"github.com/emitd/emitd/storage"
)

// demo generates what emitd dev --demo shows: orders that are published to the outbox and delivered three times, to a
// queue with a worker and to two webhooks in this process.
//
//	orders ──▶ outbox ──┬─ demo-queue ───▶ queue demo ──▶ worker, which refuses orders without an amount
//	                    ├─ demo-webhook ─▶ POST /orders, which refuses them, too
//	                    └─ demo-slow ────▶ POST /slow, which lags behind and catches up
//
// Beside the orders, leaders resign now and then, one daemon crashes in a loop, and this process holds a lock.
type demo struct {
	board    *console
	listener net.Listener
	hook     *http.Server
	jobs     bool // this process serves queues

	mu             sync.Mutex
	taken, refused int
	hurried        bool // POST /slow is catching up
}

// The names of the demo.
const (
	demoTopic   = "demo.orders"
	demoType    = "order.placed"
	demoQueue   = "demo"
	demoToQueue = "demo-queue"
	demoToHook  = "demo-webhook"
	demoToSlow  = "demo-slow"
	demoCrashID = "demo:crash"
	demoLock    = "demo: nightly report"
)

const (
	demoEvery   = 500 * time.Millisecond // between two orders
	demoReport  = 20                     // orders between two lines on the board
	demoNothing = 100                    // one of this many orders is of nothing

	demoFirstTerm = 15 * time.Second // until the first leader resigns
	demoTerm      = time.Minute      // until each later one does
	demoCooldown  = 2 * time.Second  // for which it does not stand again

	demoSlowness = 700 * time.Millisecond // that POST /slow takes for an order
	demoHurry    = 90 * time.Second       // POST /slow catches up once its orders are as old
	demoCaughtUp = 10 * time.Second       // until they are only as old
)

// demoOrder is a payload.
type demoOrder struct {
	Order    int       `json:"order"`
	Customer string    `json:"customer"`
	Amount   int       `json:"amount"`
	At       time.Time `json:"at"`
}

// newDemo starts to listen and adds the demo's subscriptions to the configuration.
func newDemo(ctx context.Context, cfg *config.Loaded, b *console) (*demo, error) {
	if cfg.OutboxURL() == "" {
		return nil, fault.New(fault.Usage, "--demo publishes messages, but there is no database for them").
			Hint("remove --ephemeral, or set outbox.url")
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fault.New(fault.CannotListen, "the webhook of --demo: %w", err)
	}
	d := &demo{board: b, listener: l, jobs: cfg.Objects.URL != "" && cfg.Runs(string(queue.Kind))}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", d.receive)
	mux.HandleFunc("POST /slow", d.receiveSlowly)
	d.hook = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	subs := &cfg.Outbox.Subscriptions
	if d.jobs {
		*subs = append(*subs, config.Subscription{
			Name: demoToQueue, Topics: []string{demoTopic},
			Sink: &config.Sink{Kind: sinks.Queue, Settings: &queuesink.Config{Queue: demoQueue}},
		})
	}
	*subs = append(*subs, config.Subscription{
		Name: demoToHook, Topics: []string{demoTopic}, Policy: string(outbox.Skip),
		Sink: &config.Sink{Kind: "webhook", Settings: &webhook.Config{URL: "http://" + l.Addr().String() + "/orders"}},
	}, config.Subscription{
		Name: demoToSlow, Topics: []string{demoTopic},
		Sink: &config.Sink{Kind: "webhook", Settings: &webhook.Config{URL: "http://" + l.Addr().String() + "/slow", Parallel: 1}},
	})
	return d, nil
}

// daemons returns the daemon that crashes in a loop.
func (d *demo) daemons() []host.Daemon {
	crash := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		select {
		case <-time.After(time.Second):
			return errors.New("no connection to the warehouse of the demo")
		case <-a.Draining():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return []host.Daemon{{Spec: daemon.Spec{ID: demoCrashID, MaxFailures: -1}, Agent: crash}}
}

// receive is the handler of the webhook.
func (d *demo) receive(w http.ResponseWriter, r *http.Request) {
	var o demoOrder
	if err := json.NewDecoder(io.LimitReader(r.Body, outbox.MaxPayload)).Decode(&o); err != nil {
		http.Error(w, "the body is not an order", http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if o.Amount == 0 {
		d.refused++
		http.Error(w, fmt.Sprintf("order %d is empty", o.Order), http.StatusUnprocessableEntity)
		return
	}
	if d.taken++; d.taken%demoReport == 1 {
		d.board.printf("%s  webhook took %d orders, refused %d", time.Now().Format("15:04:05"), d.taken, d.refused)
	}
	w.WriteHeader(http.StatusNoContent)
}

// receiveSlowly is the handler of the webhook that lags behind. What it takes longer than the orders take to come, it
// makes up for from time to time, so that the backlog stays bounded.
func (d *demo) receiveSlowly(w http.ResponseWriter, r *http.Request) {
	var o demoOrder
	if err := json.NewDecoder(io.LimitReader(r.Body, outbox.MaxPayload)).Decode(&o); err != nil {
		http.Error(w, "the body is not an order", http.StatusBadRequest)
		return
	}
	if !d.hurries(time.Since(o.At)) {
		select {
		case <-time.After(demoSlowness):
		case <-r.Context().Done():
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// hurries reports whether POST /slow, whose next order is as old, has to catch up.
func (d *demo) hurries(age time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case age > demoHurry:
		d.hurried = true
	case age < demoCaughtUp:
		d.hurried = false
	}
	return d.hurried
}

// run runs the demo until ctx ends.
func (d *demo) run(ctx context.Context, r *host.Running) {
	var wg sync.WaitGroup
	wg.Go(func() { _ = d.hook.Serve(d.listener) }) // returns when it is closed
	if d.jobs {
		wg.Go(func() { d.work(ctx, r) })
	}
	wg.Go(func() { changeLeaders(ctx, r.Nodes) })
	wg.Go(func() { holdLock(ctx, r) })
	d.publish(ctx, r)
	_ = d.hook.Close()
	wg.Wait()
}

// close ends a demo that was never run.
func (d *demo) close() { _ = d.listener.Close() }

// changeLeaders lets the leader resign now and then, until ctx ends.
func changeLeaders(ctx context.Context, nodes []*coordinator.Coordinator) {
	timer := time.NewTimer(demoFirstTerm)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		for _, c := range nodes {
			if _, _, leads := c.Leadership(); leads {
				_ = c.Resign(ctx, demoCooldown) // if it was replaced meanwhile, the leader has changed as well
				break
			}
		}
		timer.Reset(demoTerm)
	}
}

// holdLock holds a lock until ctx ends, as the one of several programs does that writes a report.
func holdLock(ctx context.Context, r *host.Running) {
	store, ok := r.Store.Store.(storage.Locker)
	if !ok {
		return
	}
	locks, err := lock.New(store, lock.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return
	}
	held, err := locks.Acquire(ctx, demoLock)
	if err != nil {
		return
	}
	<-ctx.Done()
	_ = held.Release(context.WithoutCancel(ctx)) // if it fails, the lock is free after its time to live
}

// publish publishes orders.
func (d *demo) publish(ctx context.Context, r *host.Running) {
	tick := time.NewTicker(demoEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		o := demoOrder{Order: n, Customer: fmt.Sprintf("customer-%d", n%7), Amount: 10 + n%90, At: time.Now()}
		if n%demoNothing == demoNothing/10 {
			o.Amount = 0
		}
		payload, err := json.Marshal(o)
		if err != nil {
			panic("demo: " + err.Error()) // it has only numbers and a string
		}
		box := r.Outbox()
		if box == nil {
			continue
		}
		m := outbox.Message{Topic: demoTopic, Type: demoType, Key: o.Customer, Payload: payload}
		if err := box.Publish(ctx, m); err != nil && ctx.Err() == nil {
			d.board.printf("order %d was not published: %v", n, err)
		}
	}
}

// work declares the queue, as soon as that is possible, and works off its jobs.
func (d *demo) work(ctx context.Context, r *host.Running) {
	tick := time.NewTicker(demoEvery)
	defer tick.Stop()
	for r.Declare(ctx, queue.Settings{Name: demoQueue}) != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	w, err := worker.New(r.Jobs(), worker.Config{
		Queue: demoQueue, Name: demoQueue, DrainTimeout: time.Second, StopTimeout: time.Second,
		Logger: slog.New(slog.DiscardHandler), // it would log that the queue moves, which the demo is meant to show
	})
	if err != nil {
		d.board.printf("the worker of --demo does not run: %v", err)
		return
	}
	worker.Handle(w, demoType, func(_ context.Context, j worker.Job[demoOrder]) error {
		if j.Args.Amount == 0 {
			return worker.Permanent(fmt.Errorf("order %d is empty", j.Args.Order))
		}
		return nil
	})
	_ = w.Run(ctx) // an unfinished job is delivered again
}
