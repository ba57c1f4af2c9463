package journal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/queue/internal/journal/format"
	"github.com/emitd/emitd/queue/internal/journal/owner"
	"github.com/emitd/emitd/storage/blob"
)

// never means that no wake-up is requested.
const never = time.Duration(math.MaxInt64)

// answer is a request with its result. It is large and passed by reference; otherwise it would be
// on the stack of each journal's goroutine all the time.
type answer struct {
	call   *owner.Call
	result owner.Result
}

// failed reports whether the request will be repeated because of a failure, and not because the
// protocol requires it.
func (a *answer) failed() bool {
	return a.result.Answer == owner.Failed || a.result.Answer == owner.Unknown || a.result.Answer == owner.Undecodable
}

// run drives the machine until it ends. It is the one goroutine on which answers and the passing of
// time reach the machine.
func (l *Log) run() {
	defer close(l.stopped)
	defer l.calls.Wait()
	defer l.cancel()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case a := <-l.answers:
			l.answered(a)
		case <-timer.C:
			l.step(func(now time.Duration) []owner.Effect {
				l.wakeAt = never
				return l.machine.Tick(now)
			})
		case <-l.timerChanged:
		case <-l.ctx.Done():
			l.step(func(time.Duration) []owner.Effect {
				return l.machine.Stop(fmt.Errorf("%w: %w", ErrClosed, context.Cause(l.ctx)))
			})
		case <-l.done:
			return
		}
		l.setTimer(timer)
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
	if l.cfg.Hooks.OnRetry != nil {
		l.cfg.Hooks.OnRetry(a.call.Op.String(), a.call.Attempt+1, a.result.Err)
	}
}

// step calls the machine, carries out its effects, and then calls the hooks without the lock.
func (l *Log) step(f func(now time.Duration) []owner.Effect) {
	l.mu.Lock()
	l.carryOut(f(l.now()))
	notices := l.pendingHooks
	l.pendingHooks = nil
	l.mu.Unlock()
	for _, n := range notices {
		n()
	}
}

// setTimer sets the timer to the machine's next wake-up.
func (l *Log) setTimer(timer *time.Timer) {
	l.mu.Lock()
	at := l.wakeAt
	l.mu.Unlock()
	if at == never {
		timer.Stop()
		return
	}
	timer.Reset(max(at-l.now(), 0))
}

// carryOut carries out effects. The caller holds mu, except during the takeover, when no other
// goroutine uses the log.
func (l *Log) carryOut(effects []owner.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case *owner.Call:
			l.calls.Go(func() { l.request(e) })
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
			select {
			case l.timerChanged <- struct{}{}:
			default:
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
		if f := l.cfg.Hooks.OnCheckpoint; f != nil {
			l.pendingHooks = append(l.pendingHooks, func() { f(p.UpTo, p.Bytes) })
		}
	}
	if f := l.cfg.Hooks.OnCollected; p.Collected && f != nil {
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
	close(l.done)
}

// request carries out one call and passes the answer to run, unless the log ends first.
func (l *Log) request(c *owner.Call) {
	if c.After > 0 {
		timer := time.NewTimer(c.After)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return
		}
	}
	a := &answer{call: c, result: l.do(c)}
	select {
	case l.answers <- a:
	case <-l.ctx.Done():
	case <-l.done:
	}
}

// errAssignmentExpired is why a request is not sent: the run's assignment has expired, so another node may be
// the owner.
var errAssignmentExpired = errors.New("the assignment is not trusted any more")

// do sends one request. Its time limit is CallTimeout, or what is left of the assignment if that is
// less.
func (l *Log) do(c *owner.Call) owner.Result {
	timeout := l.cfg.CallTimeout
	if left, ok := daemon.Validity(l.ctx); ok {
		timeout = min(timeout, left)
	}
	if timeout <= 0 {
		return owner.Result{ID: c.ID, Answer: owner.Failed, Err: errAssignmentExpired}
	}
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	return l.executor.Execute(ctx, c)
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
