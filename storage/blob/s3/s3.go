// Package s3 is a bucket in Amazon S3 or a store that speaks its protocol with conditional writes.
//
// # Conditions
//
// Create is a PUT with If-None-Match: *, Replace one with If-Match. The version is the ETag, which
// most stores compute as a checksum of the bytes: it repeats when they do. blob.Probe detects a
// store that accepts the headers and ignores them. A store that refuses them (501) is
// blob.ErrUnfit.
//
// # Unknown outcomes
//
// Exactly one attempt of the SDK at a time sends each conditional write. It stores a random number
// in the metadata of the object, x-amz-meta-emitd-nonce. After a timeout, a reset or a 5xx, the
// metadata is read back: the same number means that the write has happened. Package resolve
// describes what is sent again, and what is reported if the outcome cannot be determined. A 409
// ConditionalRequestConflict is read back and sent again. All of it ends with the caller's context.
//
// Some gateways over file systems read an object's metadata, its ETag and its data one after the
// other. Metadata are therefore read back twice. A gateway that reads the data before the ETag, or
// keeps the ETag in a file of its own, loses updates whatever a client does. versitygw works with
// extended attributes, but not with its sidecar files.
//
// A proxy in front of the store may resend PUTs by itself (nginx does, proxy_next_upstream). The
// store refuses the second one, and the proxy reports that refusal. The refused writer also reads
// the metadata, and recognises its write as long as that is still the object. If it was replaced
// meanwhile, the writer gets ErrChanged although its write has happened. Switch resending off.
//
// # Limits
//
// Writes are single PUTs, of at most blob.MaxSize. Buckets of S3 Express are not supported, because
// their listings are not sorted. With versioning on, a lifecycle rule must expire old versions.
//
// # Permissions
//
// s3:GetObject, s3:PutObject, s3:DeleteObject on the objects and s3:ListBucket on the bucket.
// Without the last one, reading an object that does not exist is denied. With a key of KMS, also
// kms:GenerateDataKey and kms:Decrypt. Credentials come from the usual places of the SDK. No error
// contains them.
package s3

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/logging"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/internal/resolve"
)

// Config says where the bucket is. Only Bucket is required.
type Config struct {
	Bucket string
	Prefix string // before every key, with a slash between; valid as a key, or empty
	Region string // empty: from the environment, else us-east-1

	// Endpoint is the address of another store than Amazon's, with its scheme.
	Endpoint string
	// PathStyle puts the bucket into the path instead of the host name, as most other stores
	// require.
	PathStyle bool

	// SSE is the encryption that each write requests: empty (the bucket's own), AES256 or aws:kms.
	SSE string
	// KMSKey is the key of aws:kms; empty is the account's own.
	KMSKey string

	// Credentials replaces the SDK's search through environment, files, and roles.
	Credentials aws.CredentialsProvider
	// Client replaces the SDK's HTTP client, for tests and proxies.
	Client *http.Client
	// Retry bounds the repetitions of a call.
	Retry blob.RetryPolicy
}

// nonceName is the metadata by which a writer recognises its write.
const nonceName = "emitd-nonce"

// Bucket is a blob.Bucket in S3. Use Open.
type Bucket struct {
	config Config
	policy resolve.Policy
	client *s3.Client
}

var _ blob.Bucket = (*Bucket)(nil)

