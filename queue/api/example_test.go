package api_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
)

// Queues over HTTP. Any client that speaks JSON can submit a job.
func Example() {
	handler, err := api.New(queuetest.New(), api.Options{}) // in production: the broker in this process
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	resp, err := http.Post(server.URL+"/v1/queues/mail/jobs", "application/json", strings.NewReader(`{"jobs":[{"id":"welcome-7"}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
