package sink_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// TestKafkaWorkersShareAProducer checks that workers that start at the same time share one producer. A
// second initialisation would make the broker reject the producer before it. If the producer cannot be
// initialised, those that waited are told, and the next attempt is shared as well.
func TestKafkaWorkersShareAProducer(t *testing.T) {
	t.Parallel()
	for _, refused := range []int64{0, 1} {
		t.Run(fmt.Sprintf("refused=%d", refused), func(t *testing.T) {
			t.Parallel()
			const workers = 4
			k := newCluster(t)
			var begun sync.WaitGroup
			begun.Add(workers)
			var inits atomic.Int64
			k.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
				k.KeepControl()
				n := inits.Add(1)
				if n == 1 {
					k.SleepControl(begun.Wait)
				}
				if n > refused {
					return nil, nil, false
				}
				resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
				resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
				return resp, nil, true
			})
			s := k.open(t, kafka.Config{Transactional: true})
			rows := sinktest.Rows("orders", 60, 7)
			var down atomic.Int64
			var running sync.WaitGroup
			for w := range workers {
				running.Go(func() {
					begun.Done()
					mine := part(rows, w, workers)
					errs := deliver(t, s, "0-63", 5, mine)
					if errors.Is(errs[0], outbox.ErrSinkDown) {
						down.Add(1)
						errs = deliver(t, s, "0-63", 5, mine)
					}
					for i, err := range errs {
						if err != nil {
							t.Errorf("row %d of worker %d: %v", i, w, err)
						}
					}
				})
			}
			running.Wait()
			if n := inits.Load(); n != refused+1 || down.Load() < refused || down.Load() > workers*refused {
				t.Errorf("initialised %d times, %d of %d workers were told that the sink is down", n, down.Load(), workers)
			}
			checkArrivals(t, k.received(t), rows, true)
		})
	}
}

// TestKafkaInitialisationOutlivesItsCall checks what becomes of an initialisation that a call has begun and not
// seen the end of. If the call's time ran out, the next call takes over what was begun: calls that all have less
// time than an initialisation needs would get nowhere. If the relay's session ended, it is given up.
func TestKafkaInitialisationOutlivesItsCall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		cause error
		inits int64
	}{{"out of time", context.DeadlineExceeded, 1}, {"session over", daemon.ErrStale, 2}} {
		for _, by := range []string{"delivery", "fence"} {
			t.Run(c.name+", "+by, func(t *testing.T) {
				t.Parallel()
				k := newCluster(t)
				var inits atomic.Int64
				begun, release := make(chan struct{}), make(chan struct{})
				free := sync.OnceFunc(func() { close(release) })
				defer free()
				k.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
					k.KeepControl()
					if inits.Add(1) == 1 {
						close(begun)
						k.SleepControl(func() { <-release })
					}
					return nil, nil, false
				})
				s := k.open(t, kafka.Config{Transactional: true, Timeout: sinktest.Bound, Options: []kgo.Opt{kgo.RequestTimeoutOverhead(sinktest.Bound)}})
				rows := sinktest.Rows("orders", 20, 3)
				ctx, cancel := context.WithCancelCause(t.Context())
				call := make(chan error, 1)
				go func() {
					if by == "fence" {
						call <- s.Fence(ctx, "billing", "0-63", 5)
						return
					}
					d := sinktest.Delivery(rows)
					d.Range, d.Epoch = "0-63", 5
					call <- errors.Join(s.Deliver(ctx, d)...)
				}()
				<-begun
				cancel(c.cause)
				if err := <-call; !errors.Is(err, outbox.ErrSinkDown) || !errors.Is(err, c.cause) {
					t.Errorf("the call ended with %v", err)
				}
				next := make(chan []error, 1)
				go func() { next <- deliver(t, s, "0-63", 5, rows) }()
				free()
				all(t, <-next, nil)
				if n := inits.Load(); n != c.inits {
					t.Errorf("initialised %d times, want %d", n, c.inits)
				}
				checkArrivals(t, k.received(t), rows, true)
			})
		}
	}
}

// TestKafkaFenceBesideASilentBroker checks that a silent broker delays a fence only until it counts as
// gone, and that producers of other ranges are fenced all the same.
func TestKafkaFenceBesideASilentBroker(t *testing.T) {
	t.Parallel()
	k := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(1, "good"))
	gone := int32(0)
	for gone == k.CoordinatorFor("emitd/billing/0-63") || gone == k.CoordinatorFor("emitd/billing/0-31") {
		gone++
	}
	must(t, k.MoveTopicPartition("good", 0, (gone+1)%3))
	old := k.begin(t, "emitd/billing/0-31")
	n := newNetwork(t, k)
	n.lose(mute, k.ListenAddrs()[gone])
	s := k.open(t, kafka.Config{Timeout: time.Hour, Transactional: true, Options: n.through(3 * time.Second)}) // others need a part of it too
	must(t, raise(t, s, "0-63", 5))
	if err := old.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
		t.Error("the producer of an overlapping range committed")
	}
	all(t, deliver(t, s, "0-63", 5, sinktest.Rows("good", 5, 1)), nil)
	if got := len(k.taken(t, "good")); got != 5 {
		t.Errorf("readers see %d records, want 5", got)
	}
}

