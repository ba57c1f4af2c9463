package admin_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// The probes of a node, for Kubernetes and load balancers, served beside the program's own routes.
func Example() {
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	metrics := http.NotFoundHandler() // in production: the handler of the program's metrics
	server := httptest.NewServer(admin.Handler(c, metrics))
	defer server.Close()
	for _, probe := range []string{"/livez", "/readyz"} {
		resp, err := server.Client().Get(server.URL + probe)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(probe, resp.StatusCode)
	}
	// Output:
	// /livez 200
	// /readyz 503
}

// serveAdmin mounts the admin API and the console in the program's own mux, behind its own login.
func serveAdmin(mux *http.ServeMux, store storage.Store, login func(http.Handler) http.Handler) error {
	manage, err := admin.New(admin.Config{
		Store: store,
		Actor: func(r *http.Request) string { return r.Header.Get("X-User") }, // set by the login, shown in the history
	})
	if err != nil {
		return err
	}
	mux.Handle("/ops/", login(http.StripPrefix("/ops", manage)))
	return nil
}

// The admin API of a cluster, in a program that runs no node. Its own login is in front of it.
func ExampleAPI() {
	mux := http.NewServeMux()
	login := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("X-User", "alice") // in production: who has logged in
			next.ServeHTTP(w, r)
		})
	}
	if err := serveAdmin(mux, memory.Open(memory.Config{}), login); err != nil {
		fmt.Println(err)
		return
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/ops/api/v1/nodes/emitd-0", nil))
	fmt.Print(w.Code, " ", w.Body)
	// Output:
	// 404 {"type":"urn:emitd:error:E2202","title":"no such node","status":404,"detail":"there is no node \"emitd-0\"","code":"E2202","hint":"list them: emitd node ls"}
}

// ownRules is the admin API with rules of the program's own: everybody may look, and operators may act.
func ownRules(store storage.Store, isOperator func(*http.Request) bool) (*admin.API, error) {
	return admin.New(admin.Config{
		Store: store,
		Authorize: func(r *http.Request, need admin.Access) error {
			if need.Role == admin.RoleRead || isOperator(r) {
				return nil
			}
			return errors.New("ask the team that runs the queues")
		},
	})
}

// Rules of the program's own decide what each caller may do.
func ExampleConfig() {
	manage, err := ownRules(memory.Open(memory.Config{}), func(r *http.Request) bool { return r.Header.Get("X-User") == "alice" })
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, user := range []string{"bob", "alice"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/api/v1/commands", strings.NewReader(`{"kind": "node.cordon", "node": "emitd-0"}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-User", user)
		manage.ServeHTTP(w, r)
		fmt.Println(user, w.Code)
	}
	// Output:
	// bob 403
	// alice 404
}
