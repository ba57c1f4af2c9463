package host

import (
	"context"
	"fmt"
	"net/http"

	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/queue/api"
)

type callerKey struct{}

func withCaller(ctx context.Context, c *access.Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf returns who makes a call; nil if nobody was asked.
func callerOf(ctx context.Context) *access.Caller {
	c, _ := ctx.Value(callerKey{}).(*access.Caller)
	return c
}

// allowed decides whether a call may be made. The error says which role the caller lacks.
func allowed(ctx context.Context, n access.Need) error {
	c := callerOf(ctx)
	if c == nil || c.Allows(n) {
		return nil
	}
	return fmt.Errorf("%s does not have the role %s", described(c), n)
}

// described names a caller for a message.
func described(c *access.Caller) string {
	switch {
	case c.Kind == "":
		return "a caller without a token"
	case c.Name == "":
		return "the token"
	}
	return fmt.Sprintf("the %s %s", c.Kind, c.Name)
}

// authorizeAdmin decides about calls of the admin API.
func authorizeAdmin(r *http.Request, need admin.Access) error {
	return allowed(r.Context(), access.Need{Role: access.Role(need.Role), Queue: need.Queue, Subscription: need.Subscription})
}

// rolesOfRights has the role for each right of the queue API.
var rolesOfRights = map[api.Right]access.Role{
	api.RightRead: access.Read, api.RightProduce: access.Produce, api.RightConsume: access.Consume,
	api.RightOperate: access.Operate, api.RightDeclare: access.Admin,
}

// authorizeQueue decides about calls of the queue API. A right that is not known needs the highest role.
func authorizeQueue(ctx context.Context, right api.Right, name string) error {
	role, ok := rolesOfRights[right]
	if !ok {
		role = access.Admin
	}
	return allowed(ctx, access.Need{Role: role, Queue: name})
}

// needing lets only callers with a role through to a handler.
func needing(role access.Role, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := allowed(r.Context(), access.Need{Role: role}); err != nil {
			writeProblem(w, fault.New(fault.MissingRole, "%w", err).Problem(http.StatusForbidden))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// actorOf returns the name of a caller for the history. A token without a name says who it is by itself.
func actorOf(r *http.Request) string {
	if c := callerOf(r.Context()); c != nil {
		return c.Name
	}
	return ""
}
