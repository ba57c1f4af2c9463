package view

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Event is one entry of the cluster's history.
type Event struct {
	Seq         int64            `json:"seq"`
	At          Time             `json:"at"`
	Kind        daemon.EventKind `json:"kind"`
	Node        string           `json:"node"`
	NodeID      node.ID          `json:"node_id"`
	Incarnation node.Incarnation `json:"incarnation"`
	Daemon      daemon.ID        `json:"daemon"`
	Unit        daemon.Unit      `json:"unit"`
	Term        int64            `json:"term"`
	TermOrdinal int64            `json:"term_ordinal,omitempty"` // leader.* only: other events have only the number
	Generation  int64            `json:"generation"`
	Reason      string           `json:"reason"`
	Detail      json.RawMessage  `json:"detail,omitempty"`
}

// EventOf returns the view of an event.
func EventOf(e daemon.Event) Event {
	return Event{
		Seq: e.Seq, At: Time{e.At}, Kind: e.Kind,
		Node: e.Node, NodeID: e.NodeID, Incarnation: e.Incarnation,
		Daemon: e.Daemon, Unit: e.Unit,
		Term: e.Term, TermOrdinal: e.TermOrdinal, Generation: e.Generation,
		Reason: e.Reason, Detail: e.Detail,
	}
}

// Term is one term, read from the history.
type Term struct {
	Term        int64   `json:"term"`
	TermOrdinal int64   `json:"term_ordinal"`
	Node        string  `json:"node"`
	NodeID      node.ID `json:"node_id"`
	ElectedAt   Time    `json:"elected_at"`
	EndedAt     Time    `json:"ended_at"` // null for the current term
	EndedBy     string  `json:"ended_by"`
	// HeldSeconds is the time until the term ended, or until now. GapSeconds is the time until the next
	// election, null for the newest term. A term that expired ended with its lease, not when another leader
	// was elected.
	HeldSeconds float64  `json:"held_seconds"`
	GapSeconds  *float64 `json:"gap_seconds"`
}

// Terms returns the terms in the history, newest first. now is the store's clock.
func Terms(events []daemon.Event, now time.Time) []Term {
	var out []Term // oldest first
	for _, e := range events {
		switch e.Kind {
		case daemon.LeaderElected:
			if n := len(out); n > 0 {
				gap := max(e.At.Sub(end(out[n-1], e.At)).Seconds(), 0)
				out[n-1].GapSeconds = &gap
				if out[n-1].EndedAt.IsZero() {
					out[n-1].EndedAt, out[n-1].EndedBy = Time{e.At}, string(node.Replaced)
				}
			}
			out = append(out, Term{
				Term: e.Term, TermOrdinal: e.TermOrdinal, Node: e.Node, NodeID: e.NodeID, ElectedAt: Time{e.At},
			})
		case daemon.LeaderLost:
			if n := len(out); n > 0 && out[n-1].Term == e.Term {
				out[n-1].EndedAt, out[n-1].EndedBy = Time{lostAt(e)}, e.Reason
			}
		}
	}
	for i := range out {
		out[i].HeldSeconds = max(end(out[i], now).Sub(out[i].ElectedAt.Time).Seconds(), 0)
	}
	slices.Reverse(out)
	return out
}

// TermsBefore returns the newest terms with numbers below before, at most limit of them, as [Terms] does. It looks at the
// events of these terms only: a history of thousands of terms is read page by page.
func TermsBefore(events []daemon.Event, now time.Time, before int64, limit int) []Term {
	from, to, n := 0, len(events), 0
	for i := len(events) - 1; i >= 0 && n < limit; i-- {
		switch e := &events[i]; {
		case e.Kind != daemon.LeaderElected:
		case n == 0 && e.Term >= before:
			to = i + 1 // the next election is when the gap after the newest of these terms ended
		default:
			from, n = i, n+1
		}
	}
	terms := Terms(events[from:to], now)
	return terms[len(terms)-n:]
}

// RecentTerms returns the terms that have ended within the period before now, or not yet. The list has the newest first;
// 0 means all.
func RecentTerms(all []Term, now time.Time, since time.Duration) []Term {
	for i, t := range all {
		if since > 0 && !t.EndedAt.IsZero() && now.Sub(t.EndedAt.Time) > since {
			return all[:i]
		}
	}
	return all
}

// lostAt returns when a leadership ended: when its lease ended, unless it was resigned.
func lostAt(e daemon.Event) time.Time {
	var d storage.LostDetail
	if json.Unmarshal(e.Detail, &d) == nil && !d.LeaseEndedAt.IsZero() && d.LeaseEndedAt.Before(e.At) {
		return d.LeaseEndedAt
	}
	return e.At
}

func end(r Term, otherwise time.Time) time.Time {
	if r.EndedAt.IsZero() {
		return otherwise
	}
	return r.EndedAt.Time
}
