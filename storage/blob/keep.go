package blob

import (
	"context"
	"errors"
)

// Preserver is a Bucket that can preserve an object as it is stored, even if it cannot be read.
type Preserver interface {
	// Retain gives the stored files of an object a second key. They stay under that key when the
	// object is deleted or replaced. Errors: ErrNotFound, ErrExists.
	Retain(ctx context.Context, key, as string) error
}

// Preserve calls the Preserver that b is or wraps. Without one it returns an errors.ErrUnsupported: such a
// store cannot preserve what it cannot read.
func Preserve(ctx context.Context, b Bucket, key, as string) error {
	for b != nil {
		if k, ok := b.(Preserver); ok {
			return k.Retain(ctx, key, as)
		}
		w, ok := b.(interface{ Unwrap() Bucket })
		if !ok {
			break
		}
		b = w.Unwrap()
	}
	return &Error{Op: "keep", Key: key, Err: errors.ErrUnsupported}
}
