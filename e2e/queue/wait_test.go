package queue

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/blob"
	"github.com/emitd/emitd/e2e/drill"
)

// waitsAt matches the log line in which a waiting node names its address.
var waitsAt = regexp.MustCompile(`"msg":"the cluster store cannot be reached; this node waits for it","code":"E5101".*"address":"([^"]+)"`)

// TestServeWaitsForABucket checks a node whose cluster store is a bucket. It must wait while the bucket's
// server is down, report that, and run once the server is up.
func TestServeWaitsForABucket(t *testing.T) {
	t.Parallel()
	server := blob.Start(t, blob.FakeGCS)
	server.Kill()
	c := drill.New(t, server.URL("cluster"), nil)
	c.Instances = 0
	n := c.Start("a")
	var address string
	c.Until(time.Minute, "it says that it waits", func() bool {
		alive(t, n)
		printed := waitsAt.FindStringSubmatch(n.Output())
		if printed != nil {
			address = printed[1]
		}
		return printed != nil
	})
	if got := probe(t, "http://"+address+"/readyz"); !strings.HasPrefix(got, "503") || !strings.Contains(got, "connection refused") {
		t.Errorf("/readyz: %s", got)
	}
	if got := probe(t, "http://"+address+"/livez"); !strings.HasPrefix(got, "200") {
		t.Errorf("/livez: %s", got)
	}
	if err := server.Run(); err != nil {
		t.Fatal(err)
	}
	c.Until(time.Minute, "it is ready", func() bool {
		alive(t, n)
		return strings.HasPrefix(probe(t, "http://"+address+"/readyz"), "200")
	})
	n.Stop()
}

// alive fails the test if the node has ended.
func alive(t *testing.T, n *drill.Node) {
	t.Helper()
	if !n.Alive() {
		t.Fatalf("the node has ended: %s", n.Output())
	}
}

// probe returns status and body of an answer.
func probe(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Status + " " + string(body)
}
