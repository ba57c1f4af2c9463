package coordinator

import (
	"context"
	"log/slog"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
)

// asyncHandler is a log handler that never blocks its caller: it queues each record, and one goroutine
// writes them.
type asyncHandler struct {
	to    slog.Handler
	queue *queue[func()] // Coordinator.logQueue
}

// Enabled implements slog.Handler.
func (v asyncHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return v.to.Enabled(ctx, level)
}

// Handle implements slog.Handler. The error of the underlying handler is dropped, as slog.Logger
// does.
func (v asyncHandler) Handle(ctx context.Context, r slog.Record) error {
	ctx, r = context.WithoutCancel(ctx), r.Clone()
	v.queue.push(func() { _ = v.to.Handle(ctx, r) })
	return nil
}

// WithAttrs implements slog.Handler.
func (v asyncHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return asyncHandler{v.to.WithAttrs(attrs), v.queue}
}

// WithGroup implements slog.Handler.
func (v asyncHandler) WithGroup(name string) slog.Handler {
	return asyncHandler{v.to.WithGroup(name), v.queue}
}

// finalLogTimeout is how long exit waits for the log before it ends the process.
const finalLogTimeout = 500 * time.Millisecond

// exit ends the process once everything logged before is written, or after finalLogTimeout if the log
// blocks.
func (c *Coordinator) exit(code int) {
	written := make(chan struct{})
	if c.logQueue.push(func() { close(written) }) {
		select {
		case <-written:
		case <-time.After(finalLogTimeout):
		}
	}
	c.cfg.Exit(code)
}

// noticeLog writes the member's notices to the log. Only the goroutine of Coordinator.logQueue
// uses it.
type noticeLog struct {
	log *slog.Logger
	// failing is when heartbeats began to fail; 0 = they do not.
	failing lease.Instant
	// unplaced is the reason last logged for each daemon, and when.
	unplaced map[daemon.ID]logged
}

// logged is a reason that was logged, and when.
type logged struct {
	reason string
	at     lease.Instant
}

// repeatUnplaced is the pause after which the same reason for the same daemon is logged again.
const repeatUnplaced = 5 * time.Minute

func newNoticeLog(c *Coordinator) *noticeLog {
	return &noticeLog{log: c.log, unplaced: map[daemon.ID]logged{}}
}

// notice logs a notice.
func (j *noticeLog) notice(now lease.Instant, n member.Notice) {
	switch n.Kind {
	case member.NodeJoined, member.NodeLeft:
		j.membership(n)
	case member.Unplaced:
		j.unplacedUnit(now, n)
	case member.HeartbeatFailed:
		if j.failing == 0 {
			j.failing = now
		}
		j.log.Warn("heartbeat fails", "for", now.Sub(j.failing), "error", n.Err)
	case member.HeartbeatRecovered:
		if j.failing == 0 { // the failure was not logged
			j.log.Info("heartbeat succeeds again")
			return
		}
		j.log.Info("heartbeat succeeds again", "after", now.Sub(j.failing))
		j.failing = 0
	case member.PassFailed:
		j.log.Warn("the leader's pass failed; it will be repeated", "term", n.Term, "error", n.Err)
	case member.BrakeHeld:
		j.log.Error("the brake holds: many nodes look dead at once, which may be the network", "reason", n.Reason)
	case member.BrakeReleased:
		j.log.Warn("the brake is released", "reason", n.Reason)
	case member.StoreChanged:
		j.log.Warn("the store was replaced: the node waits before it assigns or starts anything", "store", n.Reason)
	case member.ClockStepped:
		j.log.Warn("the store's clock jumped: deadlines are measured by the local clock alone for a while")
	case member.IDInUse:
		j.log.Error("another process has this node's ID: this node joins once that process is gone, and ends if it is alive", "error", n.Err)
	case member.StoreSlow:
		j.log.Warn("the store has become too slow for the timings and the number of nodes: units may move before they have started", "error", n.Err)
	case member.StoreRecovered:
		j.log.Info("the store is fast enough again for the timings and the number of nodes")
	case member.NoRoom:
		j.log.Warn("the store cannot serve one more node: this node waits until another has left or is declared dead, and ends if that takes too long", "at_most", n.Reason, "error", n.Err)
	case member.Disagreement:
		j.log.Warn("nodes declare a daemon differently", "daemon", n.Fence.Unit.Daemon, "reason", n.Reason)
	default:
		j.unit(n)
	}
}

