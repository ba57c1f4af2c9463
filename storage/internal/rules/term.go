package rules

import (
	"encoding/json"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// TermAndLease is the term and its lease.
type TermAndLease struct {
	Term  *node.Term
	Lease *node.Lease
}

// DecideTerm decides about the term by [storage.Decide], after the node's row was written. A node that
// never leads is refused whatever it asks for.
func DecideTerm(r Rows, current TermAndLease, c storage.TermRequest, row *node.Member, now time.Time) storage.ElectionResult {
	if row.NeverLead {
		return storage.Refuse
	}
	l := current.Lease
	verdict := storage.Decide(c, row.Identity, *current.Term, *l, now)
	switch verdict {
	case storage.Renew:
		l.ExpiresAt = now.Add(c.Lease)
		l.Renewals++
		if c.PassSeq > l.PassSeq {
			l.PassSeq, l.LastPassAt = c.PassSeq, now
		}
	case storage.Elect:
		elect(r, current, c, row, now)
	}
	return verdict
}

// elect begins a new term. If it replaces a leader, it first emits that leader's loss: expired, or
// replaced if the candidate itself held that term and had published Lost for it.
func elect(r Rows, current TermAndLease, c storage.TermRequest, row *node.Member, now time.Time) {
	old := *current.Term
	if old.Held() {
		reason := node.Expired
		if old.Leader.Incarnation == row.Incarnation {
			reason = node.Replaced
		}
		e := termEvent(daemon.LeaderLost, old, string(reason))
		e.Detail = storage.NewLostDetail(*current.Lease, now)
		r.Emit(e, now)
	}
	highest, _ := r.Highest() // row already contains what this heartbeat reports
	*current.Term = node.Term{
		Number:    storage.NextTermNumber(old.Number, now, highest),
		Ordinal:   old.Ordinal + 1,
		Leader:    row.Identity,
		ElectedAt: now,
	}
	*current.Lease = node.Lease{ExpiresAt: now.Add(c.Lease)}
	r.Emit(termEvent(daemon.LeaderElected, *current.Term, ""), now)
}

// Resign vacates the term if exactly this process holds it, and reports whether it did.
func Resign(r Rows, term *node.Term, l storage.Leave, now time.Time) bool {
	t := *term
	if l.Resign == 0 || !t.Held() || t.Number != l.Resign || t.Leader.ID != l.Node.ID || t.Leader.Incarnation != l.Node.Incarnation {
		return false
	}
	Vacate(r, term, l.Reason, commandDetail(l.Command, l.Actor, "", nil), now)
	return true
}

// ApplyExitEvidence applies the exit evidence of a heartbeat. It marks the rows of the processes that have
// ended, and vacates a term that one of them holds. It reports whether it marked a row and whether
// it vacated the term.
func ApplyExitEvidence(r Rows, term *node.Term, b storage.Heartbeat, now time.Time) (marked, vacated bool) {
	for _, inc := range b.ExitEvidence {
		if inc == b.Node.Incarnation {
			continue
		}
		if m := present(r, inc); m != nil && !m.ExitProven {
			row := *m
			row.ExitProven, marked = true, true
			r.PutNode(row)
		}
		if term.Held() && term.Leader.Incarnation == inc {
			Vacate(r, term, node.ProcessEnded, nil, now)
			vacated = true
		}
	}
	return marked, vacated
}

// Vacate takes a term from its holder. Its number stays used, and there is no leader.
func Vacate(r Rows, term *node.Term, reason node.LossReason, detail json.RawMessage, now time.Time) {
	e := termEvent(daemon.LeaderLost, *term, string(reason))
	e.Detail = detail
	term.Vacant = true
	r.Emit(e, now)
}

// Drain marks a node draining and revokes its units.
func Drain(r Rows, row node.Member, l storage.Leave, now time.Time) {
	row.State = node.Draining
	r.PutNode(row)
	for _, rec := range r.HeldBy(row.Incarnation) {
		next, ok := daemon.Next(rec.State, daemon.Revoke)
		if !ok {
			continue
		}
		rec.State, rec.Since, rec.RevokedAt, rec.Reason = next, now, now, string(l.Reason)
		if rec.DrainTimeout == 0 {
			rec.DrainTimeout = l.DrainTimeout
		}
		r.Put(rec)
		r.Emit(unitEvent(daemon.AssignmentRevoking, rec), now)
	}
}

// Deregister turns a row into a tombstone. Units that the process still holds are freed by force:
// the process reports its own end, not that of its runs.
func Deregister(r Rows, row node.Member, l storage.Leave, now time.Time) {
	ForceFree(r, r.HeldBy(row.Incarnation), string(l.Reason), now)
	MakeTombstone(r, row, string(l.Reason), now)
}
