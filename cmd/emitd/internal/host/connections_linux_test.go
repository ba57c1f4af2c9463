package host

import (
	"log/slog"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSendBuffer checks that the kernel holds no more of an answer than the listener allows.
func TestSendBuffer(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	l := newConnections(inner, places{connections: 2, sendBuffer: 64 << 10}, slog.New(slog.DiscardHandler))
	client, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*connection).Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var size int
	if err := raw.Control(func(fd uintptr) { size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF) }); err != nil {
		t.Fatal(err)
	}
	if err != nil || size != 128<<10 { // twice, for its own bookkeeping
		t.Errorf("the send buffer has %d bytes, %v", size, err)
	}
}
