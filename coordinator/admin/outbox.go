package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/audit"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/queue"
)

// outboxOperations lists the calls about the outbox.
func outboxOperations() []operation {
	return []operation{
		get("getOutbox", "/outbox", "The outbox: its subscriptions that the caller may read, and their totals", (*API).outbox).authorizing(),
		get("getSubscription", "/outbox/{subscription}", "One subscription of the outbox", (*API).subscription),
		get("listMessages", "/outbox/{subscription}/messages", "The messages of a subscription that are parked, held or dead, in log order", (*API).messages),
		get("getMessage", "/outbox/{subscription}/messages/{seq}", "One of these messages, with its payload", (*API).message),
		call("doOutbox", http.MethodPost, "/outbox/{subscription}/actions", "Retry, skip or purge messages; replay, pause, resume or forget a subscription", (*API).actOnOutbox),
	}
}

// Outbox is an outbox for an API.
type Outbox struct {
	Kind string // of its database, for people
	// Group is that of the nodes whose relays deliver the messages; empty for none.
	Group string
	outbox.Operator
}

// openOutbox returns the outbox; the error says why it cannot be used.
func (a *API) openOutbox() (*Outbox, error) {
	if a.cfg.Outbox == nil {
		return nil, fault.New(fault.NoSubscription, "this server shows no outbox").Hint("ask a node whose configuration has one")
	}
	return a.cfg.Outbox()
}

// readOutbox reads all subscriptions. A problem is part of the result; nil means that there is no outbox.
func (a *API) readOutbox(ctx context.Context) (*view.Outbox, error) {
	if a.cfg.Outbox == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(partTimeout, a.cfg.Timeout))
	defer cancel()
	box, err := a.cfg.Outbox()
	if err == nil {
		var all []outbox.Stats
		if all, err = box.Stats(ctx, ""); err == nil {
			return view.OutboxOf(box.Kind, all), nil
		}
	}
	f := a.fault(err)
	return view.NoOutbox(string(f.Code) + ": " + f.What), nil
}

// partTimeout is how long the status of a cluster waits for its outbox, and for its queues.
const partTimeout = time.Second

type outboxIn struct{ fromRequest }

func (a *API) outbox(ctx context.Context, in *outboxIn) (*body.OutboxAnswer, error) {
	box, err := a.outboxReads.get(ctx)
	if err != nil {
		return nil, err
	}
	if box == nil {
		box = &view.Outbox{}
	}
	readable, err := a.outboxOf(in.r, box)
	switch {
	case err != nil:
		return nil, err
	case a.cfg.Outbox == nil:
		return &body.OutboxAnswer{}, nil
	}
	return &body.OutboxAnswer{Outbox: readable}, nil
}

// outboxOf returns the part of an outbox that a caller may read, and the refusal if it may read nothing.
func (a *API) outboxOf(r *http.Request, box *view.Outbox) (*view.Outbox, error) {
	some, err := selected(a, r, box.Subscriptions, func(s *view.OutboxStats) Access { return Access{Role: RoleRead, Subscription: s.Subscription} })
	switch {
	case err == nil:
		return box.With(some), nil
	case box.Problem != "" && queue.TagOf(err) != queue.Unauthorized:
		return nil, unknown(box.Problem)
	}
	return nil, err
}

type subscriptionIn struct {
	// Subscription is the name of a subscription.
	Subscription string `path:"subscription"`
}

// subscriptionAnswer is one subscription.
type subscriptionAnswer struct {
	Subscription view.OutboxStats `json:"subscription"`
	// Relay is the daemon that delivers the messages. Its units are the relays.
	Relay daemon.ID `json:"relay"`
}

// subscribed returns the outbox and the state of a subscription, which must exist.
func (a *API) subscribed(ctx context.Context, name string) (*Outbox, view.OutboxStats, error) {
	box, err := a.openOutbox()
	if err != nil {
		return nil, view.OutboxStats{}, err
	}
	all, err := box.Stats(ctx, "")
	if err != nil {
		return nil, view.OutboxStats{}, fmt.Errorf("read the outbox: %w", err)
	}
	for _, s := range all {
		if s.Subscription == name {
			return box, view.OutboxStatsOf(s), nil
		}
	}
	return nil, view.OutboxStats{}, fault.New(fault.NoSubscription, "the outbox has no subscription %.200q", name)
}

func (a *API) subscription(ctx context.Context, in *subscriptionIn) (*subscriptionAnswer, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	box, s, err := a.subscribed(ctx, in.Subscription)
	if err != nil {
		return nil, err
	}
	return &subscriptionAnswer{s, outbox.ID(in.Subscription).In(box.Group)}, nil
}

