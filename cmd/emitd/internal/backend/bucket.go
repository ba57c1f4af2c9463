package backend

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/emitd/emitd/cmd/emitd/internal/instrument"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/blob/gcs"
	"github.com/emitd/emitd/storage/blob/s3"
)

// Opener opens an object store and checks that it supports conditional writes, with 25 requests. Its
// errors are faults: ObjectsUnfit for a store on which writes would be lost, and ObjectsFailed for one
// that cannot be used now and may be tried again.
type Opener func(ctx context.Context) (blob.Bucket, error)

// Objects parses the address of an object store. It makes no request. A wrong address is a fault.
func Objects(address string) (Opener, error) {
	open, err := parse(address, instrument.Config{Use: "queues", Roots: true})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (blob.Bucket, error) {
		b, err := open(ctx)
		if err != nil {
			return nil, err
		}
		if err := blob.Probe(ctx, b); err != nil {
			return nil, bucketFault(err)
		}
		return b, nil
	}, nil
}

// Reader opens the object store of an address for reading only: it does not write to check conditional
// writes. Its errors are faults.
func Reader(ctx context.Context, address string) (blob.Bucket, error) {
	open, err := parse(address, instrument.Config{Use: "queues", Roots: true})
	if err != nil {
		return nil, err
	}
	return open(ctx)
}

// Bucket opens the object store of an address. Its errors are faults.
func Bucket(ctx context.Context, address string) (blob.Bucket, error) {
	open, err := Objects(address)
	if err != nil {
		return nil, err
	}
	return open(ctx)
}

// parse returns an opener that does not check the bucket, and instruments its calls as given.
func parse(address string, as instrument.Config) (Opener, error) {
	as.System, _, _ = strings.Cut(address, ":")
	switch as.System {
	case "file":
		return of(dir.ParseURL(address))(as, func(_ context.Context, c dir.Config) (blob.Bucket, error) { return dir.Open(c) })
	case "mem":
		return of(mem.ParseURL(address))(as, func(_ context.Context, c mem.Config) (blob.Bucket, error) { return mem.New(c), nil })
	case "s3":
		return of(s3.ParseURL(address))(as, func(ctx context.Context, c s3.Config) (blob.Bucket, error) { return s3.Open(ctx, c) })
	case "gs":
		return of(gcs.ParseURL(address, os.Getenv("STORAGE_EMULATOR_HOST")))(as, func(ctx context.Context, c gcs.Config) (blob.Bucket, error) { return gcs.Open(ctx, c) })
	}
	return nil, fault.New(fault.ObjectsURL, "objects.url has the scheme %q, want file, s3, gs or mem", as.System)
}

// of makes an opener from a parsed address. A wrong address is a fault.
func of[C any](c C, err error) func(instrument.Config, func(context.Context, C) (blob.Bucket, error)) (Opener, error) {
	return func(as instrument.Config, open func(context.Context, C) (blob.Bucket, error)) (Opener, error) {
		if err != nil {
			return nil, fault.New(fault.ObjectsURL, "objects.url: %w", err)
		}
		return func(ctx context.Context) (blob.Bucket, error) {
			b, err := open(ctx, c)
			if err != nil {
				return nil, bucketFault(err)
			}
			watched, err := instrument.New(b, as)
			if err != nil {
				return nil, fault.New(fault.Telemetry, "telemetry: %w", err)
			}
			return watched, nil
		}, nil
	}
}

// bucketFault turns an error of an object store into a fault.
func bucketFault(err error) error {
	if errors.Is(err, blob.ErrUnfit) {
		return fault.New(fault.ObjectsUnfit, "%w", err)
	}
	return fault.New(fault.ObjectsFailed, "%w", err)
}

// LastingID returns the part of a store identity that survives changes which the cluster treats as a new
// identity: the reboot of a SQLite host, a failover of Postgres. Generations protect queues against what
// those lose, so a queue refuses only a completely different store.
func LastingID(id string) string {
	if rest, ok := strings.CutPrefix(id, "sqlite:"); ok {
		file, _, _ := strings.Cut(rest, ":")
		return "sqlite:" + file
	}
	id, _, _ = strings.Cut(id, "/")
	return id
}
