package storagetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// writer writes the answers of one side as text, by which both sides can be compared. With exact
// clocks it writes numbers and times as they are. Otherwise it writes a number as its place among
// the numbers of its kind that this side has shown, and omits times.
type writer struct {
	exact bool
	seen  map[string][]int64
}

func newWriter(exact bool) *writer { return &writer{exact: exact, seen: map[string][]int64{}} }

// number writes a number of a kind whose numbers appear in growing order.
func (w *writer) number(kind string, n int64) string {
	if w.exact || n == 0 {
		return fmt.Sprint(n)
	}
	return w.place(kind, n)
}

// place writes a number's place among those shown.
func (w *writer) place(kind string, n int64) string {
	i, ok := slices.BinarySearch(w.seen[kind], n)
	if !ok {
		if i != len(w.seen[kind]) {
			return fmt.Sprintf("%s #%d appeared too late", kind, i)
		}
		w.seen[kind] = append(w.seen[kind], n)
	}
	return fmt.Sprintf("#%d", i)
}

func (w *writer) time(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	if !w.exact {
		return "once"
	}
	return t.UTC().Format("02T15:04:05.000")
}

// only writes values that can be compared only with exact clocks.
func (w *writer) only(v any) string {
	if !w.exact {
		return ""
	}
	return fmt.Sprint(v)
}

// err names the answer that an error is.
func (w *writer) err(err error) string {
	if err == nil {
		return "ok"
	}
	for _, answer := range []error{
		storage.ErrTermLost, storage.ErrStaleSeq, storage.ErrNotRegistered, storage.ErrIDInUse,
		daemon.ErrStale, storage.ErrLocked, storage.ErrLockLost, daemon.ErrStateRevision,
	} {
		if !errors.Is(err, answer) {
			continue
		}
		var inUse *storage.IDInUseError
		if errors.As(err, &inUse) {
			return fmt.Sprintf("%v, by %v, seen %s", answer, inUse.Holder, w.time(inUse.SeenAt))
		}
		var stale *daemon.StaleError
		if errors.As(err, &stale) {
			return fmt.Sprintf("%v, fence holds %s", answer, w.only(stale.HeldGeneration))
		}
		return answer.Error()
	}
	return "unexpected: " + err.Error()
}

func (w *writer) term(t node.Term, l node.Lease) string {
	return fmt.Sprintf("term %s ordinal %d leader %v elected %s vacant %v; lease until %s renewals %d pass %d at %s",
		w.number("term", t.Number), t.Ordinal, t.Leader, w.time(t.ElectedAt), t.Vacant,
		w.time(l.ExpiresAt), l.Renewals, l.PassSeq, w.time(l.LastPassAt))
}

func (w *writer) member(m node.Member, advert string) string {
	traits, err := json.Marshal(m.Traits)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("node %v state %s judged %q seq %d heard %d witnessed %v highest %s %s registered %s beat %s heard %s ended %s %q traits %s advert %s",
		m.Identity, m.State, m.LeaderState, m.Seq, m.ConfirmedSeq, m.ExitProven, w.only(m.HighestTerm), w.only(m.HighestGeneration),
		w.time(m.RegisteredAt), w.time(m.LastHeartbeatAt), w.time(m.ConfirmedAt), w.time(m.EndedAt), m.EndReason, traits, advert)
}

func (w *writer) unitState(s daemon.UnitState) string {
	return fmt.Sprintf("state of %s by generation %s revision %d saved %s: %s", s.Unit, w.only(s.Generation), s.Revision, w.time(s.SavedAt), s.Data)
}

func (w *writer) record(r daemon.Record) string {
	if r.Unit.IsZero() {
		return "no row"
	}
	var embargoes []string
	for _, e := range r.Embargoes {
		embargoes = append(embargoes, fmt.Sprintf("%s until %s length %v strikes %d run %s %q", e.Incarnation, w.time(e.Until), e.Length, e.Strikes, w.number("generation of "+r.Unit.String(), e.AbandonedGeneration), e.Reason))
	}
	slices.Sort(embargoes)
	return fmt.Sprintf("unit %s %s holder %v generation %s term %s since %s assigned %s revoked %s ack %v drain %v reason %q forced %v failures %d since %s retry %s error %q retired %v embargoes %v",
		r.Unit, r.State, r.Holder, w.number("generation of "+r.Unit.String(), r.Generation), w.number("term", r.Term),
		w.time(r.Since), w.time(r.AssignedAt), w.time(r.RevokedAt), r.AcknowledgeTimeout, r.DrainTimeout,
		r.Reason, r.Forced, r.Failures, w.time(r.FailingSince), w.time(r.RetryAt), r.Error, r.Retired, embargoes)
}

func (w *writer) records(rs []daemon.Record) string {
	var out []string
	for _, r := range rs {
		out = append(out, w.record(r))
	}
	return strings.Join(out, "\n")
}

func (w *writer) event(e daemon.Event) string {
	generation := w.number("generation of "+e.Unit.String(), e.Generation)
	term := w.only(e.Term) // of a command: may be a term that never was
	if !strings.HasPrefix(string(e.Kind), "operator.") {
		term = w.number("term", e.Term)
	}
	return fmt.Sprintf("event %d %s at %s node %s %s %s unit %s %s term %s %d generation %s reason %q detail %s",
		e.Seq, e.Kind, w.time(e.At), e.Node, e.NodeID, e.Incarnation, e.Daemon, e.Unit, term, e.TermOrdinal, generation, e.Reason, w.detail(e.Detail))
}

