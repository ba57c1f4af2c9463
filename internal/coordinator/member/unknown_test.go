package member_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// A newer version wrote a state that this one does not know. It is noticed once. The run is neither
// started, drained nor cancelled, nothing about it is reported, and the other units go on.
func TestUnitInAnUnknownState(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	var p *peer
	for _, p = range c.nodes {
		if p != c.leader() {
			break
		}
	}
	var odd daemon.Unit
	p.forge = func(r *storage.Reply) {
		r.Units = slices.Clone(r.Units)
		r.Units[0].State = "hibernating"
		odd = r.Units[0].Unit
	}
	before, log, calls := len(p.running), len(p.log), len(p.calls)
	c.run(30 * time.Second)
	if len(p.running) != before || c.total() != 6 {
		t.Errorf("%v run, want 2 each\n%s", c.spread(), c.dump())
	}
	notified := 0
	for _, line := range p.log[log:] {
		switch {
		case strings.Contains(line, "unit unknown") && strings.Contains(line, "hibernating"):
			notified++
		case strings.Contains(line, odd.String()):
			t.Errorf("the unit was touched: %s", line)
		}
	}
	if notified != 1 {
		t.Errorf("the state was told %d times, want once", notified)
	}
	for _, call := range p.calls[calls:] {
		if call.Report != nil {
			t.Errorf("reported: %+v", call.Report.Units)
		}
	}
	p.forge = nil
	c.run(10 * time.Second)
	if c.total() != 6 {
		t.Errorf("%v run once the state is known again\n%s", c.spread(), c.dump())
	}
}
