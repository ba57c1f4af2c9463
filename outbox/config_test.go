package outbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestHeaderNames checks that a header's name must be one that every protocol can carry: otherwise sinks
// would lose the header.
func TestHeaderNames(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{
		"content-type": true, "X_y.z": true, "a!#$%&'*+-.^_`|~9": true,
		"": false, "a/b": false, "x@y": false, "a b": false, "a:b": false, "a(b)": false, `a"b`: false, "ä": false, "a\x7f": false,
	} {
		if err := (outbox.Message{Topic: "t", Headers: map[string]string{name: "v"}}).Validate(); (err == nil) != good {
			t.Errorf("the name %q: %v", name, err)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := outbox.Config{Name: "a", Log: newMemLog(), Sink: outbox.SinkFunc(nil)}
	for want, edit := range map[string]func(*outbox.Config){
		"name is \"\"":           func(c *outbox.Config) { c.Name = "" },
		"name is \"A B\"":        func(c *outbox.Config) { c.Name = "A B" },
		"has no log":             func(c *outbox.Config) { c.Log = nil },
		"has no sink":            func(c *outbox.Config) { c.Sink = nil },
		"instances is 65":        func(c *outbox.Config) { c.Instances = 65 },
		"policy is \"explode\"":  func(c *outbox.Config) { c.Policy = "explode" },
		"page rows is -1":        func(c *outbox.Config) { c.PageRows = -1 },
		"max poll is 1ms":        func(c *outbox.Config) { c.MaxPoll = time.Millisecond },
		"page timeout is 2s":     func(c *outbox.Config) { c.PageTimeout, c.DeliverTimeout = 2*time.Second, time.Second },
		"page timeout is -1s":    func(c *outbox.Config) { c.PageTimeout = -time.Second },
		"deliver timeout is -1s": func(c *outbox.Config) { c.DeliverTimeout = -time.Second },
		"topic filter \"a*b\"":   func(c *outbox.Config) { c.Topics = []string{"a*b"} },
		"retry.max_backoff":      func(c *outbox.Config) { c.Retry.Backoff = time.Hour },
		"retry.factor is 0.5":    func(c *outbox.Config) { c.Retry.Factor = 0.5 },
		"retry.jitter is 2":      func(c *outbox.Config) { c.Retry.Jitter = 2 },
	} {
		c := good
		edit(&c)
		if _, err := outbox.NewRelay(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := outbox.NewRelay(good); err != nil {
		t.Error(err)
	}
}

// TestShards checks that units have disjoint shards, that together they have all, and that a key's shard
// never changes.
func TestShards(t *testing.T) {
	t.Parallel()
	for n := 1; n <= outbox.Shards; n++ {
		next := 0
		for i := range n {
			r := outbox.RangeOf(i, n)
			if r.Lo != next || r.Hi < r.Lo {
				t.Fatalf("unit %d of %d has %v", i, n, r)
			}
			next = r.Hi + 1
		}
		if next != outbox.Shards {
			t.Fatalf("%d units end at %d", n, next)
		}
	}
	for key, want := range map[string]int{"a": 10, "customer-4711": 5, "schlüssel": 12} {
		if got := outbox.ShardOf(key); got != want {
			t.Errorf("the shard of %q is %d, was always %d", key, got, want)
		}
	}
}
