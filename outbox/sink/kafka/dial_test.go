package kafka

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestDialer checks that a broker is refused for a while if it was silent, and for no other reason.
func TestDialer(t *testing.T) {
	t.Parallel()
	const silence = 5 * time.Second
	for name, c := range map[string]struct {
		dial    func(ctx context.Context, far chan<- net.Conn) (net.Conn, error)
		message bool          // sends something before it is silent
		patient time.Duration // read timeout of the client
		refused bool
	}{
		"nothing said":    {patient: silence, refused: true},
		"given up early":  {patient: silence - 1},
		"said something":  {message: true, patient: 2 * silence},
		"no connection":   {dial: func(ctx context.Context, _ chan<- net.Conn) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, refused: true},
		"nobody listens":  {dial: func(context.Context, chan<- net.Conn) (net.Conn, error) { return nil, errors.New("refused") }},
		"not waited long": {dial: func(ctx context.Context, _ chan<- net.Conn) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, patient: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dials := 0
				far := make(chan net.Conn, 1)
				d := &dialer{silence: silence, until: map[string]time.Time{}}
				d.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
					if dials++; dials > 1 {
						return nil, errors.New("dialled")
					}
					if c.dial != nil {
						return c.dial(ctx, far)
					}
					near, f := net.Pipe()
					far <- f
					return near, nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				if c.patient > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), c.patient)
				}
				defer cancel()
				if conn, err := d.connect(ctx, "tcp", "broker:1"); err == nil {
					defer conn.Close()
					broker := <-far
					defer broker.Close()
					listen(t, conn, broker, c.message, c.patient)
				}
				again := func() bool {
					before := dials
					_, err := d.connect(t.Context(), "tcp", "broker:1")
					var op *net.OpError
					if dials == before && (!errors.As(err, &op) || op.Op != "dial" || op.Timeout()) {
						t.Errorf("refused with %v, of which no client makes that it is to look for another", err)
					}
					return dials > before
				}
				if again() == c.refused {
					t.Errorf("refused: %v, want %v", !c.refused, c.refused)
				}
				time.Sleep(silence)
				if !again() {
					t.Error("refused for ever")
				}
			})
		})
	}
}

// listen reads like a client with this timeout.
func listen(t *testing.T, conn, broker net.Conn, message bool, patient time.Duration) {
	t.Helper()
	b := make([]byte, 8)
	if message {
		go func() { _, _ = broker.Write([]byte("hello")) }()
		if _, err := conn.Read(b); err != nil {
			t.Fatal(err)
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(patient))
	if _, err := conn.Read(b); err == nil {
		t.Fatal("it was to be silent")
	}
}
