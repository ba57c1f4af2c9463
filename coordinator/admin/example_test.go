package admin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/admin"
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
