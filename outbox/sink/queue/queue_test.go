package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/queue"
	"github.com/emitd/emitd/outbox/sink/sinktest"
	daemonqueue "github.com/emitd/emitd/queue"
)

// producer is a broker that takes calls as a whole and drops repeated IDs.
type producer struct {
	mu     sync.Mutex
	jobs   []daemonqueue.Job
	queues []string
	known  map[string]bool
	faults map[string]sinktest.Fault
	err    error
}

func (p *producer) Enqueue(ctx context.Context, name string, jobs []daemonqueue.Job) ([]daemonqueue.Receipt, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	for _, j := range jobs {
		fault := p.faults[j.ID]
		switch {
		case len(j.Group) > daemonqueue.MaxType || fault == sinktest.Refuse:
			return nil, daemonqueue.Refuse(daemonqueue.BadRequest, "job %s makes no sense", j.ID)
		case fault == sinktest.Falter:
			return nil, daemonqueue.Refuse(daemonqueue.UnknownOutcome, "the write was not answered")
		case fault == sinktest.Hang:
			p.mu.Unlock()
			<-ctx.Done()
			p.mu.Lock()
			return nil, ctx.Err()
		}
	}
	receipts := make([]daemonqueue.Receipt, len(jobs))
	for i, j := range jobs {
		receipts[i] = daemonqueue.Receipt{ID: j.ID, Duplicate: p.known[j.ID]}
		if !p.known[j.ID] {
			p.known[j.ID] = true
			p.jobs, p.queues = append(p.jobs, j), append(p.queues, name)
		}
	}
	return receipts, nil
}

func (p *producer) fail(_ *testing.T, f sinktest.Fault, ids []uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f == sinktest.Down {
		p.err = daemonqueue.Refuse(daemonqueue.Unavailable, "no broker")
	}
	p.faults = map[string]sinktest.Fault{}
	for _, id := range ids {
		p.faults[id.String()] = f
	}
}

func (p *producer) received(*testing.T) []sinktest.Taken {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []sinktest.Taken
	for _, j := range p.jobs {
		out = append(out, sinktest.Taken{ID: j.ID, Key: j.Group})
	}
	return out
}

func open(t *testing.T, cfg queue.Config) (*queue.Sink, *producer) {
	t.Helper()
	p := &producer{known: map[string]bool{}}
	cfg.Producer = p
	s, err := queue.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

func TestSuite(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]queue.Config{"topics": {Rows: 10}, "one queue": {Queue: "work", Rows: 7}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sinktest.Suite{Atomic: true, Dedup: true, New: func(t *testing.T) *sinktest.Harness {
				s, p := open(t, cfg)
				return &sinktest.Harness{Sink: s, Received: p.received, Fail: p.fail}
			}}.Run(t)
		})
	}
}

func TestJob(t *testing.T) {
	t.Parallel()
	s, p := open(t, queue.Config{Envelope: true})
	rows := sinktest.Rows("work", 2, 1)
	rows[0].Key, rows[1].Payload = strings.Repeat("k", 100), []byte{0xff}
	if errs := s.Deliver(t.Context(), sinktest.Delivery(rows)); errs != nil {
		t.Fatal(errs)
	}
	for i, j := range p.jobs {
		var e struct {
			ID, Topic, Key, Type string
			Headers              map[string]string
			Payload              any
			Base64               []byte `json:"payload_base64"`
		}
		if err := json.Unmarshal(j.Payload, &e); err != nil {
			t.Fatal(err)
		}
		row := rows[0]
		if j.ID == rows[1].ID.String() {
			row = rows[1]
		}
		if e.ID != row.ID.String() || e.Topic != "work" || e.Key != row.Key || e.Headers["tenant"] != "acme" || j.Type != "order.placed" ||
			len(j.Group) > daemonqueue.MaxType || (e.Payload == nil) == (e.Base64 == nil) || p.queues[i] != "work" {
			t.Errorf("job %d: %+v, %+v", i, j, e)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tag   daemonqueue.Tag
		fixed bool
		kind  error
	}{
		{daemonqueue.BadRequest, false, outbox.ErrPermanent},
		{daemonqueue.PayloadTooLarge, false, outbox.ErrPermanent},
		{daemonqueue.QueueNotFound, false, outbox.ErrMissing},
		{daemonqueue.QueueNotFound, true, outbox.ErrSinkDown},
		{daemonqueue.Unauthorized, false, outbox.ErrSinkDown},
		{daemonqueue.QueueFull, false, outbox.ErrSinkDown},
		{daemonqueue.QueueNotOwner, false, outbox.ErrSinkDown},
		{daemonqueue.Unavailable, false, outbox.ErrSinkDown},
		{daemonqueue.UnknownOutcome, false, nil},
	} {
		cfg := queue.Config{}
		if c.fixed {
			cfg.Queue = "work"
		}
		s, p := open(t, cfg)
		refusal := daemonqueue.Refuse(c.tag, "no")
		refusal.RetryAfter = time.Second
		p.err = refusal
		err := s.Deliver(t.Context(), sinktest.Delivery(sinktest.Rows("work", 1, 1)))[0]
		permanent, down := errors.Is(err, outbox.ErrPermanent), errors.Is(err, outbox.ErrSinkDown)
		if c.kind != nil && !errors.Is(err, c.kind) || permanent != errors.Is(c.kind, outbox.ErrPermanent) || down != errors.Is(c.kind, outbox.ErrSinkDown) {
			t.Errorf("%s: %v, want %v", c.tag, err, c.kind)
		}
		if retry, ok := errors.AsType[*outbox.RetryAfterError](err); !permanent && (!ok || retry.After != time.Second) {
			t.Errorf("%s: %v does not say when to try again", c.tag, err)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, cfg := range []queue.Config{{}, {Producer: &producer{}, Rows: daemonqueue.MaxCall + 1}, {Producer: &producer{}, Timeout: -1}} {
		if _, err := queue.New(t.Context(), cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}
