package broker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// TestPayloadsThatAreNotNeeded: objects of earlier epochs to which no job refers are deleted at the
// begin, those of jobs that end when they end, and no other ones.
func TestPayloadsThatAreNotNeeded(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	const prefix = "shard/blob/"
	p := &payloads{bucket: bucket, prefix: prefix, epoch: 7, ctx: t.Context(), logger: slog.New(slog.DiscardHandler)}
	own := p.newKey([]byte("payload"))
	for _, key := range []string{prefix + "5-orphan", prefix + "6-used", prefix + "README", own, "other/blob/5-orphan"} {
		if _, err := bucket.Create(t.Context(), key, []byte("payload")); err != nil {
			t.Fatal(err)
		}
	}
	p.begin(func(keys map[string]bool) ([]string, error) {
		if len(keys) != 2 || !keys[prefix+"5-orphan"] || !keys[prefix+"6-used"] {
			t.Errorf("asked for %v", keys)
		}
		return []string{prefix + "5-orphan"}, nil
	})
	p.running.Wait()
	l := ledger.New(ledger.Config{DedupWindow: 60_000, DedupIDs: 10})
	for n, key := range []string{prefix + "6-used", own} {
		r := ledger.Record{Kind: ledger.Enqueue, Numbers: []uint64{l.NextNumber()}, At: 1, ID: string(rune('a' + n)), Blob: key, Size: 7, Policy: ledger.DefaultPolicy}
		if err := l.Apply(&r, 1); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := l.Find("a")
	p.deleteOf(&ledger.Record{Kind: ledger.DeadLetter, Numbers: []uint64{first.Number}}, l) // a dead job keeps its payload
	p.deleteOf(&ledger.Record{Kind: ledger.Cancel, Numbers: []uint64{first.Number}}, l)
	p.end()
	p.delete(own) // too late: it stays for the next broker
	if want := []string{"other/blob/5-orphan", own, prefix + "README"}; !sameKeys(bucket.Keys(), want) {
		t.Errorf("there are %q, want %q", bucket.Keys(), want)
	}
}

// TestPayloadsWithoutAnAnswer: if the ledger cannot be asked, nothing is deleted.
func TestPayloadsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	p := &payloads{bucket: bucket, prefix: "p/", epoch: 7, ctx: t.Context(), logger: slog.New(slog.DiscardHandler)}
	if _, err := bucket.Create(t.Context(), "p/5-orphan", nil); err != nil {
		t.Fatal(err)
	}
	p.begin(func(map[string]bool) ([]string, error) { return nil, errors.New("the run has ended") })
	if p.end(); len(bucket.Keys()) != 1 {
		t.Errorf("there are %q", bucket.Keys())
	}
}

func sameKeys(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// TestUploadThatFails: of a call whose payloads could not all be stored, nothing stays.
func TestUploadThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var blobs atomic.Int32
		w, down := failing(t, mem.Config{}, func(c mem.Call) bool {
			return c.Op == mem.Create && strings.Contains(c.Key, "/blob/") && blobs.Add(1) > 1
		})
		w.declare(queue.Settings{})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		down.Store(true)
		large := make([]byte, queue.InlinePayload+1)
		_, err := n.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{Payload: large}, {Payload: large}})
		wantRefusal(t, err, queue.Unavailable)
		synctest.Wait()
		for _, key := range w.bucket.(*mem.Bucket).Keys() {
			if strings.Contains(key, "/blob/") {
				t.Errorf("%s is left", key)
			}
		}
	})
}

// TestResultOfTheCaller: a caller that gave up may use the memory of a result again, although it is not stored yet.
func TestResultOfTheCaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, n, _ := slow(t, queue.Settings{})
		n.serve(queue.DefaultQueue, 0)
		n.enqueue(queue.Job{ID: "x"})
		c, result := n.claimOne("x"), []byte("done")
		ctx, cancel := context.WithTimeout(w.ctx, latency/2)
		defer cancel()
		_, err := n.Settle(ctx, queue.DefaultQueue, []queue.Settlement{{Verb: queue.Complete, ID: "x", Token: c.Token, Result: result}})
		wantRefusal(t, err, queue.UnknownOutcome)
		copy(result, "gone")
		time.Sleep(2 * latency)
		if i := n.get("x"); i.State != queue.Completed || string(i.Result) != "done" {
			t.Errorf("%s with the result %q", i.State, i.Result)
		}
	})
}
