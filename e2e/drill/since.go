package drill

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
)

// before is how long before a moment its account begins: the cause of a miss may lie there.
const before = time.Second

// moment is a line of an account.
type moment struct {
	at   int64 // on the boot clock
	text string
}

// since returns what happened from shortly before a moment of the boot clock on, for people: the cluster's events, what
// the nodes logged, and the runs of the tickers. Each line has its time after that moment, so that a miss shows which
// step took long.
func (c *Cluster) since(at int64) string {
	c.T.Helper()
	events, err := c.Events(0)
	if err != nil {
		return err.Error()
	}
	runs, err := ReadRuns(c.log)
	if err != nil {
		return err.Error()
	}
	var all []moment
	boot := c.boot()
	for i := range events {
		all = append(all, moment{boot(events[i].At), "event " + line(&events[i])})
	}
	for _, r := range runs {
		run := fmt.Sprintf("%s gen %d on %s", r.Unit, r.Generation, r.Node)
		all = append(all, moment{r.Start, "first sign of life of " + run}, moment{r.End, "newest sign of life of " + run})
	}
	for _, n := range c.nodes {
		all = append(all, n.logged()...)
	}
	return account(all, at)
}

// line returns an event as a line for people.
func line(e *daemon.Event) string {
	return fmt.Sprintf("%s %s %s gen %d term %d %s", e.Kind, e.Node, e.Unit, e.Generation, e.Term, e.Reason)
}

// account returns the lines in order, with their times after a moment.
func account(all []moment, at int64) string {
	all = slices.DeleteFunc(all, func(m moment) bool { return m.at < at-int64(before) })
	slices.SortStableFunc(all, func(x, y moment) int { return cmp.Compare(x.at, y.at) })
	var b strings.Builder
	for _, m := range all {
		fmt.Fprintf(&b, "%+8.3f s  %s\n", time.Duration(m.at-at).Seconds(), m.text)
	}
	return b.String()
}

// logged returns the lines of the node's log.
func (n *Node) logged() (all []moment) {
	now, wall := Boot(), time.Now()
	for text := range strings.Lines(n.Output()) {
		var l struct{ Time time.Time }
		if json.Unmarshal([]byte(text), &l) == nil && !l.Time.IsZero() {
			all = append(all, moment{now - int64(wall.Sub(l.Time)), "log of " + n.Name + " " + strings.TrimSpace(text)})
		}
	}
	return all
}
