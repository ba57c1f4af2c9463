package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
)

// elsewhere is a broker on another node.
type elsewhere string

func (e elsewhere) Broker(context.Context, string, int) (string, int64, error) {
	return string(e), 1, nil
}

// TestHealthNeedsNoToken: probes have no token, and a node that forwards needs none either. (Once,
// /healthz was 401 on every node except the broker's.)
func TestHealthNeedsNoToken(t *testing.T) {
	t.Parallel()
	far, err := api.New(queuetest.New(), api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // as a listener with tokens
		if r.URL.Path != "/healthz" && r.Header.Get("Authorization") == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		far.ServeHTTP(w, r)
	}))
	forward, err := api.NewForwarder(api.ForwarderConfig{Locator: elsewhere(strings.TrimPrefix(server.URL, "http://")), Self: "here:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer forward.Close()
	h, err := api.New(forward, api.Options{Healthy: forward.Healthy})
	if err != nil {
		t.Fatal(err)
	}
	if a := send(h, "GET", "/healthz", ""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	server.Close()
	if a := send(h, "GET", "/healthz", ""); a.status != 503 {
		t.Errorf("the broker is gone: %d %s", a.status, a.body)
	}
}
