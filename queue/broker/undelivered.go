package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// maxPayloadReads is how many payload objects of a claim are read concurrently.
const maxPayloadReads = 16

// A job whose payload could not be read can be claimed again after unreadableWait. The wait doubles
// each time, up to unreadableMaxWait.
const (
	unreadableWait    = time.Second
	unreadableMaxWait = time.Minute
)

// undelivered is a claim that was made and reached no worker.
type undelivered struct {
	number   uint64
	epoch    int64
	delivery int
	nonce    uint32
	err      error // why its payload could not be read; nil: the caller had gone
}

func (h *claimedJob) undelivered(err error) undelivered {
	j := &h.job
	return undelivered{number: j.Number, epoch: j.Epoch, delivery: j.Deliveries, nonce: j.Nonce, err: err}
}

// addPayloads adds the payloads that are objects of their own, and returns the claims that can be
// handed out. It sends the others back to their shards; if the caller has gone, all claims of a call that cannot be repeated. The
// error is set only if the caller has gone, or if no claim can be handed out now but one may be later.
func (b *Broker) addPayloads(ctx context.Context, got []claimedJob, out []queue.Claimed, req *queue.ClaimRequest) ([]queue.Claimed, error) {
	errs := b.fetch(ctx, got, out)
	gone := ctx.Err() != nil // the caller gets none of them
	switch {
	case gone && req.RequestID != "" && errs != nil: // the repeated call gets the claims, or has them already
		return nil, canceled(ctx, queue.UnknownOutcome)
	case errs != nil:
	case gone && req.RequestID == "":
		errs = make([]error, len(got))
	default:
		return out, nil
	}
	back := map[*shard][]undelivered{}
	kept := out[:0]
	var later error
	for i, err := range errs {
		if err == nil && !gone {
			kept = append(kept, out[i])
			continue
		}
		s := got[i].shard
		back[s] = append(back[s], got[i].undelivered(err))
		if err != nil && !errors.Is(err, blob.ErrNotFound) {
			later = queue.Refuse(queue.Unavailable, "read the payload of job %q: %w", got[i].job.ID, err)
		}
	}
	for s, jobs := range back {
		s.releaseUndelivered(jobs)
	}
	if later != nil {
		b.cfg.Logger.WarnContext(ctx, "cannot read payloads of claimed jobs; the jobs wait again", "queue", got[0].shard.name, "error", later)
	}
	switch {
	case gone:
		return nil, canceled(ctx, queue.Unavailable)
	case len(kept) > 0:
		return kept, nil
	}
	return kept, later
}

// fetch reads payloads into out that are not in memory: objects of their own, and those in segments. It
// returns one error per job, or nil if all reads succeeded. A read may take half of the visibility timeout; a worker could not do much with the
// rest.
func (b *Broker) fetch(ctx context.Context, got []claimedJob, out []queue.Claimed) []error {
	var errs []error
	var all errgroup.Group
	all.SetLimit(maxPayloadReads)
	for i := 0; i < len(got); {
		j := &got[i].job
		from := i
		for i++; i < len(got) && got[from].inSameSegment(&got[i]); i++ { // one goroutine reads all of them
		}
		if !got[from].unread() {
			continue
		}
		if errs == nil {
			errs = make([]error, len(got))
		}
		all.Go(func() (failed error) {
			ctx, cancel := context.WithTimeout(ctx, millisecond(j.Visibility)/2)
			defer cancel()
			for n := from; n < i; n++ {
				payload, err := b.readPayload(ctx, &got[n])
				if err == nil {
					out[n].Payload = payload
				}
				errs[n], failed = err, errors.Join(failed, err)
			}
			return failed
		})
	}
	if all.Wait() == nil {
		return nil
	}
	return errs
}

// unread reports whether the job's payload is not in memory.
func (h *claimedJob) unread() bool {
	return h.job.Blob != "" || h.job.Slot != 0 && h.job.Payload == ""
}

// inSameSegment reports whether the payloads of both jobs must be read from the same segment.
func (h *claimedJob) inSameSegment(o *claimedJob) bool {
	return h.unread() && o.unread() && h.job.Slot != 0 && h.job.Slot == o.job.Slot && h.shard == o.shard
}

// readPayload reads the payload of a claimed job.
func (b *Broker) readPayload(ctx context.Context, h *claimedJob) ([]byte, error) {
	if h.job.Blob != "" {
		return payloadOf(ctx, b.cfg.Bucket, h.job.Blob)
	}
	return b.segmentPayload(ctx, h.shard, payloadPlace{h.job.Number, h.id, h.job.Slot})
}

// payloadObject names the object that has the job's payload.
func (s *shard) payloadObject(j *ledger.Job) string {
	if j.Blob != "" {
		return j.Blob
	}
	return journal.SlotKey(s.prefix, j.Slot)
}

// releaseUndelivered sends claims that reached no worker back to the shard. It does not wait until the
// release is written, because no answer rests on it. If the shard's run has ended, nothing is
// needed: at its successor, the claims expire.
func (s *shard) releaseUndelivered(jobs []undelivered) {
	c := &releaseCall{undelivered: jobs}
	c.call = newCall(c)
	s.post(&c.call)
}

// callerGone tells the shard that the caller of a claim call has gone, so that its jobs are released. A
// call with a request ID keeps its claims for the repeated call.
func callerGone(s *shard, gone *claimCall) {
	if gone.request.RequestID != "" {
		return
	}
	c := &releaseCall{abandoned: gone}
	c.call = newCall(c)
	s.post(&c.call)
}

// releaseCall releases claims that reached no worker.
type releaseCall struct {
	call
	undelivered []undelivered
	abandoned   *claimCall // the claim call whose caller has gone; nil: undelivered is complete
}

// step releases the claims. They count as no attempts and as no deliveries toward the job's death. A job whose
// payload object is gone dies: nobody could ever work on it.
func (c *releaseCall) step(s *shard) progress {
	if c.abandoned != nil { // it came into the inbox before this call, so it has been decided
		for i := range c.abandoned.claimed {
			c.undelivered = append(c.undelivered, c.abandoned.claimed[i].undelivered(nil))
		}
		c.abandoned = nil
	}
	for ; c.next < len(c.undelivered); c.next++ {
		u := &c.undelivered[c.next]
		j, ok := s.ledger.JobWithoutPayload(u.number)
		switch {
		case ok && j.Held:
			return s.commits.waitForNewest(&c.call)
		case !ok || j.State != ledger.Active || j.Begun || j.Epoch != u.epoch || j.Deliveries != u.delivery || j.Nonce != u.nonce:
			continue // the claim is over, or the call was repeated and the worker got that answer
		}
		r := ledger.Record{Kind: ledger.Release, Numbers: []uint64{u.number}, Undelivered: true}
		switch {
		case errors.Is(u.err, blob.ErrNotFound):
			r.Kind, r.Cause = ledger.DeadLetter, fmt.Sprintf("given up after %d attempts: its payload, the object %s, is missing", j.Attempts, s.payloadObject(&j))
		case j.DeliveriesEnded():
			r.Kind, r.Cause = ledger.DeadLetter, exhausted(&j, "it never reached a worker")
		case u.err != nil:
			r.Cause = truncate("its payload could not be read: "+u.err.Error(), queue.MaxCause)
			r.RunAt = s.clock.now + millis(min(unreadableWait<<min(j.UncountedDeliveries, 10), unreadableMaxWait))
		}
		s.commits.record(&c.call, &r)
	}
	return decided
}
