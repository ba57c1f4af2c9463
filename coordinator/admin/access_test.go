package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/storage"
)

// signIns accepts the token good.
type signIns struct{}

func (signIns) SignIn(_ *http.Request, token string) (*http.Cookie, error) {
	if token != "good" {
		return nil, queue.Refuse(queue.Unauthorized, "the token is not good")
	}
	return &http.Cookie{Name: "s", Value: "v", Expires: time.Now().Add(time.Hour)}, nil
}

func (signIns) SignOut(*http.Request) *http.Cookie { return &http.Cookie{Name: "s", MaxAge: -1} }

// TestEveryCallIsAuthorized: each operation asks before it does anything, for what its path names, and refuses with the
// hook's text. Those that ask for no role show nothing that the caller may not read.
func TestEveryCallIsAuthorized(t *testing.T) {
	t.Parallel()
	open := []string{"getOutbox", "getOverview", "getSession", "listQueues", "signIn", "signOut"}
	for _, o := range operations() {
		var called []Access
		a := api(t, unreached{}, func(c *Config) {
			c.Authorize = func(_ *http.Request, need Access) error {
				called = append(called, need)
				return errors.New("you may not")
			}
		})
		path := strings.NewReplacer("...}", "}", "{queue}", "mail", "{subscription}", "billing").Replace(o.path)
		path = strings.NewReplacer("{", "x", "}", "").Replace(path)
		w := do(t, a, request(t, o.method, root+path, ""), nil)
		want := Access{Role: RoleRead}
		if o.method != http.MethodGet {
			want.Role = RoleOperate
		}
		if o.name == "reshardQueue" { // as by the queue API
			want.Role = RoleAdmin
		}
		if strings.Contains(o.path, "{queue}") {
			want.Queue = "mail"
		}
		if strings.Contains(o.path, "{subscription}") {
			want.Subscription = "billing"
		}
		switch {
		case slices.Contains(open, o.name):
			if o.method == http.MethodGet && len(called) == 0 {
				t.Errorf("%s has not asked", o.name)
			}
		case w.Code != 403 || !strings.Contains(w.Body.String(), "you may not") || !strings.Contains(w.Body.String(), string(fault.MissingRole)):
			t.Errorf("%s: %d %s", o.name, w.Code, w.Body)
		case !slices.Equal(called, []Access{want}):
			t.Errorf("%s asked for %+v, want %+v", o.name, called, want)
		}
	}
}

// unreached is a store that nothing may reach.
type unreached struct{ storage.Store }

// TestLimitedLists: a caller that may read some queues sees these, and no others and no totals of them.
func TestLimitedLists(t *testing.T) {
	t.Parallel()
	inQueues := &declaredQueues{Queue: queuetest.New(), names: []string{"mail", "reports"}}
	a := api(t, &historyStore{}, func(c *Config) {
		c.Queues = inQueues
		c.Outbox = func() (*Outbox, error) { return &Outbox{Kind: "sqlite", Operator: newLetters()}, nil }
		c.Authorize = func(r *http.Request, need Access) error {
			if r.Header.Get("Authorization") == "" {
				return queue.Refuse(queue.Unauthorized, "who are you?")
			}
			if need.Queue != "mail" || need.Role != RoleRead {
				return errors.New("only mail")
			}
			return nil
		}
	})
	var answer queuesAnswer
	do(t, a, request(t, "GET", root+"/queues", "", "Authorization", "x"), &answer)
	if names := fmt.Sprint(answer.Queues.Queues); len(answer.Queues.Queues) != 1 || !strings.Contains(names, "mail") {
		t.Errorf("%+v", answer.Queues)
	}
	var who sessionAnswer
	do(t, a, request(t, "GET", root+"/session?queue=mail", "", "Authorization", "x"), &who)
	if !slices.Equal(who.Roles, []Role{RoleRead}) {
		t.Errorf("%+v", who)
	}
	for path, want := range map[string]int{"/outbox": 403, "/overview": 200, "/nodes": 403, "/status": 403, "/queues/mail": 200, "/queues/reports": 403} {
		if w := do(t, a, request(t, "GET", root+path, "", "Authorization", "x"), nil); w.Code != want {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
		if w := do(t, a, request(t, "GET", root+path, ""), nil); w.Code != 401 {
			t.Errorf("%s: %d %s, want 401", path, w.Code, w.Body)
		}
	}
	var o view.Overview
	deadJobs(t, inQueues.Queue, 1, 1)
	do(t, a, request(t, "GET", root+"/overview", "", "Authorization", "x"), &o)
	if text := fmt.Sprint(o); !o.Limited || len(o.Queues.Queues) != 1 || o.Outbox != nil || o.Leader != nil || o.Notices != 1 || strings.Contains(text, "reports") || strings.Contains(text, "billing") {
		t.Errorf("the overview of a caller who may read mail only: %+v", o)
	}
	inQueues.down = fmt.Errorf("read the queues: %w", storage.ErrUnavailable)
	for _, path := range []string{"/queues", "/overview"} {
		var p fault.Problem
		if w := do(t, a, request(t, "GET", root+path, "", "Authorization", "x"), &p); w.Code != 503 || p.Code != fault.Unreachable || w.Header().Get("Retry-After") == "" {
			t.Errorf("%s while the queues cannot be read: %d %s", path, w.Code, w.Body)
		}
		if w := do(t, a, request(t, "GET", root+path, ""), nil); w.Code != 401 {
			t.Errorf("%s: %d %s, want 401", path, w.Code, w.Body)
		}
	}
	a.outboxReads.forget()
	a.cfg.Outbox = func() (*Outbox, error) { return nil, fmt.Errorf("open: %w", storage.ErrUnavailable) }
	for header, want := range map[string]int{"x": 503, "": 401} {
		if w := do(t, a, request(t, "GET", root+"/outbox", "", "Authorization", header), nil); w.Code != want {
			t.Errorf("the outbox while it cannot be read: %d %s, want %d", w.Code, w.Body, want)
		}
	}
	inQueues.down, inQueues.names = nil, nil
	a.cfg.Outbox = nil
	a.queueReads.forget()
	for _, path := range []string{"/queues", "/overview"} {
		if w := do(t, a, request(t, "GET", root+path, "", "Authorization", "x"), nil); w.Code != 403 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestRevokedCall: a call whose right ends before it is answered says so.
func TestRevokedCall(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(queue.Refuse(queue.Unauthorized, "the token was revoked"))
	a := api(t, unreached{})
	a.reads.read = func(ctx context.Context) (*state, error) { return nil, ctx.Err() }
	w := do(t, a, request(t, "GET", root+"/overview", "").WithContext(ctx), nil)
	if w.Code != 401 || !strings.Contains(w.Body.String(), "revoked") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
