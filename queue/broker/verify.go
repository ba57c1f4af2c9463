package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// Problem describes an object in the bucket that is missing or damaged.
type Problem struct {
	Queue  string `json:"queue"` // empty: the object is the list of queues
	Shard  int    `json:"shard"`
	Object string `json:"object"`
	// What is missing, damaged, newer (written by a newer version), denied (it may not be
	// read), or, of a HEAD, unfinished (a repair was interrupted).
	What string `json:"what"`
	// Lost says whether something that was acknowledged depends on the object. If not, the next
	// checkpoint or declaration replaces it.
	Lost bool   `json:"lost"`
	Text string `json:"text"`
}

// VerifyResult is the result of verifying all objects.
type VerifyResult struct {
	Queues   int       `json:"queues"`
	Shards   int       `json:"shards"`
	Objects  int       `json:"objects"` // objects that were read
	Jobs     int       `json:"jobs"`    // jobs that are stored
	Problems []Problem `json:"problems"`
}

// Verify reads all objects of the listed queues, or of one of them, and compares them with each
// other. It changes nothing, and may run while brokers serve the queues.
func (r *Registry) Verify(ctx context.Context, name string) (*VerifyResult, error) {
	out := &VerifyResult{Problems: []Problem{}}
	all, err := r.verifyList(ctx, out)
	if err != nil {
		return nil, err
	}
	if name != "" {
		all = slices.DeleteFunc(all, func(s queue.Settings) bool { return s.Name != name })
		if len(all) == 0 && len(out.Problems) == 0 {
			return nil, noQueue(name)
		}
	}
	for i := range all {
		set := &all[i]
		out.Queues++
		for index := range set.Shards {
			out.Shards++
			if err := r.verifyShard(ctx, set, index, out); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// verifyList verifies the list of queues and its copy, and returns the queues that are known.
func (r *Registry) verifyList(ctx context.Context, out *VerifyResult) ([]queue.Settings, error) {
	out.Objects += 2
	fresh := &Registry{bucket: r.bucket, root: r.root, key: r.key, copyKey: r.copyKey, mu: make(chan struct{}, 1)}
	list, err := fresh.List(ctx)
	if err == nil {
		err = orNil(fresh.Damage(ctx))
	}
	add := func(key, what string, lost bool, text string) {
		out.Problems = append(out.Problems, Problem{Object: key, What: what, Lost: lost, Text: text})
	}
	switch {
	case queue.TagOf(err) == queue.Damaged:
		add(r.key, "damaged", true, err.Error())
		return list, nil
	case err != nil:
		return nil, err
	}
	second, err := fresh.readCopy(ctx)
	switch {
	case err != nil:
		return nil, err
	case second == nil && fresh.version != "":
		add(r.copyKey, "missing", false, "the copy of the list is missing, damaged or not written yet")
	case second != nil && second.Serial < fresh.list.Serial:
		add(r.copyKey, "damaged", false, fmt.Sprintf("the copy of the list is an older one: serial number %d of %d", second.Serial, fresh.list.Serial))
	}
	return list, nil
}

// orNil converts a possibly nil *Error to an error.
func orNil(e *queue.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// verifyShard verifies one shard.
func (r *Registry) verifyShard(ctx context.Context, set *queue.Settings, index int, out *VerifyResult) error {
	f := &ledgerBuilder{}
	at := shardPrefix(r.root, set, index)
	found, err := journal.Verify(ctx, r.bucket, at, shardPath(set, index), f)
	if err != nil {
		return queue.Refuse(queue.Unavailable, "%w", err)
	}
	out.Objects += found.Objects
	add := func(key string, kind error, spare bool, text string) {
		what := "damaged"
		switch {
		case errors.Is(kind, journal.ErrMissing):
			what = "missing"
		case errors.Is(kind, journal.ErrNewer):
			what = "newer"
		case errors.Is(kind, journal.ErrRepairing):
			what = "unfinished"
		case errors.Is(kind, blob.ErrDenied):
			what = "denied"
		}
		out.Problems = append(out.Problems, Problem{Queue: set.Name, Shard: index, Object: key, What: what, Lost: !spare, Text: text})
	}
	for _, p := range found.Problems {
		add(p.Key, p.Kind, p.Unneeded, p.Text)
	}
	if found.Empty {
		return nil
	}
	l, err := f.ledger()
	if err != nil {
		add(at+"/ckpt", journal.ErrCorrupt, false, fmt.Sprintf("the state cannot be read: %v", err))
		return nil
	}
	out.Jobs += l.Jobs()
	if !found.Complete {
		return nil
	}
	bad, n, err := r.verifyPayloads(ctx, l)
	out.Objects += n
	inSegments, failed := r.verifySegments(ctx, at, l, found.Problems)
	err = errors.Join(err, failed)
	for _, key := range append(bad, inSegments...) {
		kind := journal.ErrCorrupt
		if errors.Is(key.err, blob.ErrNotFound) {
			kind = journal.ErrMissing
		}
		add(key.key, kind, false, fmt.Sprintf("the payload of job %q: %v", key.job, key.err))
	}
	return err
}

// verifySegments checks that the segments of the log have the payloads that jobs refer to. It leaves out
// segments that are known to be missing or damaged. The others were read, and are counted, already.
func (r *Registry) verifySegments(ctx context.Context, prefix string, l *ledger.Ledger, known []journal.Problem) (bad []badPayload, err error) {
	codec := journal.NewCodec()
	jobs := l.JobsBySlot()
	for _, slot := range slices.Sorted(maps.Keys(jobs)) {
		key := journal.SlotKey(prefix, slot)
		if slices.ContainsFunc(known, func(p journal.Problem) bool { return p.Key == key }) {
			continue
		}
		records, _, e := journal.ReadSlot(ctx, r.bucket, prefix, codec, slot)
		if e != nil && !errors.Is(e, journal.ErrMissing) && !errors.Is(e, journal.ErrCorrupt) {
			err = errors.Join(err, e)
			continue
		}
		g := &segment{}
		if e == nil {
			g.payloads = payloadsOf(records)
		}
		for _, number := range jobs[slot] {
			id, _ := l.IDAndPayload(number)
			if payload, ok := g.payload(number, id); !ok || len(payload) != l.Size(number) {
				j, _ := l.Job(number)
				bad = append(bad, badPayload{key: key, job: j.ID, err: cmp.Or(e, fmt.Errorf("%w: the segment does not have it", journal.ErrCorrupt))})
				break
			}
		}
	}
	return bad, err
}

// badPayload is a payload object that is missing or damaged, or a segment that should have a payload.
type badPayload struct {
	key, job string
	err      error
}

// verifyPayloads reads all payloads that are objects of their own.
func (r *Registry) verifyPayloads(ctx context.Context, l *ledger.Ledger) (bad []badPayload, read int, err error) {
	var jobs []ledger.Job
	for n := range l.NextNumber() {
		if j, ok := l.JobWithoutPayload(n); ok && j.Blob != "" {
			j, _ = l.Job(n)
			jobs = append(jobs, j)
		}
	}
	errs := make([]error, len(jobs))
	var all errgroup.Group
	all.SetLimit(maxPayloadReads)
	for i := range jobs {
		all.Go(func() error {
			_, errs[i] = payloadOf(ctx, r.bucket, jobs[i].Blob)
			return nil
		})
	}
	_ = all.Wait()
	for i, e := range errs {
		switch {
		case e == nil:
		case errors.Is(e, blob.ErrNotFound), errors.Is(e, blob.ErrCorrupt):
			bad = append(bad, badPayload{key: jobs[i].Blob, job: strings.Clone(jobs[i].ID), err: e})
		default:
			err = errors.Join(err, e)
		}
	}
	return bad, len(jobs), err
}
