package blobtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// kinds are the errors that a caller can act upon.
var kinds = []error{
	blob.ErrNotFound, blob.ErrExists, blob.ErrChanged, blob.ErrNotModified, blob.ErrUnknownOutcome, blob.ErrDenied, blob.ErrNoBucket,
	blob.ErrThrottled, blob.ErrUnavailable, blob.ErrTooLarge, blob.ErrUnfit,
}

// CheckAnyAnswer makes every call at stores whose answers may be anything. Each call must end, with a
// result that the contract allows or an error of a known kind. open returns such a store, new for
// each call, like one of [FixedAnswer]; enough ends the call once it has asked often enough. valid reports
// whether a version is one of the backend.
func CheckAnyAnswer(t *testing.T, open func(enough func()) blob.Bucket, valid func(blob.Version) bool) {
	t.Helper()
	const key, known = "a/b", blob.Version("7")
	written := func(v blob.Version, err error) (bool, error) { return valid(v), err }
	read := func(o *blob.Object, err error) (bool, error) { return o != nil && valid(o.Version), err }
	for name, call := range map[string]func(context.Context, blob.Bucket) (fits bool, err error){
		"create": func(ctx context.Context, b blob.Bucket) (bool, error) {
			return written(b.Create(ctx, key, []byte("x")))
		},
		"replace": func(ctx context.Context, b blob.Bucket) (bool, error) {
			return written(b.Replace(ctx, key, nil, known))
		},
		"write":  func(ctx context.Context, b blob.Bucket) (bool, error) { return written(b.Write(ctx, key, []byte("x"))) },
		"delete": func(ctx context.Context, b blob.Bucket) (bool, error) { return true, b.Delete(ctx, key) },
		"read":   func(ctx context.Context, b blob.Bucket) (bool, error) { return read(b.Read(ctx, key)) },
		"newer":  func(ctx context.Context, b blob.Bucket) (bool, error) { return read(b.ReadNewer(ctx, key, known)) },
		"prefix": func(ctx context.Context, b blob.Bucket) (bool, error) {
			o, err := b.ReadPrefix(ctx, key, 3)
			return o != nil && valid(o.Version) && len(o.Data) <= 3, err
		},
		"list": func(ctx context.Context, b blob.Bucket) (bool, error) {
			p, err := b.List(ctx, "", "a", 10)
			return p != nil && !slices.ContainsFunc(p.Entries, func(e blob.Entry) bool {
				return blob.CheckKey(e.Key) != nil || e.Key <= "a" || e.Size < 0
			}), err
		},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		fits, err := call(ctx, open(cancel))
		cancel()
		if err == nil && !fits {
			t.Errorf("%s: what was returned is not what the contract says", name)
		}
		if err != nil && !slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(err, k) }) {
			t.Errorf("%s: an error of no kind: %v", name, err)
		}
	}
}

// FixedAnswer is a store that answers every request in the same way, and calls Enough at the eighth.
type FixedAnswer struct {
	Status   int
	Header   http.Header
	Body     []byte
	Enough   func()
	requests int
}

// RoundTrip implements [http.RoundTripper].
func (s *FixedAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	if s.requests++; s.requests == 8 {
		s.Enough()
	}
	return &http.Response{
		StatusCode: s.Status, Header: s.Header.Clone(), Request: r, Body: io.NopCloser(bytes.NewReader(s.Body)), ContentLength: int64(len(s.Body)),
	}, nil
}