// TestKafkaWaitsForTheTransactionBefore checks a delivery that cannot start because the previous
// transaction does not end: that is not a failure of its messages.
func TestKafkaWaitsForTheTransactionBefore(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	s := k.open(t, kafka.Config{Transactional: true, Timeout: sinktest.Bound})
	must(t, raise(t, s, "0-63", 5))
	holds, release := make(chan struct{}), make(chan struct{})
	hold := sync.OnceFunc(func() { close(holds) })
	k.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		hold()
		k.SleepControl(func() { <-release })
		return nil, nil, false
	})
	rows := sinktest.Rows("orders", 20, 3)
	first := make(chan []error, 1)
	go func() { first <- deliver(t, s, "0-63", 5, rows[:10]) }()
	<-holds
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := sinktest.Delivery(rows[10:])
	d.Range, d.Epoch = "0-63", 5
	for i, err := range sinktest.Spread(s.Deliver(ctx, d), len(d.Rows)) {
		if !errors.Is(err, outbox.ErrSinkDown) || !errors.Is(err, context.Canceled) {
			t.Errorf("row %d: %v", i, err)
		}
	}
	close(release)
	all(t, <-first, nil)
	all(t, deliver(t, s, "0-63", 5, rows[10:]), nil)
	checkArrivals(t, k.received(t), rows, true)
}

// TestKafkaFirstBrokerVanishes loses the broker that the client asks for the others: the sink must find
// out that the others are there.
func TestKafkaFirstBrokerVanishes(t *testing.T) {
	t.Parallel()
	k := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(1, "good"))
	first := (k.CoordinatorFor("emitd/billing/0-63") + 1) % 3
	must(t, k.MoveTopicPartition("good", 0, (first+1)%3))
	n := newNetwork(t, k)
	s := k.open(t, kafka.Config{Brokers: k.ListenAddrs()[first : first+1], Transactional: true, Options: n.through(time.Second)})
	must(t, raise(t, s, "0-63", 5))
	requested := make(chan struct{})
	request := sync.OnceFunc(func() { close(requested) })
	defer request()
	var lost atomic.Bool
	k.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		if lost.Load() {
			request() // checks that another broker is there
		}
		return nil, nil, false
	})
	k.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		n.lose(refusing, k.ListenAddrs()[first])
		lost.Store(true)
		k.SleepControl(func() { <-requested })
		return nil, nil, false
	})
	all(t, deliver(t, s, "0-63", 5, sinktest.Rows("good", 5, 1)), nil)
}

// begin returns a producer with an open transaction that has a record of the topic good.
func (c *cluster) begin(t *testing.T, id string) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.TransactionalID(id))
	must(t, err)
	t.Cleanup(client.Close)
	must(t, client.BeginTransaction())
	must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "good", Value: []byte("zombie")}).FirstErr())
	return client
}

// TestKafkaFenceEndsWithItsContext checks that a fence ends with its context, whatever it waits for: its
// turn, the coordinator, the brokers that list, or another producer's transaction that does not end.
func TestKafkaFenceEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(k *cluster, release <-chan struct{}, waits func()){
		"coordinator": func(k *cluster, release <-chan struct{}, waits func()) {
			k.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
				k.KeepControl()
				waits()
				k.SleepControl(func() { <-release })
				return nil, nil, false
			})
		},
		"brokers": func(k *cluster, release <-chan struct{}, waits func()) {
			k.ControlKey(int16(kmsg.ListTransactions), func(kmsg.Request) (kmsg.Response, error, bool) {
				k.KeepControl()
				waits()
				k.SleepControl(func() { <-release })
				return nil, nil, false
			})
		},
		"transaction": func(k *cluster, _ <-chan struct{}, waits func()) {
			var requested atomic.Int64
			k.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
				k.KeepControl()
				if id := req.(*kmsg.InitProducerIDRequest).TransactionalID; *id != "emitd/billing/0-31" {
					return nil, nil, false
				}
				if requested.Add(1) == 3 {
					waits()
				}
				resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
				resp.ErrorCode = kerr.ConcurrentTransactions.Code
				return resp, nil, true
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newCluster(t, kfake.SeedTopics(1, "good"))
			k.begin(t, "emitd/billing/0-31")
			release, waiting := make(chan struct{}), make(chan struct{})
			defer close(release)
			wait(k, release, sync.OnceFunc(func() { close(waiting) }))
			s := k.open(t, kafka.Config{Timeout: time.Hour, Transactional: true, Options: []kgo.Opt{kgo.RequestTimeoutOverhead(10 * time.Minute)}})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			first, second := fenced(ctx, s), (<-chan error)(nil)
			<-waiting
			if name == "coordinator" {
				second = fenced(ctx, s) // waits for its turn
			}
			cancel()
			ended(t, first)
			ended(t, second)
		})
	}
}

func fenced(ctx context.Context, s *kafka.Sink) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Fence(ctx, "billing", "0-63", 5) }()
	return done
}

func ended(t *testing.T, fence <-chan error) {
	t.Helper()
	if fence == nil {
		return
	}
	select {
	case err := <-fence:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(sinktest.Bound):
		t.Fatal("it goes on although its context has ended")
	}
}
