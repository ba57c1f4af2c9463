package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// Do carries out a command shard by shard, and returns how many jobs it affected. If it affected none because a job that
// it names cannot be redriven, it says so.
func (b *Broker) Do(ctx context.Context, name string, cmd queue.Command) (int, error) {
	set, err := b.beginListed(ctx, name)
	if err != nil {
		return 0, err
	}
	if refusal := checkCommand(&cmd); refusal != nil {
		return 0, refusal
	}
	shards, err := b.requestedShards(ctx, set)
	if err != nil {
		return 0, err
	}
	met, refusedID := 0, ""
	for n, s := range shards {
		c := &commandCall{command: &cmd}
		c.call = newCall(c)
		if err := s.do(ctx, &c.call); err != nil {
			if n > 0 && queue.TagOf(err) != queue.UnknownOutcome { // it was carried out on the shards before
				err = errors.Join(unknownOutcome(fmt.Sprintf("the action was carried out on %d of %d shards", n, len(shards))), err)
			}
			return met, err
		}
		met += c.affected
		refusedID = cmp.Or(refusedID, c.refusedID)
	}
	if met == 0 && refusedID != "" {
		return 0, queue.Refuse(queue.BadRequest, "job %q was delivered as often as a job can be, %d times: it cannot be redriven", refusedID, ledger.MaxDeliveries).
			WithHint("submit it anew with another id, and cancel this one")
	}
	return met, nil
}

// checkCommand validates a command.
func checkCommand(cmd *queue.Command) *queue.Error {
	switch {
	case !slices.Contains([]queue.Act{queue.Cancel, queue.Redrive, queue.RunNow, queue.Purge, queue.Pause, queue.Resume}, cmd.Act):
		return queue.Refuse(queue.BadRequest, "the action %.20q is not one of cancel, redrive, retry, purge, pause, resume", cmd.Act)
	case cmd.IDs != nil && len(cmd.IDs) == 0: // a caller that found no job does not mean all of them
		return queue.Refuse(queue.BadRequest, "the list of IDs is empty").WithHint("name jobs, or leave the list out for all jobs")
	case len(cmd.IDs) > queue.MaxCall:
		return queue.Refuse(queue.TooManyJobs, "%d IDs in one call, the limit is %d", len(cmd.IDs), queue.MaxCall)
	case len(cmd.IDs) > 0 && (cmd.Act == queue.Purge || cmd.Act == queue.Pause || cmd.Act == queue.Resume):
		return queue.Refuse(queue.BadRequest, "%s takes no IDs", cmd.Act)
	case cmd.State != "" && cmd.Act != queue.Purge:
		return queue.Refuse(queue.BadRequest, "%s takes no state", cmd.Act)
	case !slices.Contains([]queue.State{"", queue.Waiting, queue.Delayed, queue.Active, queue.Dead}, cmd.State):
		return queue.Refuse(queue.BadRequest, "jobs of the state %.20q cannot be purged", cmd.State).WithHint("states that can be purged: waiting, delayed, active, dead")
	}
	for _, id := range cmd.IDs {
		if err := checkID(id); err != nil {
			return err
		}
	}
	return nil
}

// appliesTo reports whether the command applies to a job.
func appliesTo(cmd *queue.Command, j *ledger.Job) bool {
	s := j.State
	if cmd.Type != "" && cmd.Type != j.Type {
		return false
	}
	switch cmd.Act {
	case queue.Cancel: // a job that is named by ID may be dead, too
		return s != ledger.Dead || len(cmd.IDs) > 0
	case queue.Redrive:
		return s == ledger.Dead && !j.DeliveriesEnded()
	case queue.RunNow:
		return s == ledger.Delayed
	case queue.Purge:
		return stateOf(s) == cmd.State || cmd.State == "" && s != ledger.Active
	default:
		return false
	}
}

const (
	commandJobs        = 500    // jobs in one record
	maxCommandExamined = 10_000 // jobs that are examined in one step
)

