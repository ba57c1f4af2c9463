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
	// open are the calls not answered yet. Only the loop uses it.
	open map[uint64]asked
	// entering is closed when the newest call is about to enter the store. Calls therefore enter
	// the store in the order in which they were issued.
	entering chan struct{}
}

// asked is a call in flight.
type asked struct {
	call  member.Call
	began time.Time
}

func newCalls(s *shell) *calls {
	entering := make(chan struct{})
	close(entering)
	return &calls{s: s, open: map[uint64]asked{}, entering: entering}
}

// issue makes the call on its own goroutine. The answer goes to the inbox.
func (cs *calls) issue(call member.Call) {
	before, entering := cs.entering, make(chan struct{})
	cs.entering = entering
	cs.open[call.ID] = asked{call, time.Now()}
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
	cs.s.foreign(func() {
		defer cancel()
		<-before
		close(entering)
		r := cs.ask(ctx, call)
		late()
		reply(r)
	})
}

// ask calls the store.
func (cs *calls) ask(ctx context.Context, call member.Call) (r member.Result) {
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
	q, ok := s.calls.open[r.ID]
	if !ok {
		return
	}
	delete(s.calls.open, r.ID)
	if isAnswer(r.Err) {
		s.c.answered.Store(int64(s.c.clock()))
	}
	var inUse *storage.IDInUseError
	if errors.As(r.Err, &inUse) {
		s.witness.meet(node.Member{Identity: inUse.Holder, Traits: node.Traits{Host: inUse.Host}})
	}
	if r.Reply != nil && r.Reply.Members != nil {
		s.witness.see(r.Reply.Members)
	}
	if r.Snapshot != nil {
		s.witness.see(r.Snapshot.Nodes)
	}
	s.stats.answered(q, r)
}
