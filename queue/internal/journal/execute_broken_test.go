package journal_test

import (
	"context"

	"github.com/emitd/emitd/storage/blob"
)

// broken is a bucket that fails with one error.
type broken struct{ err error }

func (b broken) Read(context.Context, string) (*blob.Object, error) { return nil, b.err }

func (b broken) ReadPrefix(context.Context, string, int) (*blob.Object, error) { return nil, b.err }

func (b broken) ReadNewer(context.Context, string, blob.Version) (*blob.Object, error) {
	return nil, b.err
}

func (b broken) Create(context.Context, string, []byte) (blob.Version, error) { return "", b.err }

func (b broken) Replace(context.Context, string, []byte, blob.Version) (blob.Version, error) {
	return "", b.err
}

func (b broken) Write(context.Context, string, []byte) (blob.Version, error) { return "", b.err }

func (b broken) List(context.Context, string, string, int) (*blob.Page, error) { return nil, b.err }

func (b broken) Delete(context.Context, string) error { return b.err }
