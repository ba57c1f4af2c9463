package api_test

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/queue/api"
)

// TestRights: each route needs the expected right, and declaring queues needs a right of its own.
func TestRights(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	got := map[api.Right][]string{}
	for _, route := range h.Routes() {
		method, path, ok := strings.Cut(route, " ")
		if !ok {
			method, path = "POST", route+"Enqueue"
		}
		right := h.RightOf(httptest.NewRequest(method, strings.NewReplacer("{queue}", "q", "{id}", "a").Replace(path), nil))
		got[right] = append(got[right], route)
	}
	for right, want := range map[api.Right][]string{
		api.RightDeclare: {"DELETE /v1/queues/{queue}", "PATCH /v1/queues/{queue}", "PUT /v1/queues/{queue}"},
		api.RightWork: {
			"/emitd.queue.v1.QueueService/", "/osqueue.v1.QueueService/", "GET /v1/ws", "POST /v1/jobs", "POST /v1/jobs/claim",
			"POST /v1/jobs/{id}/complete", "POST /v1/jobs/{id}/heartbeat", "POST /v1/queues/{queue}/claim", "POST /v1/queues/{queue}/jobs",
			"POST /v1/queues/{queue}/jobs/{id}/complete", "POST /v1/queues/{queue}/jobs/{id}/extend", "POST /v1/queues/{queue}/jobs/{id}/fail",
			"POST /v1/queues/{queue}/jobs/{id}/release", "POST /v1/queues/{queue}/settle",
		},
		api.RightOperate: {
			"DELETE /v1/queues/{queue}/jobs/{id}", "POST /v1/queues/{queue}/cancel", "POST /v1/queues/{queue}/dead/redrive",
			"POST /v1/queues/{queue}/jobs/{id}/cancel", "POST /v1/queues/{queue}/jobs/{id}/redrive", "POST /v1/queues/{queue}/jobs/{id}/retry",
			"POST /v1/queues/{queue}/pause", "POST /v1/queues/{queue}/purge", "POST /v1/queues/{queue}/redrive", "POST /v1/queues/{queue}/resume",
			"POST /v1/queues/{queue}/retry",
		},
	} {
		slices.Sort(got[right])
		if !slices.Equal(got[right], want) {
			t.Errorf("%s:\n got %q\nwant %q", right, got[right], want)
		}
	}
	for _, route := range got[api.RightRead] {
		if !strings.HasPrefix(route, "GET ") {
			t.Errorf("%s only reads?", route)
		}
	}
}
