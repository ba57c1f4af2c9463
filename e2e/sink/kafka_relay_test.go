package sink_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	_ "modernc.org/sqlite"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
	sinkpkg "github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/sinktest"
	"github.com/emitd/emitd/outbox/sqlite"
)

// office is an outbox on SQLite from which relays deliver to Kafka.
type office struct {
	log  *sqlite.Log
	db   *sql.DB
	pub  *sqlite.Publisher
	sent map[string]int // messages by key
}

func newOffice(t *testing.T) *office {
	t.Helper()
	path := filepath.Join(t.TempDir(), "outbox.db")
	o := &office{sent: map[string]int{}}
	var err error
	o.log, err = sqlite.Open(t.Context(), sqlite.Config{Path: path})
	must(t, err)
	t.Cleanup(o.log.Close)
	o.db, err = sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(30000)")
	must(t, err)
	t.Cleanup(func() { _ = o.db.Close() })
	o.pub, err = sqlite.New(o.db, sqlite.Config{})
	must(t, err)
	t.Cleanup(func() { _ = o.pub.Close(context.Background()) })
	return o
}

// publish commits a message of each key.
func (o *office) publish(t *testing.T, keys ...string) {
	t.Helper()
	must(t, o.pub.InTx(t.Context(), o.db, func(tx *sqlite.Tx) error {
		for _, key := range keys {
			if err := o.pub.Publish(t.Context(), tx, outbox.Message{Topic: "orders", Key: key, Payload: strconv.AppendInt(nil, int64(o.sent[key]), 10)}); err != nil {
				return err
			}
			o.sent[key]++
		}
		return nil
	}))
}

// relay starts a relay with a generation.
func (o *office) relay(t *testing.T, generation int64, cfg outbox.Config) (a *daemon.Assignment, ended <-chan error) {
	t.Helper()
	cfg.Name, cfg.Log, cfg.Logger = "billing", o.log, slog.New(slog.DiscardHandler)
	r, err := outbox.NewRelay(cfg)
	must(t, err)
	a = daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("billing")}, Generation: generation}, 1, "n", nil)
	done := make(chan error, 1)
	go func() { done <- errors.Join(r.Run(context.Background(), a), r.Close(context.Background())) }()
	t.Cleanup(a.BeginDrain)
	return a, done
}

// drained drains a relay and waits until it has ended.
func drained(t *testing.T, a *daemon.Assignment, ended <-chan error) {
	t.Helper()
	a.BeginDrain()
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(sinktest.Bound):
		t.Fatal("the relay does not drain")
	}
}

// arrived returns the last message of each key that readers of committed records see, by first arrival,
// and how many messages were repeated. It fails if a message overtook another.
func (o *office) arrived(t *testing.T, k *cluster) (last map[string]int, again int) {
	t.Helper()
	last = map[string]int{}
	for _, r := range k.records(t, "orders") {
		n, err := strconv.Atoi(string(r.Value))
		must(t, err)
		switch key := string(r.Key); {
		case n < last[key]:
			again++
		case n == last[key]:
			last[key]++
		default:
			t.Fatalf("number %d of %s came when number %d was due", n, key, last[key])
		}
	}
	return last, again
}

// delivered waits until all messages of keys have arrived and nothing is pending.
func (o *office) delivered(t *testing.T, k *cluster, keys ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("everything of %v is delivered", keys), func() bool {
		last, _ := o.arrived(t, k)
		return !slices.ContainsFunc(keys, func(key string) bool { return last[key] < o.sent[key] })
	})
}

// empty waits until the log has nothing to deliver and nothing parked.
func (o *office) empty(t *testing.T) {
	t.Helper()
	eventually(t, "the log is empty", func() bool {
		all, err := o.log.Stats(t.Context(), "billing")
		must(t, err)
		s := all[0]
		if s.Dead > 0 || s.HeldKeys > 0 {
			t.Fatalf("given up: %+v", s)
		}
		return s.Pending == 0 && s.ParkedKeys == 0
	})
}

// outage is a sink that records how often it was down, and whether it failed at all.
type outage struct {
	*kafka.Sink
	down   atomic.Int64
	faulty atomic.Bool
}

func (o *outage) Deliver(ctx context.Context, d outbox.Delivery) []error {
	errs := o.Sink.Deliver(ctx, d)
	for _, err := range errs {
		if err != nil {
			o.faulty.Store(true)
		}
		if errors.Is(err, outbox.ErrSinkDown) {
			o.down.Add(1)
			break
		}
	}
	return errs
}

// TestKafkaRelayOutlivesBrokers delivers while brokers vanish and return. While one is gone, keys of its
// partitions are parked; without transactions other keys go on and no attempt of theirs is counted. While
// all are gone, no attempt is counted at all. Keys stay in order, no message is given up, and only
// messages that were in flight are repeated.
func TestKafkaRelayOutlivesBrokers(t *testing.T) {
	t.Parallel()
	losses(t, relayOutlives)
}

