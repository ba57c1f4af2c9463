package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/internal/resolve"
)

// Read implements blob.Bucket.
func (b *Bucket) Read(ctx context.Context, key string) (*blob.Object, error) {
	return b.read(ctx, key, nil, nil)
}

// ReadPrefix implements blob.Bucket.
func (b *Bucket) ReadPrefix(ctx context.Context, key string, n int) (*blob.Object, error) {
	n = max(n, 1) // a range is never empty
	o, err := b.read(ctx, key, nil, http.Header{"Range": {fmt.Sprintf("bytes=0-%d", n-1)}})
	if errors.Is(err, errRange) {
		return b.Read(ctx, key) // the object is empty, or was
	}
	if err == nil && len(o.Data) > n {
		o.Data = o.Data[:n] // the store ignores ranges
	}
	return o, err
}

// ReadNewer implements blob.Bucket.
func (b *Bucket) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	var query url.Values
	if isGeneration(known) {
		query = url.Values{"ifGenerationNotMatch": {string(known)}}
	}
	o, err := b.read(ctx, key, query, nil)
	if err == nil && known != "" && o.Version == known { // the store ignores the condition
		return nil, &blob.Error{Op: "read", Key: key, Kind: blob.ErrNotModified}
	}
	return o, err
}

// read takes data and generation from one answer.
func (b *Bucket) read(ctx context.Context, key string, query url.Values, header http.Header) (*blob.Object, error) {
	call := resolve.Call{Op: "read", Key: key}
	if err := check(call); err != nil {
		return nil, err
	}
	if query == nil {
		query = url.Values{}
	}
	query.Set("alt", "media")
	var o *blob.Object
	call.Send = func(ctx context.Context) resolve.Answer {
		got, answer := b.do(ctx, request{method: http.MethodGet, path: b.objectPath(key), query: query, header: header})
		if answer.Effect != resolve.Done {
			return answer
		}
		generation := blob.Version(got.header.Get("X-Goog-Generation"))
		if !isGeneration(generation) {
			return resolve.Answer{Effect: resolve.Failed, Err: &blob.Error{
				Kind: blob.ErrUnfit, Err: errors.New("the answer to a read does not name the generation (X-Goog-Generation)"),
			}}
		}
		o = &blob.Object{Data: got.body, Version: generation}
		return resolve.Answer{}
	}
	if _, err := b.policy.Repeat(ctx, call, false); err != nil {
		return nil, err
	}
	return o, nil
}

// List implements blob.Bucket.
func (b *Bucket) List(ctx context.Context, prefix, after string, limit int) (*blob.Page, error) {
	if err := blob.CheckPrefix(prefix); err != nil {
		return nil, &blob.Error{Op: "list", Key: prefix, Kind: err}
	}
	limit = blob.PageLimit(limit)
	query := url.Values{
		"prefix":     {b.name(prefix)},
		"maxResults": {strconv.Itoa(limit)},
		"fields":     {"items(name,generation,size,updated),nextPageToken"},
	}
	if after != "" {
		// The offset is inclusive. "!" sorts before every character of a key. So this is the
		// smallest name after `after`, and longer names that begin with `after` still come behind
		// it.
		query.Set("startOffset", b.name(after)+"!")
	}
	for {
		page, token, err := b.page(ctx, prefix, after, query)
		if err != nil || len(page.Entries) > 0 || token == "" {
			return page, err
		}
		query.Set("pageToken", token) // the page has only foreign names: read the next one
	}
}

// page reads one page of the store.
func (b *Bucket) page(ctx context.Context, prefix, after string, query url.Values) (*blob.Page, string, error) {
	var listed struct {
		Items         []resource `json:"items"`
		NextPageToken string     `json:"nextPageToken"`
	}
	call := resolve.Call{Op: "list", Key: prefix, Send: func(ctx context.Context) resolve.Answer {
		got, answer := b.do(ctx, request{method: http.MethodGet, path: "/storage/v1/b/" + url.PathEscape(b.config.Bucket) + "/o", query: query})
		switch {
		case answer.Effect == resolve.Failed && errors.Is(answer.Err.Kind, blob.ErrNotFound):
			answer.Err.Kind = blob.ErrNoBucket
		case answer.Effect == resolve.Done && json.Unmarshal(got.body, &listed) != nil:
			return resolve.Answer{Effect: resolve.Unknown, Err: &blob.Error{Kind: blob.ErrUnavailable, Err: errors.New("the answer cannot be understood")}}
		}
		return answer
	}}
	if _, err := b.policy.Repeat(ctx, call, false); err != nil {
		return nil, "", err
	}
	page := &blob.Page{More: listed.NextPageToken != ""}
	for _, item := range listed.Items {
		key, ours := strings.CutPrefix(item.Name, b.name(""))
		if ours && blob.CheckKey(key) == nil && key > after {
			page.Entries = append(page.Entries, blob.Entry{
				Key: key, Version: blob.Version(item.Generation), Size: item.size(), Modified: item.Updated,
			})
		}
	}
	return page, listed.NextPageToken, nil
}
