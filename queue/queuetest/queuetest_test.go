package queuetest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
)

// take claims up to n jobs and returns their IDs and tokens.
func take(t *testing.T, q *queuetest.Queue, r queue.ClaimRequest) (ids, tokens []string) {
	t.Helper()
	claims, err := q.Claim(t.Context(), "q", r)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range claims {
		ids, tokens = append(ids, c.Job.ID), append(tokens, c.Token)
	}
	return ids, tokens
}

func put(t *testing.T, q *queuetest.Queue, jobs ...queue.Job) {
	t.Helper()
	if _, err := q.Enqueue(t.Context(), "q", jobs); err != nil {
		t.Fatal(err)
	}
}

func settle(t *testing.T, q *queuetest.Queue, s queue.Settlement) queue.Outcome {
	t.Helper()
	o, err := q.Settle(t.Context(), "q", []queue.Settlement{s})
	if err != nil {
		t.Fatal(err)
	}
	return o[0]
}

// TestOrder: the highest priority first, then the oldest, among the requested types.
func TestOrder(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	put(t, q, queue.Job{ID: "a"}, queue.Job{ID: "b", Priority: 5}, queue.Job{ID: "c", Type: "t"}, queue.Job{ID: "d", Priority: 5})
	if ids, _ := take(t, q, queue.ClaimRequest{Types: []string{"t"}, Max: 5}); !slices.Equal(ids, []string{"c"}) {
		t.Error(ids)
	}
	if ids, _ := take(t, q, queue.ClaimRequest{Max: 5}); !slices.Equal(ids, []string{"b", "d", "a"}) {
		t.Error(ids)
	}
}

// TestTime: delays, times to live and claims end by themselves.
func TestTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queuetest.New()
		put(t, q, queue.Job{ID: "late", Delay: time.Minute}, queue.Job{ID: "brief", TTL: time.Second, Type: "none"})
		if ids, _ := take(t, q, queue.ClaimRequest{Types: []string{""}}); ids != nil {
			t.Error(ids)
		}
		time.Sleep(time.Minute)
		ids, tokens := take(t, q, queue.ClaimRequest{Visibility: time.Second})
		if !slices.Equal(ids, []string{"late"}) {
			t.Fatal(ids)
		}
		if i, _, _ := q.Get(t.Context(), "q", "brief"); i.State != queue.Dead {
			t.Errorf("%+v", i)
		}
		time.Sleep(time.Second)
		if o := settle(t, q, queue.Settlement{Verb: queue.Complete, ID: "late", Token: tokens[0]}); o.Err == nil || o.Err.Tag != queue.StaleClaim {
			t.Errorf("%+v", o)
		}
		if i, _, _ := q.Get(t.Context(), "q", "late"); i.State != queue.Waiting || i.Attempts != 1 {
			t.Errorf("%+v", i)
		}
	})
}

// TestAttempts: failures back off and end dead; a release counts no attempt; redrive resets the
// attempts.
func TestAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queuetest.New()
		put(t, q, queue.Job{ID: "a", Retry: queue.Retry{MaxAttempts: 2, Backoff: 2 * time.Second}})
		_, tokens := take(t, q, queue.ClaimRequest{})
		settle(t, q, queue.Settlement{Verb: queue.Release, ID: "a", Token: tokens[0]})
		for _, want := range []queue.State{queue.Delayed, queue.Dead} {
			_, tokens = take(t, q, queue.ClaimRequest{})
			if o := settle(t, q, queue.Settlement{Verb: queue.Fail, ID: "a", Token: tokens[0], Cause: "x"}); o.State != want {
				t.Errorf("%+v, want %s", o, want)
			}
			time.Sleep(2 * time.Second)
		}
		if n, err := q.Do(t.Context(), "q", queue.Command{Act: queue.Redrive}); n != 1 || err != nil {
			t.Error(n, err)
		}
		if ids, _ := take(t, q, queue.ClaimRequest{}); len(ids) != 1 {
			t.Error(ids)
		}
	})
}

// TestReleases: a release counts no attempt and takes none back. A job dies when it is released with its last attempt counted, or
// too often.
func TestReleases(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	put(t, q, queue.Job{ID: "a", Retry: queue.Retry{MaxAttempts: 1}})
	release := func(want queue.State) {
		t.Helper()
		_, tokens := take(t, q, queue.ClaimRequest{})
		if o := settle(t, q, queue.Settlement{Verb: queue.Release, ID: "a", Token: tokens[0]}); o.State != want {
			t.Errorf("%+v, want %s", o, want)
		}
	}
	redrive := func() {
		t.Helper()
		if n, err := q.Do(t.Context(), "q", queue.Command{Act: queue.Redrive}); n != 1 || err != nil {
			t.Error(n, err)
		}
	}
	for range 2 {
		release(queue.Waiting)
		release(queue.Waiting)
		release(queue.Dead)
		redrive()
	}
	_, tokens := take(t, q, queue.ClaimRequest{})
	settle(t, q, queue.Settlement{Verb: queue.Extend, ID: "a", Token: tokens[0]})
	if o := settle(t, q, queue.Settlement{Verb: queue.Release, ID: "a", Token: tokens[0]}); o.State != queue.Dead {
		t.Errorf("%+v", o)
	}
}

// TestClaimsAreRepeatable: the same request ID gets the same jobs, and a waiting claim ends with
// its context.
func TestClaimsAreRepeatable(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	put(t, q, queue.Job{ID: "a"}, queue.Job{ID: "b"})
	for range 2 {
		if ids, _ := take(t, q, queue.ClaimRequest{RequestID: "r"}); !slices.Equal(ids, []string{"a"}) {
			t.Error(ids)
		}
	}
	take(t, q, queue.ClaimRequest{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.Claim(ctx, "q", queue.ClaimRequest{Wait: time.Hour}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
