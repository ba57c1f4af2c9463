package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox"
)

// CheckForget refuses to forget a subscription that nodes of the group still deliver.
func CheckForget(snap *daemon.Snapshot, subscription, group string) error {
	relay := outbox.ID(subscription).In(group)
	for _, m := range snap.Nodes {
		if m.Present() && slices.ContainsFunc(snap.Advert(m).Specs, func(s daemon.Spec) bool { return s.ID == relay }) {
			return fault.New(fault.SubscriptionUsed, "node %s has the subscription %s in its configuration", m.Name, subscription)
		}
	}
	for i := range snap.Units {
		if r := &snap.Units[i]; r.Unit.Daemon == relay && !r.State.IsFree() {
			return fault.New(fault.SubscriptionUsed, "node %s has not ended the relay %s yet", r.Holder.Name, r.Unit)
		}
	}
	return nil
}

// OutboxStats is the state of a subscription of the outbox.
type OutboxStats struct {
	Subscription string `json:"subscription"`
	Paused       bool   `json:"paused"`
	// Pending counts undelivered messages: those of parked keys are included, dead ones not. If Exact is
	// false, it is an estimate.
	Pending     int64 `json:"pending"`
	Exact       bool  `json:"exact"`
	OldestAt    Time  `json:"oldest_at"` // of the oldest pending message
	OldestAgeMS int64 `json:"oldest_age_ms"`
	KeysWaiting int64 `json:"keys_waiting"` // parked keys, including held ones
	KeysHeld    int64 `json:"keys_held"`    // keys that wait for an operator
	Dead        int64 `json:"dead"`
	// Delayed counts the messages that are held back until their time, for all subscriptions together, at
	// most 10,000. NextAt is when the first of them is due.
	Delayed   int64 `json:"delayed"`
	NextAt    Time  `json:"next_at"`
	Instances int   `json:"instances"`
	// Retained is the size of the log on disk. PartitionsAhead is the number of partitions that are ready to
	// be written, -1 for a log without partitions.
	Retained        int64          `json:"retained_bytes"`
	PartitionsAhead int            `json:"partitions_ahead"`
	Cursors         []OutboxCursor `json:"cursors"`
}

// OutboxCursor says which node reads a range of shards.
type OutboxCursor struct {
	Shards     string `json:"shards"`
	Generation int64  `json:"generation"`
	Node       string `json:"node"`
	UpdatedAt  Time   `json:"updated_at"`
	Problem    string `json:"trouble"` // why the sink is down; empty if it is not
}

// OutboxStatsOf returns the view of the log's statistics.
func OutboxStatsOf(s outbox.Stats) OutboxStats {
	out := OutboxStats{
		Subscription: s.Subscription, Paused: s.Paused, Pending: s.Pending, Exact: s.PendingExact, OldestAt: Time{s.OldestAt},
		KeysWaiting: s.ParkedKeys, KeysHeld: s.HeldKeys, Dead: s.Dead, Delayed: s.Delayed, NextAt: Time{s.NextAt}, Instances: s.Instances,
		Retained: s.Retained, PartitionsAhead: s.PartitionsAhead, Cursors: []OutboxCursor{},
	}
	if !s.OldestAt.IsZero() {
		out.OldestAgeMS = max(s.Now.Sub(s.OldestAt).Milliseconds(), 0)
	}
	for _, c := range s.Cursors {
		out.Cursors = append(out.Cursors, OutboxCursor{c.Range.String(), c.Epoch, c.Node, Time{c.UpdatedAt}, c.Problem})
	}
	return out
}

// Outbox is the state of a cluster's outbox: its subscriptions, and their totals. The oldest message is
// that of the subscription that is furthest behind.
type Outbox struct {
	Kind string `json:"kind"` // kind of database, for people
	// Problem says why the outbox could not be read; empty if it could.
	Problem       string        `json:"problem"`
	Pending       int64         `json:"pending"`
	Exact         bool          `json:"exact"`
	OldestAt      Time          `json:"oldest_at"`
	OldestAgeMS   int64         `json:"oldest_age_ms"`
	KeysWaiting   int64         `json:"keys_waiting"`
	KeysHeld      int64         `json:"keys_held"`
	Dead          int64         `json:"dead"`
	Delayed       int64         `json:"delayed"`
	Subscriptions []OutboxStats `json:"subscriptions"`
}

