package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/instrument"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/object"
)

// objectDriver is a cluster store on an object store. It has no schema to migrate, because each object
// names its format.
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
	open, err := parse(o.Config.Store.URL, instrument.Config{Use: "cluster"})
	if err != nil {
		return nil, err
	}
	bucket, err := open(ctx)
	if err != nil {
		return nil, err
	}
	cfg := objectConfig(o)
	if !cfg.MustExist {
		if err := checkReachable(ctx, bucket, cfg.QueryTimeout); err != nil {
			return nil, err
		}
	}
	s, err := object.Open(ctx, bucket, cfg)
	if err != nil {
		return nil, err
	}
	return &Store{Store: s, Kind: "object", close: func() error { return nil }}, nil
}

func objectConfig(o Options) object.Config {
	readOnly := o.Policy == ReadOnly
	return object.Config{
		Name: withoutOptions(o.Config.Store.URL), QueryTimeout: o.Config.Timing().QueryTimeout, MustExist: readOnly, NoProbe: readOnly,
	}
}

// checkReachable reads one object of a bucket, which need not exist, within the time limit of a call. Without
// it, a bucket that cannot be reached would be noticed late: the first writes of the store are repeated for up
// to a minute each.
func checkReachable(ctx context.Context, bucket blob.Bucket, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, err := bucket.ReadPrefix(ctx, "cluster", 1); err != nil && !errors.Is(err, blob.ErrNotFound) && !errors.Is(err, blob.ErrCorrupt) {
		return fmt.Errorf("open the cluster store: %w", err)
	}
	return nil
}

// withoutOptions returns the address without options. Every process of a cluster must use the same place, whatever
// options it needs.
func withoutOptions(address string) string {
	address, _, _ = strings.Cut(address, "?")
	return strings.TrimRight(address, "/")
}

// objectFault turns an error of an object store into a fault, or returns nil.
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
