package s3

import (
	"net/http"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// TestLostConnectionsAreNoticed: connections of HTTP/2 are checked, as resolve.CheckConnections has it, unless a client is given.
func TestLostConnectionsAreNoticed(t *testing.T) {
	t.Parallel()
	b, err := Open(t.Context(), Config{Bucket: "bucket"})
	if err != nil {
		t.Fatal(err)
	}
	client, ok := b.client.Options().HTTPClient.(*awshttp.BuildableClient)
	if !ok || client.GetTransport().HTTP2 == nil {
		t.Errorf("the HTTP client %T does not check its connections", b.client.Options().HTTPClient)
	}
	mine := &http.Client{}
	if b, err = Open(t.Context(), Config{Bucket: "bucket", Client: mine}); err != nil {
		t.Fatal(err)
	}
	if got := b.client.Options().HTTPClient; got != mine {
		t.Errorf("got the HTTP client %T, want the one given", got)
	}
}
