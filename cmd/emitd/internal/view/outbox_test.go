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
			Subscription: "busy", Pending: 10_000, OldestAt: now.Add(-90 * time.Second), Now: now, Lanes: 3, HeldLanes: 1, Dead: 2, Retained: 3 << 20, Ahead: -1,
			Cursors: []outbox.CursorStats{{Range: outbox.Range{Lo: 0, Hi: 31}, Epoch: 7, Node: "a", UpdatedAt: now}, {Range: outbox.Range{Lo: 32, Hi: 63}, Epoch: 9, Node: "b", UpdatedAt: now}},
		}),
		OutboxStatsOf(outbox.Stats{Subscription: "idle", Paused: true, Exact: true, Now: now, Retained: 1023}),
	}
	for wide, want := range map[bool]string{
		false: `SUBSCRIPTION  STATE    PENDING  OLDEST  KEYS WAITING  HELD  DEAD  RETAINED
busy          running  10000+   1m30s   3             1     2     3.0 MiB
idle          paused   0        -       0             0     0     1023 B
`,
		true: `SUBSCRIPTION  STATE    PENDING  OLDEST  KEYS WAITING  HELD  DEAD  RETAINED  SHARDS  NODE  GENERATION  STORED
busy          running  10000+   1m30s   3             1     2     3.0 MiB   0-31    a     7           2030-01-31 09:00:00Z
busy          running  10000+   1m30s   3             1     2     3.0 MiB   32-63   b     9           2030-01-31 09:00:00Z
`,
	} {
		var b bytes.Buffer
		if err := OutboxTable(all, wide).Write(&b); err != nil || b.String() != want {
			t.Errorf("wide %v: %v\n%s\nwant\n%s", wide, err, b.String(), want)
		}
	}
	if all[0].OldestAgeMS != 90_000 || all[1].OldestAgeMS != 0 || all[1].Cursors == nil {
		t.Errorf("%+v", all)
	}
}

// A message is text for people, and for scripts whatever it is; a list has no payloads.
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
