package mem_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
)

// TestFaultsOfAWrite: what each fault does, and which error its caller gets.
func TestFaultsOfAWrite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind    mem.FaultKind
		want    error
		certain bool
		there   bool
		landed  int // by DeliverLate afterwards
	}{
		{mem.NoFault, nil, false, true, 0},
		{mem.Conflict, blob.ErrUnavailable, true, false, 0},
		{mem.Refused, blob.ErrExists, true, false, 0},
		{mem.Throttled, blob.ErrThrottled, true, false, 0},
		{mem.Unavailable, blob.ErrUnavailable, true, false, 0},
		{mem.Denied, blob.ErrDenied, true, false, 0},
		{mem.LostRequest, blob.ErrUnknownOutcome, false, false, 0},
		{mem.LostReply, blob.ErrUnknownOutcome, false, true, 0},
		{mem.Late, blob.ErrUnknownOutcome, false, false, 1},
		{mem.TornRead, nil, false, true, 0},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			t.Parallel()
			b := mem.New(mem.Config{})
			b.Inject(mem.Create, "a", mem.Fault{Kind: c.kind})
			_, err := b.Create(t.Context(), "a", []byte("one"))
			if !errors.Is(err, c.want) || blob.NotApplied(err) != c.certain {
				t.Errorf("got %v (certain %v), want %v (certain %v)", err, blob.NotApplied(err), c.want, c.certain)
			}
			if _, there := b.Peek("a"); there != c.there {
				t.Errorf("there: %v, want %v", there, c.there)
			}
			if n := b.DeliverLate(); n != c.landed {
				t.Errorf("%d writes landed, want %d", n, c.landed)
			}
			if _, there := b.Peek("a"); there != (c.there || c.landed > 0) {
				t.Errorf("after landing, there: %v", there)
			}
			if b.Injected() != 0 {
				t.Errorf("the fault was not met")
			}
		})
	}
}

func TestConditionIgnored(t *testing.T) {
	t.Parallel()
	b := mem.New(mem.Config{Faults: func(mem.Call) mem.Fault { return mem.Fault{Kind: mem.ConditionIgnored} }})
	for _, data := range []string{"one", "two"} {
		if _, err := b.Create(t.Context(), "a", []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Replace(t.Context(), "a", []byte("three"), "stale"); err != nil {
		t.Fatal(err)
	}
	if got, _ := b.Peek("a"); string(got) != "three" {
		t.Errorf("got %q", got)
	}
}

func TestTornRead(t *testing.T) {
	t.Parallel()
	b := mem.New(mem.Config{})
	v, err := b.Create(t.Context(), "a", []byte("0123456789"))
	if err != nil {
		t.Fatal(err)
	}
	b.Inject(mem.Read, "", mem.Fault{Kind: mem.TornRead})
	o, err := b.Read(t.Context(), "a")
	if err != nil || string(o.Data) != "01234" || o.Version != v {
		t.Errorf("got %v, %v, want the first half with the version of all", o, err)
	}
}

// TestLateWriteIsCheckedWhenItArrives: the condition is checked when the write arrives.
func TestLateWriteIsCheckedWhenItArrives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := mem.New(mem.Config{})
		late := mem.Fault{Kind: mem.Late, Delay: time.Minute}
		b.Inject(mem.Create, "", late, late)
		_, errA := b.Create(t.Context(), "a", []byte("late"))
		_, errB := b.Create(t.Context(), "b", []byte("late"))
		if !errors.Is(errA, blob.ErrUnknownOutcome) || !errors.Is(errB, blob.ErrUnknownOutcome) {
			t.Fatalf("got %v and %v", errA, errB)
		}
		if _, err := b.Create(t.Context(), "a", []byte("in time")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if keys := strings.Join(b.Keys(), " "); keys != "a" || len(b.LateWrites()) != 2 {
			t.Fatalf("before the minute is over: %s, %d late", keys, len(b.LateWrites()))
		}
		time.Sleep(time.Nanosecond)
		if keys := strings.Join(b.Keys(), " "); keys != "a b" || len(b.LateWrites()) != 0 {
			t.Fatalf("after the minute: %s, %d late", keys, len(b.LateWrites()))
		}
		if got, _ := b.Peek("a"); string(got) != "in time" {
			t.Errorf("a late create overwrote: %q", got)
		}
	})
}

func TestLandOne(t *testing.T) {
	t.Parallel()
	b := mem.New(mem.Config{})
	b.Inject(mem.Write, "", mem.Fault{Kind: mem.Late}, mem.Fault{Kind: mem.Late})
	_, _ = b.Write(t.Context(), "a", []byte("first"))
	_, _ = b.Write(t.Context(), "a", []byte("second"))
	calls := b.LateWrites()
	if len(calls) != 2 || !b.DeliverLateCall(calls[1].N) || b.DeliverLateCall(calls[1].N) || !b.DeliverLateCall(calls[0].N) {
		t.Fatalf("late %v", calls)
	}
	if got, _ := b.Peek("a"); string(got) != "first" {
		t.Errorf("got %q: the order of landing decides", got)
	}
}

