package sqlite

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// history is what publishers and relays in other processes printed.
type history struct {
	acked     map[string]bool
	delivered map[string]int
	last      map[string]int // the highest number delivered, by key
	repeated  int
}

// deliver records a line of a relay, and checks that the numbers of first deliveries of a key grow.
func (h *history) deliver(t *testing.T, line string) {
	t.Helper()
	h.delivered[line]++
	if h.delivered[line] > 1 {
		h.repeated++
		return
	}
	fields := strings.Fields(line)
	if len(fields) != 2 {
		if fields[2] == "undone" {
			t.Errorf("%q was rolled back and delivered", line)
		}
		return
	}
	n, err := strconv.Atoi(fields[1])
	ok(t, err)
	if last, seen := h.last[fields[0]]; seen && n != last+3 {
		t.Errorf("key %s: %d was delivered after %d", fields[0], n, last)
	} else if !seen && n > 2 {
		t.Errorf("key %s begins with %d", fields[0], n)
	}
	h.last[fields[0]] = n
}

// TestKilledProcesses kills publishers and relays again and again while others continue. Acknowledged
// messages must be delivered, in order per key. Rolled-back ones must not. A kill may repeat only what
// was in flight.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	l := mustOpen(t, Config{Path: path})
	h := &history{acked: map[string]bool{}, delivered: map[string]int{}, last: map[string]int{}}
	const rounds = 8
	kills := 0
	for round := range rounds {
		publishers := []*child{
			spawn(t, "publish", path, "a"+strconv.Itoa(round)),
			spawn(t, "publish", path, "b"+strconv.Itoa(round)),
		}
		relay := spawn(t, "relay", path, strconv.Itoa(round+1))
		for range 10 + 7*round { // enough to be in the middle of something
			h.deliver(t, relay.line())
		}
		for _, p := range publishers {
			for range 5 + 3*round {
				h.acked[p.line()] = true
			}
			for _, line := range p.kill() {
				if n := len(strings.Fields(line)); n >= 2 {
					h.acked[line] = true
				}
			}
		}
		for _, line := range relay.kill() {
			h.deliver(t, line)
		}
		kills++
	}
	finish(t, l, h, rounds+1)
	for line := range h.acked {
		if h.delivered[line] == 0 {
			t.Errorf("%q was acknowledged and is lost", line)
		}
	}
	// In flight are at most a page of ten and ten lanes of a hundred; in practice far fewer.
	if h.repeated > kills*60 {
		t.Errorf("%d deliveries were repeated by %d kills", h.repeated, kills)
	}
	t.Logf("%d acknowledged, %d delivered, %d repeated by %d kills", len(h.acked), len(h.delivered), h.repeated, kills)
}

// finish delivers the rest.
func finish(t *testing.T, l *Log, h *history, epoch int) {
	t.Helper()
	ctx := context.Background()
	c, err := l.Claim(ctx, outbox.ClaimRequest{Subscription: "s", Instances: 1, Epoch: int64(epoch)})
	ok(t, err)
	parked := map[string]bool{}
	for _, key := range c.Parked() {
		parked[key] = true
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		if time.Now().After(deadline) {
			t.Fatal("the log does not get empty")
		}
		lanes, err := c.Due(ctx, 100)
		ok(t, err)
		var out []outbox.Outcome
		for _, rows := range lanes {
			for _, r := range rows {
				h.deliver(t, string(r.Payload))
				out = append(out, outbox.Outcome{Row: r, Kind: outbox.Delivered})
			}
		}
		emptied, err := c.StoreParked(ctx, out)
		ok(t, err)
		for _, key := range emptied {
			delete(parked, key)
		}
		p, err := c.Next(ctx, outbox.Limit{})
		ok(t, err)
		if p.Mark == nil && !p.More {
			s, err := l.Stats(ctx, "s")
			ok(t, err)
			if s[0].Pending == 0 {
				return
			}
			continue
		}
		out = nil
		for _, r := range p.Rows {
			if parked[r.Key] {
				out = append(out, outbox.Outcome{Row: r, Kind: outbox.Behind})
			} else {
				h.deliver(t, string(r.Payload))
			}
		}
		ok(t, c.Advance(ctx, p.Mark, out))
	}
}

// TestAnotherProcessWakes checks that a commit of another process is found without polling the log.
func TestAnotherProcessWakes(t *testing.T) {
	t.Parallel()
	l := mustOpen(t, Config{WatchInterval: 5 * time.Millisecond})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	wake := l.WakeUps(ctx)
	c := spawn(t, "publish", l.cfg.Path, "other")
	c.line()
	for range 3 { // wake-ups may be coalesced, but they do not end
		select {
		case <-wake:
		case <-ctx.Done():
			t.Fatal("no wake-up came")
		}
		c.line()
	}
}

// TestProcessesMigrateOnce checks that processes that open a missing file at the same time agree on its
// tables.
func TestProcessesMigrateOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	children := make([]*child, 4)
	for i := range children {
		children[i] = spawn(t, "open", path)
	}
	for _, c := range children {
		c.wait()
	}
	status, err := MigrationStatus(context.Background(), appDB(t, path), Config{})
	ok(t, err)
	if len(status) != Version || status[0].AppliedAt.IsZero() {
		t.Errorf("status is %+v", status)
	}
}
