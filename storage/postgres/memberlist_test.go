package postgres

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/node"
)

// All that ask before a reading begins share it. Who asks later gets the next one, which has what was written meanwhile.
func TestListsAreSharedUntilTheyBegin(t *testing.T) {
	t.Parallel()
	var l memberLists
	a, b := l.join(), l.join()
	if a != b {
		t.Error("two that asked before the reading began do not share it")
	}
	if r := l.begin(); r != a {
		t.Error("another reading begins")
	}
	c := l.join()
	if c == a {
		t.Error("who asked after the beginning shares the reading, and may miss what it has written")
	}
	if r := l.begin(); r != c || !l.reading {
		t.Error("the next reading does not follow")
	}
	if r := l.begin(); r != nil || l.reading {
		t.Error("a reading begins for which nobody waits")
	}
}

// Between two readings there is a pause, so those of a crowd who come one after the other share them. The first reading, and
// one that begins when the last one is long over, do not wait.
func TestReadingsPauseBetween(t *testing.T) {
	t.Parallel()
	const took = 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		var l memberLists
		var reading sync.WaitGroup
		over := make(chan struct{})
		want := func() (waited time.Duration) {
			began := time.Now()
			l.mu.Lock()
			r := l.join()
			if !l.reading {
				l.reading = true
				reading.Go(func() { l.read(over, func(*listRead) { time.Sleep(took) }) })
			}
			l.mu.Unlock()
			<-r.done
			return time.Since(began)
		}
		reads := func() int {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.reads
		}
		if waited := want(); waited != took {
			t.Errorf("the first waited %v", waited)
		}
		time.Sleep(time.Second)
		before := reads()
		var crowd sync.WaitGroup
		for range 300 { // within 300 ms
			crowd.Go(func() {
				if waited := want(); waited > 4*took {
					t.Errorf("one of a crowd waited %v", waited)
				}
			})
			time.Sleep(time.Millisecond)
		}
		crowd.Wait()
		if n := reads() - before; n < 10 || n > 12 {
			t.Errorf("%d readings within 300 ms, each with its pause is 30 ms", n)
		}
		close(over)
		want()
		began := time.Now()
		if reading.Wait(); time.Since(began) > 0 {
			t.Error("the pause goes on after the store was closed")
		}
	})
}

// A heartbeat that wants a list is one of several while another one is under way.
func TestHeartbeatsThatWantListsAreCounted(t *testing.T) {
	t.Parallel()
	var l memberLists
	if l.enter() {
		t.Error("the first is called one of several")
	}
	if !l.enter() {
		t.Error("the second is called alone")
	}
	l.leave()
	l.leave()
	if l.enter() {
		t.Error("a later one is called one of several")
	}
}

// The traits are those of the text, whatever the cache has, and nobody writes to what others read.
func TestTraitsFollowTheirText(t *testing.T) {
	t.Parallel()
	var c traitsCache
	parse := func(process node.Incarnation, text string) node.Traits {
		t.Helper()
		traits, err := c.parse(process, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return traits
	}
	const a, b = `{"labels": {"zone": "a"}, "capacity": 1}`, `{"labels": {"zone": "b"}, "capacity": 2}`
	for range 2 {
		got := parse("1", a)
		if got.Labels["zone"] != "a" || got.Capacity != 1 {
			t.Errorf("%+v", got)
		}
		got.Labels["zone"] = "mine"
	}
	if got := parse("2", b); got.Labels["zone"] != "b" {
		t.Errorf("of another process: %+v", got)
	}
	if got := parse("1", b); got.Labels["zone"] != "b" || got.Capacity != 2 {
		t.Errorf("of the same process with another text: %+v", got)
	}
	if _, err := c.parse("1", []byte(`{`)); err == nil {
		t.Error("a text that is not JSON has traits")
	}
}
