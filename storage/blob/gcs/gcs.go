// Package gcs is a bucket in Google Cloud Storage, by a small client of its JSON API.
//
// # Conditions
//
// The version of an object is its generation, which the store gives to each write and never
// repeats. Create is an upload with ifGenerationMatch=0, Replace one with the generation that was
// read. The generation always comes from the answer that contains the data or confirms the write,
// never from a second request. Another writer may have written in between, and pairing one's own
// data with that writer's generation would overwrite its object.
//
// # Unknown outcomes
//
// Each conditional upload stores a random number in the metadata of the object, emitd-nonce. After
// a timeout, a reset or a 5xx, the metadata is read back: the same number means that the write has
// happened. Package resolve describes what is sent again, and what is reported if the outcome cannot
// be determined. All of it ends with the caller's context.
//
// # Limits
//
// The store accepts about one write a second for one name. It answers more with 429, and the client
// waits. New names have no such limit. Uploads are single requests.
//
// # Permissions
//
// storage.objects.get, create, delete and list (roles/storage.objectUser). Credentials are the
// application default ones. With an emulator (STORAGE_EMULATOR_HOST, or an endpoint) there are
// none.
package gcs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/internal/resolve"
)

// Config says where the bucket is. Only Bucket is required.
type Config struct {
	Bucket string
	Prefix string // before every key, with a slash between; valid as a key, or empty

	// Endpoint is the address of an emulator, with its scheme. It is called without credentials,
	// unless Tokens are given.
	Endpoint string

	// Tokens replaces the application default credentials. It is asked for a token with each
	// request, so it should reuse a token while that is valid (as oauth2.ReuseTokenSource does).
	Tokens oauth2.TokenSource
	// Client replaces http.DefaultClient below the credentials, for tests and proxies.
	Client *http.Client
	// Retry bounds the repetitions of a call.
	Retry blob.RetryPolicy
}

const (
	googleEndpoint = "https://storage.googleapis.com"
	scope          = "https://www.googleapis.com/auth/devstorage.read_write"
	nonceName      = "emitd-nonce"
)

// Bucket is a blob.Bucket in Google Cloud Storage. Use Open.
type Bucket struct {
	config Config
	policy resolve.Policy
	client *http.Client
}

var _ blob.Bucket = (*Bucket)(nil)

// Open finds credentials. It does not call the store; blob.Probe does.
func Open(ctx context.Context, config Config) (*Bucket, error) {
	config.Prefix = strings.Trim(config.Prefix, "/")
	config.Endpoint = strings.TrimRight(config.Endpoint, "/")
	if err := config.validate(); err != nil {
		return nil, err
	}
	client := config.Client
	if client == nil {
		client = &http.Client{Transport: transport()}
	}
	tokens := config.Tokens
	if tokens == nil && config.Endpoint == "" {
		found, err := google.FindDefaultCredentials(tokenContext(ctx), scope)
		if err != nil {
			return nil, fmt.Errorf("open gcs bucket %q: %w: %w", config.Bucket, blob.ErrDenied, err)
		}
		tokens = found.TokenSource
	}
	policy := resolve.Over(client, config.Retry)
	if config.Endpoint == "" {
		config.Endpoint = googleEndpoint
	}
	if tokens != nil {
		client = &http.Client{
			Transport:     &authorized{tokens: tokens, base: client.Transport},
			CheckRedirect: client.CheckRedirect,
		}
	}
	return &Bucket{config: config, policy: policy, client: client}, nil
}

// transport keeps enough idle connections for the parallel uploads of a pipeline.
func transport() http.RoundTripper {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = 64
	resolve.CheckConnections(t)
	return t
}

// validate names the field and the value.
func (c Config) validate() error {
	var errs []error
	if c.Bucket == "" || strings.ContainsAny(c.Bucket, "/ ?#") {
		errs = append(errs, fmt.Errorf("gcs: bucket %q: a bucket name is required", c.Bucket))
	}
	if c.Prefix != "" && blob.CheckKey(c.Prefix) != nil {
		errs = append(errs, fmt.Errorf("gcs: prefix %q: %w", c.Prefix, blob.CheckKey(c.Prefix)))
	}
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" {
			errs = append(errs, errors.New("gcs: endpoint: want http://host:port or https://host:port, without credentials and parameters"))
		}
	}
	return errors.Join(errs...)
}

func (b *Bucket) name(key string) string {
	if b.config.Prefix == "" {
		return key
	}
	return b.config.Prefix + "/" + key
}

// Create implements blob.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	call := resolve.Call{Op: "create", Key: key, Size: len(data), Kind: blob.ErrExists}
	return b.conditional(ctx, call, data, "0")
}

// Replace implements blob.Bucket.
func (b *Bucket) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	if !isGeneration(old) && blob.CheckKey(key) == nil && ctx.Err() == nil {
		return "", &blob.Error{Op: "replace", Key: key, Kind: blob.ErrChanged}
	}
	call := resolve.Call{Op: "replace", Key: key, Size: len(data), Kind: blob.ErrChanged, Old: old}
	return b.conditional(ctx, call, data, string(old))
}

// isGeneration reports whether a version is one of this store. Any other would be a bad request,
// and 0 would mean that there is no object.
func isGeneration(v blob.Version) bool {
	return v != "" && v != "0" && len(v) < 20 && strings.Trim(string(v), "0123456789") == ""
}

// Write implements blob.Bucket.
func (b *Bucket) Write(ctx context.Context, key string, data []byte) (blob.Version, error) {
	call := resolve.Call{Op: "write", Key: key, Size: len(data)}
	if err := check(call); err != nil {
		return "", err
	}
	call.Send = func(ctx context.Context) resolve.Answer { return b.upload(ctx, key, data, rand.Text(), "") }
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
func (b *Bucket) conditional(ctx context.Context, call resolve.Call, data []byte, generation string) (blob.Version, error) {
	if err := check(call); err != nil {
		return "", err
	}
	call.Nonce = rand.Text()
	call.Send = func(ctx context.Context) resolve.Answer {
		return b.upload(ctx, call.Key, data, call.Nonce, generation)
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
		_, answer := b.do(ctx, request{method: http.MethodDelete, path: b.objectPath(key)})
		if answer.Effect == resolve.Failed && errors.Is(answer.Err.Kind, blob.ErrNotFound) {
			return resolve.Answer{}
		}
		return answer
	}
	_, err := b.policy.Repeat(ctx, call, true)
	return err
}
