package object_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage"
)

// TestChangeTime: a reply contains the least time that a change took recently. A slow moment does
// not count, nor does a faster time from some minutes ago. The node's row contains it too.
func TestChangeTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		read, write := 20*time.Millisecond, 50*time.Millisecond
		p := start(t, mem.New(mem.Config{Latency: func(c mem.Call) time.Duration {
			if c.Op == mem.Read || c.Op == mem.ReadNewer {
				return read
			}
			return write
		}}), 0)
		members := func(h *storage.Heartbeat) { h.WantMembers = true }
		beats := func(n int) *storage.Reply {
			for range n {
				<-time.After(15 * time.Second)
				p.beat()
			}
			return p.beat(members)
		}
		expect := func(when string, r *storage.Reply, want time.Duration) {
			t.Helper()
			if r.MinChangeTime != want || r.Members[0].ChangeTime != want {
				t.Errorf("%s: a change takes %v, by the row %v, want %v", when, r.MinChangeTime, r.Members[0].ChangeTime, want)
			}
		}
		expect("at first", beats(1), 70*time.Millisecond)
		read, write = time.Second, 2*time.Second
		expect("for a moment", beats(2), 70*time.Millisecond)
		expect("for minutes", beats(10), 3*time.Second)
		read, write = 30*time.Millisecond, 40*time.Millisecond
		expect("quick again", beats(1), 70*time.Millisecond)
	})
}
