package plaincall

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counted counts the reads of a connection.
type counted struct {
	net.Conn
	reads atomic.Int32
}

func (c *counted) Read(b []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(b)
}

// TestOneWatch: if the timer of a call fires when the call is answered, and its goroutine comes when the next call is
// under way, one goroutine watches that call, and none is left when it is answered.
func TestOneWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		defer ours.Close()
		from := &counted{Conn: ours}
		c := &conn{Conn: from, buf: make([]byte, 16)}
		c.ctx, c.cancel = context.WithCancel(t.Context())
		defer c.cancel()
		c.beginWatch()
		go c.watchCaller()
		time.Sleep(2 * watchAfter)
		synctest.Wait()
		if n := from.reads.Load(); n != 1 {
			t.Errorf("%d goroutines watch one call", n)
		}
		c.endWatch()
		synctest.Wait()
		if c.ctx.Err() != nil {
			t.Error("the caller of an answered call counts as gone")
		}
	})
}
