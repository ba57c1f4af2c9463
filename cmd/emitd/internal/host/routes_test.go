package host

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/queue/api"
)

// routeNeeds says what each route of the queue API needs, by the end of its pattern. What is not here needs read.
var routeNeeds = map[access.Role][]string{
	access.Produce: {"POST /v1/queues/{queue}/jobs", "POST /v1/jobs"},
	access.Consume: {
		"POST /v1/queues/{queue}/claim", "POST /v1/queues/{queue}/settle", "POST /v1/queues/{queue}/jobs/{id}/extend",
		"POST /v1/queues/{queue}/jobs/{id}/complete", "POST /v1/queues/{queue}/jobs/{id}/fail", "POST /v1/queues/{queue}/jobs/{id}/release",
		"POST /v1/jobs/claim", "POST /v1/jobs/{id}/heartbeat", "POST /v1/jobs/{id}/complete",
	},
	access.Operate: {
		"POST /v1/queues/{queue}/cancel", "POST /v1/queues/{queue}/redrive", "POST /v1/queues/{queue}/retry", "POST /v1/queues/{queue}/purge",
		"POST /v1/queues/{queue}/pause", "POST /v1/queues/{queue}/resume", "POST /v1/queues/{queue}/jobs/{id}/cancel",
		"POST /v1/queues/{queue}/jobs/{id}/redrive", "POST /v1/queues/{queue}/jobs/{id}/retry", "DELETE /v1/queues/{queue}/jobs/{id}",
		"POST /v1/queues/{queue}/dead/redrive",
	},
	access.Admin: {"PUT /v1/queues/{queue}", "PATCH /v1/queues/{queue}", "DELETE /v1/queues/{queue}", "PUT /v1/queues/{queue}/reshard"},
}

// bodies are bodies with which a call comes as far as its authorization.
var bodies = map[string]string{
	"PUT /v1/queues/{queue}/reshard": `{"shards": 2}`,
	"POST /v1/queues/{queue}/jobs":   `{"jobs": [{"payload": 1}]}`, "POST /v1/jobs": `{"payload": 1}`,
	"POST /v1/queues/{queue}/settle": `{"settlements": [{"verb": "complete", "id": "a", "token": "t"}]}`,
	"POST /v1/jobs/claim":            `{"workerId": "w"}`, "POST /v1/jobs/{id}/heartbeat": `{"workerId": "w"}`, "POST /v1/jobs/{id}/complete": `{"workerId": "w"}`,
}

// route is a call and what it needs.
type route struct {
	method, path, body string
	need               access.Role // empty: nothing
}

// everyRoute lists all routes of a listener.
func everyRoute(t *testing.T) []route {
	t.Helper()
	all := []route{
		{"GET", "/metrics", "", access.Read},
		{"GET", nodeapi.Output + "?unit=acme:none/0", "", access.Read},
		{"GET", nodeapi.Debug, "", access.Operate},
		{"GET", nodeapi.Trends, "", access.Read},
		{"POST", "/emitd.queue.v1.QueueService/Enqueue", `{"queue": "q", "jobs": [{"payload": "MQ=="}]}`, access.Produce},
		{"POST", "/emitd.queue.v1.QueueService/Claim", `{"queue": "q"}`, access.Consume},
		{"POST", "/emitd.queue.v1.QueueService/Settle", `{"queue": "q", "settlements": [{"verb": "VERB_COMPLETE", "id": "a", "token": "dA=="}]}`, access.Consume},
		{"POST", "/osqueue.v1.QueueService/ListJobs", `{}`, access.Read},
		{"POST", "/osqueue.v1.QueueService/GetStats", `{}`, access.Read},
	}
	for _, path := range []string{"/livez", "/readyz", "/startupz", "/leaderz"} {
		all = append(all, route{"GET", path, "", ""})
	}
	h, err := api.New(nil, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range h.Routes() {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok || path == "/v1/ws" || path == "/healthz" {
			continue
		}
		r := route{method, strings.NewReplacer("{queue}", "q", "{id}", "a").Replace(path), bodies[pattern], access.Read}
		if r.body == "" && method == http.MethodPost {
			r.body = `{"token": "t"}`
			if !strings.HasSuffix(path, "/complete") && !strings.HasSuffix(path, "/fail") && !strings.HasSuffix(path, "/extend") && !strings.HasSuffix(path, "/release") {
				r.body = "{}"
			}
		}
		for role, patterns := range routeNeeds {
			for _, p := range patterns {
				if p == pattern {
					r.need = role
				}
			}
		}
		all = append(all, r)
	}
	return append(all, adminRoutes(t)...)
}

// adminRoutes lists the routes of the admin API, as its document has them.
func adminRoutes(t *testing.T) (all []route) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "reference", "admin-api.json"))
	var d struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err != nil || json.Unmarshal(text, &d) != nil || len(d.Paths) == 0 {
		t.Fatalf("the document of the admin API: %v", err)
	}
	for path, methods := range d.Paths {
		for method := range methods {
			r := route{strings.ToUpper(method), "/api/v1" + strings.NewReplacer("{", "x", "}", "").Replace(path), "", access.Read}
			switch {
			case path == "/session":
				r.need = ""
			case path == "/queues/{queue}/shards":
				r.need, r.body = access.Admin, "{}"
			case r.method != http.MethodGet:
				r.need, r.body = access.Operate, "{}"
			}
			if path == "/stream" {
				r.path += "?topics=none" // refused after its authorization, so that it ends
			}
			all = append(all, r)
		}
	}
	return all
}

// TestEveryRouteAndRole calls each route of a listener with each role, and without a token: what needs a role is refused
// without it, and nothing else is refused for that reason.
func TestEveryRouteAndRole(t *testing.T) {
	t.Parallel()
	tokens, file := map[access.Role]string{"": ""}, ""
	for _, role := range access.Roles() {
		text, line := tokenOf(t, string(role), string(role), time.Time{})
		tokens[role] = text
		file += line
	}
	path := write(t, "tokens", file)
	o := rig(t, func(c *config.Config, _ *Options) { c.API.TokensFile, c.Objects.URL = path, "mem://" })
	routes := everyRoute(t)
	err := started(t, o, func(ctx context.Context, r *Running) {
		for _, c := range routes {
			for role, token := range tokens {
				header := []string{"Content-Type", "application/json"}
				if token != "" {
					header = append(header, "Authorization", "Bearer "+token)
				}
				got := send(ctx, t, c.method, r.URL+c.path, c.body, header...)
				refused := got.status == http.StatusUnauthorized || got.status == http.StatusForbidden
				want := c.need != "" && (role == "" || !role.Includes(c.need))
				if strings.HasSuffix(c.path, "/session") { // signing in with nothing is refused, for another reason
					want = refused
				}
				if refused != want || role == "" && want && got.status != http.StatusUnauthorized {
					t.Errorf("%s %s with the role %q: %d %.200s; it needs %q", c.method, c.path, role, got.status, got.body, c.need)
				}
			}
		}
		http.DefaultClient.CloseIdleConnections()
	})
	if err != nil {
		t.Error(err)
	}
	if len(routes) < 60 {
		t.Errorf("only %d routes", len(routes))
	}
}
