package mem

import (
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// FaultKind is what goes wrong with a call.
type FaultKind int

// The kinds of faults. Those that make no sense for a call (a torn read of a write) do nothing.
const (
	// NoFault lets the call happen.
	NoFault FaultKind = iota

	// Conflict: the store is busy with another write of the key (409). Nothing happens;
	// blob.ErrUnavailable.
	Conflict

	// Refused: a conditional write is refused although its condition is true (412), as if another
	// write had been first and was undone again. Nothing happens; blob.ErrExists or
	// blob.ErrChanged.
	Refused

	// Throttled: the store requests a lower rate (503). Nothing happens; blob.ErrThrottled
	// with Delay as the time to wait.
	Throttled

	// Unavailable: the store was not reached. Nothing happens; blob.ErrUnavailable.
	Unavailable

	// Denied: blob.ErrDenied, nothing happens.
	Denied

	// LostRequest: nothing happens, but the outcome is unknown: blob.ErrUnknownOutcome for a write,
	// blob.ErrUnavailable for a read.
	LostRequest

	// LostReply: the call happens, and the answer is lost. For the caller it is like LostRequest.
	LostReply

	// Late: the answer is that of LostRequest. The write arrives after Delay, and its condition is
	// checked then. If Delay is 0, it arrives when DeliverLate is called.
	Late

	// TornRead: a read returns half of the bytes with the whole object's version and no error.
	TornRead

	// ConditionIgnored: Create and Replace happen whatever the object is.
	ConditionIgnored
)

var faultNames = map[FaultKind]string{
	NoFault: "no fault", Conflict: "conflict", Refused: "refused", Throttled: "throttled",
	Unavailable: "unavailable", Denied: "denied", LostRequest: "lost request", LostReply: "lost reply",
	Late: "late", TornRead: "torn read", ConditionIgnored: "condition ignored",
}

// String names the kind.
func (k FaultKind) String() string { return faultNames[k] }

// Fault is one thing that goes wrong. The zero Fault is none.
type Fault struct {
	Kind  FaultKind
	Delay time.Duration // of Late and Throttled
	Hang  bool          // answer only once the caller's context has ended
}

// injection is a fault that waits for its call.
type injection struct {
	op    Op
	key   string // "" is any
	fault Fault
}

// lateWrite is a write in flight that has not arrived.
type lateWrite struct {
	call   Call
	due    time.Time // zero: only DeliverLate lands it
	effect func(Fault) error
}

// Inject queues faults for the next calls of a method on a key ("" is any key): the first fault for
// the first such call, and so on. A zero Fault lets a call succeed.
func (b *Bucket) Inject(op Op, key string, faults ...Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range faults {
		b.injected = append(b.injected, injection{op: op, key: key, fault: fault})
	}
}

// LateWrites returns the writes that have not arrived yet, in the order of their calls.
func (b *Bucket) LateWrites() []Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deliverDue(false)
	calls := make([]Call, 0, len(b.late))
	for _, w := range b.late {
		calls = append(calls, w.call)
	}
	return calls
}

// DeliverLate makes all late writes arrive now, in the order of their calls, and returns how many took
// effect.
func (b *Bucket) DeliverLate() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.deliverDue(true)
}

// DeliverLateCall makes the late write of call number n arrive now and reports whether it took effect.
func (b *Bucket) DeliverLateCall(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, w := range b.late {
		if w.call.N == n {
			b.late = slices.Delete(b.late, i, i+1)
			return w.effect(Fault{}) == nil
		}
	}
	return false
}

// deliverDue makes the late writes arrive that are due, or all.
func (b *Bucket) deliverDue(all bool) int {
	if len(b.late) == 0 {
		return 0
	}
	now, landed := b.config.Now(), 0
	b.late = slices.DeleteFunc(b.late, func(w lateWrite) bool {
		if !all && (w.due.IsZero() || w.due.After(now)) {
			return false
		}
		if w.effect(Fault{}) == nil {
			landed++
		}
		return true
	})
	return landed
}

// pick finds the fault of a call.
func (b *Bucket) pick(call Call) Fault {
	for i, in := range b.injected {
		if in.op == call.Op && (in.key == "" || in.key == call.Key) {
			b.injected = slices.Delete(b.injected, i, i+1)
			return in.fault
		}
	}
	if b.config.Faults != nil {
		return b.config.Faults(call)
	}
	return Fault{}
}

// apply carries out the call as its fault allows.
func (b *Bucket) apply(call Call, fault Fault, effect func(Fault) error) error {
	answer := &blob.Error{Op: string(call.Op), Key: call.Key, Err: fmt.Errorf("injected: %v", fault.Kind)}
	switch fault.Kind {
	case Conflict, Unavailable:
		answer.Kind = blob.ErrUnavailable
	case Denied:
		answer.Kind = blob.ErrDenied
	case Throttled:
		answer.Kind, answer.RetryAfter = blob.ErrThrottled, fault.Delay
	case Refused:
		switch call.Op {
		case Create:
			answer.Kind = blob.ErrExists
		case Replace:
			answer.Kind = blob.ErrChanged
		default:
			return fail(call, effect(fault))
		}
	case LostRequest, LostReply, Late:
		b.applyLost(call, fault, effect)
		answer.Unknown = call.Op.writes()
		if !answer.Unknown {
			answer.Kind = blob.ErrUnavailable
		}
	default:
		return fail(call, effect(fault))
	}
	return answer
}

// applyLost carries out a call whose answer is lost.
func (b *Bucket) applyLost(call Call, fault Fault, effect func(Fault) error) {
	switch {
	case fault.Kind == LostReply:
		_ = effect(fault) // the answer is lost, whatever it is
	case fault.Kind == Late && call.Op.writes():
		w := lateWrite{call: call, effect: effect}
		if fault.Delay > 0 {
			w.due = b.config.Now().Add(fault.Delay)
		}
		b.late = append(b.late, w)
	}
}
