package rabbitmq

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// peer is a connection whose other side reads when it is let.
type peer struct {
	net.Conn // none
	reads    chan struct{}
	broken   chan struct{} // closed when the connection is

	mu     sync.Mutex
	got    [][]byte // each write
	refuse error
}

func newPeer() *peer { return &peer{reads: make(chan struct{}), broken: make(chan struct{})} }

func (p *peer) Write(b []byte) (int, error) {
	select {
	case <-p.reads:
	case <-p.broken:
		return 0, net.ErrClosed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		return 0, p.refuse
	}
	p.got = append(p.got, bytes.Clone(b))
	return len(b), nil
}

// SetWriteDeadline breaks writes that wait.
func (p *peer) SetWriteDeadline(at time.Time) error {
	time.AfterFunc(time.Until(at), func() { _ = p.Close() })
	return nil
}

func (p *peer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.broken:
	default:
		close(p.broken)
	}
	return nil
}

// TestGathering checks that what is written while the peer does not read goes in one piece, in order.
func TestGathering(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPeer()
		g := newGathering(p)
		for _, part := range []string{"a", "b", "c", "d"} {
			if n, err := g.Write([]byte(part)); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			synctest.Wait()
		}
		close(p.reads)
		synctest.Wait()
		if len(p.got) != 2 || string(p.got[0]) != "a" || string(p.got[1]) != "bcd" {
			t.Errorf("sent: %q", p.got)
		}
		if _, err := g.Write([]byte("last")); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil || string(p.got[len(p.got)-1]) != "last" {
			t.Errorf("Close: %v, sent: %q", err, p.got)
		}
		if _, err := g.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write after Close: %v", err)
		}
	})
}

// TestGatheringIsBounded checks that a writer waits for a peer that does not read, and that Close frees it soon.
func TestGatheringIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPeer()
		g := newGathering(p)
		written, ended := 0, make(chan error, 1)
		go func() {
			for {
				n, err := g.Write(make([]byte, 1<<10))
				if written += n; err != nil {
					ended <- err
					return
				}
			}
		}()
		synctest.Wait()
		if most := 2 * (mostGathered + 1<<10); written > most {
			t.Errorf("%d bytes wait, at most %d may", written, most)
		}
		began := time.Now()
		_ = g.Close()
		if took := time.Since(began); took > lastWrite {
			t.Errorf("Close took %v", took)
		}
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("the writer ended with %v", err)
		}
	})
}

// TestGatheringFails checks that a failure is reported by the next write, and closes the connection.
func TestGatheringFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPeer()
		p.refuse = errors.New("reset")
		close(p.reads)
		g := newGathering(p)
		_, _ = g.Write([]byte("a"))
		<-p.broken
		if _, err := g.Write([]byte("b")); !errors.Is(err, p.refuse) {
			t.Errorf("the next write: %v", err)
		}
		_ = g.Close()
	})
}
