package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/api"
)

// TestDeclaringIsAuthorized: without the right to declare, nobody creates, changes, reshards or removes a queue.
func TestDeclaringIsAuthorized(t *testing.T) {
	t.Parallel()
	l := startBroker(t, mem.Config{})
	h, err := api.New(l, api.Options{Queues: directory{l}, Logger: quiet, Authorize: func(_ context.Context, right api.Right, _ string) error {
		if right == api.RightDeclare {
			return errors.New("not you")
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	for call, body := range map[string]string{
		"PUT /v1/queues/q": `{}`, "PATCH /v1/queues/q": `{}`, "DELETE /v1/queues/q": "", "PUT /v1/queues/q/reshard": `{"shards":2}`,
	} {
		method, path, _ := strings.Cut(call, " ")
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusForbidden {
			t.Errorf("%s: %d %s", call, w.Code, w.Body)
		}
	}
}
