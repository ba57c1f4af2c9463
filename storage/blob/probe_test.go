package blob_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/blob"
)

// TestProbeFindsStoresThatDoNotKeepTheContract breaks one rule at a time.
func TestProbeFindsStoresThatDoNotKeepTheContract(t *testing.T) {
	t.Parallel()
	ignore := func(op mem.Op, key string) func(mem.Call) mem.Fault {
		return func(c mem.Call) mem.Fault {
			if c.Op == op && strings.HasSuffix(c.Key, key) {
				return mem.Fault{Kind: mem.ConditionIgnored}
			}
			return mem.Fault{}
		}
	}
	for _, c := range []struct {
		name    string
		faults  func(mem.Call) mem.Fault
		message string
	}{
		{"create overwrites", ignore(mem.Create, "create"), "If-None-Match"},
		{"replace overwrites", ignore(mem.Replace, "create"), "If-Match"},
		{"parallel creates overwrite", ignore(mem.Create, "race"), "parallel creators"},
		{"good conditions are refused", func(c mem.Call) mem.Fault {
			if c.Op == mem.Replace {
				return mem.Fault{Kind: mem.Refused}
			}
			return mem.Fault{}
		}, "version just written was refused"},
		{"reads are stale", func(c mem.Call) mem.Fault {
			if c.Op == mem.Read {
				return mem.Fault{Kind: mem.TornRead}
			}
			return mem.Fault{}
		}, "did not see the write"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := mem.New(mem.Config{Faults: c.faults})
			err := blob.Probe(t.Context(), b)
			if !errors.Is(err, blob.ErrUnfit) || !strings.Contains(err.Error(), c.message) || !strings.Contains(err.Error(), "use a store with") {
				t.Errorf("got %v, want ErrContractViolated with %q and what to do", err, c.message)
			}
			if keys := b.Keys(); len(keys) != 0 {
				t.Errorf("left behind: %q", keys)
			}
		})
	}
}

func TestProbeDistinguishesFailureFromUnfitness(t *testing.T) {
	t.Parallel()
	for kind, want := range map[mem.FaultKind]error{
		mem.Denied: blob.ErrDenied, mem.Unavailable: blob.ErrUnavailable, mem.Throttled: blob.ErrThrottled,
		mem.LostReply: blob.ErrUnknownOutcome,
	} {
		b := mem.New(mem.Config{})
		b.Inject(mem.Create, "", mem.Fault{Kind: kind})
		if err := blob.Probe(t.Context(), b); !errors.Is(err, want) || errors.Is(err, blob.ErrUnfit) {
			t.Errorf("%v: got %v, want %v", kind, err, want)
		}
		if keys := b.Keys(); len(keys) != 0 {
			t.Errorf("%v: left behind: %q", kind, keys)
		}
	}
}

func TestProbeTidiesUpAfterItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	b := mem.New(mem.Config{Faults: func(c mem.Call) mem.Fault {
		if c.Op == mem.List {
			cancel()
		}
		return mem.Fault{}
	}})
	if err := blob.Probe(ctx, b); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	if keys := b.Keys(); len(keys) != 0 {
		t.Errorf("left behind: %q", keys)
	}
}

func TestProbeOfAGoodStoreIsCheap(t *testing.T) {
	t.Parallel()
	b := mem.New(mem.Config{})
	if err := blob.Probe(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if n := b.Requests(); n != 25 {
		t.Errorf("%d requests, want 25, as docs/explanation/queue.md says", n)
	}
}
