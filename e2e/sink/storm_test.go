package sink_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/postgres"
)

// stormKeys is the number of keys of a storm. Every second message is of the first one, so that its pipeline is deep.
const stormKeys = 100

// stormLag is how many messages may be published and not yet seen by the reader.
const stormLag = 20_000

// stormMessages is how many messages a storm has; EMITD_TEST_MESSAGES changes it.
func stormMessages(t *testing.T) int {
	if text := os.Getenv("EMITD_TEST_MESSAGES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("EMITD_TEST_MESSAGES is %q, want a number of messages", text)
		}
		return n
	}
	if drill.Full() {
		return 1_000_000
	}
	return 3000
}

// stormCheck compares what a reader sees with what was published, without keeping either: message i is known by its
// ID, and one bit says whether it was seen.
type stormCheck struct {
	prefix uuid.UUID
	n      int

	mu       sync.Mutex
	bits     []uint64
	furthest [stormKeys]int // of each key, the place of the last message that was seen first
	// seen counts messages; repeated, inverted and strange count arrivals: of a message that was seen before, of one
	// that was first seen after a later one of its key, and of one that was never published.
	seen, repeated, inverted, strange int
}

func newStormCheck(n int) *stormCheck {
	c := &stormCheck{prefix: uuid.New(), n: n, bits: make([]uint64, n/64+1)}
	for k := range c.furthest {
		c.furthest[k] = -1
	}
	return c
}

// id returns the ID of message i.
func (c *stormCheck) id(i int) uuid.UUID {
	id := c.prefix
	binary.BigEndian.PutUint32(id[12:], uint32(i))
	return id
}

// placeOf returns the key of message i, and its place among those of its key.
func placeOf(i int) (key, place int) {
	if i%2 == 0 {
		return 0, i / 2
	}
	return 1 + i/2%(stormKeys-1), i / 2 / (stormKeys - 1)
}

func (c *stormCheck) message(i int) outbox.Message {
	key, place := placeOf(i)
	return outbox.Message{ID: c.id(i), Topic: "orders", Type: "storm", Key: fmt.Sprint("key-", key), Payload: fmt.Appendf(nil, `{"place":%d}`, place)}
}

// see is called for each arrival, in the order in which a reader sees them.
func (c *stormCheck) see(id uuid.UUID) {
	i := int(binary.BigEndian.Uint32(id[12:]))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case i >= c.n || id != c.id(i):
		c.strange++
		return
	case c.bits[i/64]&(1<<(i%64)) != 0:
		c.repeated++
		return
	}
	c.bits[i/64] |= 1 << (i % 64)
	c.seen++
	if key, place := placeOf(i); place < c.furthest[key] {
		c.inverted++
	} else {
		c.furthest[key] = place
	}
}

func (c *stormCheck) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// TestStormCheck: each violation is found.
func TestStormCheck(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		see                               []int
		lost, repeated, inverted, strange int
	}{
		"all is well":  {see: []int{0, 1, 2, 3, 4, 5}},
		"other keys":   {see: []int{0, 5, 1, 2, 3, 4}},
		"lost":         {see: []int{0, 1, 2, 3, 4}, lost: 1},
		"again":        {see: []int{0, 1, 2, 0, 3, 4, 5}, repeated: 1},
		"out of order": {see: []int{0, 1, 4, 2, 3, 5}, inverted: 1},
		"never sent":   {see: []int{0, 1, 2, 3, 4, 5, 6}, strange: 1},
	} {
		s := newStormCheck(6)
		for _, i := range c.see {
			s.see(s.id(i))
		}
		if s.n-s.seen != c.lost || s.repeated != c.repeated || s.inverted != c.inverted || s.strange != c.strange {
			t.Errorf("%s: %d lost, %d again, %d out of order, %d strange", what, s.n-s.seen, s.repeated, s.inverted, s.strange)
		}
	}
}

// stormFault is a failure that is injected while messages are in flight.
type stormFault struct {
	name string
	// do injects it. It may take it back before it returns, so that the next one finds the receiver well.
	do func()
	// seldom faults come a few times in a storm, because they take seconds.
	seldom bool
}

// stormTarget is where a storm delivers.
type stormTarget struct {
	sink   outbox.Sink
	read   func(ctx context.Context, see func(uuid.UUID)) error // until ctx ends; nil if the receiver itself calls see
	faults []stormFault
	once   bool // readers see each message once, whatever fails
}

// storm is a storm in progress.
type storm struct {
	t     *testing.T
	check *stormCheck
	log   *postgres.Log
	pool  *pgxpool.Pool
	rng   *rand.Rand
	paced sync.Mutex // held while a batch is published
}

// TestDrillPipelines publishes a million messages to each sink, while failures are injected into the middle of what
// is in flight: connections break, answers are late or lost, the receiver refuses messages or blocks publishers, and
// the relay is replaced. Nothing may be lost, and no key may come out of order.
func TestDrillPipelines(t *testing.T) {
	t.Parallel()
	for name, target := range stormTargets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStorm(t)
			s.run(name, target(t, s))
		})
	}
}

func newStorm(t *testing.T) *storm {
	url := pgtest.Database(t)
	log, err := postgres.Open(t.Context(), postgres.Config{URL: url, AutoMigrate: true})
	must(t, err)
	t.Cleanup(log.Close)
	pool, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(pool.Close)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return &storm{t: t, check: newStormCheck(stormMessages(t)), log: log, pool: pool, rng: rand.New(rand.NewPCG(seed, 0))}
}