var commandKinds = map[queue.Act]ledger.Kind{
	queue.Cancel: ledger.Cancel, queue.Redrive: ledger.Redrive, queue.RunNow: ledger.MakeReady, queue.Purge: ledger.Purge, queue.Pause: ledger.Pause, queue.Resume: ledger.Resume,
}

// commandCall carries out an operator's command.
type commandCall struct {
	call
	command   *queue.Command
	number    uint64 // number of the next job to look at
	limit     uint64 // bound of number: later jobs are not meant
	affected  int
	refusedID string // a dead job that the command names and that cannot be redriven
}

// step makes one record for up to commandJobs jobs. It returns later if there are more.
func (c *commandCall) step(s *shard) progress {
	cmd := c.command
	if s.commits.full() {
		switch {
		case c.wrote && s.commits.budget.left() > 0: // that may last for hours
			c.refuse(queue.Refuse(queue.UnknownOutcome, "%d jobs are changed: %w", c.affected, s.commits.refusal()))
			return handled
		case c.wrote && !s.commits.idle():
			return s.commits.waitForNewest(&c.call) // continues when a batch is durable and there may be room again
		case c.wrote:
			return later
		}
		c.refuse(s.commits.refusal())
		return handled
	}
	if cmd.Act == queue.Pause || cmd.Act == queue.Resume {
		s.commits.record(&c.call, &ledger.Record{Kind: commandKinds[cmd.Act]})
		return decided
	}
	if len(cmd.IDs) > 0 {
		return s.commandIDs(c)
	}
	return s.commandAll(c)
}

// commandIDs makes a record for the jobs that the command names. It parks the call at the first one
// that is held.
func (s *shard) commandIDs(c *commandCall) progress {
	r := ledger.Record{Kind: commandKinds[c.command.Act]}
	wait := false
	for ; c.next < len(c.command.IDs); c.next++ {
		id := c.command.IDs[c.next]
		j, ok := s.ledger.Find(id)
		_, held := s.ledger.Lookup(ledger.Pack(id)) // an enqueue of it may be in flight
		if wait = held || ok && slices.Contains(r.Numbers, j.Number); wait {
			break
		}
		if !ok && c.command.Act == queue.Cancel {
			s.commits.waitForAll(&c.call)
		}
		switch {
		case !ok:
		case appliesTo(c.command, &j):
			r.Numbers = append(r.Numbers, j.Number)
		case c.command.Act == queue.Redrive && j.State == ledger.Dead && j.DeliveriesEnded():
			c.refusedID = id
		}
	}
	if len(r.Numbers) > 0 {
		c.affected += len(r.Numbers)
		s.commits.record(&c.call, &r)
	}
	if wait {
		return s.commits.waitForNewest(&c.call)
	}
	return decided
}

// commandAll makes a record for the next jobs to which the command applies, in the order of their
// numbers.
func (s *shard) commandAll(c *commandCall) progress {
	if c.limit == 0 { // jobs that are submitted later are not meant
		c.limit = s.ledger.Stats().Next
	}
	r := ledger.Record{Kind: commandKinds[c.command.Act]}
	seen, end, wait := 0, true, false
	s.ledger.EachFrom(c.number, func(j ledger.Job) bool {
		if j.Number >= c.limit {
			return false
		}
		if wait = j.Held; wait || len(r.Numbers) == commandJobs || seen == maxCommandExamined {
			c.number, end = j.Number, false
			return false
		}
		seen++
		if appliesTo(c.command, &j) {
			r.Numbers = append(r.Numbers, j.Number)
		}
		return true
	})
	if len(r.Numbers) > 0 {
		c.affected += len(r.Numbers)
		s.commits.record(&c.call, &r)
	}
	switch {
	case end:
		return decided
	case wait:
		return s.commits.waitForNewest(&c.call)
	}
	return later
}