// detail writes an event's detail without the numbers that a conflict contains.
func (w *writer) detail(text json.RawMessage) string {
	if len(text) == 0 {
		return "none"
	}
	var fields map[string]string
	if err := json.Unmarshal(text, &fields); err != nil {
		return err.Error()
	}
	if fields["result"] != "" {
		fields["result"] = outcome(fields["result"])
	}
	if end, ok := fields["lease_ended_at"]; ok {
		at, err := time.Parse(time.RFC3339Nano, end)
		if err != nil {
			return err.Error()
		}
		fields["lease_ended_at"] = w.time(at)
	}
	return fmt.Sprint(fields)
}

// outcome is the part of a command's result that programs read.
func outcome(result string) string {
	word, _, _ := strings.Cut(result, ":")
	return word
}

func (w *writer) command(c storage.Command) string {
	return fmt.Sprintf("command %s %s actor %q reason %q term %s created %s done %s result %q",
		c.ID, c.Kind, c.Actor, c.Reason, w.only(c.Term), w.time(c.CreatedAt), w.time(c.DoneAt), outcome(c.Result))
}

// page writes events in the order of their numbers.
func (w *writer) page(p *storage.EventPage) string {
	out := fmt.Sprintf("history from %d to %d\n", p.Oldest, p.Head)
	for _, e := range p.Events {
		out += w.event(e) + "\n"
	}
	return out
}

func (w *writer) snapshot(s *daemon.Snapshot) string {
	out := fmt.Sprintf("now %s head %d\n%s\n", w.time(s.Now), s.Head, w.term(s.Term, s.Lease))
	for _, m := range s.Nodes {
		out += w.member(m, string(s.Advert(m).Encode())) + "\n"
	}
	for _, c := range s.Commands {
		out += w.command(c) + "\n"
	}
	return out + w.records(s.Units) + "\n"
}

func (w *writer) outcomes(out []storage.Outcome) string {
	var lines []string
	for _, o := range out {
		lines = append(lines, fmt.Sprintf("%s applied %v: %s", o.Unit, o.Applied, w.record(o.Record)))
	}
	return strings.Join(lines, "\n")
}

// beat sends a heartbeat and writes the reply.
func (s *side) beat(b storage.Heartbeat) string {
	r, err := s.store.Heartbeat(context.Background(), b)
	if err != nil {
		return s.text.err(err)
	}
	out := fmt.Sprintf("reply to %d at %s verdict %d head %d behind %v\n%s\n%s\n",
		r.Seq, s.text.time(r.Now), r.Verdict, r.Head, r.EventsMissing, s.text.term(r.Term, r.Lease), s.text.records(r.Units))
	for _, e := range r.Events {
		out += s.text.event(e) + "\n"
	}
	for _, m := range r.Members {
		out += s.text.member(m, "") + "\n"
	}
	for _, c := range r.Commands {
		out += s.text.command(c) + "\n"
	}
	return out
}

func (s *side) commit(c storage.Commit) string {
	out, err := s.store.Commit(context.Background(), c)
	if err != nil {
		return s.text.err(err)
	}
	return s.text.outcomes(out)
}

func (s *side) report(r storage.Report) string {
	out, err := s.store.Report(context.Background(), r)
	if err != nil {
		return s.text.err(err)
	}
	return s.text.outcomes(out)
}

// lock writes the result of a call for a lock. It always writes numbers by their place, because
// backends may choose them freely as long as they grow.
func (s *side) lock(what, name, who string, ttl time.Duration, number int64, expired bool) string {
	locker, ok := s.store.(storage.Locker)
	if !ok {
		return "no locker"
	}
	ctx := context.Background()
	held := s.locks[name]
	held.Name, held.Owner, held.Number = name, who, held.Number+number
	var l storage.Lock
	var err error
	switch what {
	case "acquire":
		var seen storage.Lock
		if expired {
			seen = s.locks[name]
			seen.Renewals += number
		}
		l, err = locker.Acquire(ctx, name, who, ttl, seen)
	case "extend":
		l, err = locker.Extend(ctx, held, ttl)
	default:
		return s.text.err(locker.Release(ctx, held))
	}
	if err == nil {
		s.locks[name] = l
	}
	if l.Name == "" {
		return s.text.err(err)
	}
	return fmt.Sprintf("%s; lock %s of %s number %s renewed %d times for %v until %s", s.text.err(err), l.Name, l.Owner, s.text.place("lock "+name, l.Number), l.Renewals, l.TTL, s.text.time(l.ExpiresAt))
}

// sweeperUnit is the unit whose fence sweeps need.
var sweeperUnit = daemon.Unit{Daemon: "emit:sweeper"}

func (s *side) sweep(what string, f daemon.Fence, keep storage.Retention) string {
	sweeper, ok := s.store.(storage.Sweeper)
	if !ok {
		return "no sweeper"
	}
	ctx := context.Background()
	stamped := s.store.StampFence(ctx, daemon.Fence{Unit: f.Unit, Generation: 2})
	var n int
	var err error
	switch what {
	case "nodes":
		n, err = sweeper.SweepNodes(ctx, f, keep.Age, 1000)
	case "events":
		n, err = sweeper.SweepEvents(ctx, f, keep, 1000)
	default:
		n, err = sweeper.SweepLocks(ctx, f, keep.Age, 1000)
	}
	return fmt.Sprintf("%s removed %d", s.text.err(cmp.Or(stamped, err)), n)
}
