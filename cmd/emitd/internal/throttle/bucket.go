package throttle

import (
	"context"

	"github.com/emitd/emitd/storage/blob"
)

// Unwrap returns the bucket that is wrapped.
func (b *Bucket) Unwrap() blob.Bucket { return b.inner }

// Read implements blob.Bucket.
func (b *Bucket) Read(ctx context.Context, key string) (*blob.Object, error) {
	if err := b.admitKey(ctx, Reads, "read", key); err != nil {
		return nil, err
	}
	return b.inner.Read(ctx, key)
}

// ReadPrefix implements blob.Bucket.
func (b *Bucket) ReadPrefix(ctx context.Context, key string, n int) (*blob.Object, error) {
	if err := b.admitKey(ctx, Reads, "read", key); err != nil {
		return nil, err
	}
	return b.inner.ReadPrefix(ctx, key, n)
}

// ReadNewer implements blob.Bucket.
func (b *Bucket) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	if err := b.admitKey(ctx, Reads, "read", key); err != nil {
		return nil, err
	}
	return b.inner.ReadNewer(ctx, key, known)
}

// Create implements blob.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	if err := b.admitKey(ctx, Writes, "create", key); err != nil {
		return "", err
	}
	return b.inner.Create(ctx, key, data)
}

// Replace implements blob.Bucket.
func (b *Bucket) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	if err := b.admitKey(ctx, Writes, "replace", key); err != nil {
		return "", err
	}
	return b.inner.Replace(ctx, key, data, old)
}

// Write implements blob.Bucket.
func (b *Bucket) Write(ctx context.Context, key string, data []byte) (blob.Version, error) {
	if err := b.admitKey(ctx, Writes, "write", key); err != nil {
		return "", err
	}
	return b.inner.Write(ctx, key, data)
}

// List implements blob.Bucket.
func (b *Bucket) List(ctx context.Context, prefix, after string, limit int) (*blob.Page, error) {
	if err := blob.CheckPrefix(prefix); err != nil {
		return nil, &blob.Error{Op: "list", Key: prefix, Kind: err}
	}
	if err := b.admit(ctx, Lists, "list", prefix); err != nil {
		return nil, err
	}
	return b.inner.List(ctx, prefix, after, limit)
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := b.admitKey(ctx, Deletes, "delete", key); err != nil {
		return err
	}
	return b.inner.Delete(ctx, key)
}

// admitKey is admit for a key, which it checks first: an invalid key costs no request.
func (b *Bucket) admitKey(ctx context.Context, class Class, op, key string) error {
	if err := blob.CheckKey(key); err != nil {
		return &blob.Error{Op: op, Key: key, Kind: err}
	}
	return b.admit(ctx, class, op, key)
}
