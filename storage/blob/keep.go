package blob

import (
	"context"
	"errors"
)

// Keeper is a Bucket that can keep an object as it is stored, whether it can be read or not.
type Keeper interface {
	// Keep gives what is stored of an object a second key, under which it stays when the object is deleted
	// or replaced. Errors: ErrNotFound, ErrExists.
	Keep(ctx context.Context, key, as string) error
}

// Keep calls the Keeper that b is or wraps. Without one it returns an errors.ErrUnsupported: such a store
// hands out what it has, or nothing.
func Keep(ctx context.Context, b Bucket, key, as string) error {
	for b != nil {
		if k, ok := b.(Keeper); ok {
			return k.Keep(ctx, key, as)
		}
		w, ok := b.(interface{ Unwrap() Bucket })
		if !ok {
			break
		}
		b = w.Unwrap()
	}
	return &Error{Op: "keep", Key: key, Err: errors.ErrUnsupported}
}