func relayOutlives(t *testing.T, transactional bool, how loss) {
	k := newCluster(t, kfake.NumBrokers(3))
	gone := (k.CoordinatorFor("emitd/billing/0-63") + 1) % 3
	for _, p := range k.PartitionInfos("orders") {
		must(t, k.MoveTopicPartition("orders", p.Partition, p.Partition%3))
	}
	n := newNetwork(t, k)
	sink := &outage{Sink: k.open(t, kafka.Config{Transactional: transactional, Options: n.through(time.Second)})}
	o := newOffice(t)
	const each = 5 // messages of a key in each phase
	type failure struct{ key, why string }
	var failed [3][]failure // by the phase in which a message was published; complete when the relay has ended
	a, ended := o.relay(t, 1, outbox.Config{
		Sink: sink, DeliverTimeout: 2 * time.Second, PageTimeout: time.Second,
		Retry: outbox.Retry{Backoff: 100 * time.Millisecond, MaxBackoff: time.Second, MaxAttempts: -1},
		Hooks: outbox.Hooks{OnFailed: func(_ string, row outbox.Row, err error) {
			n, _ := strconv.Atoi(string(row.Payload))
			failed[n/each] = append(failed[n/each], failure{row.Key, err.Error()})
		}},
	})
	keys := make([]string, 12)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	for range each {
		o.publish(t, keys...)
	}
	o.delivered(t, k, keys...)
	o.empty(t)
	var live, lost []string
	for _, r := range k.records(t, "orders") {
		key, of := string(r.Key), &live
		if r.Partition%3 == gone {
			of = &lost
		}
		if !slices.Contains(*of, key) {
			*of = append(*of, key)
		}
	}
	if len(live) == 0 || len(lost) == 0 {
		t.Fatalf("keys with brokers that live: %v, that vanish: %v", live, lost)
	}

	n.lose(how, k.ListenAddrs()[gone])
	for range each {
		o.publish(t, keys...)
	}
	if transactional { // a range has one transaction at a time, which holds up the others while it waits
		eventually(t, "something waits", func() bool { return sink.faulty.Load() })
	} else {
		o.delivered(t, k, live...)
	}
	for _, p := range k.PartitionInfos("orders") {
		if p.Partition%3 == gone {
			must(t, k.MoveTopicPartition("orders", p.Partition, (gone+1)%3))
		}
	}
	o.delivered(t, k, keys...)
	o.empty(t)
	before := sink.down.Load()
	if before > 0 && !transactional {
		t.Errorf("the sink was down %d times while one broker was gone", before)
	}

	n.restore()
	n.lose(how, k.ListenAddrs()...)
	for range each {
		o.publish(t, keys...)
	}
	eventually(t, "the sink is down", func() bool { return sink.down.Load() > before+1 })
	n.restore()
	o.delivered(t, k, keys...)
	o.empty(t)
	drained(t, a, ended)
	for _, f := range failed[1] {
		if !transactional && slices.Contains(live, f.key) {
			t.Errorf("counted against %s, whose broker lived: %v", f.key, f.why)
		}
	}
	if len(failed[0])+len(failed[2]) > 0 {
		t.Errorf("counted against messages while all brokers were there, or none: %v, %v", failed[0], failed[2])
	}
	most := 2 * len(keys) * each // one batch of each key at each loss
	if transactional {
		most = 2 * len(keys)
	}
	if _, again := o.arrived(t, k); again > most {
		t.Errorf("%d messages came again", again)
	}
}

// TestKafkaRelayIsFencedByItsSuccessor pauses a relay in the middle of a transaction until it is
// replaced. Readers of committed records must see neither what it had produced nor what it tries when it
// continues.
func TestKafkaRelayIsFencedByItsSuccessor(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	o := newOffice(t)
	keys := []string{"a", "b", "c", "d", "e", "f"}
	open := func() *kafka.Sink { return k.open(t, kafka.Config{Transactional: true, Timeout: sinktest.Bound}) }

	_, zombie := o.relay(t, 1, outbox.Config{Sink: open()})
	o.publish(t, keys...)
	o.delivered(t, k, keys...)
	o.empty(t)
	var paused atomic.Bool
	holds, release := make(chan struct{}), make(chan struct{})
	paused.Store(true)
	k.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		if paused.CompareAndSwap(true, false) { // everything is produced, and the commit is in flight
			close(holds)
			k.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	o.publish(t, keys...)
	<-holds

	a, ended := o.relay(t, 2, outbox.Config{Sink: open()})
	for range 3 {
		o.publish(t, keys...)
	}
	o.delivered(t, k, keys...)
	close(release)
	select {
	case err := <-zombie:
		if !errors.Is(err, daemon.ErrStale) {
			t.Errorf("the deposed relay ended with %v", err)
		}
	case <-time.After(sinktest.Bound):
		t.Fatal("the deposed relay goes on")
	}
	o.publish(t, keys...)
	o.delivered(t, k, keys...)
	o.empty(t)
	drained(t, a, ended)

	if _, again := o.arrived(t, k); again > 0 {
		t.Errorf("%d messages came again", again)
	}
	for _, r := range k.records(t, "orders") {
		want := "2"
		if string(r.Value) == "0" {
			want = "1" // from before it was paused
		}
		if got := header(r, sinkpkg.Generation); got != want {
			t.Errorf("number %s of %s is of generation %s, want %s", r.Value, r.Key, got, want)
		}
	}
}
