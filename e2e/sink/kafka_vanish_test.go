package sink_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// loss is a way in which brokers vanish.
type loss string

const (
	refusing loss = "refusing" // connections end, and nothing listens
	mute     loss = "mute"     // connections stay open, and no bytes get through
)

// network connects to the brokers of a cluster, to each through its own wire.
type network struct {
	wires map[string]*wire // by the broker's address

	mu      sync.Mutex
	refused map[string]bool
}

func newNetwork(t *testing.T, c *cluster) *network {
	t.Helper()
	n := &network{wires: map[string]*wire{}, refused: map[string]bool{}}
	for _, addr := range c.ListenAddrs() {
		n.wires[addr] = newWire(t, addr)
	}
	return n
}

// through returns the options of a client that uses the network, and treats a broker as gone after
// silence.
func (n *network) through(silence time.Duration, more ...kgo.Opt) []kgo.Opt {
	return append(more, kgo.Dialer(n.dial), kgo.RequestTimeoutOverhead(silence))
}

func (n *network) dial(ctx context.Context, kind, addr string) (net.Conn, error) {
	n.mu.Lock()
	refused := n.refused[addr]
	n.mu.Unlock()
	if refused {
		return nil, &net.OpError{Op: "dial", Net: kind, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	var d net.Dialer
	return d.DialContext(ctx, kind, n.wires[addr].addr())
}

// lose makes brokers vanish.
func (n *network) lose(how loss, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, addr := range addrs {
		n.wires[addr].hold(how == mute)
		if n.refused[addr] = how == refusing; how == refusing {
			n.wires[addr].drop()
		}
	}
}

// restore brings all brokers back.
func (n *network) restore() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.refused)
	for _, w := range n.wires {
		w.hold(false)
	}
}

// losses runs a test for both kinds of producers and both ways to vanish.
func losses(t *testing.T, test func(t *testing.T, transactional bool, how loss)) {
	for _, transactional := range []bool{false, true} {
		for _, how := range []loss{refusing, mute} {
			t.Run(fmt.Sprintf("transactional=%v, %s", transactional, how), func(t *testing.T) {
				t.Parallel()
				test(t, transactional, how)
			})
		}
	}
}

// TestKafkaBrokersVanish checks that the sink is down soon after all brokers vanish, long before a
// record's time ends, whether or not something was in flight. When they are back, everything that was
// tried is delivered, keys in order, and not once per attempt.
func TestKafkaBrokersVanish(t *testing.T) {
	t.Parallel()
	losses(t, func(t *testing.T, transactional bool, how loss) {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("busy=%v", busy), func(t *testing.T) {
				t.Parallel()
				vanish(t, transactional, busy, how)
			})
		}
	})
}

func vanish(t *testing.T, transactional, busy bool, how loss) {
	k := newCluster(t, kfake.NumBrokers(3))
	n := newNetwork(t, k)
	s := k.open(t, kafka.Config{Timeout: time.Minute, Transactional: transactional, Options: n.through(time.Second)})
	rows := sinktest.Rows("orders", 60, 7)
	must(t, raise(t, s, "0-63", 5))
	all(t, deliver(t, s, "0-63", 5, rows[:20]), nil)

	var produced atomic.Int64
	if busy {
		k.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			k.KeepControl()
			if produced.Add(1) == 1 {
				n.lose(how, k.ListenAddrs()...) // the record is taken, and its answer lost
			}
			return nil, nil, false
		})
	} else {
		n.lose(how, k.ListenAddrs()...)
	}
	var workers sync.WaitGroup // like those of a relay, each with its own keys
	for w := range 3 {
		workers.Go(func() {
			for range 3 {
				for i, err := range deliver(t, s, "0-63", 5, part(rows[20:], w, 3)) {
					if !errors.Is(err, outbox.ErrSinkDown) {
						t.Errorf("row %d of worker %d: %v", i, w, err)
					}
				}
			}
		})
	}
	workers.Wait()
	n.restore()
	for w := range 3 {
		mine := part(rows[20:], w, 3)
		eventually(t, "delivered, when the brokers are back", func() bool {
			errs := deliver(t, s, "0-63", 5, mine)
			for i, err := range errs {
				if err != nil && !errors.Is(err, outbox.ErrSinkDown) {
					t.Fatalf("row %d: %v", i, err)
				}
			}
			return errs[0] == nil
		})
	}
	checkArrivals(t, k.received(t), rows, transactional)
}

