package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// letters is an outbox in memory with one subscription, billing. It has what an operator sees of a log.
type letters struct {
	outbox.Operator
	all    []outbox.Entry
	paused bool
	replay outbox.ReplayRequest
	gone   bool
}

func (l *letters) Stats(context.Context, string) ([]outbox.Stats, error) {
	if l.gone {
		return nil, nil
	}
	return []outbox.Stats{{Subscription: "billing", Paused: l.paused, PendingExact: true, Dead: int64(l.count(outbox.Dead)), PartitionsAhead: -1}}, nil
}

func (l *letters) count(kind outbox.Kind) (n int) {
	for _, e := range l.all {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func (l *letters) List(_ context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	var out []outbox.Entry
	for _, e := range l.all {
		if (f.Kind == "" || f.Kind == e.Kind) && (f.Seq == 0 || f.Seq == e.Seq) && e.Seq > f.After && (f.Topic == "" || f.Topic == e.Topic) && (f.Limit == 0 || len(out) < f.Limit) {
			out = append(out, e)
		}
	}
	return out, nil
}

func (l *letters) become(kind outbox.Kind, is func(e outbox.Entry) bool) int {
	n := 0
	for i := range l.all {
		if is(l.all[i]) {
			l.all[i].Kind = kind
			n++
		}
	}
	return n
}

func (l *letters) Retry(_ context.Context, _ string, seqs ...int64) (int, error) {
	return l.become(outbox.Waiting, func(e outbox.Entry) bool { return slices.Contains(seqs, e.Seq) }), nil
}

func (l *letters) Skip(_ context.Context, _ string, seqs ...int64) error {
	l.become(outbox.Dead, func(e outbox.Entry) bool { return slices.Contains(seqs, e.Seq) })
	return nil
}

func (l *letters) SettleAll(ctx context.Context, f outbox.Filter, to outbox.Kind, dryRun bool) (map[outbox.Kind]int, error) {
	found, err := l.List(ctx, f)
	counts := map[outbox.Kind]int{}
	for _, e := range found {
		if f.Kind == "" && !slices.Contains(settlements[map[outbox.Kind]string{outbox.Waiting: "retry", outbox.Dead: "skip", outbox.Dropped: "purge"}[to]].kinds[:1], e.Kind) {
			continue
		}
		counts[e.Kind]++
		if !dryRun {
			l.become(to, func(o outbox.Entry) bool { return o.Seq == e.Seq })
		}
	}
	return counts, err
}

func (l *letters) Replay(_ context.Context, r outbox.ReplayRequest) (int64, map[outbox.Kind]int, error) {
	if !r.DryRun {
		l.replay = r
	}
	return r.After, map[outbox.Kind]int{outbox.Delivered: 3}, nil
}

func (l *letters) Pause(_ context.Context, _ string, paused bool) error {
	l.paused = paused
	return nil
}

func (l *letters) Delete(context.Context, string) error {
	l.gone = true
	return nil
}

// newLetters returns an outbox with 25 messages: 10 dead, 10 held, 5 waiting.
func newLetters() *letters {
	l := &letters{}
	for i := range 25 {
		e := outbox.Entry{Subscription: "billing", Kind: []outbox.Kind{outbox.Dead, outbox.Held, outbox.Dead, outbox.Held, outbox.Waiting}[i%5], Cause: "410 Gone"}
		e.Seq, e.Topic, e.Payload = int64(3*i+1), "orders", []byte("<b>\xff")
		l.all = append(l.all, e)
	}
	return l
}

func outboxAPI(t *testing.T) (*API, *letters) {
	t.Helper()
	l := newLetters()
	return api(t, memory.Open(memory.Config{}), func(c *Config) {
		c.Outbox = func() (*Outbox, error) { return &Outbox{Kind: "sqlite", Operator: l}, nil }
	}), l
}

// TestOutbox: the subscriptions, their messages page by page, and one message with its payload.
func TestOutbox(t *testing.T) {
	t.Parallel()
	a, _ := outboxAPI(t)
	var all body.OutboxAnswer
	do(t, a, request(t, "GET", root+"/outbox", ""), &all)
	if all.Outbox == nil || all.Outbox.Dead != 10 || all.Outbox.Kind != "sqlite" {
		t.Errorf("%+v", all.Outbox)
	}
	var seqs []int64
	for next := ""; ; {
		var p body.MessagePage
		do(t, a, request(t, "GET", root+"/outbox/billing/messages?kind=dead&limit=3&cursor="+url.QueryEscape(next), ""), &p)
		for _, m := range p.Messages {
			seqs = append(seqs, m.Seq)
		}
		if p.Cursor == nil {
			break
		}
		next = *p.Cursor
	}
	if len(seqs) != 10 || !slices.IsSorted(seqs) || len(slices.Compact(slices.Clone(seqs))) != 10 {
		t.Errorf("%v", seqs)
	}
	var one body.MessageAnswer
	do(t, a, request(t, "GET", root+"/outbox/billing/messages/1", ""), &one)
	if one.Message.Cause != "410 Gone" || string(one.Message.Base64) != "<b>\xff" {
		t.Errorf("%+v", one)
	}
	for path, want := range map[string]struct {
		status int
		code   fault.Code
	}{
		"/outbox/none": {404, fault.NoSubscription}, "/outbox/none/messages": {404, fault.NoSubscription}, "/outbox/billing/messages/2": {404, fault.NoMessage},
		"/outbox/billing/messages?kind=lost": {400, fault.BadCall}, "/outbox/billing/messages?topic=a*b": {400, fault.BadCall}, "/outbox/billing/messages/x": {400, fault.BadCall},
		"/outbox/billing/messages?since=2030-01-02T00:00:00Z&until=2030-01-01T00:00:00Z": {400, fault.BadCall},
	} {
		var p fault.Problem
		if w := do(t, a, request(t, "GET", root+path, ""), &p); w.Code != want.status || p.Code != want.code {
			t.Errorf("%s: %d %+v", path, w.Code, p)
		}
	}
	a.outboxReads.forget()
	a.cfg.Outbox = func() (*Outbox, error) { return nil, errors.New("the database is down") }
	var s view.Status
	if do(t, a, request(t, "GET", root+"/status", ""), &s); s.Outbox == nil || s.Outbox.Problem == "" {
		t.Errorf("%+v", s.Outbox)
	}
}

// TestOutboxActions: a dry run changes nothing; numbers that are wrong change nothing either; what is selected changes, and
// nothing else.
func TestOutboxActions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		body   string
		status int
		count  int
		dead   int // afterwards
		held   int
	}{
		{`{"action": "retry", "all": true, "dry_run": true}`, 200, 10, 10, 10},
		{`{"action": "retry", "select": {"kind": "dead"}}`, 200, 10, 0, 10},
		{`{"action": "retry", "seqs": [1, 7]}`, 200, 2, 8, 10},
		{`{"action": "retry", "seqs": [1, 2]}`, 404, 0, 10, 10},
		{`{"action": "skip", "seqs": [4]}`, 200, 1, 11, 9},
		{`{"action": "skip", "seqs": [1]}`, 404, 0, 10, 10},
		{`{"action": "skip", "select": {"topic": "orders", "kind": "held"}}`, 200, 10, 20, 0},
		{`{"action": "skip", "select": {"kind": "dead"}}`, 400, 0, 10, 10},
		{`{"action": "purge", "seqs": [1, 7], "dry_run": true}`, 200, 2, 10, 10},
		{`{"action": "purge", "seqs": [1, 7]}`, 200, 2, 8, 10},
		{`{"action": "purge", "seqs": [1, 4]}`, 404, 0, 10, 10},
		{`{"action": "purge", "all": true}`, 200, 10, 0, 10},
		{`{"action": "purge"}`, 400, 0, 10, 10},
		{`{"action": "purge", "all": true, "seqs": [1]}`, 400, 0, 10, 10},
		{`{"action": "replay"}`, 400, 0, 10, 10},
		{`{"action": "replay", "replay": {}}`, 400, 0, 10, 10},
		{`{"action": "replay", "replay": {"key": "a"}, "dry_run": true}`, 200, 3, 10, 10},
		{`{"action": "replay", "replay": {"after": -1}}`, 400, 0, 10, 10},
		{`{"action": "pause", "all": true}`, 400, 0, 10, 10},
		{`{"action": "pause", "replay": {"after": 3}}`, 400, 0, 10, 10},
		{`{"action": "explode"}`, 400, 0, 10, 10},
	} {
		a, l := outboxAPI(t)
		var got body.OutboxActionAnswer
		w := do(t, a, request(t, "POST", root+"/outbox/billing/actions", tc.body), &got)
		if w.Code != tc.status || got.Count != tc.count || l.count(outbox.Dead) != tc.dead || l.count(outbox.Held) != tc.held {
			t.Errorf("%s: %d %+v, %d dead and %d held", tc.body, w.Code, got, l.count(outbox.Dead), l.count(outbox.Held))
		}
	}
	a, l := outboxAPI(t)
	for _, body := range []string{
		`{"action": "pause", "dry_run": true}`, `{"action": "pause"}`, `{"action": "replay", "replay": {"after": 7, "topics": ["orders.*"]}}`, `{"action": "forget", "dry_run": true}`,
	} {
		if w := do(t, a, request(t, "POST", root+"/outbox/billing/actions", body), nil); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
		if l.paused != (body != `{"action": "pause", "dry_run": true}`) || l.gone {
			t.Errorf("%s: %+v", body, l)
		}
	}
	if l.replay.After != 7 || l.replay.Subscription != "billing" || len(l.replay.Topics) != 1 {
		t.Errorf("%+v", l.replay)
	}
	if w := do(t, a, request(t, "POST", root+"/outbox/billing/actions", `{"action": "forget"}`), nil); w.Code != http.StatusOK || !l.gone {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// shown is a store with a given state.
type shown struct {
	storage.Store
	snap *daemon.Snapshot
}

func (s shown) Snapshot(context.Context) (*daemon.Snapshot, error) { return s.snap, nil }

// TestForgetWhatIsDelivered: a subscription that a node of the group has, or whose relay has not ended, is not forgotten,
// and a dry run says so. Those of other groups and nodes that have left do not count.
func TestForgetWhatIsDelivered(t *testing.T) {
	t.Parallel()
	relay := outbox.ID("billing").In("shop")
	unit := func(id daemon.ID, state daemon.State) *daemon.Snapshot {
		return &daemon.Snapshot{Units: []daemon.Record{{Unit: daemon.Unit{Daemon: id}, State: state, Retired: true, Holder: node.Identity{Name: "a"}}}}
	}
	has := func(id daemon.ID, state node.State) *daemon.Snapshot {
		return &daemon.Snapshot{
			Nodes:   []node.Member{{Identity: node.Identity{Name: "a"}, State: state, Advert: "x"}},
			Adverts: map[string]*daemon.Advert{"x": {Specs: []daemon.Spec{{ID: id, Instances: 1}}}},
		}
	}
	for name, tc := range map[string]struct {
		snap   *daemon.Snapshot
		status int
	}{
		"configured": {has(relay, node.Live), 409}, "configured by a node that leaves": {has(relay, node.Draining), 409}, "configured by a node that has left": {has(relay, node.Removed), 200},
		"active": {unit(relay, daemon.Active), 409}, "being revoked": {unit(relay, daemon.Revoking), 409}, "unassigned": {unit(relay, daemon.Unassigned), 200},
		"in another group": {has(outbox.ID("billing"), node.Live), 200}, "another": {has(outbox.ID("mail").In("shop"), node.Live), 200}, "nobody": {&daemon.Snapshot{}, 200},
	} {
		l := newLetters()
		a := api(t, shown{memory.Open(memory.Config{}), tc.snap}, func(c *Config) {
			c.Outbox = func() (*Outbox, error) { return &Outbox{Kind: "sqlite", Group: "shop", Operator: l}, nil }
		})
		for _, dryRun := range []bool{true, false} {
			w := do(t, a, request(t, "POST", root+"/outbox/billing/actions", fmt.Sprintf(`{"action": "forget", "dry_run": %v}`, dryRun)), nil)
			if w.Code != tc.status || l.gone != (w.Code == 200 && !dryRun) || w.Code == 409 && !strings.Contains(w.Body.String(), string(fault.SubscriptionUsed)) {
				t.Errorf("%s, dry run %v: %d %s, gone %v", name, dryRun, w.Code, w.Body, l.gone)
			}
		}
	}
}
