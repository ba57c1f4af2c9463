package dir

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestSyncsAreShared: while a sync of a directory is under way, all others wait for one more, which begins afterwards. Other
// directories wait for nothing.
func TestSyncsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var syncs dirSyncs
		var begun, returned atomic.Int64
		failed := errors.New("the second sync fails")
		release := make(chan struct{})
		slow := func(string) error {
			n := begun.Add(1)
			<-release
			if n == 2 {
				return failed
			}
			return nil
		}
		call := func(want error) {
			if err := syncs.sync("a", slow); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
			returned.Add(1)
		}
		expect := func(when string, syncsBegun, callsReturned int64) {
			t.Helper()
			synctest.Wait()
			if b, r := begun.Load(), returned.Load(); b != syncsBegun || r != callsReturned {
				t.Errorf("%s: %d syncs have begun, %d calls have returned; want %d and %d", when, b, r, syncsBegun, callsReturned)
			}
		}
		go call(nil)
		expect("one caller", 1, 0)
		for range 10 {
			go call(failed)
		}
		expect("ten more", 1, 0)
		if err := syncs.sync("b", func(string) error { return nil }); err != nil {
			t.Error(err)
		}
		release <- struct{}{}
		expect("the first sync has ended", 2, 1)
		for range 10 {
			go call(nil)
		}
		expect("ten more during the second", 2, 1)
		release <- struct{}{}
		expect("the second has ended", 3, 11)
		release <- struct{}{}
		expect("the third has ended", 3, 21)
		if len(syncs.next) > 0 {
			t.Errorf("left: %v", syncs.next)
		}
	})
}

// TestEachSyncCoversItsCaller: whatever a caller did before its call, a sync that began later has ended when the call
// returns.
func TestEachSyncCoversItsCaller(t *testing.T) {
	t.Parallel()
	var syncs dirSyncs
	var done, covered atomic.Int64 // changes so far, and those that a sync has covered
	do := func(string) error {
		n := done.Load()
		for {
			c := covered.Load()
			if c >= n || covered.CompareAndSwap(c, n) {
				return nil
			}
		}
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 2000 {
				mine := done.Add(1)
				_ = syncs.sync("a", do)
				if covered.Load() < mine {
					t.Error("a call has returned before a sync of its change")
					return
				}
			}
		})
	}
	all.Wait()
}
