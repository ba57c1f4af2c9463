package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// Enqueue makes jobs durable and returns one receipt per job; see the package comment for its way.
func (b *Broker) Enqueue(ctx context.Context, name string, jobs []queue.Job) (_ []queue.Receipt, err error) {
	defer b.instruments.begin(ctx, name, "enqueue", "send").end(&err)
	set, err := b.beginListed(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(jobs) > queue.MaxCall {
		return nil, queue.Refuse(queue.TooManyJobs, "%d jobs in one call, the limit is %d", len(jobs), queue.MaxCall)
	}
	if len(jobs) == 0 {
		return []queue.Receipt{}, nil
	}
	parts := map[int][]int{} // positions in jobs, by shard
	ready := make([]validJob, len(jobs))
	for i := range jobs {
		p, refusal := prepare(set, &jobs[i])
		if refusal != nil {
			return nil, refusal
		}
		ready[i] = p
		if parts[p.shard] == nil {
			parts[p.shard] = make([]int, 0, len(jobs)/set.Shards+1)
		}
		parts[p.shard] = append(parts[p.shard], i)
	}
	shards := map[int]*shard{}
	for index := range parts {
		s, err := b.serving(ctx, set, index)
		if err != nil {
			return nil, err
		}
		shards[index] = s
	}
	if err := b.upload(ctx, shards, ready); err != nil {
		b.deleteUnused(shards, ready, nil, err)
		return nil, err
	}
	receipts := make([]queue.Receipt, len(jobs))
	err = b.enqueueParts(ctx, shards, parts, ready, receipts)
	b.deleteUnused(shards, ready, receipts, err)
	if err != nil {
		return nil, err
	}
	b.instruments.sent(ctx, name, len(jobs))
	return receipts, nil
}

// enqueueParts submits each shard's part, waits for all answers, and stores the receipts at their
// positions.
func (b *Broker) enqueueParts(ctx context.Context, shards map[int]*shard, parts map[int][]int, ready []validJob, receipts []queue.Receipt) error {
	calls := map[int]*enqueueCall{}
	for index, positions := range parts {
		c := &enqueueCall{jobs: ready, receipts: receipts[:0]}
		c.call = newCall(c)
		if len(parts) > 1 {
			c.jobs, c.receipts = make([]validJob, len(positions)), make([]queue.Receipt, 0, len(positions))
			for n, at := range positions {
				c.jobs[n] = ready[at]
			}
		}
		if err := shards[index].submit(ctx, &c.call); err != nil {
			if len(calls) > 0 {
				err = errors.Join(unknownOutcome("some of the jobs were submitted already"), err)
			}
			return err
		}
		calls[index] = c
	}
	var failed error
	for index, c := range calls {
		if err := shards[index].wait(ctx, &c.call); err != nil {
			// Of several errors, UnknownOutcome wins: the others say that nothing
			// happened.
			if failed == nil || queue.TagOf(err) == queue.UnknownOutcome {
				failed = err
			}
			continue
		}
		for n, at := range parts[index] {
			receipts[at] = c.receipts[n]
		}
	}
	if failed != nil && len(calls) > 1 && queue.TagOf(failed) != queue.UnknownOutcome {
		return unknownOutcome(fmt.Sprintf("some of the jobs may have been enqueued; one shard says: %v", failed))
	}
	return failed
}

// enqueueCall submits jobs.
type enqueueCall struct {
	call
	jobs     []validJob
	receipts []queue.Receipt // of the jobs that are decided
}

// step decides jobs until it meets one whose ID is held.
func (c *enqueueCall) step(s *shard) progress {
	if c.next == 0 {
		if err := s.checkLimits(c); err != nil {
			c.refuse(err)
			return handled
		}
	}
	for ; c.next < len(c.jobs); c.next++ {
		j := &c.jobs[c.next]
		if state, held := s.ledger.Lookup(j.packed); held {
			return s.commits.waitForNewest(&c.call)
		} else if state != ledger.None {
			s.duplicate(c, j.id, stateOf(state))
			continue
		}
		if s.commits.size() > roundBytes {
			return later
		}
		s.enqueue(c, j)
	}
	return decided
}

// duplicate makes the receipt of an ID that is known. It waits until everything decided before it
// is durable.
func (s *shard) duplicate(c *enqueueCall, id string, state queue.State) {
	s.counts.duplicate()
	c.receipts = append(c.receipts, queue.Receipt{ID: id, Duplicate: true, State: state})
	s.commits.waitForAll(&c.call)
}

// enqueue adds the record of a new job, and its receipt.
func (s *shard) enqueue(c *enqueueCall, j *validJob) {
	state := queue.Waiting
	if r := s.commits.recordEnqueue(&c.call, j); r.RunAt > 0 {
		state = queue.Delayed
	}
	c.receipts = append(c.receipts, queue.Receipt{ID: j.id, State: state})
}

// fill fills in the Enqueue record of the job. Delays and times to live count from the record's
// time.
func (j *validJob) fill(r *ledger.Record) {
	r.Kind, r.PackedID, r.Type, r.Group = ledger.Enqueue, j.packed, j.jobType, j.group
	r.SharedPayload, r.Blob, r.Size, r.Priority, r.Policy = j.inline, j.blob, j.size, j.priority, j.policy
	r.RunAt = j.runAt
	if j.delay > 0 {
		r.RunAt = r.At + millis(j.delay)
	}
	if r.RunAt <= r.At {
		r.RunAt = 0
	}
	if j.ttl > 0 {
		r.Expires = r.At + j.ttl
	}
}

// checkLimits refuses a call that would exceed the shard's memory limits.
func (s *shard) checkLimits(c *enqueueCall) *queue.Error {
	if s.commits.full() {
		return s.commits.refusal()
	}
	var bytes int64
	for i := range c.jobs {
		bytes += int64(len(c.jobs[i].inline)) + 100
	}
	if jobs := s.ledger.Jobs() + s.commits.unapplied.jobs + len(c.jobs); jobs > s.settings.MaxJobs {
		return queueFull(fmt.Sprintf("the shard holds %d jobs, the limit is %d", s.ledger.Jobs(), s.settings.MaxJobs))
	}
	if s.ledger.Bytes()+s.commits.unapplied.bytes+bytes > s.settings.MaxBytes {
		return queueFull(fmt.Sprintf("the shard's jobs take %d bytes of memory, the limit is %d", s.ledger.Bytes(), s.settings.MaxBytes))
	}
	return nil
}

// upload writes the payloads that are too large for the log, before any record names them.
func (b *Broker) upload(ctx context.Context, shards map[int]*shard, jobs []validJob) error {
	for i := range jobs {
		j := &jobs[i]
		if j.payload == nil {
			continue
		}
		j.blob, j.size = shards[j.shard].payloads.newKey(j.payload), len(j.payload)
		if _, err := b.cfg.Bucket.Create(ctx, j.blob, j.payload); err != nil {
			return queue.Refuse(queue.Unavailable, "store the payload of job %q: %w", j.id, err)
		}
		j.payload = nil
	}
	return nil
}

// deleteUnused deletes uploaded payloads that no job refers to: of duplicates, and of calls that
// certainly failed.
func (b *Broker) deleteUnused(shards map[int]*shard, jobs []validJob, receipts []queue.Receipt, err error) {
	for i := range jobs {
		switch {
		case jobs[i].blob == "":
		case err == nil && receipts[i].Duplicate, err != nil && queue.TagOf(err) != queue.UnknownOutcome:
			shards[jobs[i].shard].payloads.delete(jobs[i].blob)
		}
	}
}

// blobPrefix returns the prefix of a shard's payload objects. Their keys begin with the epoch in
// which they were written, so that a later epoch can find unneeded ones, and end with a digest of
// the payload.
func blobPrefix(shard string) string { return shard + "/blob/" }

// digest returns the first 64 bits of the payload's SHA-256, in hexadecimal.
func digest(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:8])
}

// payloadOf reads a payload object. If its content does not match the key's digest, the error is
// blob.ErrCorrupt. Keys from before digests end with a UUID, whose last part is shorter; they are
// not checked.
func payloadOf(ctx context.Context, bucket blob.Bucket, key string) ([]byte, error) {
	o, err := bucket.Read(ctx, key)
	if err != nil {
		return nil, err
	}
	want := key[strings.LastIndexByte(key, '-')+1:]
	if got := digest(o.Data); len(want) == len(got) && want != got {
		return nil, fmt.Errorf("%w: the stored payload %s differs", blob.ErrCorrupt, key)
	}
	return o.Data, nil
}

func stateOf(s ledger.State) queue.State {
	return [...]queue.State{"", queue.Waiting, queue.Delayed, queue.Active, queue.Dead, queue.Completed, queue.Cancelled}[s]
}