// filterOf returns the filter as the log takes it.
func filterOf(f body.MessageFilter, subscription string) (outbox.Filter, error) {
	out := outbox.Filter{Subscription: subscription, Kind: f.Kind, Key: f.Key, Topic: f.Topic, Cause: f.Cause, Since: f.Since, Until: f.Until}
	switch f.Kind {
	case "", outbox.Waiting, outbox.Held, outbox.Behind, outbox.Dead:
	default:
		return out, badCall("kind is %.100q, want waiting, held, behind or dead", string(f.Kind))
	}
	if strings.Contains(strings.TrimSuffix(f.Topic, "*"), "*") {
		return out, badCall("topic is %.80q, want a topic, or a prefix followed by *", f.Topic)
	}
	if !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return out, badCall("since is not before until, so no message can be between them")
	}
	return out, nil
}

type messagesIn struct {
	subscriptionIn
	paging
	body.MessageFilter
}

func (a *API) messages(ctx context.Context, in *messagesIn) (*body.MessagePage, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	f, err := filterOf(in.MessageFilter, in.Subscription)
	if err != nil {
		return nil, err
	}
	const list = "messages"
	if f.After, _, err = after[int64](in.paging, list); err != nil {
		return nil, err
	}
	box, _, err := a.subscribed(ctx, in.Subscription)
	if err != nil {
		return nil, err
	}
	f.Limit = in.Limit + 1 // to find out whether there are more
	found, err := box.List(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	out := &body.MessagePage{Messages: []view.OutboxMessage{}}
	for _, e := range found[:min(len(found), in.Limit)] {
		out.Messages = append(out.Messages, view.OutboxMessageOf(e, false))
	}
	if len(found) > in.Limit {
		out.Cursor = cursor(list, found[in.Limit-1].Seq)
	}
	return out, nil
}

type messageIn struct {
	subscriptionIn
	// Seq is the number of a message.
	Seq int64 `path:"seq" min:"1"`
}

func (a *API) message(ctx context.Context, in *messageIn) (*body.MessageAnswer, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	box, _, err := a.subscribed(ctx, in.Subscription)
	if err != nil {
		return nil, err
	}
	found, err := box.List(ctx, outbox.Filter{Subscription: in.Subscription, Seq: in.Seq})
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	if len(found) == 0 {
		return nil, fault.New(fault.NoMessage, "no parked or dead message %d in %s", in.Seq, in.Subscription)
	}
	return &body.MessageAnswer{Message: view.OutboxMessageOf(found[0], true)}, nil
}

// replayOf returns the request to the log.
func replayOf(r body.ReplayRange, subscription string, dryRun bool) outbox.ReplayRequest {
	out := outbox.ReplayRequest{
		Subscription: subscription, Key: r.Key, Topics: r.Topics, UpTo: r.UpTo, Since: r.Since, Until: r.Until, DryRun: dryRun,
	}
	if r.After != nil {
		out.After = *r.After
	}
	return out
}

// selectsNone reports whether a replay has no field.
func selectsNone(r *body.ReplayRange) bool {
	return r == nil || r.After == nil && r.UpTo == 0 && r.Since.IsZero() && r.Until.IsZero() && r.Key == "" && len(r.Topics) == 0
}

type outboxActionIn struct {
	subscriptionIn
	fromRequest
	Body body.OutboxAction `body:"json"`
}

// settlement says what an action on messages does: what the messages become, and which may be selected.
type settlement struct {
	to    outbox.Kind
	kinds []outbox.Kind
}

var settlements = map[string]settlement{
	"retry": {outbox.Waiting, []outbox.Kind{outbox.Held, outbox.Dead, outbox.Waiting}},
	"skip":  {outbox.Dead, []outbox.Kind{outbox.Held, outbox.Waiting, outbox.Behind}},
	"purge": {outbox.Dropped, []outbox.Kind{outbox.Dead}},
}

func (a *API) actOnOutbox(ctx context.Context, in *outboxActionIn) (*body.OutboxActionAnswer, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	act := in.Body
	out := &body.OutboxActionAnswer{Subscription: in.Subscription, Action: act.Action, DryRun: act.DryRun}
	kind, onMessages := settlements[act.Action]
	if err := checkAction(act, onMessages); err != nil {
		return nil, err
	}
	box, now, err := a.subscribed(ctx, in.Subscription)
	if err != nil {
		return nil, err
	}
	if act.Action == "forget" {
		s, err := a.reads.get(ctx)
		if err == nil {
			err = view.CheckForget(s.snap, in.Subscription, box.Group)
		}
		if err != nil {
			return nil, err
		}
	}
	before := audit.LagOf(now)
	defer a.outboxReads.forget()
	c := audit.Change{Kind: audit.Outbox + act.Action, Subject: in.Subscription, By: a.by(in.r), Args: selectionOf(act), Before: before}
	switch {
	case onMessages:
		out.Count, out.Counts, err = kind.settle(ctx, box, in.Subscription, act)
	case act.Action == "replay":
		out.After, out.Counts, err = box.Replay(ctx, replayOf(*act.Replay, in.Subscription, act.DryRun))
		out.Count = out.Counts[outbox.Delivered]
	case act.DryRun:
	case act.Action == "forget":
		err = box.Delete(ctx, in.Subscription)
	default:
		err = box.Pause(ctx, in.Subscription, act.Action == "pause")
	}
	if !act.DryRun {
		c.Count, c.Err = out.Count, err
		if _, after, err := a.subscribed(ctx, in.Subscription); err == nil {
			c.After = audit.LagOf(after)
		}
		audit.Record(ctx, a.cfg.Store, a.cfg.Logger, c)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", act.Action, in.Subscription, err)
	}
	return out, nil
}

// selectionOf returns what an action is about; nil for a whole subscription.
func selectionOf(o body.OutboxAction) any {
	if len(o.Seqs) == 0 && o.Select == nil && o.Replay == nil && !o.All {
		return nil
	}
	return struct {
		Seqs   []int64             `json:"seqs,omitempty"`
		Select *body.MessageFilter `json:"select,omitempty"`
		Replay *body.ReplayRange   `json:"replay,omitempty"`
		All    bool                `json:"all,omitempty"`
	}{o.Seqs, o.Select, o.Replay, o.All}
}

// checkAction refuses an action with fields that contradict each other or have no effect.
func checkAction(o body.OutboxAction, onMessages bool) error {
	ways := 0
	for _, given := range []bool{len(o.Seqs) > 0, o.Select != nil, o.All} {
		if given {
			ways++
		}
	}
	switch {
	case !onMessages && !slices.Contains([]string{"replay", "pause", "resume", "forget"}, o.Action):
		return badCall("action is %.100q, want retry, skip, purge, replay, pause, resume or forget", o.Action)
	case onMessages && ways != 1:
		return badCall("%s needs one of seqs, select and all", o.Action)
	case !onMessages && ways > 0:
		return badCall("%s has none of seqs, select and all", o.Action)
	case o.Replay != nil && o.Action != "replay":
		return badCall("%s has no replay", o.Action)
	case o.Action == "replay" && selectsNone(o.Replay):
		return badCall("replay needs at least one field of replay, such as after")
	case o.Replay != nil && (o.Replay.UpTo < 0 || o.Replay.After != nil && *o.Replay.After < 0):
		return badCall("after and up_to are at least 0")
	case len(o.Seqs) > mostSeqs:
		return badCall("seqs has %d numbers, at most %d are allowed; select others", len(o.Seqs), mostSeqs)
	}
	return nil
}

// mostSeqs bounds the messages that one call names.
const mostSeqs = 1000

// settle changes messages and returns how many: all together, and of each kind.
func (s settlement) settle(ctx context.Context, box *Outbox, name string, act body.OutboxAction) (int, map[outbox.Kind]int, error) {
	if len(act.Seqs) > 0 {
		n, err := s.settleSeqs(ctx, box, name, act)
		return n, nil, err
	}
	f := outbox.Filter{Subscription: name}
	if act.Select != nil {
		var err error
		if f, err = filterOf(*act.Select, name); err != nil {
			return 0, nil, err
		}
		if f.Kind != "" && !slices.Contains(s.kinds, f.Kind) {
			return 0, nil, badCall("messages that are %s cannot be changed by %s", f.Kind, act.Action)
		}
	}
	counts, err := box.SettleAll(ctx, f, s.to, act.DryRun)
	n := total(counts)
	if err != nil && n > 0 {
		err = fmt.Errorf("after %d messages were changed: %w", n, err)
	}
	return n, counts, err
}

// settleSeqs changes the messages with the given numbers: all of them or, if one cannot be changed, none.
func (s settlement) settleSeqs(ctx context.Context, box *Outbox, name string, act body.OutboxAction) (int, error) {
	for _, seq := range act.Seqs { // first look whether all are there
		found, err := box.List(ctx, outbox.Filter{Subscription: name, Seq: seq})
		if err != nil {
			return 0, err
		}
		if !slices.ContainsFunc(found, func(e outbox.Entry) bool { return slices.Contains(s.kinds, e.Kind) }) {
			return 0, fault.New(fault.NoMessage, "%s has no message %d that %s could change", name, seq, act.Action).Because("nothing was changed.")
		}
	}
	if act.DryRun {
		return len(act.Seqs), nil
	}
	switch s.to {
	case outbox.Waiting:
		return box.Retry(ctx, name, act.Seqs...)
	case outbox.Dead:
		return len(act.Seqs), box.Skip(ctx, name, act.Seqs...)
	}
	for i, seq := range act.Seqs {
		if _, err := box.SettleAll(ctx, outbox.Filter{Subscription: name, Seq: seq}, s.to, false); err != nil {
			return i, fmt.Errorf("after %d messages were changed: %w", i, err)
		}
	}
	return len(act.Seqs), nil
}

func total(counts map[outbox.Kind]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
