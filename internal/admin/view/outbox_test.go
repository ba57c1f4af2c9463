package view

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
)

func TestOutboxTable(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 9, 0, 0, 0, time.UTC)
	all := []OutboxStats{
		OutboxStatsOf(outbox.Stats{
			Subscription: "busy", Pending: 10_000, OldestAt: now.Add(-90 * time.Second), Now: now, ParkedKeys: 3, HeldKeys: 1, Dead: 2, Retained: 3 << 20, PartitionsAhead: -1,
			Delayed: 10_000, NextAt: now.Add(time.Hour),
			Cursors: []outbox.CursorStats{{Range: outbox.Range{Lo: 0, Hi: 31}, Epoch: 7, Node: "a", UpdatedAt: now}, {Range: outbox.Range{Lo: 32, Hi: 63}, Epoch: 9, Node: "b", UpdatedAt: now}},
		}),
		OutboxStatsOf(outbox.Stats{
			Subscription: "down", Pending: 1, PendingExact: true, OldestAt: now, Now: now,
			Cursors: []outbox.CursorStats{{Range: outbox.Range{Lo: 0, Hi: 63}, Epoch: 3, Node: "a", UpdatedAt: now, Problem: "connection\nrefused"}},
		}),
		OutboxStatsOf(outbox.Stats{Subscription: "idle", Paused: true, PendingExact: true, Now: now, Retained: 1023}),
	}
	for wide, want := range map[bool]string{
		false: `SUBSCRIPTION  STATE      PENDING  OLDEST  DELAYED  PARKED KEYS  HELD  DEAD  RETAINED
busy          running    ~10000   1m30s   10000+   3            1     2     3.0 MiB
down          sink down  1        0.0s    0        0            0     0     0 B
idle          paused     0        -       0        0            0     0     1023 B
`,
		true: `SUBSCRIPTION  STATE      PENDING  OLDEST  DELAYED  PARKED KEYS  HELD  DEAD  RETAINED  SHARDS  NODE  GENERATION  STORED                PROBLEM
busy          running    ~10000   1m30s   10000+   3            1     2     3.0 MiB   0-31    a     7           2030-01-31 09:00:00Z  -
busy          running    ~10000   1m30s   10000+   3            1     2     3.0 MiB   32-63   b     9           2030-01-31 09:00:00Z  -
down          sink down  1        0.0s    0        0            0     0     0 B       0-63    a     3           2030-01-31 09:00:00Z  connection refused
`,
	} {
		var b bytes.Buffer
		if err := OutboxTable(all, wide).Write(&b); err != nil || b.String() != want {
			t.Errorf("wide %v: %v\n%s\nwant\n%s", wide, err, b.String(), want)
		}
	}
	if all[0].OldestAgeMS != 90_000 || all[2].OldestAgeMS != 0 || all[2].Cursors == nil {
		t.Errorf("%+v", all)
	}
}

