package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/internal/resolve"
)

func (b *Bucket) input(key string, data []byte, nonce string) *s3.PutObjectInput {
	in := &s3.PutObjectInput{
		Bucket:        &b.config.Bucket,
		Key:           aws.String(b.name(key)),
		Body:          bytes.NewReader(data),
		ContentLength: aws.Int64(int64(len(data))),
		Metadata:      map[string]string{nonceName: nonce},
	}
	in.ServerSideEncryption = types.ServerSideEncryption(b.config.SSE)
	if b.config.KMSKey != "" {
		in.SSEKMSKeyId = &b.config.KMSKey
	}
	return in
}

// put sends one PUT.
func (b *Bucket) put(ctx context.Context, in *s3.PutObjectInput) resolve.Answer {
	out, err := b.client.PutObject(ctx, in)
	if err != nil {
		return classify(ctx, err)
	}
	version := unquote(out.ETag)
	if version == "" {
		return noETag()
	}
	return resolve.Answer{Version: version}
}

func noETag() resolve.Answer {
	return resolve.Answer{Effect: resolve.Unknown, Err: &blob.Error{Err: errors.New("the answer has no ETag")}}
}

// stat reads the metadata of an object. It is no error if there is none.
func (b *Bucket) stat(ctx context.Context, key string) (resolve.ObjectInfo, resolve.Answer) {
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.config.Bucket, Key: aws.String(b.name(key))})
	if err != nil {
		answer := classify(ctx, err)
		if errors.Is(kind(answer), blob.ErrNotFound) {
			return resolve.ObjectInfo{}, resolve.Answer{}
		}
		return resolve.ObjectInfo{}, answer
	}
	version := unquote(out.ETag)
	if version == "" {
		return resolve.ObjectInfo{}, noETag()
	}
	return resolve.ObjectInfo{Exists: true, Nonce: nonceOf(out.Metadata), Version: version}, resolve.Answer{}
}

// nonceOf finds the nonce. Some stores change the case of names.
func nonceOf(m map[string]string) string {
	for name, value := range m {
		if strings.EqualFold(name, nonceName) {
			return value
		}
	}
	return ""
}

// Read implements blob.Bucket.
func (b *Bucket) Read(ctx context.Context, key string) (*blob.Object, error) {
	return b.read(ctx, key, func(*s3.GetObjectInput) {})
}

// ReadPrefix implements blob.Bucket.
func (b *Bucket) ReadPrefix(ctx context.Context, key string, n int) (*blob.Object, error) {
	if n <= 0 {
		n = 1 // a range is never empty
	}
	o, err := b.read(ctx, key, func(in *s3.GetObjectInput) { in.Range = aws.String(fmt.Sprintf("bytes=0-%d", n-1)) })
	if errors.Is(err, errRange) {
		return b.Read(ctx, key) // the object was empty; it may have been replaced since
	}
	if err == nil && len(o.Data) > n {
		o.Data = o.Data[:n] // the store ignores ranges
	}
	return o, err
}

// ReadNewer implements blob.Bucket.
func (b *Bucket) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	o, err := b.read(ctx, key, func(in *s3.GetObjectInput) {
		if known != "" {
			in.IfNoneMatch = aws.String(quote(known))
		}
	})
	if err == nil && known != "" && o.Version == known { // the store ignores the condition
		return nil, &blob.Error{Op: "read", Key: key, Kind: blob.ErrNotModified}
	}
	return o, err
}

// errRange is the error of reading a range of an empty object (status 416).
var errRange = fmt.Errorf("%w: the range is not in the object", blob.ErrUnavailable)

func (b *Bucket) read(ctx context.Context, key string, change func(*s3.GetObjectInput)) (*blob.Object, error) {
	call := resolve.Call{Op: "read", Key: key}
	if err := check(call); err != nil {
		return nil, err
	}
	var o *blob.Object
	call.Send = func(ctx context.Context) (answer resolve.Answer) {
		in := &s3.GetObjectInput{Bucket: &b.config.Bucket, Key: aws.String(b.name(key))}
		change(in)
		o, answer = b.get(ctx, in)
		return answer
	}
	if _, err := b.policy.Repeat(ctx, call, false); err != nil {
		return nil, err
	}
	return o, nil
}

// get sends one GET and reads its whole answer, so data and version are of the same moment.
func (b *Bucket) get(ctx context.Context, in *s3.GetObjectInput) (*blob.Object, resolve.Answer) {
	out, err := b.client.GetObject(ctx, in)
	if err != nil {
		return nil, classify(ctx, err)
	}
	defer out.Body.Close()
	data, err := io.ReadAll(io.LimitReader(out.Body, blob.MaxSize+1))
	if err == nil && out.ContentLength != nil && int64(len(data)) != *out.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, resolve.Transport(ctx, err)
	}
	if len(data) > blob.MaxSize {
		return nil, resolve.Answer{Effect: resolve.Failed, Err: &blob.Error{Kind: blob.ErrTooLarge}}
	}
	version := unquote(out.ETag)
	if version == "" {
		return nil, resolve.Answer{Effect: resolve.Failed, Err: &blob.Error{Kind: blob.ErrUnfit, Err: errors.New("the answer to a read has no ETag")}}
	}
	return &blob.Object{Data: data, Version: version}, resolve.Answer{}
}