// wants reports whether a notice of this kind may be logged. A thousand nodes that start at once in one process make a million notices
// about who joins, and need not queue them for a log that drops them. Any goroutine may call it.
func (j *noticeLog) wants(kind member.NoticeKind) bool {
	return kind != member.NodeJoined && kind != member.NodeLeft || j.log.Enabled(context.Background(), slog.LevelInfo)
}

// membership logs that a node joined or left.
func (j *noticeLog) membership(n member.Notice) {
	log := j.log.With("peer", n.Member.Name, "peer_id", n.Member.ID, "peer_incarnation", n.Member.Incarnation)
	if n.Kind == member.NodeJoined {
		log.Info("node joined")
		return
	}
	log.Info("node left", "reason", n.Reason)
}

// unplacedUnit logs why a unit runs nowhere: once per daemon and reason, and again after
// repeatUnplaced or when the reason changes.
func (j *noticeLog) unplacedUnit(now lease.Instant, n member.Notice) {
	id := n.Fence.Unit.Daemon
	if last, ok := j.unplaced[id]; ok && last.reason == n.Reason && now.Sub(last.at) < repeatUnplaced {
		return
	}
	j.unplaced[id] = logged{n.Reason, now}
	j.log.Warn("no node can run the daemon", "daemon", id, "unit", n.Fence.Unit.String(), "reason", n.Reason)
}

// unit logs an event of a run on this node.
func (j *noticeLog) unit(n member.Notice) {
	log := j.log.With("daemon", n.Fence.Unit.Daemon, "unit", n.Fence.Unit.String(), "generation", n.Fence.Generation)
	switch n.Kind {
	case member.UnitAssigned:
		log.Debug("daemon assigned", "term", n.Term)
	case member.UnitStarted:
		log.Info("daemon started")
	case member.UnitDraining:
		log.Info("daemon draining")
	case member.UnitStopped:
		if n.Err != nil {
			log = log.With("error", n.Err)
		}
		if n.Reason == string(member.CauseDrainDeadline) {
			log.Warn("daemon stopped at its drain deadline, its work unfinished")
			break
		}
		log.Info("daemon stopped", "reason", n.Reason)
	case member.UnitFailed: // the supervisor logs it at a higher level, with the time of the next attempt
		log.Debug("daemon failed", "error", n.Err)
	case member.UnitAbandoned: // the supervisor logs where it hangs
		log.Error("daemon abandoned", "reason", n.Reason)
	case member.UnitUnknown:
		log.Warn("the unit's row has a state that this version does not know; it is not changed", "state", n.Reason)
	default:
		log.Debug(string(n.Kind), "reason", n.Reason, "error", n.Err)
	}
}

// notifyTransition informs hooks, log and metrics of a change of leadership. It is called with the
// leadership's lock held and does not block.
func (c *Coordinator) notifyTransition(r *leaderTerm, t Transition) {
	why := "elected"
	if !t.Leading {
		c.observers.leadershipLost(r, t.Reason)
		why = string(t.Reason)
	}
	c.m.transition(why)
	c.logQueue.push(func() { c.logTransition(t) })
}

// logTransition logs a change of this node's leadership.
func (c *Coordinator) logTransition(t Transition) {
	log := c.log.With("term", t.Term.Number, "term_ordinal", t.Term.Ordinal)
	switch {
	case t.Leading:
		log.Info("leader elected: this node leads")
	case t.Reason == node.Resigned || t.Reason == node.Shutdown:
		log.Info("leader lost: this node no longer leads", "reason", t.Reason)
	default:
		log.Warn("leader lost: this node no longer leads", "reason", t.Reason)
	}
}
