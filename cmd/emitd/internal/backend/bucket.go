package backend

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/blob/gcs"
	"github.com/emitd/emitd/storage/blob/mem"
	"github.com/emitd/emitd/storage/blob/s3"
)

// Bucket opens the object store of an address, and makes sure before its first use that it keeps
// conditional writes. Its errors are faults.
func Bucket(ctx context.Context, address string) (blob.Bucket, error) {
	b, err := openBucket(ctx, address)
	if err != nil {
		return nil, err
	}
	if err := blob.Probe(ctx, b); err != nil {
		return nil, bucketFault(err)
	}
	return b, nil
}

func openBucket(ctx context.Context, address string) (blob.Bucket, error) {
	scheme, _, _ := strings.Cut(address, ":")
	switch scheme {
	case "file":
		return opened(dir.ParseURL(address))(func(c dir.Config) (blob.Bucket, error) { return dir.Open(c) })
	case "mem":
		return opened(mem.ParseURL(address))(func(c mem.Config) (blob.Bucket, error) { return mem.New(c), nil })
	case "s3":
		return opened(s3.ParseURL(address))(func(c s3.Config) (blob.Bucket, error) { return s3.Open(ctx, c) })
	case "gs":
		return opened(gcs.ParseURL(address, os.Getenv("STORAGE_EMULATOR_HOST")))(func(c gcs.Config) (blob.Bucket, error) { return gcs.Open(ctx, c) })
	}
	return nil, fault.New(fault.ObjectsURL, "objects.url has the scheme %q, want file, s3, gs or mem", scheme)
}

// opened opens what an address was parsed to; a wrong address is a fault of its own.
func opened[C any](c C, err error) func(func(C) (blob.Bucket, error)) (blob.Bucket, error) {
	return func(open func(C) (blob.Bucket, error)) (blob.Bucket, error) {
		if err != nil {
			return nil, fault.New(fault.ObjectsURL, "objects.url: %w", err)
		}
		b, err := open(c)
		if err != nil {
			return nil, bucketFault(err)
		}
		return b, nil
	}
}

// bucketFault makes a fault of what an object store answers.
func bucketFault(err error) error {
	if errors.Is(err, blob.ErrUnfit) {
		return fault.New(fault.ObjectsUnfit, "%w", err)
	}
	return fault.New(fault.ObjectsFailed, "%w", err)
}

// LastingID is the part of a store's identity that outlives what changes it for the cluster: the
// reboot of a SQLite host, a failover of Postgres. Queues are protected against what these lose by
// generations; only another store altogether is refused.
func LastingID(id string) string {
	if rest, ok := strings.CutPrefix(id, "sqlite:"); ok {
		file, _, _ := strings.Cut(rest, ":")
		return "sqlite:" + file
	}
	id, _, _ = strings.Cut(id, "/")
	return id
}
