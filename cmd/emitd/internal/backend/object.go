package backend

import (
	"context"
	"errors"
	"strings"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/instrument"
	"github.com/emitd/emitd/storage/object"
)

// objectDriver is a cluster store on an object store. It has no schema that is migrated: each
// object says its format.
var objectDriver = driver{
	open:   openObject,
	status: func(context.Context, Options) ([]Migration, error) { return nil, nil },
	migrate: func(context.Context, Options) ([]Migration, error) {
		return nil, nil
	},
	sql: func(config.Config, int) (string, error) {
		return "", errors.New("an object store has no schema and no SQL")
	},
}

func openObject(ctx context.Context, o Options) (*Store, error) {
	address := o.Config.Store.URL
	open, err := parse(address, instrument.Config{Use: "cluster"})
	if err != nil {
		return nil, err
	}
	bucket, err := open(ctx)
	if err != nil {
		return nil, err
	}
	look := o.Policy == Look
	s, err := object.Open(ctx, bucket, object.Config{Name: place(address), MustExist: look, NoProbe: look})
	if err != nil {
		return nil, err
	}
	return &Store{Store: s, Kind: "object", close: func() error { return nil }}, nil
}

// place is the address without options: every process of a cluster must name it alike, however it
// reaches it.
func place(address string) string {
	address, _, _ = strings.Cut(address, "?")
	return strings.TrimRight(address, "/")
}

// objectFault makes a fault of what an object store answers, or returns nil.
func objectFault(err error) *fault.Fault {
	for kind, code := range map[error]fault.Code{
		blob.ErrUnfit: fault.ObjectsUnfit, blob.ErrDenied: fault.NoRight, blob.ErrNotFound: fault.NotMigrated,
		blob.ErrNoBucket: fault.Unreachable, blob.ErrUnavailable: fault.Unreachable, blob.ErrThrottled: fault.Unreachable,
	} {
		if errors.Is(err, kind) {
			return fault.New(code, "%w", err)
		}
	}
	return nil
}
