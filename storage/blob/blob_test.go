package blob_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

func TestNotApplied(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("who knows"), false},
		{context.DeadlineExceeded, false},
		{blob.ErrUnknownOutcome, false},
		{blob.ErrExists, true},
		{&blob.Error{Op: "create", Key: "a", Kind: blob.ErrExists}, true},
		{&blob.Error{Op: "create", Key: "a", Kind: blob.ErrExists, Unknown: true}, false},
		{fmt.Errorf("commit: %w", &blob.Error{Kind: blob.ErrThrottled}), true},
		{fmt.Errorf("commit: %w", &blob.Error{Kind: blob.ErrChanged, Unknown: true}), false},
		{errors.Join(blob.ErrDenied, blob.ErrUnknownOutcome), false},
		{&blob.Error{Unknown: true, Err: context.Canceled}, false},
		{&blob.Error{Kind: blob.ErrUnavailable, Err: context.Canceled}, true},
		{blob.ErrNotModified, false},
		{blob.ErrCorrupt, false},
	} {
		if got := blob.NotApplied(c.err); got != c.want {
			t.Errorf("NotApplied(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

func TestErrorReportsEverything(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("commit: %w", &blob.Error{
		Op: "replace", Key: "q/HEAD", Kind: blob.ErrThrottled, Unknown: true,
		RetryAfter: 3 * time.Second, Err: context.DeadlineExceeded,
	})
	for _, kind := range []error{blob.ErrThrottled, blob.ErrUnknownOutcome, context.DeadlineExceeded} {
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), kind.Error()) {
			t.Errorf("%v: is not, or does not say, %v", err, kind)
		}
	}
	for _, word := range []string{"replace", `"q/HEAD"`, "retry after 3s"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v: does not say %s", err, word)
		}
	}
	if got := blob.RetryAfter(err); got != 3*time.Second {
		t.Errorf("retry after %s", got)
	}
	if got := blob.RetryAfter(errors.New("other")); got != 0 {
		t.Errorf("retry after %s of an error that does not say", got)
	}
}

func TestKeysAndPrefixes(t *testing.T) {
	t.Parallel()
	segment := strings.Repeat("s", blob.MaxSegment)
	longest := segment + "/" + segment + "/" + strings.Repeat("t", blob.MaxKey-2*blob.MaxSegment-2)
	for _, key := range []string{"a", "A-_.z", "0/1/2", "in/n/node-1/01J", "log/00000000000000000001", "a..b", longest} {
		if err := blob.CheckKey(key); err != nil {
			t.Errorf("key %q: %v", key, err)
		}
		for i := range key {
			if err := blob.CheckPrefix(key[:i]); err != nil {
				t.Errorf("prefix %q of a good key: %v", key[:i], err)
			}
		}
	}
	for _, key := range []string{"", "/", "a/", "/a", "a//b", ".", "..", ".a", "a.", "a/.b", "a b", "a@2", "\x00", "é", longest + "t", segment + "s"} {
		if err := blob.CheckKey(key); !errors.Is(err, blob.ErrKey) {
			t.Errorf("key %q: got %v, want ErrKey", key, err)
		}
	}
	for _, prefix := range []string{"/", "a//", "..", "a/.", "a@", segment + "s", longest + "/"} {
		if err := blob.CheckPrefix(prefix); !errors.Is(err, blob.ErrKey) {
			t.Errorf("prefix %q: got %v, want ErrKey", prefix, err)
		}
	}
}

func TestPageLimit(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int]int{-1: blob.MaxPage, 0: blob.MaxPage, 1: 1, blob.MaxPage: blob.MaxPage, blob.MaxPage + 1: blob.MaxPage} {
		if got := blob.PageLimit(limit); got != want {
			t.Errorf("PageLimit(%d) = %d, want %d", limit, got, want)
		}
	}
}