// NoOutbox returns an outbox that could not be read.
func NoOutbox(problem string) *Outbox {
	return &Outbox{Problem: problem, Subscriptions: []OutboxStats{}}
}

// OutboxOf sums up the statistics of all subscriptions.
func OutboxOf(kind string, all []outbox.Stats) *Outbox {
	out := &Outbox{Kind: kind}
	for _, one := range all {
		out.Subscriptions = append(out.Subscriptions, OutboxStatsOf(one))
	}
	return out.With(out.Subscriptions)
}

// With returns the outbox with these subscriptions and their totals.
func (o Outbox) With(subscriptions []OutboxStats) *Outbox {
	out := &Outbox{Kind: o.Kind, Problem: o.Problem, Exact: true, Subscriptions: append([]OutboxStats{}, subscriptions...)}
	for _, s := range subscriptions {
		out.Pending, out.Exact = out.Pending+s.Pending, out.Exact && s.Exact
		out.Delayed = max(out.Delayed, s.Delayed) // the same messages for all
		out.KeysWaiting, out.KeysHeld, out.Dead = out.KeysWaiting+s.KeysWaiting, out.KeysHeld+s.KeysHeld, out.Dead+s.Dead
		if !s.OldestAt.IsZero() && (out.OldestAt.IsZero() || s.OldestAt.Before(out.OldestAt.Time)) {
			out.OldestAt, out.OldestAgeMS = s.OldestAt, s.OldestAgeMS
		}
	}
	return out
}

// cell returns the outbox's line in a status: age and number of pending messages, and what needs
// attention: parked keys, held keys and dead messages. Delayed messages are shown too, because they
// explain why an outbox delivers nothing.
func (o *Outbox) cell() string {
	if o == nil {
		return ""
	}
	const name = "       OUTBOX "
	switch {
	case o.Problem != "":
		return name + "unknown: " + Line(o.Problem)
	case len(o.Subscriptions) == 0:
		return name + "no subscriptions"
	}
	text := name + "empty"
	if o.Pending > 0 {
		text = fmt.Sprintf("%soldest %s (%s)", name, Exact(time.Duration(o.OldestAgeMS)*time.Millisecond), formatCount(o.Pending, o.Exact))
	}
	paused, down := 0, 0
	for _, s := range o.Subscriptions {
		if s.Paused {
			paused++
		}
		if s.SinkDown() {
			down++
		}
	}
	for _, n := range []struct {
		n    int64
		what string
	}{{o.KeysWaiting, "parked"}, {o.KeysHeld, "held"}, {o.Dead, "dead"}, {int64(paused), "paused"}, {int64(down), "with the sink down"}, {o.Delayed, "delayed"}} {
		if n.n > 0 {
			text += fmt.Sprintf(", %d %s", n.n, n.what)
		}
	}
	return text
}

// AddOutbox adds the outbox and its notices to a status. A message that has waited longer than limit
// gives a notice.
func (s *Status) AddOutbox(o *Outbox, limit time.Duration) {
	s.Outbox = o
	if o == nil {
		return
	}
	s.addNotices(func(add notify) {
		if o.Problem != "" {
			add(failing, "outbox", "emitd doctor", "the state of the outbox is not known: %s", o.Problem)
		}
		for _, sub := range o.Subscriptions {
			sub.sinkDown(add)
			sub.stuck(add)
			sub.addBehind(limit, s.relay(sub.Subscription), add)
		}
	})
}

// relay returns the daemon that relays a subscription, which may be of a group.
func (s *Status) relay(subscription string) daemon.ID {
	id := outbox.ID(subscription)
	for i := range s.Daemons {
		if d := s.Daemons[i].Daemon; d == id.In(d.Group()) {
			return d
		}
	}
	return id
}

// sinkDown adds a notice about a sink that is down, with the first range of shards that reports it.
func (s OutboxStats) sinkDown(add notify) {
	i := slices.IndexFunc(s.Cursors, func(c OutboxCursor) bool { return c.Problem != "" })
	if i < 0 {
		return
	}
	waits := ""
	if s.Pending > 0 {
		waits = fmt.Sprintf(", %s wait, the oldest for %s", formatCount(s.Pending, s.Exact), s.oldest())
	}
	add(failing, "outbox "+s.Subscription, "check the receiver; emitd outbox stats "+s.Subscription+" -o wide",
		"outbox %s: the sink is down, says %s%s: %s", s.Subscription, s.Cursors[i].Node, waits, strings.TrimPrefix(firstLine(s.Cursors[i].Problem), "sink is down: "))
}

