package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// calls calls the store. Each call has its own goroutine and exactly one answer: the store's, or an
// error when its time is over, whatever the store does with its context.
type calls struct {
	s *shell
	// inFlight are the calls not answered yet. Only the loop uses it.
	inFlight map[uint64]callInFlight
	// entering is closed when the newest call is about to enter the store. Calls therefore enter
	// the store in the order in which they were issued.
	entering chan struct{}
}

// callInFlight is a call in flight.
type callInFlight struct {
	call  member.Call
	began time.Time
}

func newCalls(s *shell) *calls {
	entering := make(chan struct{})
	close(entering)
	return &calls{s: s, inFlight: map[uint64]callInFlight{}, entering: entering}
}

// issue makes the call on its own goroutine. The answer goes to the inbox.
func (cs *calls) issue(call member.Call) {
	before, entering := cs.entering, make(chan struct{})
	cs.entering = entering
	cs.inFlight[call.ID] = callInFlight{call, time.Now()}
	ctx, cancel := context.WithTimeout(cs.s.background, call.Timeout)
	var once sync.Once
	reply := func(r member.Result) {
		once.Do(func() {
			r.ID = call.ID
			cs.s.c.inbox.push(r)
		})
	}
	late := context.AfterFunc(ctx, func() {
		reply(member.Result{Err: fmt.Errorf("%s: no answer within %v: %w", operation(call), call.Timeout, context.DeadlineExceeded)})
	})
	cs.s.goExternal(func() {
		defer cancel()
		<-before
		close(entering)
		r := cs.do(ctx, call)
		late()
		reply(r)
	})
}

// do calls the store.
func (cs *calls) do(ctx context.Context, call member.Call) (r member.Result) {
	store := cs.s.c.store
	switch {
	case call.Heartbeat != nil:
		r.Reply, r.Err = store.Heartbeat(ctx, *call.Heartbeat)
	case call.Report != nil:
		r.Outcomes, r.Err = store.Report(ctx, *call.Report)
	case call.Leave != nil:
		r.Err = store.Leave(ctx, *call.Leave)
	case call.Commit != nil:
		r.Outcomes, r.Err = store.Commit(ctx, *call.Commit)
	case call.Snapshot:
		r.Snapshot, r.Err = store.Snapshot(ctx)
	}
	return r
}

// operation returns the name of the call for people to read.
func operation(c member.Call) string {
	switch {
	case c.Heartbeat != nil:
		return "heartbeat"
	case c.Report != nil:
		return "report"
	case c.Leave != nil:
		return "leave"
	case c.Commit != nil:
		return "commit"
	}
	return "snapshot"
}

// answered handles an answer before the member does.
func (s *shell) answered(r member.Result) {
	q, ok := s.calls.inFlight[r.ID]
	if !ok {
		return
	}
	delete(s.calls.inFlight, r.ID)
	if isAnswer(r.Err) {
		s.c.lastAnswer.Store(int64(s.c.clock()))
	}
	var inUse *storage.IDInUseError
	if errors.As(r.Err, &inUse) {
		s.exits.addPeer(node.Member{Identity: inUse.Holder, Traits: node.Traits{Host: inUse.Host}})
	}
	if r.Reply != nil && r.Reply.Members != nil {
		s.exits.setPeers(r.Reply.Members)
	}
	if r.Snapshot != nil {
		s.exits.setPeers(r.Snapshot.Nodes)
	}
	s.stats.answered(q, r)
}
