package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/outbox"
)

// remoteOutbox is the outbox behind a node's admin API.
type remoteOutbox struct{ node *remote }

var _ outbox.Operator = remoteOutbox{}

// act carries out an action.
func (o remoteOutbox) act(ctx context.Context, name string, a body.OutboxAction) (done body.OutboxActionAnswer, err error) {
	text, err := json.Marshal(a)
	if err != nil {
		return done, fmt.Errorf("encode the action: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.node.base+"/outbox/"+url.PathEscape(name)+"/actions", bytes.NewReader(text))
	if err != nil {
		return done, fault.New(fault.Usage, "--addr: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	return done, o.node.do(req, &done)
}

// Stats implements [outbox.Operator].
func (o remoteOutbox) Stats(ctx context.Context, name string) ([]outbox.Stats, error) {
	var answer body.OutboxAnswer
	if err := o.node.get(ctx, "/outbox", nil, &answer); err != nil {
		return nil, err
	}
	switch {
	case answer.Outbox == nil:
		return nil, fault.New(fault.OutboxURL, "the node shows no outbox").Hint("ask a node whose configuration has one")
	case answer.Outbox.Problem != "":
		return nil, fault.New(fault.Unreachable, "the node cannot read its outbox: %s", answer.Outbox.Problem)
	}
	var out []outbox.Stats
	for _, s := range answer.Outbox.Subscriptions {
		if name == "" || name == s.Subscription {
			out = append(out, statsOf(s))
		}
	}
	return out, nil
}

// statsOf is the inverse of [view.OutboxStatsOf].
func statsOf(s view.OutboxStats) outbox.Stats {
	out := outbox.Stats{
		Subscription: s.Subscription, Paused: s.Paused, Instances: s.Instances, Pending: s.Pending, PendingExact: s.Exact,
		OldestAt: s.OldestAt.Time, Now: s.OldestAt.Add(time.Duration(s.OldestAgeMS) * time.Millisecond),
		ParkedKeys: s.KeysWaiting, HeldKeys: s.KeysHeld, Delayed: s.Delayed, NextAt: s.NextAt.Time, Dead: s.Dead,
		Retained: s.Retained, PartitionsAhead: s.PartitionsAhead,
	}
	for _, c := range s.Cursors {
		row := outbox.CursorStats{Epoch: c.Generation, Node: c.Node, UpdatedAt: c.UpdatedAt.Time, Problem: c.Problem}
		if n, _ := fmt.Sscanf(c.Shards, "%d-%d", &row.Range.Lo, &row.Range.Hi); n == 1 {
			row.Range.Hi = row.Range.Lo
		}
		out.Cursors = append(out.Cursors, row)
	}
	return out
}

// List implements [outbox.Operator].
func (o remoteOutbox) List(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	switch {
	case f.Seq != 0:
		return o.one(ctx, f)
	case f.Subscription != "":
		return o.list(ctx, f)
	}
	all, err := o.Stats(ctx, "")
	if err != nil {
		return nil, err
	}
	var out []outbox.Entry
	for _, s := range all {
		f.Subscription = s.Subscription
		found, err := o.list(ctx, f)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	slices.SortStableFunc(out, func(a, b outbox.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return out[:min(len(out), f.Limit)], nil
}

// list lists messages of one subscription, page by page.
func (o remoteOutbox) list(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	query := url.Values{}
	for name, value := range map[string]string{"kind": string(f.Kind), "key": f.Key, "topic": f.Topic, "cause": f.Cause, "since": stampOf(f.Since), "until": stampOf(f.Until)} {
		if value != "" {
			query.Set(name, value)
		}
	}
	var out []outbox.Entry
	for {
		var page body.MessagePage
		query.Set("limit", "1000")
		if err := o.node.get(ctx, "/outbox/"+url.PathEscape(f.Subscription)+"/messages", query, &page); err != nil {
			return nil, err
		}
		for _, m := range page.Messages {
			if m.Seq > f.After {
				out = append(out, entryOf(m))
			}
		}
		if page.Cursor == nil || len(out) >= f.Limit {
			return out[:min(len(out), f.Limit)], nil
		}
		query.Set("cursor", *page.Cursor)
	}
}

// one returns one message with its payload, if there is one.
func (o remoteOutbox) one(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	var answer body.MessageAnswer
	err := o.node.get(ctx, fmt.Sprintf("/outbox/%s/messages/%d", url.PathEscape(f.Subscription), f.Seq), nil, &answer)
	switch {
	case err != nil && fault.Of(err)[0].Code == fault.NoMessage:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return []outbox.Entry{entryOf(answer.Message)}, nil
}

func stampOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// entryOf is the inverse of [view.OutboxMessageOf].
func entryOf(m view.OutboxMessage) outbox.Entry {
	e := outbox.Entry{Subscription: m.Subscription, Kind: m.Kind, Cause: m.Cause, NextAt: m.NextAt.Time, ParkedAt: m.ParkedAt.Time}
	e.ID, _ = uuid.Parse(m.ID) // the node has written it
	e.Key, e.Topic, e.Type, e.Headers, e.TraceParent = m.Key, m.Topic, m.Type, m.Headers, m.TraceParent
	e.Seq, e.Shard, e.Attempt, e.CreatedAt, e.Payload = m.Seq, m.Shard, m.Attempts, m.CreatedAt.Time, m.Base64
	if m.Payload != nil {
		e.Payload = []byte(*m.Payload)
	}
	return e
}

// Retry implements [outbox.Operator].
func (o remoteOutbox) Retry(ctx context.Context, name string, seqs ...int64) (int, error) {
	done, err := o.act(ctx, name, body.OutboxAction{Action: "retry", Seqs: seqs, All: len(seqs) == 0})
	return done.Count, err
}

// Skip implements [outbox.Operator].
func (o remoteOutbox) Skip(ctx context.Context, name string, seqs ...int64) error {
	_, err := o.act(ctx, name, body.OutboxAction{Action: "skip", Seqs: seqs})
	return err
}

// SettleAll implements [outbox.Operator].
func (o remoteOutbox) SettleAll(ctx context.Context, f outbox.Filter, to outbox.Kind, dryRun bool) (map[outbox.Kind]int, error) {
	a := body.OutboxAction{Action: verbs[to], DryRun: dryRun}
	chosen := body.MessageFilter{Kind: f.Kind, Key: f.Key, Topic: f.Topic, Cause: f.Cause, Since: f.Since, Until: f.Until}
	switch {
	case f.Seq != 0:
		a.Seqs = []int64{f.Seq}
	case chosen == body.MessageFilter{}:
		a.All = true
	default:
		a.Select = &chosen
	}
	done, err := o.act(ctx, f.Subscription, a)
	switch {
	case f.Seq == 0:
		return done.Counts, err
	case err != nil && fault.Of(err)[0].Code == fault.NoMessage:
		return nil, nil
	}
	return map[outbox.Kind]int{outbox.Dead: done.Count}, err // only purge names one message
}

// Replay implements [outbox.Operator].
func (o remoteOutbox) Replay(ctx context.Context, r outbox.ReplayRequest) (int64, map[outbox.Kind]int, error) {
	chosen := body.ReplayRange{UpTo: r.UpTo, Since: r.Since, Until: r.Until, Key: r.Key, Topics: r.Topics}
	if r.After > 0 || r.UpTo == 0 && r.Since.IsZero() && r.Until.IsZero() && r.Key == "" && len(r.Topics) == 0 {
		chosen.After = &r.After
	}
	done, err := o.act(ctx, r.Subscription, body.OutboxAction{Action: "replay", Replay: &chosen, DryRun: r.DryRun})
	return done.After, done.Counts, err
}

// Pause implements [outbox.Operator].
func (o remoteOutbox) Pause(ctx context.Context, name string, paused bool) error {
	verb := "resume"
	if paused {
		verb = "pause"
	}
	_, err := o.act(ctx, name, body.OutboxAction{Action: verb})
	return err
}

// Delete implements [outbox.Operator].
func (o remoteOutbox) Delete(ctx context.Context, name string) error {
	_, err := o.act(ctx, name, body.OutboxAction{Action: "forget"})
	return err
}
