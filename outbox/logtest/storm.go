package logtest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// StormConfig sets the size of a Storm. The zero value uses the defaults.
type StormConfig struct {
	Writers      int           // default 6
	Transactions int           // of each writer; default 100
	Round        time.Duration // longest life of the first sets of relays; default 120 ms
}

// Storm runs writers that commit and roll back in any order and share keys, while relays deliver. The
// relays fail to deliver messages, die between delivery and storing the position, continue although they
// were replaced, and divide the shards among a different number in each round. In the end
//
//   - every committed message was delivered, or is a dead letter if it cannot be delivered,
//   - no message was delivered whose transaction was rolled back,
//   - first deliveries of a key are in the order in which its transactions took the key's lock.
func Storm(t *testing.T, open Factory, cfg StormConfig) {
	if cfg.Writers == 0 {
		cfg.Writers = 6
	}
	if cfg.Transactions == 0 {
		cfg.Transactions = 100
	}
	if cfg.Round == 0 {
		cfg.Round = 120 * time.Millisecond
	}
	s := &storm{
		suite: newWorld(t, open(t)), cfg: cfg,
		order: map[string][]string{}, undone: map[string]bool{}, loose: map[string]bool{}, first: map[string][]string{}, count: map[string]int{},
	}
	s.run()
}

// storm records what writers and the sink observe.
type storm struct {
	*suite
	cfg     StormConfig
	writing atomic.Int32
	epoch   int64

	mu     sync.Mutex
	order  map[string][]string // committed messages of each key, in the order of its lock
	undone map[string]bool     // rolled back
	loose  map[string]bool     // committed, without a key
	first  map[string][]string // first deliveries of each key
	count  map[string]int      // deliveries of each message
	total  int
}

func (s *storm) run() {
	var writers, relays sync.WaitGroup
	s.writing.Store(int32(s.cfg.Writers))
	for i := range s.cfg.Writers {
		writers.Go(func() {
			defer s.writing.Add(-1)
			s.write(i)
		})
	}
	ctx, stop := context.WithCancel(s.ctx)
	rounds := 0
	for deadline := time.Now().Add(3 * time.Minute); ; rounds++ {
		missing := s.missing()
		if missing == "" {
			break
		}
		if time.Now().After(deadline) || s.Failed() {
			s.Errorf("after %d rounds: %s", rounds, missing)
			break
		}
		s.round(ctx, &relays, rounds)
	}
	writers.Wait()
	stop()
	relays.Wait()
	s.check(rounds)
}

// write runs one writer: transactions of one to four messages, every fifth rolled back.
func (s *storm) write(writer int) {
	rng := rand.New(rand.NewPCG(uint64(writer), 4))
	for n := range s.cfg.Transactions {
		tx, err := s.Begin(s.ctx)
		if err != nil {
			s.Errorf("begin: %v", err)
			return
		}
		var all []outbox.Message
		key := fmt.Sprint("key-", rng.IntN(9)) // one key per transaction, so that writers cannot deadlock
		for i := range 1 + rng.IntN(4) {
			m := msg(fmt.Sprintf("%s:%d.%d.%d", key, writer, n, i))
			if rng.IntN(6) == 0 {
				m.Key = ""
			}
			if rng.IntN(12) == 0 {
				m.NotBefore = time.Now().Add(time.Duration(rng.IntN(20)) * time.Millisecond)
			}
			all = append(all, m)
		}
		if err := tx.Publish(s.ctx, all...); err != nil {
			s.Errorf("publish: %v", err)
			return
		}
		s.end(tx, all, rng.IntN(5) > 0)
	}
}

// end ends a transaction. Until then the transaction holds the lock of its key, so what end records
// before the commit is in the order of the locks.
func (s *storm) end(tx Tx, all []outbox.Message, commit bool) {
	s.mu.Lock()
	for _, m := range all {
		text := string(m.Payload)
		switch {
		case !commit:
			s.undone[text] = true
		case m.Key == "" || !m.NotBefore.IsZero() || poison(text):
			s.loose[text] = true
		default:
			s.order[m.Key] = append(s.order[m.Key], text)
		}
	}
	s.mu.Unlock()
	finish := tx.Rollback
	if commit {
		finish = tx.Commit
	}
	if err := finish(s.ctx); err != nil {
		s.Errorf("end a transaction (commit %v): %v", commit, err)
	}
}

func hash(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text))
	return h.Sum32()
}

// poison reports whether a message can never be delivered, flaky whether it fails at first.
func poison(text string) bool { return hash(text)%41 == 0 }
func flaky(text string) bool  { return hash(text)%11 == 1 }

