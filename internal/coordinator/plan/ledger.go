package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// The ledger says which daemons failed on which nodes lately. It is read from the units' rows: their embargoes name
// nodes, and a unit in a crash loop fails on its holder now. Nodes count by name, so a restart does not forget.
//
// A daemon that failed maxStrikes times, and on at least two nodes, is quarantined: the fault is in the daemon, and to try
// further nodes only costs more starts. If more than healthyPerFailing of its units run for each that fails, the daemon
// itself works, and the others need not wait for these. Neither does a unit that has not failed, such as one of a node that
// was lost, once another such unit has run for a while; until then, these are tried one after the other. So a unit that fails
// for ever keeps no healthy one down.
//
// A node on which sickDaemons daemons failed that run elsewhere is sick: it gets a unit only if no other node can take it.
// Otherwise the sick node, which is empty because everything fails on it, would be the least loaded
// candidate of every free unit. A node that flaps is sick too: it was lost at least flappingLosses times within
// LossMemory, as a process that returned or as several processes with one name. Each time, its units would go to it and
// away again. It is no longer sick when it has been steady for StableAfter, twice as long with each further loss.
const (
	maxStrikes  = 3
	sickDaemons = 3
	// healthyPerFailing is how many units of a daemon may run for each one that fails, if the daemon is to be quarantined.
	healthyPerFailing = 10
	// ledgerMemory is for how long a failure counts after its embargo. While a later failure of the same daemon counts,
	// one whose unit has not recovered does so for quarantineMemory: the trials of a quarantined daemon are so rare that
	// their failures alone would not keep it there, and all of its units would start again together.
	ledgerMemory     = 10 * time.Minute
	quarantineMemory = time.Hour
	// flappingLosses is how often a node must have been lost within LossMemory to count as flapping.
	flappingLosses = 2
	// What failed of a quarantined daemon is not tried for minQuarantine after a node gave it up the last time. The time
	// doubles with each further time, up to maxQuarantine. A trial counts as over after maxQuarantine: there may be no limit
	// to how often its holder starts the unit again. maxQuarantine is so much less than ledgerMemory that the last failure
	// still counts when the trial fails.
	minQuarantine = time.Minute
	maxQuarantine = 8 * time.Minute
)

// Verdict is what the ledger says about a daemon (quarantined) or a node (sick). One of the two is set.
type Verdict struct {
	Daemon daemon.ID
	Node   string
	Reason string // "failed on 3 nodes: n1, n2, n3"
	// Until is when one of the units of a quarantined daemon that failed is tried again, or when the last failure on a sick
	// node is forgotten.
	Until time.Time
	// Flapping is set if the node is sick because it was lost again and again.
	Flapping bool
}

// SameSubject reports whether both verdicts are about the same daemon or node.
func (v Verdict) SameSubject(o Verdict) bool { return v.Daemon == o.Daemon && v.Node == o.Node }

// ledger is the verdicts while a plan is made.
type ledger struct {
	quarantined map[daemon.ID]*quarantine
	sick        map[string]Verdict
}

// quarantine is the verdict about a daemon, with what its half-open trials depend on.
type quarantine struct {
	Verdict
	works bool // a unit that has not failed has run for daemon.FailuresResetAfter
	// Until when the units that are tried now keep others waiting: any that started lately, and one that failed before.
	startedUntil, triedUntil time.Time
}

// failure is what the ledger knows of one daemon on one node.
type failure struct {
	until   time.Time // when the last one is forgotten, but for quarantineMemory
	tried   time.Time // when the node gave it up, or since when it fails there now
	strikes int       // how often the node gave it up
	own     bool      // a unit that failed there has not recovered since
}

