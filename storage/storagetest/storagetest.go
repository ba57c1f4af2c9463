// Package storagetest is the conformance suite of the cluster store, which every backend runs. It
// also has the benchmarks that they share.
//
// A backend calls it from one test:
//
//	func TestConformance(t *testing.T) {
//		storagetest.Run(t, storagetest.Factory{Open: open})
//	}
//
// One file holds one theme: register, elect, ended, clock, assign, guard, report, leave, events, fence,
// state, lock, command, sweep, wake, concurrency, faults. Each case is a short story on a fresh store,
// with nodes that send heartbeats, a leader that commits and holders that report. The last theme,
// model, makes random calls to the backend and to storage/memory side by side. After each call it
// compares the answers, the whole cluster and the whole history.
//
// # Time
//
// Most cases need no clock: a lease of a negative length is over when it begins, and everything is
// older than a negative age. Cases about exact boundaries and about a clock that steps need
// [Backend.Advance]. A hook that a backend does not offer must be listed in [Factory.Lacks], unless
// its comment says that it may be missing. The suite logs which cases it could not run, and fails
// if a hook is missing that is not listed.
//
// # What it does not test
//
// It does not test durability, nor what happens to a connection. The backends' own tests do.
package storagetest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// Factory makes the stores that the suite tests.
type Factory struct {
	// Open returns a fresh, empty store. It registers its own cleanup and ends the test if it
	// cannot. Several tests call it at the same time.
	Open func(t testing.TB) Backend
	// Lacks names what the backend is known not to offer: hooks that Open leaves nil, and optional
	// interfaces that the store does not implement.
	Lacks Hooks
	// Runs is how many random sequences the theme model plays, each on a store of its own. 0 uses
	// the flag -rapid.checks (100). A backend with a slow Open should use fewer.
	Runs int
}

// Backend is a fresh store, with what its tests can do to it from outside. Nil hooks are listed in
// Factory.Lacks.
type Backend struct {
	Store storage.Store
	// Second is another handle to the same store, with connections of its own, like that of another
	// process. If it is nil, Store is used twice.
	Second storage.Store
	// Advance moves the store's clock by d, back if d is negative.
	Advance func(d time.Duration)
	// Frozen says that the clock stands still between calls of Advance, so that boundaries can
	// be tested to the millisecond and the model can compare numbers and times.
	Frozen bool
	// InTx begins a user's own transaction, fences it by f, and runs fn while it is open, like the
	// backend's InTx.
	InTx func(ctx context.Context, f daemon.Fence, fn func(ctx context.Context) error) error
	// SerialWriters says that such a transaction makes every other writer wait, as in SQLite.
	SerialWriters bool
	// WriteState writes a state into the row of an existing unit without using the store, as a newer
	// version of the program would.
	WriteState func(t testing.TB, u daemon.Unit, s daemon.State)
	// ChangeIdentity changes the store identity, as a failover or a restored copy does. It may be nil
	// without being listed.
	ChangeIdentity func(t testing.TB)
	// LoseReply runs call so that the store carries it out and its reply is lost. It returns the
	// error of call, which is one of unknown outcome. It may be nil without being listed: the suite
	// then makes the call and ignores its result.
	LoseReply func(call func() error) error
}

// Hooks is a set of features beyond storage.Store: hooks for tests, and optional interfaces of the
// store.
type Hooks uint

// What a backend may lack.
const (
	Clock          Hooks = 1 << iota // Backend.Advance
	FrozenClock                      // Backend.Frozen
	Tx                               // Backend.InTx
	StateWrites                      // Backend.WriteState
	Locks                            // storage.Locker
	Sweeps                           // storage.Sweeper
	Wakes                            // storage.Watcher
	IdentityChange                   // Backend.ChangeIdentity
	States                           // daemon.StateStore
	Keys                             // storage.KeyStore
	Records                          // storage.Recorder

	all      = Records<<1 - 1
	optional = IdentityChange // may be missing without being listed
)

// String names the members of the set, as in Clock|Tx.
func (h Hooks) String() string {
	var out []string
	for i, name := range []string{"Clock", "FrozenClock", "Tx", "StateWrites", "Locks", "Sweeps", "Wakes", "IdentityChange", "States", "Keys", "Records"} {
		if h&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, "|")
}

// offers returns the hooks that a backend has.
func (b Backend) offers() Hooks {
	_, locks := b.Store.(storage.Locker)
	_, sweeps := b.Store.(storage.Sweeper)
	_, wakes := b.Store.(storage.Watcher)
	_, states := b.Store.(daemon.StateStore)
	_, keys := b.Store.(storage.KeyStore)
	_, records := b.Store.(storage.Recorder)
	var h Hooks
	for hook, has := range map[Hooks]bool{
		Clock: b.Advance != nil, FrozenClock: b.Advance != nil && b.Frozen, Tx: b.InTx != nil, StateWrites: b.WriteState != nil,
		Locks: locks, Sweeps: sweeps, Wakes: wakes, IdentityChange: b.ChangeIdentity != nil,
		States: states, Keys: keys, Records: records,
	} {
		if has {
			h |= hook
		}
	}
	return h
}

// story is one case.
type story struct {
	name  string
	needs Hooks
	run   func(w *world)
}

// themes lists the suite in the order of the contract.
var themes = []struct {
	name    string
	stories []story
}{
	{"register", registerStories},
	{"elect", electStories},
	{"ended", endedStories},
	{"clock", clockStories},
	{"assign", assignStories},
	{"guard", guardStories},
	{"report", reportStories},
	{"leave", leaveStories},
	{"events", eventStories},
	{"fence", fenceStories},
	{"state", stateStories},
	{"keys", keyStories},
	{"lock", lockStories},
	{"command", commandStories},
	{"sweep", sweepStories},
	{"wake", wakeStories},
	{"concurrency", concurrencyStories},
	{"faults", faultStories},
}

// Run runs the whole suite.
func Run(t *testing.T, f Factory) {
	if f.Open == nil {
		t.Fatal("storagetest: Factory.Open is nil")
	}
	omitted := &omissions{}
	t.Cleanup(func() { omitted.log(t) })
	for _, theme := range themes {
		t.Run(theme.name, func(t *testing.T) {
			t.Parallel()
			for _, s := range theme.stories {
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					if s.needs&f.Lacks != 0 {
						omitted.add(t.Name(), s.needs)
						return
					}
					w := open(t, f)
					if s.needs&^w.offers() != 0 {
						omitted.add(t.Name(), s.needs)
						return
					}
					s.run(w)
				})
			}
		})
	}
	t.Run("model", func(t *testing.T) {
		t.Parallel()
		runModel(t, f)
	})
}

// omissions collects what could not be run, to say so in one place.
type omissions struct {
	mu    sync.Mutex
	names []string
}

func (o *omissions) add(name string, needs Hooks) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names = append(o.names, name+" needs "+needs.String())
}

func (o *omissions) log(t *testing.T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.names) > 0 {
		slices.Sort(o.names)
		t.Logf("not run, because the backend lacks what they need:\n\t%s", strings.Join(o.names, "\n\t"))
	}
}
