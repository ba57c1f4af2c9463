package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
	"github.com/emitd/emitd/storage/blob"
)

// answer is a request with its result.
type answer struct {
	call   *owner.Call
	result owner.Result
}

// opening is what the requests of a takeover need. There may be hundreds at a time, and afterwards hardly any: so they have a
// context of their own, because a context never gets smaller.
type opening struct {
	ctx     context.Context
	cancel  context.CancelFunc
	calls   sync.WaitGroup // requests in flight
	answers chan *answer   // to the takeover
	over    chan struct{}  // closed after it: answers go to the machine
}

// failed reports whether the request will be repeated because of a failure, and not because the
// protocol requires it.
func (a *answer) failed() bool {
	return a.result.Answer == owner.Failed || a.result.Answer == owner.Unknown || a.result.Answer == owner.Undecodable
}

// start lets requests, the timer and the end of the context reach the machine, after the takeover. Each does so on
// a goroutine of its own that lasts as long as the event: an idle journal has no goroutine.
func (l *Log) start(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.opening
	l.opening = nil
	close(o.over)
	l.calls.Go(func() { o.calls.Wait(); o.cancel() })
	l.setTimer()
	l.unwatch = context.AfterFunc(ctx, func() {
		l.event(func(time.Duration) []owner.Effect {
			return l.machine.Stop(fmt.Errorf("%w: %w", ErrClosed, context.Cause(ctx)))
		})
	})
}

// event is step for what happens without a request. Close waits for it, unless the log has ended before.
func (l *Log) event(f func(now time.Duration) []owner.Effect) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.calls.Add(1)
	l.mu.Unlock()
	defer l.calls.Done()
	l.step(f)
}

// setTimer sets the timer to the machine's next wake-up, if it wants one. The machine does not mind a timer that
// fires once too often. The caller holds mu.
func (l *Log) setTimer() {
	wait := max(l.wakeAt-l.now(), 0)
	switch {
	case l.wakeAt == 0:
	case l.timer == nil:
		l.timer = time.AfterFunc(wait, func() { l.event(l.machine.Tick) })
	default:
		l.timer.Reset(wait)
	}
}

// answered passes an answer to the machine. An error that no repetition can mend stops the machine.
func (l *Log) answered(a *answer) {
	if a.failed() && l.ctx.Err() == nil {
		l.reportRetry(a)
	}
	l.step(func(now time.Duration) []owner.Effect {
		if fatal(a.result.Err, false) {
			return l.machine.Stop(fmt.Errorf("%s: %w", a.call.Op, a.result.Err))
		}
		return l.machine.Result(now, a.result)
	})
}

func (l *Log) reportRetry(a *answer) {
	if l.hooks.OnRetry != nil {
		l.inHook.Lock()
		defer l.inHook.Unlock()
		l.hooks.OnRetry(a.call.Op.String(), a.call.Attempt+1, a.result.Err)
	}
}

// step calls the machine, carries out its effects, and then calls the hooks without the lock.
func (l *Log) step(f func(now time.Duration) []owner.Effect) {
	l.mu.Lock()
	l.carryOut(f(l.now()))
	notices := l.pendingHooks
	l.pendingHooks = nil
	l.mu.Unlock()
	if len(notices) == 0 {
		return
	}
	l.inHook.Lock()
	defer l.inHook.Unlock()
	for _, n := range notices {
		n()
	}
}

// carryOut carries out effects. The caller holds mu, except during the takeover, when no other
// goroutine uses the log.
func (l *Log) carryOut(effects []owner.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case *owner.Call:
			if o := l.opening; o != nil {
				o.calls.Go(func() { l.requestOpening(o, e) })
			} else {
				l.calls.Go(func() { l.request(e) })
			}
		case owner.Owned:
			l.owned = true
		case owner.Ack:
			select { // replace the value that nobody has received
			case <-l.acks:
			default:
			}
			l.acks <- e.Slot
		case owner.SetTimer:
			l.wakeAt = e.At
			if l.unwatch != nil { // it was started
				l.setTimer()
			}
		case owner.Progress:
			l.progress(e)
		case owner.End:
			l.ended(e.Err)
		}
	}
}

func (l *Log) progress(p owner.Progress) {
	c := l.ckpt
	if p.Moved && c != nil {
		c.signal()
	}
	if p.Checkpointed && c != nil {
		c.end(nil)
		if f := l.hooks.OnCheckpoint; f != nil {
			l.pendingHooks = append(l.pendingHooks, func() { f(p.UpTo, p.Bytes) })
		}
	}
	if f := l.hooks.OnCollected; p.Collected && f != nil {
		l.pendingHooks = append(l.pendingHooks, func() { f(p.Deleted, p.Err) })
	}
}

func (l *Log) ended(err error) {
	if err == nil {
		err = ErrClosed
	}
	l.err = l.wrap(err)
	if l.ckpt != nil {
		l.ckpt.end(l.err)
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.unwatch()
	l.cancel()
	close(l.done)
}

// request carries out one call and passes the answer to the machine.
func (l *Log) request(c *owner.Call) {
	if a := l.do(l.ctx, c); a != nil {
		l.answered(a)
	}
}

// requestOpening carries out one call of a takeover. It passes the answer to the takeover or, after it, to the machine.
func (l *Log) requestOpening(o *opening, c *owner.Call) {
	a := l.do(o.ctx, c)
	if a == nil {
		return
	}
	select {
	case o.answers <- a:
	case <-o.over:
		l.answered(a)
	case <-o.ctx.Done():
	}
}

// errAssignmentExpired is why a request is not sent: the run's assignment has expired, so another node may be
// the owner.
var errAssignmentExpired = errors.New("the assignment is not trusted any more")

// do sends one request when it is due; nil: the context has ended before. The request's time limit is CallTimeout, or what is
// left of the assignment if that is less.
func (l *Log) do(ctx context.Context, c *owner.Call) *answer {
	if c.After > 0 && backoff.Sleep(ctx, c.After) != nil {
		return nil
	}
	timeout := l.callTimeout
	if left, ok := daemon.Validity(ctx); ok {
		timeout = min(timeout, left)
	}
	if timeout <= 0 {
		return &answer{c, owner.Result{ID: c.ID, Answer: owner.Failed, Err: errAssignmentExpired}}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if c.Op == owner.CreateSlot {
		ctx = backoff.Once(ctx) // the machine decides how many writes the store bears
	}
	return &answer{c, l.executor.Execute(ctx, c)}
}

// fatal reports whether a repetition is useless. A denial may pass while the journal is owned, when
// credentials are replaced; Open reports it at once.
func fatal(err error, opening bool) bool {
	if errors.Is(err, blob.ErrKey) || errors.Is(err, blob.ErrTooLarge) || errors.Is(err, blob.ErrUnfit) {
		return true
	}
	return opening && (errors.Is(err, blob.ErrDenied) || errors.Is(err, blob.ErrNoBucket))
}

// readError adds this package's kinds to the errors of Read.
func readError(err error) error {
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return fmt.Errorf("%w: %w", ErrMissing, err)
	case errors.Is(err, format.ErrNewer):
		return fmt.Errorf("%w: %w", ErrNewer, err)
	case errors.Is(err, format.ErrCorrupt):
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}
