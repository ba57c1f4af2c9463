package s3

import (
	"net/http"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// TestLostConnectionsAreNoticed: connections are checked, as resolve.CheckConnections and resolve.CheckIdleConnections have it, unless a client is
// given. A network that loses packets without a word cannot be had in a test.
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
	if ok && !client.GetDialer().KeepAliveConfig.Enable {
		t.Error("the connections of HTTP/1.1 have the SDK's keep-alive")
	}
	mine := &http.Client{}
	if b, err = Open(t.Context(), Config{Bucket: "bucket", Client: mine}); err != nil {
		t.Fatal(err)
	}
	if got := b.client.Options().HTTPClient; got != mine {
		t.Errorf("got the HTTP client %T, want the one given", got)
	}
}
