package api_test

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// TestTooManyShards: a queue that would exceed the cluster's limit of shards is refused, without a
// hint to repeat the call. The other queues can be declared and changed as before.
func TestTooManyShards(t *testing.T) {
	t.Parallel()
	l := newLive(t, mem.Config{})
	l.Registry().SetMaxShards(10)
	h, err := api.New(l, api.Options{Logger: quiet, Queues: l.Registry()})
	if err != nil {
		t.Fatal(err)
	}
	want(t, send(h, "PUT", "/v1/queues/a", `{"shards":8}`), 200, "")
	for _, method := range []string{"PUT", "PATCH"} {
		a := send(h, method, "/v1/queues/b", `{"shards":3}`)
		want(t, a, 409, queue.TooManyShards)
		for _, part := range []string{"3 shards", "the limit of the cluster is 10", "8 are declared", "queue.max_shards"} {
			if !strings.Contains(a.body, part) {
				t.Errorf("%s does not say %q", a.body, part)
			}
		}
		if strings.Contains(a.body, "retry_after_ms") {
			t.Error(a.body)
		}
	}
	want(t, send(h, "PATCH", "/v1/queues/a", `{"ttl_ms":60000}`), 200, "")
	want(t, send(h, "PUT", "/v1/queues/b", `{"shards":2}`), 200, "")
	want(t, send(h, "PUT", "/v1/queues/c", ``), 409, queue.TooManyShards)
}