// List implements blob.Bucket.
func (b *Bucket) List(ctx context.Context, prefix, after string, limit int) (*blob.Page, error) {
	if err := blob.CheckPrefix(prefix); err != nil {
		return nil, &blob.Error{Op: "list", Key: prefix, Kind: err}
	}
	root := b.name("")
	start := root + after
	for {
		page, last, err := b.page(ctx, prefix, start, limit)
		if err != nil || len(page.Entries) > 0 || !page.More || last <= start {
			return page, err
		}
		start = last // the page has only foreign names: read the next one
	}
}

// page reads one page of the store, and returns the last name on it.
func (b *Bucket) page(ctx context.Context, prefix, start string, limit int) (*blob.Page, string, error) {
	root := b.name("")
	in := &s3.ListObjectsV2Input{
		Bucket: &b.config.Bucket, Prefix: aws.String(root + prefix), MaxKeys: aws.Int32(int32(blob.PageLimit(limit))),
	}
	if start != "" {
		in.StartAfter = aws.String(start)
	}
	var out *s3.ListObjectsV2Output
	call := resolve.Call{Op: "list", Key: prefix, Send: func(ctx context.Context) resolve.Answer {
		var err error
		if out, err = b.client.ListObjectsV2(ctx, in); err != nil {
			answer := classify(ctx, err)
			if errors.Is(kind(answer), blob.ErrNotFound) {
				answer.Err.Kind = blob.ErrNoBucket
			}
			return answer
		}
		return resolve.Answer{}
	}}
	if _, err := b.policy.Repeat(ctx, call, false); err != nil {
		return nil, "", err
	}
	page, last := &blob.Page{More: aws.ToBool(out.IsTruncated)}, ""
	for _, object := range out.Contents {
		last = aws.ToString(object.Key)
		key, ours := strings.CutPrefix(last, root)
		if ours && blob.CheckKey(key) == nil && last > start { // skip foreign names, such as markers of directories
			page.Entries = append(page.Entries, blob.Entry{
				Key: key, Version: unquote(object.ETag), Size: max(aws.ToInt64(object.Size), 0), Modified: aws.ToTime(object.LastModified),
			})
		}
	}
	return page, last, nil
}

// quote and unquote convert between versions and ETags. Stores disagree whether the quotes belong
// to the ETag.
func quote(v blob.Version) string { return `"` + string(v) + `"` }

func unquote(etag *string) blob.Version { return blob.Version(strings.Trim(aws.ToString(etag), `"`)) }

// kind is the kind of an answer's error, nil if it has none.
func kind(a resolve.Answer) error {
	if a.Err == nil {
		return nil
	}
	return a.Err.Kind
}

// classify tells from an error of the SDK whether the request had an effect, had none, or may have had one.
func classify(ctx context.Context, err error) resolve.Answer {
	if err == nil {
		return resolve.Answer{}
	}
	response, ok := errors.AsType[*smithyhttp.ResponseError](err)
	if !ok || response.HTTPStatusCode() == 0 {
		return classifyLocal(ctx, err)
	}
	effect, what := resolve.Status(response.HTTPStatusCode())
	answer := resolve.Answer{Effect: effect, Err: &blob.Error{
		Kind: what, RetryAfter: resolve.RetryAfter(response.Response.Header), Status: response.HTTPStatusCode(), Err: describe(response, err),
	}}
	api, ok := errors.AsType[smithy.APIError](err)
	switch {
	case response.HTTPStatusCode() < 300: // a success status with a body that cannot be parsed
		answer.Effect, answer.Err.Kind = resolve.Unknown, blob.ErrUnavailable
	case response.HTTPStatusCode() == http.StatusRequestedRangeNotSatisfiable:
		answer.Err.Kind = errRange
	case ok:
		byCode(&answer, api.ErrorCode())
	}
	return answer
}

// byCode corrects what the status said about the effect, where the error code says more.
func byCode(answer *resolve.Answer, code string) {
	switch code {
	case "NoSuchBucket":
		answer.Effect, answer.Err.Kind = resolve.Failed, blob.ErrNoBucket
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired":
		answer.Effect, answer.Err.Kind = resolve.Failed, blob.ErrDenied
	case "EntityTooLarge":
		answer.Effect, answer.Err.Kind = resolve.Failed, blob.ErrTooLarge
	case "RequestTimeout": // a 400: the store gave up waiting for the body
		answer.Effect, answer.Err.Kind = resolve.Unknown, blob.ErrUnavailable
	}
}

// classifyLocal handles requests without an answer: not signed, not sent, or cut off.
func classifyLocal(ctx context.Context, err error) resolve.Answer {
	if send, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		return resolve.Transport(ctx, send.Err)
	}
	if ctx.Err() != nil {
		return resolve.Transport(ctx, ctx.Err())
	}
	if op, ok := errors.AsType[*smithy.OperationError](err); ok {
		err = op.Err
	}
	if _, ok := errors.AsType[*smithy.DeserializationError](err); ok {
		return resolve.Answer{Effect: resolve.Unknown, Err: &blob.Error{Kind: blob.ErrUnavailable, Err: errors.New("the answer cannot be understood")}}
	}
	// A request that fails before it is sent lacks credentials or a usable address.
	return resolve.Answer{Effect: resolve.Failed, Err: &blob.Error{Kind: blob.ErrDenied, Err: err}}
}

// describe returns the parts of an answer that help and are not secret.
func describe(response *smithyhttp.ResponseError, err error) error {
	code, message := "", ""
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		code, message = api.ErrorCode(), api.ErrorMessage()
	}
	return fmt.Errorf("status %d %s %s (request %s)", response.HTTPStatusCode(), code, message,
		response.Response.Header.Get("X-Amz-Request-Id"))
}
