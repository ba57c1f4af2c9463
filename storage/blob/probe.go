package blob

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ProbePrefix begins the keys that Probe uses.
const ProbePrefix = "probe/"

// probeCreators is the number of parallel writers of a probe.
const probeCreators = 16

// cleanup bounds what Probe does after the caller's context has ended.
const cleanup = 2 * time.Second

// Probe checks that a bucket keeps the contract in the points where some object stores do not. Some
// that speak the protocol of S3 accept conditions and ignore them. It uses scratch keys under
// ProbePrefix, needs 25 requests, and removes the keys. It returns ErrUnfit for a store on which
// conditional writes are lost, and other errors (ErrDenied, ErrUnavailable) if it could not check
// the store. Call it before the first write that matters.
func Probe(ctx context.Context, bucket Bucket) error {
	p := prober{Bucket: bucket, prefix: ProbePrefix + rand.Text() + "/"}
	err := p.run(ctx)
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	for _, name := range []string{"create", "race"} {
		if gone := p.Delete(tidy, p.prefix+name); gone != nil && err == nil {
			err = fmt.Errorf("probe the object store: remove the scratch object: %w", gone)
		}
	}
	return err
}

type prober struct {
	Bucket
	prefix string
}

func (p *prober) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{p.conditions, p.visible, p.race} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("probe the object store: %w", err)
		}
	}
	return nil
}

// unfit returns an ErrUnfit that says what a store did, and what it should have done.
func unfit(did, expected string) error {
	return fmt.Errorf("%w: %s, expected %s; two processes that write at once would overwrite each other's "+
		"acknowledged data here: use a store with conditional writes (Amazon S3, Google Cloud Storage, "+
		"Cloudflare R2, MinIO, Ceph from 19, or a local directory), or update this one", ErrUnfit, did, expected)
}

// conditions checks that each write whose condition is false is refused.
func (p *prober) conditions(ctx context.Context) error {
	key := p.prefix + "create"
	first, err := p.Create(ctx, key, []byte("one"))
	if err != nil {
		return err
	}
	if _, err := p.Create(ctx, key, []byte("two")); !errors.Is(err, ErrExists) {
		return p.ignoredCondition(err, "a second create of one key succeeded (If-None-Match)", "a refusal (412)")
	}
	second, err := p.Replace(ctx, key, []byte("three"), first)
	if errors.Is(err, ErrChanged) {
		return unfit("a replacement of the version just written was refused (If-Match)", "success")
	}
	if err != nil {
		return err
	}
	if first == second {
		return unfit("different bytes have the same version", "a new version")
	}
	if _, err := p.Replace(ctx, key, []byte("four"), first); !errors.Is(err, ErrChanged) {
		return p.ignoredCondition(err, "a replacement of a stale version succeeded (If-Match)", "a refusal (412)")
	}
	return nil
}

// ignoredCondition distinguishes a store that ignores a condition from one that returns another error.
func (p *prober) ignoredCondition(err error, did, expected string) error {
	if err != nil {
		return err
	}
	return unfit(did, expected)
}

// visible checks that a write is read and listed at once.
func (p *prober) visible(ctx context.Context) error {
	key := p.prefix + "create"
	o, err := p.Read(ctx, key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if err != nil || !bytes.Equal(o.Data, []byte("three")) {
		return unfit("a read did not see the write before it", "the bytes just written")
	}
	page, err := p.List(ctx, p.prefix, "", 0)
	if err != nil {
		return err
	}
	if len(page.Entries) != 1 || page.Entries[0].Key != key {
		return unfit(fmt.Sprintf("a listing of one object has %d entries", len(page.Entries)), "the object just written")
	}
	if page.Entries[0].Version != o.Version {
		return unfit("a listing has another version than a read", "the same")
	}
	return nil
}

// race checks that of several parallel creators exactly one succeeds, and that the object has its
// bytes.
func (p *prober) race(ctx context.Context) error {
	key := p.prefix + "race"
	errs := make([]error, probeCreators)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { _, errs[i] = p.Create(ctx, key, []byte{byte(i)}) })
	}
	all.Wait()
	winner, won := 0, 0
	for i, err := range errs {
		switch {
		case err == nil:
			winner, won = i, won+1
		case !errors.Is(err, ErrExists):
			return err
		}
	}
	if won != 1 {
		return unfit(fmt.Sprintf("%d of %d parallel creators of one key succeeded", won, probeCreators), "exactly one")
	}
	o, err := p.Read(ctx, key)
	if err != nil {
		return err
	}
	if !bytes.Equal(o.Data, []byte{byte(winner)}) {
		return unfit("the object is not the one whose writer succeeded", "the winner's bytes")
	}
	return nil
}