// TestOutboxInStatus checks that the status shows the age and length of the outbox and what needs
// attention, and omits the rest.
func TestOutboxInStatus(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 9, 0, 0, 0, time.UTC)
	quiet := outbox.Stats{Subscription: "quiet", PendingExact: true, Now: now, Delayed: 4, NextAt: now}
	behind := outbox.Stats{Subscription: "behind", Pending: 30, PendingExact: true, OldestAt: now.Add(-400 * time.Millisecond), Now: now, ParkedKeys: 1, Dead: 1}
	stuck := outbox.Stats{Subscription: "stuck", Paused: true, Pending: 7, OldestAt: now.Add(-3 * time.Minute), Now: now, ParkedKeys: 3, HeldKeys: 1, Dead: 2}
	down := outbox.Stats{
		Subscription: "down", Pending: 1, PendingExact: true, OldestAt: now.Add(-400 * time.Millisecond), Now: now,
		Cursors: []outbox.CursorStats{{Problem: "no route"}},
	}
	for _, c := range []struct {
		box  *Outbox
		want string
		json string
	}{
		{nil, "", `"outbox":null`},
		{OutboxOf("postgres", nil), "       OUTBOX no subscriptions", `"subscriptions":[]`},
		{OutboxOf("postgres", []outbox.Stats{quiet}), "       OUTBOX empty, 4 delayed", `"pending":0,"exact":true,"oldest_at":null,"oldest_age_ms":0`},
		{OutboxOf("postgres", []outbox.Stats{behind, quiet}), "       OUTBOX oldest 0.4s (30), 1 parked, 1 dead, 4 delayed", `"oldest_age_ms":400,"keys_waiting":1,"keys_held":0,"dead":1`},
		{OutboxOf("postgres", []outbox.Stats{behind, stuck}), "       OUTBOX oldest 3m00s (~37), 4 parked, 1 held, 3 dead, 1 paused", `"pending":37,"exact":false,"oldest_at":"2030-01-31T08:57:00Z","oldest_age_ms":180000`},
		{OutboxOf("postgres", []outbox.Stats{down}), "       OUTBOX oldest 0.4s (1), 1 with the sink down", `"trouble":"no route"`},
		{NoOutbox("no route\nat all"), "       OUTBOX unknown: no route at all", `"problem":"no route\nat all"`},
	} {
		s := Of(healthy(), reader)
		s.Outbox = c.box
		var b bytes.Buffer
		if err := s.Table(&b, false); err != nil {
			t.Fatal(err)
		}
		if line := strings.Split(b.String(), "\n")[1]; !strings.HasPrefix(line, "NODES   ") || !strings.HasSuffix(line, " active"+c.want) {
			t.Errorf("the line %q, want it to end in %q", line, c.want)
		}
		b.Reset()
		if err := JSONLine(&b, s); err != nil || !strings.Contains(b.String(), c.json) {
			t.Errorf("%v: %s\nwant %s", err, b.String(), c.json)
		}
	}
	s := Of(healthy(), reader)
	s.Outbox = OutboxOf("sqlite", []outbox.Stats{behind, stuck})
	var b bytes.Buffer
	if err := s.Table(&b, true); err != nil || !strings.Contains(b.String(), "\nstuck         paused   ~7 ") {
		t.Errorf("wide: %v\n%s", err, b.String())
	}
}

// TestOutboxMessage checks that a payload is shown as text to people and unchanged to scripts, and that
// lists have no payloads.
func TestOutboxMessage(t *testing.T) {
	t.Parallel()
	e := outbox.Entry{
		Row: outbox.Row{Message: outbox.Message{
			ID: uuid.Max, Topic: "t", Key: "k\x1b[2J", Payload: []byte("héllo"), Headers: map[string]string{"b": "2", "a": "1"},
		}, Seq: 7, Attempt: 3},
		Subscription: "s", Kind: outbox.Held, Cause: "422\nno",
	}
	m := OutboxMessageOf(e, true)
	if m.Payload == nil || *m.Payload != "héllo" || m.Base64 != nil {
		t.Errorf("%+v", m)
	}
	var b bytes.Buffer
	if err := m.Table().Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nkey           k?[2J\n", "\nheader a      1\nheader b      2\npayload       héllo\n", "\ncause         422 no\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	e.Payload = []byte{0xff}
	if m := OutboxMessageOf(e, true); m.Payload != nil || len(m.Base64) != 1 {
		t.Errorf("%+v", m)
	}
	if m := OutboxMessageOf(e, false); m.Payload != nil || m.Base64 != nil {
		t.Errorf("%+v", m)
	}
	e.Headers = nil
	b.Reset()
	if err := JSONLine(&b, OutboxMessageOf(e, false)); err != nil || !strings.Contains(b.String(), `"headers":{}`) || !strings.Contains(b.String(), `"next_at":null`) {
		t.Errorf("%v: %s", err, b.String())
	}
}
