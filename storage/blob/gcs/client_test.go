package gcs

import (
	"net/http"
	"testing"
)

// TestLostConnectionsAreNoticed: connections of HTTP/2 are checked, as resolve.CheckConnections has it.
func TestLostConnectionsAreNoticed(t *testing.T) {
	t.Parallel()
	b, err := Open(t.Context(), Config{Bucket: "bucket", Endpoint: "http://localhost:1"})
	if err != nil {
		t.Fatal(err)
	}
	if transport, ok := b.client.Transport.(*http.Transport); !ok || transport.HTTP2 == nil {
		t.Errorf("the transport %T does not check its connections", b.client.Transport)
	}
}
