package journal_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/storage/blob"
)

// meddler is a bucket in which something happens while it is read.
type meddler struct {
	blob.Bucket
	listed func(prefix string, page *blob.Page)
	read   func(key string, o *blob.Object)
}

func (m *meddler) List(ctx context.Context, prefix, after string, limit int) (*blob.Page, error) {
	page, err := m.Bucket.List(ctx, prefix, after, limit)
	if err == nil && m.listed != nil {
		m.listed(prefix, page)
	}
	return page, err
}

func (m *meddler) Read(ctx context.Context, key string) (*blob.Object, error) {
	o, err := m.Bucket.Read(ctx, key)
	if err == nil && m.read != nil {
		m.read(key, o)
	}
	return o, err
}

// checkpointNow writes a checkpoint and waits until it is in force.
func checkpointNow(t *testing.T, l *journal.Log, state string, keep ...uint64) {
	t.Helper()
	c, _, err := l.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write([]byte(state)); err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(keep); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("the checkpoint does not count")
	}
	if c.Err() != nil {
		t.Fatal(c.Err())
	}
}

func verify(t *testing.T, b blob.Bucket) (*journal.VerifyResult, *book) {
	t.Helper()
	state := &book{}
	found, err := journal.Verify(t.Context(), b, config(b).Prefix, "", state)
	if err != nil {
		t.Fatal(err)
	}
	return found, state
}

// TestVerifyBesideAnOwner: whatever a journal's owner does between two requests of Verify, its
// objects are not reported as damaged.
func TestVerifyBesideAnOwner(t *testing.T) {
	t.Parallel()
	for name, often := range map[string]int{"a checkpoint meanwhile": 1, "one checkpoint after another": 1000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bucket := mem.New(mem.Config{})
			l, _ := open(t, config(bucket))
			defer closeLog(t, l)
			for n := range 20 {
				await(t, l, add(t, l, fmt.Sprint(n)))
			}
			meddled := 0
			m := &meddler{Bucket: bucket, listed: func(prefix string, _ *blob.Page) {
				if meddled++; meddled > often || !strings.HasPrefix(config(bucket).Prefix+"/", prefix) {
					return
				}
				for range 3 {
					await(t, l, add(t, l, "more"))
				}
				checkpointNow(t, l, "state")
			}}
			if found, _ := verify(t, m); len(found.Problems) != 0 {
				t.Errorf("%+v", found.Problems)
			}
		})
	}
	t.Run("a segment that lands after its successor", func(t *testing.T) {
		t.Parallel()
		bucket := mem.New(mem.Config{})
		l, _ := open(t, config(bucket))
		defer closeLog(t, l)
		for n := range 20 {
			await(t, l, add(t, l, fmt.Sprint(n)))
		}
		m := &meddler{Bucket: bucket, listed: func(_ string, page *blob.Page) {
			for i, e := range page.Entries {
				if strings.HasSuffix(e.Key, format.SlotKey(15)) {
					page.Entries = append(page.Entries[:i:i], page.Entries[i+1:]...)
					return
				}
			}
		}}
		found, state := verify(t, m)
		if len(found.Problems) != 0 || len(state.records) != 20 {
			t.Errorf("%+v, %d records", found.Problems, len(state.records))
		}
	})
	t.Run("torn reads", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			bucket := mem.New(mem.Config{})
			l, _ := open(t, config(bucket))
			defer closeLog(t, l)
			await(t, l, add(t, l, "a"))
			synctest.Wait() // the copy of HEAD is written
			for _, key := range bucket.Keys() {
				bucket.Inject(mem.Read, key, mem.Fault{Kind: mem.TornRead})
			}
			if found, _ := verify(t, bucket); len(found.Problems) != 0 {
				t.Errorf("%+v", found.Problems)
			}
		})
	})
}

