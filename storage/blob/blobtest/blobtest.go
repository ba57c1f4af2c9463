// Package blobtest is the conformance suite of package blob: the properties that every backend must
// have. A backend's test is
//
//	blobtest.Run(t, blobtest.Config{Open: func(t *testing.T) func() blob.Bucket {
//		path := t.TempDir()
//		return func() blob.Bucket { return mustOpen(t, path) }
//	}})
//
// [StressAppend] and [StressCreate] are the two tests with many concurrent writers. They also run alone, with
// faults below the bucket. Whatever the network does, an acknowledged write is in the object
// exactly once, and a write that was reported as not applied is not.
package blobtest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// Config describes the backend to the suite.
type Config struct {
	// Open makes an empty store for one test and returns a function that opens it: each call opens
	// it as another process would. Required.
	Open func(t *testing.T) func() blob.Bucket

	// Big is the size of the big object; 0 is 8 MiB.
	Big int

	// Scale multiplies the number of concurrent calls in StressAppend, StressCreate and the races; 0 is 1. For a
	// slow store, set Divide instead.
	Scale int

	// Divide divides that number; 0 is 1.
	Divide int
}

// callTimeout bounds every single wait of the suite. Reaching it is a failure.
const callTimeout = 2 * time.Minute

func (c Config) many(n int) int {
	return max(2, n*max(c.Scale, 1)/max(c.Divide, 1))
}

// world is the store of one test.
type world struct {
	*testing.T
	blob.Bucket
	another func() blob.Bucket
	config  Config
	ctx     context.Context
}

// Run runs the suite. Each case has a store of its own and runs in parallel.
func Run(t *testing.T, config Config) {
	t.Helper()
	if config.Big == 0 {
		config.Big = 8 << 20
	}
	for _, theme := range []map[string]func(*world){writes, races, listings, bounds, outcomes} {
		for name, test := range theme {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
				t.Cleanup(cancel)
				open := config.Open(t)
				test(&world{T: t, Bucket: open(), another: open, config: config, ctx: ctx})
			})
		}
	}
}

// create calls Create, which must succeed.
func (w *world) create(key, data string) blob.Version {
	w.Helper()
	v, err := w.Create(w.ctx, key, []byte(data))
	if err != nil {
		w.Fatalf("create %q: %v", key, err)
	}
	if v == "" {
		w.Fatalf("create %q: the version is empty", key)
	}
	return v
}

// replace calls Replace, which must succeed.
func (w *world) replace(key, data string, old blob.Version) blob.Version {
	w.Helper()
	v, err := w.Replace(w.ctx, key, []byte(data), old)
	if err != nil {
		w.Fatalf("replace %q: %v", key, err)
	}
	return v
}

// want reads the key and compares its data; it returns the version.
func (w *world) want(key, data string) blob.Version {
	w.Helper()
	o, err := w.Read(w.ctx, key)
	if err != nil {
		w.Fatalf("read %q: %v", key, err)
	}
	if !bytes.Equal(o.Data, []byte(data)) {
		w.Fatalf("read %q: got %s, want %s", key, short(o.Data), short([]byte(data)))
	}
	if o.Version == "" {
		w.Fatalf("read %q: the version is empty", key)
	}
	return o.Version
}

func short(data []byte) string {
	if len(data) > 60 {
		return string(data[:57]) + "..."
	}
	return string(data)
}