// next returns the IDs of some messages that are delivered soon: of the first key, or of several.
func (s *storm) next(n int) (ids []uuid.UUID) {
	from, step := s.check.count()+s.rng.IntN(200), 2
	if s.rng.IntN(2) == 0 {
		step = 7
	}
	for i := from; i < s.check.n && len(ids) < n; i += step {
		ids = append(ids, s.check.id(i))
	}
	return ids
}

// slowly begins a fault that takes seconds to begin. A short storm would be over by then, so it publishes nothing
// meanwhile.
func (s *storm) slowly(begin func()) {
	if s.check.n < stormLag {
		s.paced.Lock()
		defer s.paced.Unlock()
	}
	begin()
}

// pause lets what is in flight go on for some milliseconds.
func (s *storm) pause(most time.Duration) {
	select {
	case <-time.After(time.Duration(1 + s.rng.Int64N(int64(most)))):
	case <-s.t.Context().Done():
	}
}

func (s *storm) run(name string, to stormTarget) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { s.publish(ctx) })
	if to.read != nil {
		all.Go(func() {
			if err := to.read(ctx, s.check.see); err != nil && ctx.Err() == nil {
				s.t.Errorf("the reader ends: %v", err)
				cancel()
			}
		})
	}
	replace := make(chan struct{})
	all.Go(func() { s.relay(ctx, to.sink, replace) })
	faults := append(slices.Clone(to.faults), stormFault{name: "relay replaced", do: func() {
		select {
		case replace <- struct{}{}:
		case <-ctx.Done():
		}
	}})
	injected := s.inject(ctx, faults)
	cancel()
	all.Wait()
	s.report(name, to.once, injected)
}

// publish publishes all messages, but not many more than the reader has seen.
func (s *storm) publish(ctx context.Context) {
	pub, err := postgres.New(s.pool, postgres.Config{})
	if err != nil {
		s.t.Errorf("publish: %v", err)
		return
	}
	defer pub.Close(context.Background())
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := 0; i < s.check.n && ctx.Err() == nil; {
		if i-s.check.count() > stormLag {
			<-tick.C
			continue
		}
		var batch []outbox.Message
		for ; i < s.check.n && len(batch) < 500; i++ {
			batch = append(batch, s.check.message(i))
		}
		s.paced.Lock()
		err := pub.InTx(ctx, s.pool, func(tx *postgres.Tx) error { return pub.Publish(ctx, tx, batch...) })
		s.paced.Unlock()
		if err != nil && ctx.Err() == nil {
			s.t.Errorf("publish: %v", err)
			return
		}
	}
}

// relay runs one relay after the other. Each ends when it is replaced, in the middle of what it does.
func (s *storm) relay(ctx context.Context, to outbox.Sink, replace <-chan struct{}) {
	for epoch := int64(1); ctx.Err() == nil; epoch++ {
		r, err := outbox.NewRelay(outbox.Config{
			Name: "storm", Log: s.log, Sink: to, Logger: slog.New(slog.DiscardHandler),
			Retry: outbox.Retry{Backoff: time.Millisecond, MaxBackoff: 100 * time.Millisecond, MaxAttempts: -1},
		})
		if err != nil {
			s.t.Errorf("relay: %v", err)
			return
		}
		a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("storm")}, Generation: epoch}, 1, "n", nil)
		run, end := context.WithCancel(ctx)
		over := make(chan error, 1)
		go func() { over <- errors.Join(r.Run(run, a), r.Close(context.Background())) }()
		select {
		case <-replace:
		case <-ctx.Done():
		}
		end()
		if err := <-over; err != nil && !errors.Is(err, context.Canceled) {
			s.t.Errorf("relay %d ends: %v", epoch, err)
			return
		}
	}
}

// inject injects faults until all messages were seen, and returns how many.
func (s *storm) inject(ctx context.Context, faults []stormFault) map[string]int {
	injected := map[string]int{}
	each := max(s.check.n/200, 300) // messages between two faults
	last, moved := 0, time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for at := s.rng.IntN(each); ; {
		n := s.check.count()
		if n > last {
			last, moved = n, time.Now()
		}
		switch {
		case n == s.check.n || ctx.Err() != nil:
			return injected
		case time.Since(moved) > standstill:
			s.t.Errorf("nothing has arrived for %v; %d of %d are there, after %v", standstill, n, s.check.n, injected)
			return injected
		case n < at:
			<-tick.C
			continue
		}
		at = n + each/2 + s.rng.IntN(each)
		f := faults[s.rng.IntN(len(faults))]
		if f.seldom && injected[f.name] > s.check.n/200_000 {
			continue
		}
		injected[f.name]++
		f.do()
	}
}

func (s *storm) report(name string, once bool, injected map[string]int) {
	c := s.check
	n := 0
	for _, times := range injected {
		n += times
	}
	s.t.Logf("%s: %d messages, %d lost, %d out of order, %d again, after %v", name, c.n, c.n-c.seen, c.inverted, c.repeated, injected)
	what := fmt.Sprintf("to %s, %d messages, %d failures in the middle", name, c.n, n)
	drill.Never(s.t, what+", lost", c.n-c.seen)
	drill.Never(s.t, what+", out of order in their key", c.inverted)
	drill.Never(s.t, what+", never published", c.strange)
	if what += ", delivered again"; once {
		drill.Never(s.t, what, c.repeated)
		return
	}
	most := (n + 1) * 4000
	drill.Count(s.t, what, c.repeated, "at most what was in flight at each failure")
	if c.repeated > most {
		s.t.Errorf("%s: %d, with at most 4,000 in flight", what, c.repeated)
	}
}
