package api

import (
	"errors"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// defaultHandoverWait is longer than a clean hand-over takes on most stores, and short for a caller
// during the takeover after a crash.
const defaultHandoverWait = time.Second

// errNotServedHere is the cause of Unavailable when a broker refused because it does not serve the queue,
// or not yet.
var errNotServedHere = errors.New("it has moved")

// callAt makes a call at one place. If the queue is between two brokers, the call waits here and is
// made at the next one, so that callers notice a hand-over only as a delay. A broker that refuses
// because it no longer serves the queue, or cannot be reached, has done nothing. So no call takes
// effect twice.
func callAt[T any](f *Forwarder, name string, p shardHolder, do func(p shardHolder) (T, error)) (T, error) {
	out, err := callOnce(f, name, p, do)
	if err == nil || !f.betweenBrokers(p, err) {
		return out, err
	}
	h := handover{f: f, name: name, until: time.Now().Add(f.cfg.HandoverWait)}
	for err != nil && f.betweenBrokers(p, err) {
		next, found := h.next(p, notYetServing(err))
		if !found {
			break
		}
		p = next
		out, err = callOnce(f, name, p, do)
	}
	return out, err
}

// callOnce makes a call at one place, once.
func callOnce[T any](f *Forwarder, name string, p shardHolder, do func(p shardHolder) (T, error)) (T, error) {
	if p.err != nil {
		var none T
		return none, p.err
	}
	out, err := do(p)
	return out, f.mapNotOwner(p, name, err)
}

// betweenBrokers reports whether a refusal means that another broker may answer soon.
func (f *Forwarder) betweenBrokers(p shardHolder, err error) bool {
	switch {
	case f.cfg.HandoverWait < 0 || hopOf(p.callerCtx).forwarded || queue.TagOf(err) != queue.Unavailable:
		return false
	case p.err != nil || p.svc == f.cfg.Local:
		return errors.Is(err, errNotServedHere)
	}
	return true // another node, which may have ended
}

// notYetServing reports whether a broker refused because it does not serve the queue, or not yet. A node that
// got a forwarded call says so by the Retry-After of noBroker.
func notYetServing(err error) bool {
	e, ok := errors.AsType[*queue.Error](err)
	return ok && e.Tag == queue.Unavailable && e.RetryAfter == forwardRetry
}

// handover is the state of a call that waits for the next broker.
type handover struct {
	f        *Forwarder
	name     string
	until    time.Time
	attempts int // how often the next broker was looked for
}

// nextBrokerPauses are the pauses between looking for the next broker.
var nextBrokerPauses = backoff.Policy{First: 5 * time.Millisecond, Limit: 40 * time.Millisecond}

// next waits for the broker to call next. It returns another broker at once. It returns the same one after
// a pause if that does not serve the queue: its run may have started only now, because this node can
// learn of an assignment before the assigned node does. A broker that is unavailable for another reason
// is not called again, because repeated calls would add to its trouble. If the queue has another number of shards by
// now, there is no next broker: the call must be split anew.
func (h *handover) next(p shardHolder, notServing bool) (shardHolder, bool) {
	for {
		if d, ok := h.f.cfg.Locator.(client.Invalidator); ok {
			d.Invalidate()
		}
		next, ok := h.f.rerouted(p, h.name)
		if ok && (next.svc != p.svc || next.generation != p.generation) {
			return next, true
		}
		h.attempts++
		pause := nextBrokerPauses.After(h.attempts)
		if time.Now().Add(pause).After(h.until) || h.f.resharded(p.callerCtx, h.name, p.count) || backoff.Sleep(p.callerCtx, pause) != nil {
			return p, false
		}
		if ok && (notServing || next.svc == h.f.cfg.Local) {
			return next, true
		}
	}
}

// rerouted returns where the shards of a place are now. It returns false if they are nowhere, or on
// several nodes.
func (f *Forwarder) rerouted(p shardHolder, name string) (shardHolder, bool) {
	next := f.route(p.callerCtx, name, p.first)
	next.count = p.count
	for _, shard := range p.shards {
		if shard != p.first && f.route(p.callerCtx, name, shard).svc != next.svc {
			return p, false
		}
	}
	if next.shards = p.shards; p.part {
		next = next.on(p.shards...)
	}
	return next, next.err == nil
}
