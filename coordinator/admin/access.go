package admin

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/internal/admin/audit"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/queue"
)

// Role is what a caller may do.
type Role string

// The roles that calls of the admin API need.
const (
	RoleRead    = Role(access.Read)    // see everything, change nothing
	RoleOperate = Role(access.Operate) // give commands; change queues' jobs and the outbox's messages
	RoleAdmin   = Role(access.Admin)   // everything
)

// Access is what a call needs: a role, for a queue, for a subscription of the outbox or, if both are empty, for the whole
// cluster.
type Access struct {
	Role                Role
	Queue, Subscription string
}

// Sessions lets people sign in with a token in a browser.
type Sessions interface {
	// SignIn returns the cookie that stands for a token until it expires. [queue.Unauthorized] if the token is not valid.
	SignIn(r *http.Request, token string) (*http.Cookie, error)
	// SignOut returns the cookie that takes the place of the one from SignIn.
	SignOut(r *http.Request) *http.Cookie
}

// authorize refuses a call that the caller may not make.
func (a *API) authorize(r *http.Request, need Access) error {
	if a.cfg.Authorize == nil {
		return nil
	}
	err := a.cfg.Authorize(r, need)
	if err == nil || queue.TagOf(err) == queue.Unauthorized {
		return err
	}
	return &refusal{http.StatusForbidden, fault.New(fault.MissingRole, "%w", err)}
}

// revoked returns why a call has ended before its answer, if the listener has ended it because the caller's right has
// ended. Otherwise it is nil.
func revoked(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if e, ok := errors.AsType[*queue.Error](context.Cause(ctx)); ok && e.Tag == queue.Unauthorized {
		return e
	}
	return nil
}

// selected returns the entries whose name the caller may read, and the refusal if there is none.
func selected[T any](a *API, r *http.Request, all []T, need func(*T) Access) ([]T, error) {
	unlimited := a.authorize(r, Access{Role: RoleRead})
	if unlimited == nil {
		return all, nil
	}
	out := slices.DeleteFunc(slices.Clone(all), func(e T) bool { return a.authorize(r, need(&e)) != nil })
	if len(out) == 0 {
		return nil, unlimited
	}
	return out, nil
}

// unknown refuses a limited caller while what there is cannot be read, because of that problem: nobody can say whether it
// may read a part.
func unknown(problem string) error {
	code, what, _ := strings.Cut(problem, ": ")
	return &refusal{http.StatusServiceUnavailable, fault.New(fault.Code(code), "%s", what)}
}

// by says who makes a call, for the history.
func (a *API) by(r *http.Request) audit.By {
	var by audit.By
	if a.cfg.Authorize != nil {
		by.Role = string(RoleOperate)
	}
	if a.cfg.Actor != nil {
		by.Actor = a.cfg.Actor(r)
	}
	by.Actor = cmp.Or(by.Actor, "api")
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		by.Address = host
	}
	return by
}

// sessionOperations lists the calls about who calls.
func sessionOperations() []operation {
	whoami := get("getSession", "/session", "Who makes the call, and what that caller may do: for the whole cluster, or for one queue or subscription", (*API).session)
	in := call("signIn", http.MethodPost, "/session", "Sign in with a token: the answer sets a cookie that browsers send with further calls", (*API).signIn)
	out := call("signOut", http.MethodDelete, "/session", "Sign out: the session ends, and the answer removes the cookie", (*API).signOut)
	return []operation{whoami.authorizing(), in.authorizing(), out.authorizing()}
}

// fromRequest keeps the call for an operation that needs more of it than its parameters.
type fromRequest struct{ r *http.Request }

// from implements the hook of [call].
func (f *fromRequest) from(_ *API, r *http.Request) { f.r = r }

type sessionIn struct {
	fromRequest
	// Queue asks what the caller may do with this queue.
	Queue string `query:"queue"`
	// Subscription asks what the caller may do with this subscription of the outbox.
	Subscription string `query:"subscription"`
}

// sessionAnswer says who calls.
type sessionAnswer struct {
	// Actor is the name of the caller in the history; empty if the server does not know one.
	Actor string `json:"actor"`
	// Roles are those of read, operate and admin that the caller has. A call that needs another one is refused with 403.
	Roles []Role `json:"roles"`
	// Login says that people sign in here: POST /session. Otherwise the server has no tokens, or its own login.
	Login bool `json:"login"`
}

func (a *API) session(_ context.Context, in *sessionIn) (*sessionAnswer, error) {
	if in.Queue != "" && in.Subscription != "" {
		return nil, badCall("only one of queue and subscription is possible")
	}
	out := &sessionAnswer{Roles: []Role{}, Login: a.cfg.Sessions != nil}
	if a.cfg.Actor != nil {
		out.Actor = a.cfg.Actor(in.r)
	}
	for _, role := range []Role{RoleRead, RoleOperate, RoleAdmin} {
		if a.authorize(in.r, Access{Role: role, Queue: in.Queue, Subscription: in.Subscription}) == nil {
			out.Roles = append(out.Roles, role)
		}
	}
	return out, nil
}

// signInRequest is what signs in.
type signInRequest struct {
	// Token is a token of the server.
	Token string `json:"token"`
}

type signInIn struct {
	fromRequest
	Body signInRequest `body:"json"`
}

// signInAnswer says until when the cookie is valid.
type signInAnswer struct {
	SignedIn  bool      `json:"signed_in"`
	ExpiresAt view.Time `json:"expires_at"` // by the clock of the node that answers; null after signing out

	cookie *http.Cookie
}

func (s *signInAnswer) setCookie() *http.Cookie { return s.cookie }

func (a *API) signIn(_ context.Context, in *signInIn) (*signInAnswer, error) {
	if a.cfg.Sessions == nil {
		return nil, refused(http.StatusNotFound, "nobody signs in here: this server has no tokens, or its own login")
	}
	c, err := a.cfg.Sessions.SignIn(in.r, in.Body.Token)
	if err != nil {
		return nil, err
	}
	return &signInAnswer{true, view.Time{Time: c.Expires.Truncate(time.Second)}, c}, nil
}

type signOutIn struct{ fromRequest }

func (a *API) signOut(_ context.Context, in *signOutIn) (*signInAnswer, error) {
	if a.cfg.Sessions == nil {
		return nil, refused(http.StatusNotFound, "nobody signs in here: this server has no tokens, or its own login")
	}
	return &signInAnswer{cookie: a.cfg.Sessions.SignOut(in.r)}, nil
}