// readLedger judges daemons and nodes by the rows.
func readLedger(in *Input) ledger {
	fails := map[daemon.ID]map[string]failure{}
	note := func(d daemon.ID, name string, last time.Time, embargo time.Duration, f failure) {
		f.until = last.Add(ledgerMemory + embargo)
		known := f.until.After(in.Now) || f.own && in.Now.Sub(last) < quarantineMemory
		if name == "" || last.After(in.Now) || !known {
			return
		}
		if fails[d] == nil {
			fails[d] = map[string]failure{}
		}
		old := fails[d][name]
		fails[d][name] = failure{
			until: later(f.until, old.until), tried: later(f.tried, old.tried), strikes: f.strikes + old.strikes, own: f.own || old.own,
		}
	}
	for i := range in.Units {
		r := &in.Units[i]
		if r.Retired {
			continue
		}
		for _, e := range r.Embargoes {
			if e.AbandonedGeneration == 0 {
				imposed := e.Until.Add(-e.Length)
				note(r.Unit.Daemon, e.Node, imposed, e.Length, failure{tried: imposed, strikes: e.Strikes, own: r.Failures > 0})
			}
		}
		if r.Crashing() && !r.State.IsFree() && !r.RetryAt.IsZero() { // set only by a failure on this holder
			note(r.Unit.Daemon, r.Holder.Name, in.Now, 0, failure{tried: failsSince(r), strikes: 1, own: true})
		}
	}
	l := ledger{quarantined: map[daemon.ID]*quarantine{}, sick: map[string]Verdict{}}
	if len(fails) > 0 {
		l.findQuarantined(in, fails)
		l.findSick(in, fails)
	}
	l.findFlapping(in)
	return l
}

// LossMemory returns for how long the loss of a node counts: long enough for several losses, each of which is found only
// after a registration has run out.
func LossMemory(stableAfter time.Duration) time.Duration { return max(ledgerMemory, 10*stableAfter) }

// findFlapping finds the nodes that were lost again and again. As in findSick, at most half of the live nodes are sick.
func (l *ledger) findFlapping(in *Input) {
	if in.StableAfter <= 0 {
		return
	}
	memory := LossMemory(in.StableAfter)
	recent := func(at time.Time) bool { return !at.After(in.Now) && in.Now.Sub(at) < memory }
	lost, live := map[string]int{}, map[string]time.Time{}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		switch m := &n.Member; {
		case !m.Present():
			if m.EndReason != string(node.Shutdown) && recent(m.EndedAt) {
				lost[m.Name]++
			}
		case n.State == node.Live:
			if m.RegisteredAt.After(live[m.Name]) {
				live[m.Name] = m.RegisteredAt // of several processes with one name, the newest
			}
			if recent(m.RegisteredAt) {
				lost[m.Name] += m.Returns
			}
		}
	}
	worst := slices.SortedFunc(maps.Keys(lost), func(a, b string) int {
		return cmp.Or(cmp.Compare(lost[b], lost[a]), cmp.Compare(a, b))
	})
	for _, name := range worst {
		since, up := live[name]
		times := lost[name]
		if times < flappingLosses || 2*(len(l.sick)+1) > len(live) {
			return
		}
		until := since.Add(min(in.StableAfter<<min(times-flappingLosses, 10), ledgerMemory))
		if _, known := l.sick[name]; !up || known || since.After(in.Now) || !until.After(in.Now) {
			continue
		}
		l.sick[name] = Verdict{Node: name, Flapping: true, Until: until, Reason: fmt.Sprintf("lost %d times within %v, must be steady until %s",
			times, memory, until.UTC().Format(time.RFC3339))}
	}
}

// findQuarantined finds the daemons that fail wherever they are. A unit that runs again clears its failures.
func (l *ledger) findQuarantined(in *Input, fails map[daemon.ID]map[string]failure) {
	for id, nodes := range fails {
		var names []string
		tried, strikes, lately := time.Time{}, 0, false
		for name, f := range nodes {
			if f.own {
				names = append(names, name)
				strikes += f.strikes
				lately = lately || f.until.After(in.Now)
				if !f.tried.After(in.Now) {
					tried = later(tried, f.tried)
				}
			}
		}
		if lately && len(names) >= 2 && strikes >= maxStrikes {
			hold := min(minQuarantine<<min(strikes-maxStrikes, 10), maxQuarantine)
			l.quarantined[id] = &quarantine{Verdict: Verdict{Daemon: id, Reason: "failed on " + list(names, "nodes"), Until: tried.Add(hold)}}
		}
	}
	if len(l.quarantined) == 0 {
		return
	}
	margin := map[daemon.ID]int{} // how many more units may run
	for i := range in.Units {
		r := &in.Units[i]
		q := l.quarantined[r.Unit.Daemon]
		if q == nil {
			continue
		}
		starts := (r.State == daemon.Assigning || r.State == daemon.Active) && !r.Since.After(in.Now)
		if starts {
			q.startedUntil = later(q.startedUntil, r.Since.Add(daemon.FailuresResetAfter))
		}
		switch {
		case r.Failures > 0:
			if starts {
				q.triedUntil = later(q.triedUntil, failsSince(r).Add(maxQuarantine))
			}
			margin[r.Unit.Daemon] += healthyPerFailing
		case r.State == daemon.Active:
			q.works = q.works || in.Now.Sub(r.Since) >= daemon.FailuresResetAfter
			margin[r.Unit.Daemon]--
		}
	}
	maps.DeleteFunc(l.quarantined, func(id daemon.ID, _ *quarantine) bool { return margin[id] < 0 })
}