// part returns the rows of a worker, which has its own keys.
func part(rows []outbox.Row, worker, of int) (mine []outbox.Row) {
	for _, r := range rows {
		if r.Shard%of == worker {
			mine = append(mine, r)
		}
	}
	return mine
}

// checkArrivals fails the test if a message was lost, overtaken, or repeated too often.
func checkArrivals(t *testing.T, got []sinktest.Taken, rows []outbox.Row, once bool) {
	t.Helper()
	at := map[string]int{}
	for i, r := range rows {
		at[r.ID.String()] = i
	}
	count, last := map[string]int{}, map[string]int{}
	for _, m := range got {
		if count[m.ID]++; count[m.ID] > 2 || once && count[m.ID] > 1 {
			t.Errorf("message %d is there %d times", at[m.ID], count[m.ID])
		}
		if count[m.ID] > 1 {
			continue // a repeated batch goes back to its beginning
		}
		if m.Key != "" && at[m.ID] < last[m.Key] {
			t.Errorf("message %d of %s comes after %d", at[m.ID], m.Key, last[m.Key])
		}
		last[m.Key] = at[m.ID]
	}
	for i, r := range rows {
		if count[r.ID.String()] == 0 {
			t.Errorf("message %d is lost", i)
		}
	}
}

// TestKafkaOneBrokerVanishes checks that the sink is not down when one of several brokers vanishes. The
// messages of its partitions wait, and are neither given up nor overtaken. The others go on meanwhile,
// however many wait. When another broker leads the partitions, one attempt delivers all. (With
// transactions a range has one at a time, and others wait for their turn.)
func TestKafkaOneBrokerVanishes(t *testing.T) {
	t.Parallel()
	losses(t, oneVanishes)
}

func oneVanishes(t *testing.T, transactional bool, how loss) {
	k := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(1, "good", "lost"))
	gone := (k.CoordinatorFor("emitd/billing/0-63") + 1) % 3
	must(t, k.MoveTopicPartition("good", 0, (gone+1)%3))
	must(t, k.MoveTopicPartition("lost", 0, gone))
	n := newNetwork(t, k)
	s := k.open(t, kafka.Config{
		Timeout: time.Minute, Transactional: transactional,
		Options: n.through(2*time.Second, kgo.MaxBufferedRecords(50)), // fewer than are tried
	})
	good, lost := sinktest.Rows("good", 50, 3), sinktest.Rows("lost", 30, 3)
	must(t, raise(t, s, "0-63", 5))
	all(t, deliver(t, s, "0-63", 5, good[:10]), nil)
	all(t, deliver(t, s, "0-63", 5, lost[:10]), nil)

	vanished := make(chan struct{})
	var once sync.Once
	k.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		if k.CurrentNode() == gone {
			once.Do(func() { n.lose(how, k.ListenAddrs()[gone]); close(vanished) })
		}
		return nil, nil, false
	})
	for round := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), sinktest.Bound)
		d := sinktest.Delivery(lost[10:])
		d.Range, d.Epoch = "0-63", 5
		waiting := make(chan []error, 1)
		go func() { waiting <- s.Deliver(ctx, d) }()
		<-vanished
		if transactional { // a transaction has all rows of the range
			cancel()
		} else {
			all(t, deliver(t, s, "0-63", 5, good[10*(round+1):10*(round+2)]), nil)
		}
		select {
		case errs := <-waiting:
			if !transactional {
				t.Errorf("round %d ended by itself: %v", round, errs)
			}
			waiting <- errs
		default:
		}
		cancel()
		for i, err := range sinktest.Spread(<-waiting, len(d.Rows)) {
			waited := errors.Is(err, context.Canceled) || errors.Is(err, outbox.ErrSkipped)
			down := errors.Is(err, outbox.ErrSinkDown) && !transactional // it may still wait for its turn
			if !waited || down || errors.Is(err, outbox.ErrPermanent) {
				t.Errorf("round %d, row %d of a partition that nobody leads: %v", round, i, err)
			}
		}
	}
	must(t, k.MoveTopicPartition("lost", 0, (gone+1)%3))
	all(t, deliver(t, s, "0-63", 5, lost[10:]), nil)
	checkArrivals(t, k.taken(t, "lost"), lost, transactional)
	if !transactional {
		checkArrivals(t, k.taken(t, "good"), good, true)
	}
}