// stuck adds notices about messages that no relay retries by itself.
func (s OutboxStats) stuck(add notify) {
	if s.Dead > 0 {
		add(warning, "outbox "+s.Subscription, "emitd outbox ls "+s.Subscription+" --kind dead", "outbox %s has %s: given up or skipped", s.Subscription, several(s.Dead, "dead message"))
	}
	if s.KeysHeld > 0 {
		add(warning, "outbox "+s.Subscription, "emitd outbox ls "+s.Subscription+" --kind held", "outbox %s holds %s: each key waits for an operator, because one of its messages cannot be delivered", s.Subscription, several(s.KeysHeld, "key"))
	}
}

// addBehind adds a notice about messages that have waited too long although the sink is not down.
func (s OutboxStats) addBehind(limit time.Duration, relay daemon.ID, add notify) {
	if s.Pending == 0 || limit == 0 || time.Duration(s.OldestAgeMS)*time.Millisecond <= limit || s.SinkDown() {
		return
	}
	why, do := "the relay is too slow, or keys are parked after a failure", "emitd outbox ls "+s.Subscription
	switch {
	case s.Paused:
		why, do = "the subscription is paused", "emitd outbox stats "+s.Subscription
	case len(s.Cursors) == 0:
		why, do = "no relay reads it", "emitd daemon explain "+string(relay)
	}
	add(failing, "outbox "+s.Subscription, do, "outbox %s keeps its oldest message waiting for %s, %s wait: %s", s.Subscription, s.oldest(), formatCount(s.Pending, s.Exact), why)
}

func (s OutboxStats) oldest() string { return Exact(time.Duration(s.OldestAgeMS) * time.Millisecond) }

// formatCount formats a number that may be an estimate.
func formatCount(n int64, exact bool) string {
	if exact {
		return fmt.Sprint(n)
	}
	return "~" + fmt.Sprint(n)
}

// atLeast formats a number that may be a lower bound.
func atLeast(n int64, exact bool) string {
	if exact {
		return fmt.Sprint(n)
	}
	return fmt.Sprint(n) + "+"
}

// OutboxTable lists subscriptions. A wide table has a line for each range of shards.
func OutboxTable(all []OutboxStats, wide bool) *Table {
	t := &Table{Head: []string{"SUBSCRIPTION", "STATE", "PENDING", "OLDEST", "DELAYED", "PARKED KEYS", "HELD", "DEAD", "RETAINED"}}
	if wide {
		t.Head = append(t.Head, "SHARDS", "NODE", "GENERATION", "STORED", "PROBLEM")
	}
	for _, s := range all {
		row := s.cells()
		if !wide {
			t.Add(row...)
			continue
		}
		for _, c := range s.Cursors {
			t.Add(append(row[:len(row):len(row)], c.Shards, c.Node, fmt.Sprint(c.Generation), stamp(c.UpdatedAt.Time), c.Problem)...)
		}
	}
	return t
}

// SinkDown reports whether the sink is down for a range of shards.
func (s OutboxStats) SinkDown() bool {
	return slices.ContainsFunc(s.Cursors, func(c OutboxCursor) bool { return c.Problem != "" })
}

// State returns whether the subscription delivers: "running", "paused" or "sink down".
func (s OutboxStats) State() string {
	switch {
	case s.Paused:
		return "paused"
	case s.SinkDown():
		return "sink down"
	}
	return "running"
}

func (s OutboxStats) cells() []string {
	oldest := ""
	if s.Pending > 0 {
		oldest = Exact(time.Duration(s.OldestAgeMS) * time.Millisecond)
	}
	return []string{
		s.Subscription, s.State(), formatCount(s.Pending, s.Exact), oldest, atLeast(s.Delayed, s.Delayed < mostDelayed),
		fmt.Sprint(s.KeysWaiting), fmt.Sprint(s.KeysHeld), fmt.Sprint(s.Dead), size(s.Retained),
	}
}

