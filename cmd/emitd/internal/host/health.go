package host

import (
	"context"
	"net/http"

	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue/api"
)

// mux returns the handler that serves the listener while the nodes run.
func (h *host) mux(manage http.Handler) http.Handler {
	mux := http.NewServeMux()
	h.addConsole(mux)
	for _, path := range queuePaths {
		mux.Handle(path, withBy(h.front))
	}
	mux.Handle("GET "+nodeapi.Output, needing(access.Read, http.HandlerFunc(h.output)))
	mux.Handle(adminPath, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		manage.ServeHTTP(w, r.WithContext(api.WithAuthorization(r.Context(), r.Header.Get("Authorization"))))
	}))
	mux.Handle("GET "+nodeapi.Trends, needing(access.Read, http.HandlerFunc(h.trends.serve)))
	mux.Handle("GET "+nodeapi.Debug, needing(access.Operate, http.HandlerFunc(h.debug)))
	mux.Handle("/", admin.Handler(h.source(), h.metrics()))
	return mux
}

// metrics returns the handler of metrics; nil if there is none.
func (h *host) metrics() http.Handler {
	if m := h.tel.Metrics(); m != nil {
		return needing(access.Read, m)
	}
	return nil
}

func (h *host) source() admin.Source {
	if len(h.up.Nodes) == 1 {
		return h.up.Nodes[0]
	}
	return several(h.up.Nodes)
}

// several combines nodes in one process. The process is live, started, ready or not degraded if all its nodes are; it
// leads if one of them leads.
type several []*coordinator.Coordinator

var _ admin.Source = several(nil)

func (s several) merge(checks func(*coordinator.Coordinator) map[string]error) map[string]error {
	out := map[string]error{}
	for _, c := range s {
		for name, err := range checks(c) {
			out[c.Node().Name+" "+name] = err
		}
	}
	return out
}

// Live implements [admin.Source].
func (s several) Live() map[string]error { return s.merge((*coordinator.Coordinator).Live) }

// Started implements [admin.Source].
func (s several) Started() map[string]error { return s.merge((*coordinator.Coordinator).Started) }

// Ready implements [admin.Source].
func (s several) Ready(ctx context.Context) map[string]error {
	return s.merge(func(c *coordinator.Coordinator) map[string]error { return c.Ready(ctx) })
}

// Degraded implements [admin.Source].
func (s several) Degraded() map[string]error {
	return s.merge((*coordinator.Coordinator).Degraded)
}

// Leadership implements [admin.Source].
func (s several) Leadership() (t node.Term, ctx context.Context, ok bool) {
	for _, c := range s {
		if t, ctx, ok = c.Leadership(); ok {
			return t, ctx, ok
		}
	}
	return t, ctx, ok
}