// deliver is the sink.
func (s *storm) deliver(row outbox.Row) error {
	text := string(row.Payload)
	if poison(text) || flaky(text) && row.Attempt == 1 && rand.IntN(4) > 0 {
		return errors.New("refused")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total++
	if s.count[text]++; s.count[text] == 1 && row.Key != "" && !s.loose[text] {
		s.first[row.Key] = append(s.first[row.Key], text)
	}
	return nil
}

// round gives the shards to new relays, and lets some of the previous ones continue until the log refuses
// them. Rounds become longer: on a busy machine, the first ones may be too short to deliver anything.
func (s *storm) round(ctx context.Context, relays *sync.WaitGroup, n int) {
	s.epoch++
	instances := 1 + n%3
	longest := s.cfg.Round + s.cfg.Round*time.Duration(n)/40
	life, end := context.WithTimeout(ctx, longest/2+rand.N(longest/2))
	defer end()
	var here sync.WaitGroup
	for i := range instances {
		r := &stormRelay{s: s, claim: outbox.ClaimRequest{Subscription: sub, Index: i, Instances: instances, Epoch: s.epoch}}
		own := life
		if rand.IntN(3) == 0 {
			own = ctx // the relay does not notice its end
			relays.Go(func() { r.run(own) })
			continue
		}
		here.Go(func() { r.run(own) })
	}
	here.Wait()
	<-life.Done()
}

// missing returns what remains to be published or handled, or "" if nothing does.
func (s *storm) missing() string {
	if n := s.writing.Load(); n > 0 {
		return fmt.Sprintf("%d writers have not ended", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	dead := 0
	for text := range s.loose {
		if poison(text) {
			dead++
		} else if s.count[text] == 0 {
			return text + " was not delivered"
		}
	}
	for key, all := range s.order {
		if n := len(s.first[key]); n < len(all) {
			return fmt.Sprintf("%s: %d of %d messages were delivered", key, n, len(all))
		}
	}
	all, err := s.Operator.Stats(s.ctx, sub)
	switch {
	case err != nil:
		return err.Error()
	case len(all) != 1 || int(all[0].Dead) != dead || all[0].Pending != 0:
		return fmt.Sprintf("the log has %+v, want %d dead letters and nothing pending", all, dead)
	}
	return ""
}

// check compares what was delivered with what was committed.
func (s *storm) check(rounds int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	committed, inversions := len(s.loose), 0
	for key, want := range s.order {
		committed += len(want)
		for i, got := range s.first[key] {
			if i >= len(want) || got != want[i] {
				inversions++
				s.Errorf("key %s: delivery %d is %s", key, i, got)
				break
			}
		}
	}
	for text := range s.count {
		if s.undone[text] {
			s.Errorf("%s was rolled back and delivered", text)
		}
	}
	s.Logf("%d messages committed, %d rolled back, %d deliveries (%d repeated), %d rounds of relays, %d keys out of order",
		committed, len(s.undone), s.total, s.total-len(s.count), rounds, inversions)
}

// stormRelay is a minimal relay without concurrency.
type stormRelay struct {
	s      *storm
	claim  outbox.ClaimRequest
	cur    outbox.Cursor
	parked map[string]bool
}

// run claims and delivers until ctx ends or the relay is replaced.
func (r *stormRelay) run(ctx context.Context) {
	for ctx.Err() == nil {
		cur, err := r.s.Log.Claim(ctx, r.claim)
		if err != nil {
			r.explain(ctx, err)
			return
		}
		r.cur, r.parked = cur, map[string]bool{}
		for _, key := range cur.Parked() {
			r.parked[key] = true
		}
		for err == nil && ctx.Err() == nil {
			err = r.step(ctx)
		}
		cur.Close()
		if errors.Is(err, outbox.ErrFenced) {
			return
		}
		r.explain(ctx, err)
	}
}

// explain fails the test for an error that is not expected.
func (r *stormRelay) explain(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && !errors.Is(err, outbox.ErrMoved) && !errors.Is(err, outbox.ErrFenced) {
		r.s.Errorf("relay %d of %d at epoch %d: %v", r.claim.Index, r.claim.Instances, r.claim.Epoch, err)
	}
}

// step delivers one page and the lanes that are due.
func (r *stormRelay) step(ctx context.Context) error {
	page, err := r.cur.Next(ctx, outbox.Limit{Rows: 1 + rand.IntN(40), Bytes: 1 << 20})
	if err != nil {
		return err
	}
	if page.Delayed {
		if _, err := r.cur.Promote(ctx, 20); err != nil {
			return err
		}
	}
	if page.Due {
		if err := r.retry(ctx); err != nil {
			return err
		}
	}
	if page.Mark == nil {
		if !page.More {
			idle(ctx)
		}
		return nil
	}
	var out []outbox.Outcome
	for _, row := range page.Rows {
		if r.parked[row.Key] {
			out = append(out, outbox.Outcome{Row: row, Kind: outbox.Behind})
		} else if o := r.attempt(row); o.Kind != outbox.Delivered {
			out = append(out, o)
			r.parked[row.Key] = row.Key != ""
		}
	}
	if rand.IntN(60) == 0 {
		return errors.Join(outbox.ErrMoved, errors.New("it died before it confirmed"))
	}
	return r.cur.Advance(ctx, page.Mark, out)
}

// attempt delivers one message.
func (r *stormRelay) attempt(row outbox.Row) outbox.Outcome {
	err := r.s.deliver(row)
	switch {
	case err == nil:
		return outbox.Outcome{Row: row, Kind: outbox.Delivered}
	case row.Attempt >= 3:
		return outbox.Outcome{Row: row, Kind: outbox.Dead, Attempts: row.Attempt, Cause: err.Error()}
	}
	return outbox.Outcome{Row: row, Kind: outbox.Waiting, Attempts: row.Attempt, RetryIn: 3 * time.Millisecond, Cause: err.Error()}
}

// retry delivers the lanes that are due, each up to its first failure.
func (r *stormRelay) retry(ctx context.Context) error {
	lanes, err := r.cur.Due(ctx, 10)
	if err != nil {
		return err
	}
	var out []outbox.Outcome
	for _, rows := range lanes {
		for _, row := range rows {
			o := r.attempt(row)
			out = append(out, o)
			if o.Kind == outbox.Waiting {
				break
			}
		}
	}
	emptied, err := r.cur.StoreParked(ctx, out)
	for _, key := range emptied {
		delete(r.parked, key)
	}
	return err
}

// idle pauses when there is nothing to do.
func idle(ctx context.Context) {
	t := time.NewTimer(2 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
