// Package admin serves a node's health and metrics, and the admin API of its cluster, over HTTP.
//
// # The admin API
//
// [API] serves the state of the cluster, its history and operators' commands, as JSON under /api/v1:
//
//	GET  /api/v1/overview           the cluster in numbers, and what needs attention
//	GET  /api/v1/units/{unit}       one unit, and why it is on its node
//	GET  /api/v1/events             the history, the newest events first
//	POST /api/v1/commands           an operator's command: cordon, drain, move, pin, …
//	GET  /api/v1/openapi.json       all calls, in OpenAPI 3.1
//
// Everything comes from the store, so every node serves all of it, also while there is no leader. The promises:
//
//   - The objects are those of the command line's --output json. A field keeps its name and its meaning; fields may be
//     added. A list is never null.
//   - A refusal is a problem of RFC 9457, with the code of the command line.
//   - Lists have pages of at most 1,000 entries. Whoever follows the cursors gets each entry that is there all the time
//     once, whatever else comes and goes.
//   - A call that names an expected term or generation changes nothing if it is another one: 409. Calls with the same
//     Idempotency-Key give one command.
//   - Reads that come together cost one read of the store, at most 250 ms old. A read after a command to the same node
//     sees its effect.
//   - The API authenticates nobody. Put it behind your own authentication, and let Config.Actor say who calls. GET
//     changes nothing.
//
// # The console
//
// Beside api/v1, [API] serves pages that show the same in a browser and give operators' commands: the console, at "/"
// with its files below "/console/". The pages call the API with the browser's cookies. If it answers 401, they ask for a
// bearer token.
//
// # Health and metrics
//
//	GET /livez     200 while the process makes progress, whatever the state of the store
//	GET /startupz  200 once the node has joined the cluster
//	GET /readyz    200 while the store answers and the node is not draining, whichever node leads
//	GET /leaderz   200 on the leader only: for routing, never for restarting or rolling out
//	GET /metrics   served by the given handler, if there is one
//
// Any status other than 200 is 503, with the failed checks one per line. With ?verbose all checks
// are listed, passed or not. Proxies are told not to cache. /readyz?verbose also lists, marked [!],
// problems that need attention but do not make the node less ready: a store that is too slow or has
// no room, and units that no node can take.
//
// Readiness does not depend on leadership on purpose: a rollout that waits until a new process
// leads would wait for ever. Liveness does not depend on the store: restarting a process does not
// repair a store.
package admin

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/emitd/emitd/node"
)

// Source is the node behind the endpoints; *coordinator.Coordinator is one. Each check has a name,
// and is passed if its error is nil.
type Source interface {
	Live() map[string]error
	Started() map[string]error
	Ready(ctx context.Context) map[string]error
	// Degraded returns checks that /readyz?verbose shows and that never change its status.
	Degraded() map[string]error
	Leadership() (node.Term, context.Context, bool)
}

// Handler serves the endpoints at the root of its paths; use http.StripPrefix to have them
// elsewhere. metrics may be nil.
func Handler(s Source, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", probe(func(context.Context) map[string]error { return s.Live() }, nil))
	mux.HandleFunc("GET /startupz", probe(func(context.Context) map[string]error { return s.Started() }, nil))
	mux.HandleFunc("GET /readyz", probe(s.Ready, s.Degraded))
	mux.HandleFunc("GET /leaderz", probe(func(context.Context) map[string]error { return leader(s) }, nil))
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	return mux
}

func leader(s Source) map[string]error {
	_, ctx, ok := s.Leadership()
	if ok {
		return map[string]error{"leader": nil}
	}
	return map[string]error{"leader": context.Cause(ctx)}
}

// probe answers with the result of the checks. With ?verbose it adds the degraded ones, which do
// not change the status.
func probe(checks func(context.Context) map[string]error, degraded func() map[string]error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, verbose := r.URL.Query()["verbose"]
		status, body := outcome(checks(r.Context()), verbose)
		if verbose && degraded != nil {
			body = informational(degraded()) + body
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // an error means that the client has gone
	}
}

// informational lists checks that do not change the status.
func informational(checks map[string]error) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if err := checks[name]; err != nil {
			fmt.Fprintf(&b, "[!] %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Fprintf(&b, "[+] %s: ok\n", name)
		}
	}
	return b.String()
}

// outcome returns the status and the text: "ok", the failed checks, or all checks if verbose.
func outcome(checks map[string]error, verbose bool) (int, string) {
	status := http.StatusOK
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		switch err := checks[name]; {
		case err != nil:
			status = http.StatusServiceUnavailable
			fmt.Fprintf(&b, "[-] %s: %v\n", name, err)
		case verbose:
			fmt.Fprintf(&b, "[+] %s: ok\n", name)
		}
	}
	if status == http.StatusOK {
		b.WriteString("ok\n")
	}
	return status, b.String()
}