// findSick finds the nodes on which many daemons fail that are not quarantined. At most half of the live nodes are sick: if
// more look so, the cause is elsewhere, and only the worst count.
func (l *ledger) findSick(in *Input, fails map[daemon.ID]map[string]failure) {
	daemons, until := map[string][]string{}, map[string]time.Time{}
	for id, nodes := range fails {
		if l.quarantined[id] != nil {
			continue
		}
		for name, f := range nodes {
			if f.until.After(in.Now) {
				daemons[name] = append(daemons[name], string(id))
				until[name] = later(until[name], f.until)
			}
		}
	}
	live := map[string]bool{}
	for i := range in.Nodes {
		if n := &in.Nodes[i]; n.State == node.Live {
			live[n.Member.Name] = true
		}
	}
	worst := slices.SortedFunc(maps.Keys(daemons), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(daemons[b]), len(daemons[a])), cmp.Compare(a, b))
	})
	for _, name := range worst {
		if len(daemons[name]) < sickDaemons || 2*(len(l.sick)+1) > len(live) {
			return
		}
		if live[name] {
			l.sick[name] = Verdict{Node: name, Reason: list(daemons[name], "daemons") + " failed there", Until: until[name]}
		}
	}
}

// list returns "3 nodes: n1, n2, n3", with at most eight names.
func list(names []string, what string) string {
	slices.Sort(names)
	text := strings.Join(names[:min(len(names), maxNames)], ", ")
	if len(names) > maxNames {
		text += ", …"
	}
	return fmt.Sprintf("%d %s: %s", len(names), what, text)
}

// verdicts lists all verdicts: daemons first, each sorted.
func (l *ledger) verdicts() []Verdict {
	var out []Verdict
	for _, id := range slices.Sorted(maps.Keys(l.quarantined)) {
		out = append(out, l.quarantined[id].Verdict)
	}
	for _, name := range slices.Sorted(maps.Keys(l.sick)) {
		out = append(out, l.sick[name])
	}
	return out
}

// quarantines reports whether a free unit waits because its daemon is quarantined, and why.
func (p *planner) quarantines(row *daemon.Record) (Why, bool) {
	q := p.ledger.quarantined[row.Unit.Daemon]
	if q == nil || p.exempt(q, row) {
		return Why{}, false
	}
	failed := row.Failures > 0
	switch {
	case failed && p.in.Now.Before(q.Until):
		p.dueAt(q.Until)
		return q.waits("tried again at " + q.Until.UTC().Format(time.RFC3339)), true
	case failed && p.in.Now.Before(q.triedUntil):
		p.dueAt(q.triedUntil)
	case !q.works && p.in.Now.Before(q.startedUntil):
		p.dueAt(q.startedUntil)
	default:
		return Why{}, false
	}
	return q.waits(anotherTried), true
}

// exempt reports whether a free unit of a quarantined daemon waits for no trial: an operator wants it to start now, or
// it has not failed, and the daemon works elsewhere.
func (p *planner) exempt(q *quarantine, row *daemon.Record) bool {
	_, moved := p.orders.moves[row.Unit]
	return moved || row.Failures == 0 && (q.works || p.orders.pins[row.Unit] != "")
}

// anotherTried says why a unit waits whose turn has not come.
const anotherTried = "another unit is being tried"

func (q *quarantine) waits(note string) Why {
	return Why{Rule: Quarantined, Note: q.Reason + "; " + note}
}

// byTrial orders the units of a quarantined daemon for the next trial: first those that were not tried, then those that have
// been free for longest, so that each has its turn.
func (p *planner) byTrial(a, b *daemon.Record) int {
	switch x, y := p.tried(a), p.tried(b); {
	case x && !y:
		return 1
	case y && !x:
		return -1
	}
	return a.Since.Compare(b.Since)
}

// tried reports whether a free unit failed, or a node gave it back lately without a failure.
func (p *planner) tried(row *daemon.Record) bool {
	return row.Failures > 0 || slices.ContainsFunc(row.Embargoes, p.active)
}

// failsSince returns since when a unit fails on its holder.
func failsSince(r *daemon.Record) time.Time { return later(r.Since, r.FailingSince) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