// TestLatencyInVirtualTime: both halves pass, and the error is the same whichever half the context
// ends in.
func TestLatencyInVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := mem.New(mem.Config{Latency: mem.Constant(time.Minute)})
		begin := time.Now()
		if _, err := b.Create(t.Context(), "a", nil); err != nil || time.Since(begin) != time.Minute {
			t.Fatalf("after %s: %v", time.Since(begin), err)
		}
		for timeout, there := range map[time.Duration]bool{29 * time.Second: false, 31 * time.Second: true} {
			key := "b" + timeout.String()
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			_, err := b.Create(ctx, key, nil)
			cancel()
			if !errors.Is(err, blob.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: got %v", timeout, err)
			}
			if _, ok := b.Peek(key); ok != there {
				t.Errorf("%s: there %v, want %v", timeout, ok, there)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Read(ctx, "a"); !errors.Is(err, blob.ErrUnavailable) || errors.Is(err, blob.ErrUnknownOutcome) {
			t.Errorf("a read that was cut off: %v", err)
		}
	})
}

func TestHangEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := mem.New(mem.Config{})
		b.Inject(mem.Create, "", mem.Fault{Kind: mem.LostReply, Hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begin := time.Now()
		_, err := b.Create(ctx, "a", nil)
		if !errors.Is(err, blob.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Hour {
			t.Fatalf("after %s: %v", time.Since(begin), err)
		}
		if _, ok := b.Peek("a"); !ok {
			t.Error("a lost reply is of a write that happened")
		}
	})
}

func TestVersionsRepeatWithBytes(t *testing.T) {
	t.Parallel()
	b := mem.New(mem.Config{})
	a, _ := b.Create(t.Context(), "a", []byte("A"))
	other, _ := b.Replace(t.Context(), "a", []byte("B"), a)
	if _, err := b.Replace(t.Context(), "a", []byte("A"), other); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Replace(t.Context(), "a", []byte("C"), a); err != nil {
		t.Errorf("A, B, A must look unchanged here, as on S3: %v", err)
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	b := mem.New(mem.Config{})
	_, _ = b.Create(t.Context(), "a", []byte("12345"))
	_, _ = b.Create(t.Context(), "a", []byte("12345"))
	_, _ = b.Read(t.Context(), "a")
	_, _ = b.ReadPrefix(t.Context(), "a", 2)
	stats := b.Stats()
	if got := stats[mem.Create]; got != (mem.Stats{Calls: 2, Failed: 1, BytesIn: 5}) {
		t.Errorf("create: %+v", got)
	}
	if stats[mem.Read].BytesOut != 5 || stats[mem.ReadPrefix].BytesOut != 2 || b.Requests() != 4 {
		t.Errorf("reads: %+v, requests %d", stats, b.Requests())
	}
}

// TestStorm shows that the suite's Chain and Slots succeed under every fault that a store may have.
func TestStorm(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		kinds := []mem.FaultKind{mem.Conflict, mem.Throttled, mem.Unavailable, mem.LostRequest, mem.LostReply, mem.Late}
		b := mem.New(mem.Config{Faults: func(mem.Call) mem.Fault {
			if rng.IntN(3) > 0 {
				return mem.Fault{}
			}
			return mem.Fault{Kind: kinds[rng.IntN(len(kinds))]}
		}})
		check := silent{b}
		s := blobtest.StressConfig{Buckets: []blob.Bucket{b, b, b, b}, Steps: 30, Verifier: check, DeliverLate: func() { b.DeliverLate() }}
		blobtest.StressAppend(t, s)
		blobtest.StressCreate(t, s)
	}
}

// silent reads and writes without faults.
type silent struct{ *mem.Bucket }

func (s silent) Create(ctx context.Context, key string, data []byte) (v blob.Version, err error) {
	for {
		if v, err = s.Bucket.Create(ctx, key, data); err == nil || errors.Is(err, blob.ErrExists) {
			return v, nil
		}
	}
}

func (s silent) Read(_ context.Context, key string) (*blob.Object, error) {
	data, ok := s.Peek(key)
	if !ok {
		return nil, blob.ErrNotFound
	}
	return &blob.Object{Data: data, Version: mem.Sum(data)}, nil
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"mem://", "mem:///", "mem://?latency=50ms"} {
		c, err := mem.ParseURL(raw)
		if err != nil || (c.Latency != nil) != strings.Contains(raw, "latency") {
			t.Errorf("%s: %v", raw, err)
		}
		if c.Latency != nil && c.Latency(mem.Call{}) != 50*time.Millisecond {
			t.Errorf("%s: latency %s", raw, c.Latency(mem.Call{}))
		}
	}
	for _, raw := range []string{"mem://host", "s3://", "mem:///a", "mem://?latency=x", "mem://?latency=-1s", "mem://?size=1"} {
		if _, err := mem.ParseURL(raw); err == nil {
			t.Errorf("%s: no error", raw)
		}
	}
}
