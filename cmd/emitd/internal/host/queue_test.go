package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/broker"
	"github.com/emitd/emitd/storage/blob"
)

// TestIdleReads checks that the page about the queue's promises states how often a process reads the list
// of queues.
func TestIdleReads(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/explanation/queue.md")
	if err != nil {
		t.Fatal(err)
	}
	hourly := func(t lease.Timing) int64 { return int64(time.Hour / t.HeartbeatInterval) }
	figure := fmt.Sprintf("%d an hour with the default profile, %d with `fast`", hourly(lease.Default()), hourly(lease.Fast()))
	if !strings.Contains(string(page), figure) {
		t.Errorf("the page does not say %q", figure)
	}
}

// TestThrottle checks that the configuration bounds the requests to the object store, and that the
// throttling is reported.
func TestThrottle(t *testing.T) {
	t.Parallel()
	o := rig(t, func(c *config.Config, _ *Options) {
		c.Objects.URL, c.Objects.WritesPerDay, c.Objects.ReadsPerMinute = "mem://", 2, 6000
	})
	err := started(t, o, func(ctx context.Context, r *Running) {
		defer http.DefaultClient.CloseIdleConnections()
		var s api.ThrottleStats
		for !s.DailyBudgetExceeded || s.ThrottledWrites == 0 { // the list of queues and its copy are the two writes; a journal cannot be opened
			if ctx.Err() != nil {
				t.Fatalf("%+v", s)
			}
			if err := json.Unmarshal([]byte(request(ctx, t, http.DefaultClient, r.URL+"/v1/throttle-stats")), &s); err != nil {
				t.Fatal(err)
			}
		}
		if s.TotalWrites != 2 || s.DailyWriteCount != 2 || s.TotalReads == 0 {
			t.Errorf("%+v", s)
		}
	})
	if err != nil {
		t.Errorf("a clean stop: %v", err)
	}
}

// TestObjectStoresThatCannotBeUsed checks that a node runs on if its object store refuses it, does not
// exist, or ignores conditions. The node must refuse calls about queues and say why.
func TestObjectStoresThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	var generation atomic.Int64
	always := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); _, _ = io.WriteString(w, body) }
	}
	for name, c := range map[string]struct {
		store   http.HandlerFunc
		message []string
	}{
		"no permission": {always(http.StatusForbidden, `{"error":{"message":"no"}}`), []string{"E3302", "permission denied"}},
		"no bucket":     {always(http.StatusNotFound, `{"error":{"message":"The specified bucket does not exist."}}`), []string{"E3302", "no such bucket"}},
		"no conditions": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, `{"generation":"%d"}`, generation.Add(1))
		}, []string{"E3301"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := httptest.NewServer(c.store)
			defer store.Close()
			o := rig(t, func(cfg *config.Config, _ *Options) { cfg.Objects.URL = "gs://bucket?endpoint=" + store.URL })
			err := started(t, o, func(ctx context.Context, r *Running) {
				client := &http.Client{Transport: &http.Transport{}}
				defer client.CloseIdleConnections()
				for reported := false; !reported; {
					p := submit(ctx, t, client, r.URL)
					if p.Status != http.StatusServiceUnavailable || p.Tag != queue.Unavailable || p.Hint == "" {
						t.Fatalf("%+v", p)
					}
					reported = true
					for _, text := range c.message {
						reported = reported && strings.Contains(p.Message, text)
					}
				}
				for body := ""; !strings.HasPrefix(body, "ok"); body = request(ctx, t, client, r.URL+"/readyz") { // until it is ready
				}
			})
			if err != nil {
				t.Errorf("a clean stop: %v", err)
			}
		})
	}
}

// submit returns the refusal of a job.
func submit(ctx context.Context, t *testing.T, c *http.Client, url string) (p refusal.Problem) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/jobs", strings.NewReader(`{"payload":1}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return p
}

// steppedBucket is a bucket whose reads of an object that is known wait for a step of the test, if step is not nil.
type steppedBucket struct {
	blob.Bucket
	step chan struct{}
}

func (b *steppedBucket) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	o, err := b.Bucket.ReadNewer(ctx, key, known)
	if b.step != nil {
		<-b.step
	}
	return o, err
}

// listed returns the queues of a process without nodes. The queue "first" is declared and known.
func listed(t *testing.T) (*queues, *steppedBucket) {
	t.Helper()
	open, err := backend.Objects("mem://")
	if err != nil {
		t.Fatal(err)
	}
	bucket := &steppedBucket{}
	if bucket.Bucket, err = open(t.Context()); err != nil {
		t.Fatal(err)
	}
	q := &queues{h: &host{Options: rig(t, nil), log: quiet}, applying: make(chan struct{}, 1), known: map[string]registered{}}
	if q.broker, err = broker.New(broker.Config{Bucket: bucket, StoreID: "s", Owner: "o", Now: time.Now, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Amend(t.Context(), "first", same); err != nil {
		t.Fatal(err)
	}
	return q, bucket
}

func same(s queue.Settings) (queue.Settings, error) { return s, nil }

// unread is a bucket in which no changed object can be read.
type unread struct{ blob.Bucket }

func (unread) ReadNewer(context.Context, string, blob.Version) (*blob.Object, error) {
	return nil, errors.New("the store is away")
}

// TestStoredChangeIsNoError checks that a declaration that is stored is answered as such, although the list cannot be read
// again. The next refresh registers the queue.
func TestStoredChangeIsNoError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, bucket := listed(t)
		works := bucket.Bucket
		_, err := q.Amend(t.Context(), "second", func(s queue.Settings) (queue.Settings, error) {
			q.applied.Add(1) // somebody applied a list meanwhile
			bucket.Bucket = unread{works}
			return s, nil
		})
		if err != nil {
			t.Error(err)
		}
		bucket.Bucket = works
		if err := q.refresh(t.Context()); err != nil || q.known["second"].instances == 0 {
			t.Errorf("%v, known: %v", err, q.known)
		}
	})
}

// TestListFromBeforeADeclaration checks that a queue stays registered if a list of queues is applied that was read before
// its declaration.
func TestListFromBeforeADeclaration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, bucket := listed(t)
		bucket.step = make(chan struct{})
		for _, call := range []func() error{ // one after the other waits for the list
			func() error { return q.refresh(t.Context()) },
			func() error { _, err := q.Amend(t.Context(), "second", same); return err },
			func() error { _, err := q.List(t.Context()); return err }, // what refresh does after its own read waits for this
		} {
			go func() {
				if err := call(); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		for range 3 {
			bucket.step <- struct{}{}
			synctest.Wait()
		}
		close(bucket.step)
		synctest.Wait()
		if len(q.known) != 2 {
			t.Errorf("registered are %v", q.known)
		}
	})
}

// TestDeclarationThatIsOutOfDate checks that a queue is not registered if it was removed before its declaration was applied.
func TestDeclarationThatIsOutOfDate(t *testing.T) {
	t.Parallel()
	q, _ := listed(t)
	before := q.applied.Load()
	made, err := q.broker.Registry().Declare(t.Context(), queue.Settings{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Remove(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	if err := q.apply(t.Context(), before, made); err != nil {
		t.Fatal(err)
	}
	if len(q.known) != 1 {
		t.Errorf("registered are %v", q.known)
	}
}