// Open makes a client. It does not call the store; blob.Probe does.
func Open(ctx context.Context, config Config) (*Bucket, error) {
	config.Prefix = strings.Trim(config.Prefix, "/")
	if err := config.validate(); err != nil {
		return nil, err
	}
	options := []func(*awsconfig.LoadOptions) error{
		awsconfig.WithDefaultRegion("us-east-1"),
		awsconfig.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(resolve.CheckConnections).WithDialerOptions(resolve.CheckIdleConnections)),
	}
	if config.Region != "" {
		options = append(options, awsconfig.WithRegion(config.Region))
	}
	if config.Credentials != nil {
		options = append(options, awsconfig.WithCredentialsProvider(config.Credentials))
	}
	loaded, err := awsconfig.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("open s3 bucket %q: %w", config.Bucket, err)
	}
	client := s3.NewFromConfig(loaded, func(o *s3.Options) {
		o.UsePathStyle = config.PathStyle
		if config.Endpoint != "" {
			o.BaseEndpoint = aws.String(config.Endpoint)
		}
		if config.Client != nil {
			o.HTTPClient = config.Client
		}
		// One attempt only: package resolve decides what is sent again, and when.
		o.Retryer = aws.NopRetryer{}
		o.RetryMaxAttempts = 1
		o.Logger = logging.Nop{} // the errors contain everything
		// Other stores than Amazon's refuse the newer checksum trailers.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	return &Bucket{config: config, policy: resolve.Over(config.Client, config.Retry), client: client}, nil
}

// validate names the field and the value.
func (c Config) validate() error {
	var errs []error
	if c.Bucket == "" || strings.ContainsAny(c.Bucket, "/ ") {
		errs = append(errs, fmt.Errorf("s3: bucket %q: a bucket name is required", c.Bucket))
	}
	if c.Prefix != "" && blob.CheckKey(c.Prefix) != nil {
		errs = append(errs, fmt.Errorf("s3: prefix %q: %w", c.Prefix, blob.CheckKey(c.Prefix)))
	}
	if c.SSE != "" && c.SSE != string(types.ServerSideEncryptionAes256) && c.SSE != string(types.ServerSideEncryptionAwsKms) {
		errs = append(errs, fmt.Errorf("s3: sse %q: want AES256 or aws:kms, or leave it empty for the bucket's default", c.SSE))
	}
	if c.KMSKey != "" && c.SSE != string(types.ServerSideEncryptionAwsKms) {
		errs = append(errs, fmt.Errorf("s3: a kms key is given with sse %q: it needs aws:kms", c.SSE))
	}
	return errors.Join(errs...)
}

// name is the key in the store.
func (b *Bucket) name(key string) string {
	if b.config.Prefix == "" {
		return key
	}
	return b.config.Prefix + "/" + key
}

// Create implements blob.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	call := resolve.Call{Op: "create", Key: key, Size: len(data), Kind: blob.ErrExists}
	return b.conditional(ctx, call, data, func(in *s3.PutObjectInput) { in.IfNoneMatch = aws.String("*") })
}

// Replace implements blob.Bucket.
func (b *Bucket) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	if old == "" && blob.CheckKey(key) == nil && ctx.Err() == nil {
		return "", &blob.Error{Op: "replace", Key: key, Kind: blob.ErrChanged}
	}
	call := resolve.Call{Op: "replace", Key: key, Size: len(data), Kind: blob.ErrChanged, Old: old}
	return b.conditional(ctx, call, data, func(in *s3.PutObjectInput) { in.IfMatch = aws.String(quote(old)) })
}

// Write implements blob.Bucket.
func (b *Bucket) Write(ctx context.Context, key string, data []byte) (blob.Version, error) {
	call := resolve.Call{Op: "write", Key: key, Size: len(data)}
	if err := check(call); err != nil {
		return "", err
	}
	call.Send = func(ctx context.Context) resolve.Answer { return b.put(ctx, b.input(key, data, rand.Text())) }
	return b.policy.Repeat(ctx, call, true)
}

// check checks a call before anything is sent.
func check(call resolve.Call) error {
	if err := blob.CheckKey(call.Key); err != nil {
		return &blob.Error{Op: call.Op, Key: call.Key, Kind: err}
	}
	if call.Size > blob.MaxSize {
		return &blob.Error{Op: call.Op, Key: call.Key, Kind: blob.ErrTooLarge}
	}
	return nil
}

// conditional is the common part of Create and Replace.
func (b *Bucket) conditional(ctx context.Context, call resolve.Call, data []byte, condition func(*s3.PutObjectInput)) (blob.Version, error) {
	if err := check(call); err != nil {
		return "", err
	}
	call.Nonce, call.ReadTwice = rand.Text(), true
	call.Send = func(ctx context.Context) resolve.Answer {
		in := b.input(call.Key, data, call.Nonce)
		condition(in)
		answer := b.put(ctx, in)
		if errors.Is(call.Kind, blob.ErrChanged) && errors.Is(kind(answer), blob.ErrNotFound) {
			answer.Effect = resolve.Refused // with If-Match, an object that does not exist is a 404
		}
		return answer
	}
	call.Stat = func(ctx context.Context) (resolve.ObjectInfo, resolve.Answer) { return b.stat(ctx, call.Key) }
	return b.policy.Write(ctx, call)
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	call := resolve.Call{Op: "delete", Key: key}
	if err := check(call); err != nil {
		return err
	}
	call.Send = func(ctx context.Context) resolve.Answer {
		_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.config.Bucket, Key: aws.String(b.name(key))})
		if answer := classify(ctx, err); !errors.Is(kind(answer), blob.ErrNotFound) {
			return answer
		}
		return resolve.Answer{}
	}
	_, err := b.policy.Repeat(ctx, call, true)
	return err
}