// mostDelayed is the number at which counting delayed messages stops.
const mostDelayed = 10_000

// size formats bytes for people.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, names := float64(n), []string{"KiB", "MiB", "GiB", "TiB"}
	for i, name := range names {
		if value /= unit; value < unit || i == len(names)-1 {
			return fmt.Sprintf("%.1f %s", value, name)
		}
	}
	return ""
}

// OutboxMessage is a message that a relay has parked or given up. Kind says how: waiting for its next
// attempt, behind the first message of its key, held for an operator, or dead.
type OutboxMessage struct {
	Seq          int64             `json:"seq"`
	Subscription string            `json:"subscription"`
	Kind         outbox.Kind       `json:"kind"`
	ID           string            `json:"id"`
	Key          string            `json:"key"`
	Topic        string            `json:"topic"`
	Type         string            `json:"type"`
	Shard        int               `json:"shard"`
	Headers      map[string]string `json:"headers"`
	Attempts     int               `json:"attempts"`
	Cause        string            `json:"cause"`
	NextAt       Time              `json:"next_at"` // of waiting messages
	ParkedAt     Time              `json:"parked_at"`
	CreatedAt    Time              `json:"created_at"`
	TraceParent  string            `json:"traceparent"`
	// Payload is the payload if it is text, otherwise Base64 is set. Lists have neither.
	Payload *string `json:"payload,omitempty"`
	Base64  []byte  `json:"payload_base64,omitempty"`
}

// OutboxMessageOf returns the view of an entry.
func OutboxMessageOf(e outbox.Entry, payload bool) OutboxMessage {
	m := OutboxMessage{
		Seq: e.Seq, Subscription: e.Subscription, Kind: e.Kind, ID: e.ID.String(), Key: e.Key, Topic: e.Topic, Type: e.Type,
		Shard: e.Shard, Headers: e.Headers, Attempts: e.Attempt, Cause: e.Cause,
		NextAt: Time{e.NextAt}, ParkedAt: Time{e.ParkedAt}, CreatedAt: Time{e.CreatedAt}, TraceParent: e.TraceParent,
	}
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	switch text := string(e.Payload); {
	case !payload:
	case utf8.ValidString(text):
		m.Payload = &text
	default:
		m.Base64 = e.Payload
	}
	return m
}

// OutboxMessages lists messages.
func OutboxMessages(all []OutboxMessage, wide bool) *Table {
	t := &Table{Head: []string{"SEQ", "SUBSCRIPTION", "STATE", "TOPIC", "KEY", "ATTEMPTS", "NEXT", "CAUSE"}}
	if wide {
		t.Head = append(t.Head[:len(t.Head)-1], "ID", "TYPE", "CREATED", "CAUSE")
	}
	for _, m := range all {
		row := []string{
			fmt.Sprint(m.Seq), m.Subscription, string(m.Kind), m.Topic, m.Key, fmt.Sprint(m.Attempts), stamp(m.NextAt.Time),
		}
		if wide {
			row = append(row, m.ID, m.Type, stamp(m.CreatedAt.Time))
		}
		t.Add(append(row, m.Cause)...)
	}
	return t
}

// Table shows one message, one field per line.
func (m OutboxMessage) Table() *Table {
	payload := fmt.Sprintf("%d bytes that are not text", len(m.Base64))
	if m.Payload != nil {
		payload = *m.Payload
	}
	t := &Table{Head: []string{"FIELD", "VALUE"}}
	for _, f := range [][2]string{
		{"seq", fmt.Sprint(m.Seq)},
		{"subscription", m.Subscription},
		{"state", string(m.Kind)},
		{"id", m.ID},
		{"topic", m.Topic},
		{"key", m.Key},
		{"type", m.Type},
		{"shard", fmt.Sprint(m.Shard)},
		{"attempts", fmt.Sprint(m.Attempts)},
		{"cause", m.Cause},
		{"next attempt", stamp(m.NextAt.Time)},
		{"since", stamp(m.ParkedAt.Time)},
		{"published", stamp(m.CreatedAt.Time)},
		{"traceparent", m.TraceParent},
	} {
		t.Add(f[0], f[1])
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		t.Add("header "+name, m.Headers[name])
	}
	t.Add("payload", payload)
	return t
}
