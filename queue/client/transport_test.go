package client

import "testing"

// TestLostConnectionsAreNoticed: a connection of HTTP/2 that the network has lost is tested, and closed.
func TestLostConnectionsAreNoticed(t *testing.T) {
	t.Parallel()
	if c := newTransport(nil).HTTP2; c == nil || c.SendPingTimeout <= 0 || c.PingTimeout <= 0 || c.SendPingTimeout+c.PingTimeout > defaultTimeout {
		t.Errorf("%+v", c)
	}
}
