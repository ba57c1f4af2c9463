// Package logtest is the conformance suite of outbox logs: it tests a backend against the doc comments of
// [outbox.Log], [outbox.Cursor] and [outbox.Operator]. A backend's test is
//
//	func TestConformance(t *testing.T) {
//		logtest.Run(t, func(t testing.TB) logtest.Backend { … })
//	}
//
// Every test opens a fresh, empty log and runs in parallel with the others. Times are real, because they
// are the database's. What must not happen early is tested with delays of an hour, and what must happen
// is waited for.
package logtest

import (
	"context"
	"runtime/debug"
	"testing"

	"github.com/emitd/emitd/outbox"
)

// Backend is one fresh log.
type Backend struct {
	Log      outbox.Log
	Operator outbox.Operator
	// Begin begins a transaction of a caller. Its commit need not wake relays, unless Wakes is set.
	Begin func(ctx context.Context) (Tx, error)
	// Concurrent says that several transactions can publish at the same time. Otherwise Begin or Publish
	// waits until the previous one has ended.
	Concurrent bool
	// Wakes says that a commit reaches the channel of [outbox.Log.WakeUps] within a few seconds.
	Wakes bool
}

// Tx is a transaction of a caller that can publish.
type Tx interface {
	Publish(ctx context.Context, messages ...outbox.Message) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Factory opens a fresh log and registers its cleanup with t.
type Factory func(t testing.TB) Backend

// Run runs the whole suite.
func Run(t *testing.T, open Factory) {
	for _, theme := range []struct {
		name  string
		tests []story
	}{
		{"Pages", pages},
		{"Claims", claims},
		{"Ranges", ranges},
		{"Lanes", lanes},
		{"Delayed", delayed},
		{"Operator", operators},
		{"Replay", replays},
		{"Listing", listings},
		{"Bulk", bulk},
		{"BadInput", badInputs},
	} {
		t.Run(theme.name, func(t *testing.T) {
			t.Parallel()
			for _, s := range theme.tests {
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					defer func() { // a missing row must not end the other tests
						if p := recover(); p != nil {
							t.Fatalf("%v\n%s", p, debug.Stack())
						}
					}()
					s.run(newWorld(t, open(t)))
				})
			}
		})
	}
	t.Run("Storm", func(t *testing.T) {
		t.Parallel()
		Storm(t, open, StormConfig{})
	})
}

// story is one test.
type story struct {
	name string
	run  func(w *suite)
}