// TestVerifyNames: Verify reports what a takeover refuses.
func TestVerifyNames(t *testing.T) {
	t.Parallel()
	bucket := mem.New(mem.Config{})
	prefix := config(bucket).Prefix + "/"
	head := func() []byte {
		data, _ := bucket.Peek(prefix + format.HeadKey)
		return bytes.Clone(data)
	}
	l, _ := open(t, config(bucket))
	slot := add(t, l, "a")
	await(t, l, slot)
	checkpointNow(t, l, "state", slot)
	used := head()
	closeLog(t, l)
	closed := head()
	l, _ = open(t, as(config(bucket), "two", 2))
	await(t, l, add(t, l, "b"))
	defer closeLog(t, l)
	for name, c := range map[string]struct {
		key  string
		head []byte // instead of the current one; its newer copies are deleted
	}{
		"the list of kept slots":      {"/kept", nil},
		"HEAD of the close before":    {format.HeadKey, closed},
		"HEAD of an epoch before":     {format.HeadKey, used},
		"nothing is damaged, nothing": {"", nil},
	} {
		b := mem.New(mem.Config{})
		for _, key := range bucket.Keys() {
			data, _ := bucket.Peek(key)
			switch {
			case c.head == nil && c.key != "" && strings.HasSuffix(key, c.key), c.head != nil && strings.HasPrefix(key, prefix+format.CopyPrefix):
				continue
			case c.head != nil && key == prefix+format.HeadKey:
				data = c.head
			}
			if _, err := b.Write(t.Context(), key, data); err != nil {
				t.Fatal(err)
			}
		}
		found, _ := verify(t, b)
		if named := slices.ContainsFunc(found.Problems, func(p journal.Problem) bool { return strings.HasSuffix(p.Key, c.key) && !p.Unneeded }); named != (c.key != "") {
			t.Errorf("%s: %+v", name, found.Problems)
		}
		if _, err := journal.Open(t.Context(), as(config(b), "three", 3), &book{}); (err != nil) != (c.key != "") {
			t.Errorf("%s: taken over: %v", name, err)
		}
	}
}

// away is a bucket that does not answer some reads for a minute.
type away struct {
	blob.Bucket
	fails func(key string) bool
}

func (a *away) Read(ctx context.Context, key string) (*blob.Object, error) {
	if !a.fails(key) {
		return a.Bucket.Read(ctx, key)
	}
	select {
	case <-time.After(time.Minute):
	case <-ctx.Done():
	}
	return nil, &blob.Error{Op: "read", Key: key, Kind: blob.ErrUnavailable, Err: context.DeadlineExceeded}
}

// TestVerifyWithoutTheStore: a store that goes away ends a verification soon and with its error, and not with damage that nobody has seen
// twice.
func TestVerifyWithoutTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{})
		cfg := config(bucket)
		l, _ := open(t, cfg)
		for i := range 100 {
			await(t, l, add(t, l, fmt.Sprint(i)))
		}
		if err := bucket.Delete(t.Context(), journal.SlotKey(cfg.Prefix, 50)); err != nil {
			t.Fatal(err)
		}
		heads := 0
		for name, fails := range map[string]func(key string) bool{
			"segments": func(key string) bool { return strings.Contains(key, "/log/") },
			"HEAD, at the end": func(key string) bool {
				if strings.HasSuffix(key, "/"+format.HeadKey) {
					heads++
				}
				return heads > 1
			},
		} {
			begun := time.Now()
			found, err := journal.Verify(t.Context(), &away{Bucket: bucket, fails: fails}, cfg.Prefix, "", &book{})
			if err == nil {
				t.Errorf("without %s: got the problems %v, want an error", name, found.Problems)
				continue
			}
			if took := time.Since(begun); took > 2*time.Minute || strings.Contains(err.Error(), "\n") {
				t.Errorf("without %s: got %v after %v, want one error after a minute", name, err, took)
			}
		}
		closeLog(t, l)
	})
}
