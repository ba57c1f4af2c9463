// Observe prints what a cluster store holds, as JSON: the snapshot of one moment and the whole history. With
// -locks it first takes two locks, or finds that they are held, and prints both. It releases the first and leaves
// the second, as a process that dies would.
//
//	go run ./stored/observe [-locks] sqlite:///absolute/path.db | postgres://… | file:///absolute/dir
//
// It uses nothing but the public packages of the module, so that stored/make can build it in the tree of any
// release. The output of a release's own build is what later programs must read.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/object"
	"github.com/emitd/emitd/storage/postgres"
	"github.com/emitd/emitd/storage/sqlite"
)

// observation is the output.
type observation struct {
	Snapshot *daemon.Snapshot   `json:"snapshot"`
	Adverts  map[string]any     `json:"adverts"`
	Events   *storage.EventPage `json:"events"`
	Locks    []storage.Lock     `json:"locks,omitempty"`
}

func main() {
	withLocks := flag.Bool("locks", false, "take two locks, release the first")
	flag.Parse()
	if err := run(flag.Arg(0), *withLocks); err != nil {
		fmt.Fprintln(os.Stderr, "observe:", err)
		os.Exit(1)
	}
}

func run(url string, withLocks bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store, err := open(ctx, url)
	if err != nil {
		return err
	}
	var seen observation
	if withLocks {
		if seen.Locks, err = locks(ctx, store); err != nil {
			return err
		}
	}
	if seen.Snapshot, err = store.Snapshot(ctx); err != nil {
		return err
	}
	seen.Adverts = map[string]any{}
	for hash, advert := range seen.Snapshot.Adverts {
		seen.Adverts[hash] = advert
	}
	if seen.Events, err = store.Events(ctx, 0, 10_000); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(seen)
}

func open(ctx context.Context, url string) (storage.Store, error) {
	if path, ok := strings.CutPrefix(url, "sqlite://"); ok {
		return sqlite.OpenConfig(ctx, sqlite.Config{Path: path, MustExist: true})
	}
	if path, ok := strings.CutPrefix(url, "file://"); ok {
		bucket, err := dir.Open(dir.Config{Path: path})
		if err != nil {
			return nil, err
		}
		return object.Open(ctx, bucket, object.Config{Name: url, MustExist: true})
	}
	return postgres.Open(ctx, url)
}

// locks takes both locks and releases the first. Where somebody holds a lock already, it returns that holding.
func locks(ctx context.Context, store storage.Store) ([]storage.Lock, error) {
	locker, ok := store.(storage.Locker)
	if !ok {
		return nil, fmt.Errorf("%T has no locks", store)
	}
	var found []storage.Lock
	for _, name := range []string{"stored:released", "stored:held"} {
		lock, err := locker.Acquire(ctx, name, uuid.NewString(), 2*time.Second, storage.Lock{})
		if err != nil && !errors.Is(err, storage.ErrLocked) {
			return nil, err
		}
		if name == "stored:released" {
			if err := locker.Release(ctx, lock); err != nil {
				return nil, err
			}
		}
		found = append(found, lock)
	}
	return found, nil
}
