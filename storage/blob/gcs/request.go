package gcs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/internal/resolve"
)

// request is one call of the API.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         []byte
}

// reply is the answer to a request, read to the end.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// resource is the part of an object's metadata that is used.
type resource struct {
	Name       string            `json:"name,omitempty"`
	Generation string            `json:"generation,omitempty"` // a number in quotes
	Size       string            `json:"size,omitempty"`       // a number in quotes
	Updated    time.Time         `json:"updated,omitzero"`
	Metadata   map[string]string `json:"metadata,omitempty"`
}

// objectPath returns the path of a key; slashes in the key are escaped.
func (b *Bucket) objectPath(key string) string {
	return "/storage/v1/b/" + url.PathEscape(b.config.Bucket) + "/o/" + url.PathEscape(b.name(key))
}

// do sends one request and reads its answer. A body of more than blob.MaxSize is an error.
func (b *Bucket) do(ctx context.Context, r request) (*reply, resolve.Answer) {
	address := b.config.Endpoint + r.path
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, body)
	if err != nil {
		return nil, resolve.Answer{Effect: resolve.Failed, Err: &blob.Error{Kind: blob.ErrUnavailable, Err: errors.New("the endpoint is not a valid URL")}}
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	response, err := b.client.Do(req)
	if err != nil {
		return nil, classify(ctx, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, blob.MaxSize+1))
	if err == nil && response.ContentLength >= 0 && int64(len(data)) != response.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, resolve.Transport(ctx, err)
	}
	return interpret(&reply{status: response.StatusCode, header: response.Header, body: data})
}

// classify distinguishes an answer of the token server from a transport error. Without a token nothing was sent.
func classify(ctx context.Context, err error) resolve.Answer {
	token, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok || token.Response == nil {
		return resolve.Transport(ctx, err)
	}
	answer := resolve.Answer{Effect: resolve.Failed, Err: &blob.Error{
		Kind: blob.ErrDenied, Err: fmt.Errorf("no access token: status %d %s", token.Response.StatusCode, token.ErrorCode),
	}}
	if passes(token.Response.StatusCode) {
		answer.Effect, answer.Err.Kind, answer.Err.RetryAfter = resolve.NotSent, blob.ErrUnavailable, resolve.RetryAfter(token.Response.Header)
	}
	return answer
}

// passes reports whether a token server that answers with a status may soon give a token.
func passes(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

// errRange is the error of reading a range of an empty object (status 416).
var errRange = fmt.Errorf("%w: the range is not in the object", blob.ErrUnavailable)

// interpret interprets a complete answer.
func interpret(r *reply) (*reply, resolve.Answer) {
	if r.status < 300 {
		if len(r.body) > blob.MaxSize {
			return nil, resolve.Answer{Effect: resolve.Failed, Err: &blob.Error{Kind: blob.ErrTooLarge}}
		}
		return r, resolve.Answer{}
	}
	effect, kind := resolve.Status(r.status)
	message := message(r.body)
	switch {
	case r.status == http.StatusNotFound && strings.Contains(message, "bucket does not exist"):
		kind = blob.ErrNoBucket
	case r.status == http.StatusRequestedRangeNotSatisfiable:
		kind = errRange
	}
	return nil, resolve.Answer{Effect: effect, Err: &blob.Error{
		Kind: kind, RetryAfter: resolve.RetryAfter(r.header), Status: r.status, Err: fmt.Errorf("status %d %s", r.status, message),
	}}
}

// message finds the store's own error message, which contains no credentials.
func message(body []byte) string {
	var e struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &e) != nil || e.Error.Message == "" {
		e.Error.Message = strings.TrimSpace(string(body[:min(len(body), 200)]))
	}
	return e.Error.Message
}

// upload sends metadata and data in one request. With a generation, it replaces only that version of the object; with
// "", it is unconditional.
func (b *Bucket) upload(ctx context.Context, key string, data []byte, nonce, generation string) resolve.Answer {
	meta, err := json.Marshal(resource{Name: b.name(key), Metadata: map[string]string{nonceName: nonce}})
	if err != nil {
		return resolve.Answer{Effect: resolve.Failed, Err: &blob.Error{Kind: blob.ErrUnavailable, Err: err}}
	}
	query := url.Values{"uploadType": {"multipart"}, "fields": {"generation"}}
	if generation != "" {
		query.Set("ifGenerationMatch", generation)
	}
	boundary := "emitd-" + nonce + nonce // so many random bits do not occur in data
	got, answer := b.do(ctx, request{
		method: http.MethodPost,
		path:   "/upload/storage/v1/b/" + url.PathEscape(b.config.Bucket) + "/o",
		query:  query,
		header: http.Header{"Content-Type": {"multipart/related; boundary=" + boundary}},
		body:   multipart(boundary, meta, data),
	})
	if answer.Effect != resolve.Done {
		if answer.Effect == resolve.Failed && errors.Is(answer.Err.Kind, blob.ErrNotFound) {
			answer.Err.Kind = blob.ErrNoBucket
		}
		return answer
	}
	var written resource
	if err := json.Unmarshal(got.body, &written); err != nil || !isGeneration(blob.Version(written.Generation)) {
		return noGeneration()
	}
	return resolve.Answer{Version: blob.Version(written.Generation)}
}

func noGeneration() resolve.Answer {
	return resolve.Answer{Effect: resolve.Unknown, Err: &blob.Error{Err: errors.New("the answer has no generation")}}
}

// multipart is the body of an upload: RFC 2387, two parts.
func multipart(boundary string, meta, data []byte) []byte {
	body := make([]byte, 0, len(meta)+len(data)+4*len(boundary)+200)
	body = append(body, "--"+boundary+"\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n"...)
	body = append(body, meta...)
	body = append(body, "\r\n--"+boundary+"\r\nContent-Type: application/octet-stream\r\n\r\n"...)
	body = append(body, data...)
	return append(body, "\r\n--"+boundary+"--\r\n"...)
}

// stat reads the metadata of an object. It returns no error if the object does not exist.
func (b *Bucket) stat(ctx context.Context, key string) (resolve.ObjectInfo, resolve.Answer) {
	got, answer := b.do(ctx, request{
		method: http.MethodGet, path: b.objectPath(key), query: url.Values{"fields": {"generation,metadata"}},
	})
	if answer.Effect == resolve.Failed && errors.Is(answer.Err.Kind, blob.ErrNotFound) {
		return resolve.ObjectInfo{}, resolve.Answer{}
	}
	if answer.Effect != resolve.Done {
		return resolve.ObjectInfo{}, answer
	}
	var found resource
	if err := json.Unmarshal(got.body, &found); err != nil {
		return resolve.ObjectInfo{}, resolve.Answer{Effect: resolve.Unknown, Err: &blob.Error{Kind: blob.ErrUnavailable, Err: errors.New("the answer cannot be understood")}}
	}
	if !isGeneration(blob.Version(found.Generation)) {
		return resolve.ObjectInfo{}, noGeneration()
	}
	return resolve.ObjectInfo{Exists: true, Nonce: found.Metadata[nonceName], Version: blob.Version(found.Generation)}, resolve.Answer{}
}

// size returns the size of the object in bytes. In JSON it is a number in quotes.
func (r resource) size() int64 {
	n, err := strconv.ParseInt(r.Size, 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}
