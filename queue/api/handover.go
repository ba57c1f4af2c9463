package api

import (
	"errors"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// defaultPatience is longer than a clean hand-over takes on most stores, and short for a caller
// during the takeover after a crash.
const defaultPatience = time.Second

// errMoved is the cause of Unavailable when a broker refused because it does not serve the queue,
// or not yet.
var errMoved = errors.New("it has moved")

// at makes a call at one place. If the queue is between two brokers, the call waits here and is
// made at the next one, so that callers notice a hand-over only as a delay. A broker that refuses
// because it no longer serves the queue, or cannot be reached, has done nothing. So no call takes
// effect twice.
func at[T any](f *Forwarder, name string, p place, do func(p place) (T, error)) (T, error) {
	out, err := ask(f, name, p, do)
	if err == nil || !f.moving(p, err) {
		return out, err
	}
	h := handover{f: f, name: name, until: time.Now().Add(f.cfg.Patience), look: firstLook}
	for err != nil && f.moving(p, err) {
		next, found := h.next(p)
		if !found {
			break
		}
		p = next
		out, err = ask(f, name, p, do)
	}
	return out, err
}

// ask makes a call at one place, once.
func ask[T any](f *Forwarder, name string, p place, do func(p place) (T, error)) (T, error) {
	if p.err != nil {
		var none T
		return none, p.err
	}
	out, err := do(p)
	return out, f.settled(p, name, err)
}

// moving reports whether a refusal means that another broker may answer soon.
func (f *Forwarder) moving(p place, err error) bool {
	switch {
	case f.cfg.Patience < 0 || hopOf(p.asked).forwarded || queue.TagOf(err) != queue.Unavailable:
		return false
	case p.err != nil || p.svc == f.cfg.Local:
		return errors.Is(err, errMoved)
	}
	return true // another node, which may have ended
}

// handover is the state of a call that waits for the next broker.
type handover struct {
	f     *Forwarder
	name  string
	until time.Time
	look  time.Duration // the pause before the next attempt
}

const (
	firstLook = 5 * time.Millisecond
	lastLook  = 40 * time.Millisecond
)

// next waits until the shards of a place have another broker. It returns the broker of this process
// even if nothing has changed, because its run may have started anew.
func (h *handover) next(p place) (place, bool) {
	for {
		if d, ok := h.f.cfg.Locator.(client.Doubter); ok {
			d.Doubt()
		}
		next, ok := h.f.rerouted(p, h.name)
		if ok && (next.svc != p.svc || next.generation != p.generation) {
			return next, true
		}
		if time.Now().Add(h.look).After(h.until) || !pause(p.asked, h.look) {
			return p, false
		}
		h.look = min(2*h.look, lastLook)
		if ok && next.svc == h.f.cfg.Local {
			return next, true
		}
	}
}

// rerouted returns where the shards of a place are now. It returns false if they are nowhere, or on
// several nodes.
func (f *Forwarder) rerouted(p place, name string) (place, bool) {
	next := f.route(p.asked, name, p.first)
	for _, shard := range p.shards {
		if shard != p.first && f.route(p.asked, name, shard).svc != next.svc {
			return p, false
		}
	}
	if next.shards = p.shards; p.part {
		next = next.on(p.shards...)
	}
	return next, next.err == nil
}
