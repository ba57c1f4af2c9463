package blobtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// StressConfig configures StressAppend and StressCreate.
type StressConfig struct {
	// Buckets are handles of one store, one for each writer. Faults are inserted below them.
	Buckets []blob.Bucket

	// Steps is how many writes each writer attempts.
	Steps int

	// Timeout bounds each call; 0 is that of the suite.
	Timeout time.Duration

	// Verifier reads the result at the end. It must have no faults; nil is the first bucket.
	Verifier blob.Bucket

	// DeliverLate runs before Verifier reads. It makes late writes arrive.
	DeliverLate func()
}

// Counts counts the writes by their outcome.
type Counts struct {
	Acknowledged, Refused, Unknown int
	UnknownApplied                 int // how many of the unknown ones have happened
}

// outcomeOf maps each write's mark to its error.
type outcomeOf map[string]error // by mark; nil is acknowledged

func (s StressConfig) verifier() blob.Bucket {
	if s.Verifier != nil {
		return s.Verifier
	}
	return s.Buckets[0]
}

func (s StressConfig) call(t *testing.T) (context.Context, context.CancelFunc) {
	timeout := s.Timeout
	if timeout == 0 {
		timeout = callTimeout
	}
	return context.WithTimeout(t.Context(), timeout)
}

// run lets each writer do its steps and collects the outcomes by mark.
func (s StressConfig) run(t *testing.T, step func(b blob.Bucket, mark string, n int) error) outcomeOf {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	outcomes := outcomeOf{}
	for w, b := range s.Buckets {
		all.Go(func() {
			for n := range s.Steps {
				mark := fmt.Sprintf("w%d.%d", w, n)
				err := step(b, mark, n)
				mu.Lock()
				outcomes[mark] = err
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if s.DeliverLate != nil {
		s.DeliverLate()
	}
	return outcomes
}

// count compares how often each mark is in the store with the outcome that its writer got.
func (o outcomeOf) count(t *testing.T, found map[string]int) (c Counts) {
	t.Helper()
	for mark, err := range o {
		n := found[mark]
		switch {
		case n > 1:
			t.Errorf("write %s happened %d times (its writer was told: %v)", mark, n, err)
		case err == nil:
			c.Acknowledged++
			if n == 0 {
				t.Errorf("write %s was acknowledged and is lost", mark)
			}
		case blob.NotApplied(err):
			c.Refused++
			if n != 0 {
				t.Errorf("write %s happened, and its writer was told that it has not: %v", mark, err)
			}
		default:
			c.Unknown++
			c.UnknownApplied += n
		}
	}
	return c
}

// read calls Read again while the store returns only errors that pass by themselves.
func (s StressConfig) read(t *testing.T, b blob.Bucket, key string) (*blob.Object, error) {
	for {
		ctx, cancel := s.call(t)
		o, err := b.Read(ctx, key)
		cancel()
		if err == nil || errors.Is(err, blob.ErrNotFound) || t.Context().Err() != nil {
			return o, err
		}
	}
}

// StressAppend makes all writers append marks to one object by Read and Replace. They never repeat a mark,
// whatever the answer. At the end each acknowledged mark is there once, each refused one is not,
// and each unknown one at most once.
func StressAppend(t *testing.T, s StressConfig) Counts {
	t.Helper()
	const key = "chain/HEAD"
	if _, err := s.verifier().Create(t.Context(), key, []byte("begin")); err != nil {
		t.Fatal(err)
	}
	outcomes := s.run(t, func(b blob.Bucket, mark string, _ int) error {
		for {
			o, err := s.read(t, b, key)
			if err != nil {
				return fmt.Errorf("%w: %w", blob.ErrUnavailable, err)
			}
			ctx, cancel := s.call(t)
			_, err = b.Replace(ctx, key, append(o.Data, " "+mark...), o.Version)
			cancel()
			if errors.Is(err, blob.ErrChanged) && blob.NotApplied(err) {
				continue // another writer was faster, which is not tested here
			}
			return err
		}
	})
	o, err := s.verifier().Read(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, mark := range strings.Fields(string(o.Data))[1:] {
		found[mark]++
	}
	return outcomes.count(t, found)
}

// StressCreate makes all writers race to create the same names. At the end, the writer of a name's object
// got success or an unknown outcome. No two writers of one name got success.
func StressCreate(t *testing.T, s StressConfig) Counts {
	t.Helper()
	name := func(n int) string { return fmt.Sprintf("slots/%020d", n) }
	outcomes := s.run(t, func(b blob.Bucket, mark string, n int) error {
		ctx, cancel := s.call(t)
		defer cancel()
		_, err := b.Create(ctx, name(n), []byte(mark))
		return err
	})
	found := map[string]int{}
	for n := range s.Steps {
		o, err := s.verifier().Read(t.Context(), name(n))
		if err == nil {
			found[string(o.Data)]++
		} else if !errors.Is(err, blob.ErrNotFound) {
			t.Fatal(err)
		}
	}
	return outcomes.count(t, found)
}
