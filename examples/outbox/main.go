// Outbox is an order service. An order and the message about it are one transaction: a sold-out order
// leaves neither. A relay, an agent in the same process, delivers each message at least once, and the
// orders of one customer in their order. Start several processes on one database and they share the work;
// kill one and the others take over.
//
//	go run ./examples/outbox
//	go run ./examples/outbox -postgres "$DATABASE_URL" -nats nats://127.0.0.1:4222 -orders -1
//
// Without -nats the messages go to a webhook: that of -webhook, or one in this process that prints them.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/storage"
)

// options are the flags.
type options struct {
	db, postgres  string // database of orders, messages and the cluster
	nats, webhook string // destination of messages
	name          string
	orders        int
	relay         bool
}

func main() {
	var o options
	flag.StringVar(&o.db, "db", "orders.db", "the SQLite file that all processes share")
	flag.StringVar(&o.postgres, "postgres", "", "URL of a Postgres database to use instead")
	flag.StringVar(&o.nats, "nats", "", "deliver to this NATS server: subject orders of the stream ORDERS")
	flag.StringVar(&o.webhook, "webhook", "", "deliver to this URL")
	flag.StringVar(&o.name, "name", "", "the node's name; default: the host's")
	flag.IntVar(&o.orders, "orders", 20, "take so many orders, deliver all, and end; -1: go on until Ctrl-C")
	flag.BoolVar(&o.relay, "relay", true, "relay messages; without it they wait in the database")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	cancel()
	if err != nil {
		log.Fatal(err)
	}
}

// shop is the service on one database.
type shop struct {
	store storage.Store // of the cluster
	log   interface {
		outbox.Log
		outbox.Operator
	}
	sweep []sweeper.Task
	// place stores the order and its message in one transaction, or neither.
	place func(context.Context, order) error
	close func()
}

// subscription is the name of the log's subscription.
const subscription = "orders"

func run(ctx context.Context, o options) error {
	s, err := open(ctx, o)
	if err != nil {
		return err
	}
	defer s.close()
	if !o.relay {
		return s.sell(ctx, o.orders)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.relay(ctx, o) }()
	err = s.sell(ctx, o.orders)
	if err == nil {
		err = s.delivered(ctx, ended)
	}
	stop()
	return errors.Join(err, <-ended)
}

func open(ctx context.Context, o options) (*shop, error) {
	if o.postgres != "" {
		return openPostgres(ctx, o.postgres)
	}
	return openSQLite(ctx, o.db)
}

// relay joins the cluster of all processes on the database, until ctx ends. The leader assigns the
// subscription's relay to one of them.
func (s *shop) relay(ctx context.Context, o options) error {
	to, err := o.sink(ctx)
	if err != nil {
		return err
	}
	defer to.Close()
	r, err := outbox.NewRelay(outbox.Config{Name: subscription, Log: s.log, Sink: to})
	if err != nil {
		return err
	}
	defer r.Close(context.WithoutCancel(ctx))
	c, err := coordinator.New(s.store, coordinator.Config{
		Node:    node.Identity{Name: o.name},
		Profile: coordinator.ProfileFast,
	})
	if err != nil {
		return err
	}
	if err := c.RegisterBuiltin(r.Spec(), r); err != nil { // its ID is emit:outbox/orders
		return err
	}
	tasks := c.SweepTasks(coordinator.Retention{})
	if err := c.RegisterBuiltin(sweeper.Spec(), sweeper.New(tasks, sweeper.Config{})); err != nil {
		return err
	}
	// The log has a sweeper of its own: emit:sweeper may run on a node that does not know the log, such as one of emitd.
	spec := sweeper.Spec()
	spec.ID += "/outbox"
	if err := c.RegisterBuiltin(spec, sweeper.New(s.sweep, sweeper.Config{})); err != nil {
		return err
	}
	return c.Run(ctx) // nil after a clean stop because ctx ended
}

// sell takes a number of orders; if it is negative, one every 200 ms until ctx ends.
func (s *shop) sell(ctx context.Context, orders int) error {
	customers, items := []string{"ada", "bob", "eve"}, []string{"book", "pen", "lamp"}
	sold := 0
	for n := 0; n != orders; n++ {
		if orders < 0 && !pause(ctx, 200*time.Millisecond) {
			return nil
		}
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		err = s.place(ctx, order{ID: id, Customer: customers[n%3], Item: items[n/3%3]})
		switch {
		case errors.Is(err, errSoldOut): // neither the order nor its message remains
		case err != nil:
			return err
		default:
			sold++
		}
	}
	log.Printf("%d orders, %d of them for something that is sold out", orders, orders-sold)
	return nil
}

// delivered waits until the receiver has every message, or the relay has ended.
func (s *shop) delivered(ctx context.Context, ended chan error) error {
	for pause(ctx, 50*time.Millisecond) {
		select {
		case err := <-ended:
			ended <- err
			return errors.New("the relay has ended")
		default:
		}
		all, err := s.log.Stats(ctx, subscription)
		switch {
		case errors.Is(err, outbox.ErrNotFound): // the relay has not started yet
		case err != nil:
			return err
		case len(all) == 1 && all[0].Pending == 0:
			log.Print("every message is delivered")
			return nil
		}
	}
	return nil // after Ctrl-C: the next process delivers the rest
}

// pause waits for d. It returns false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
