package adminapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/memory"
)

// serve serves the API of a cluster of one node with two units.
func serve(t *testing.T) string {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	store := memory.Open(memory.Config{})
	c, err := coordinator.New(store, coordinator.Config{Node: node.Identity{Name: "a"}, Profile: coordinator.ProfileFast, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	entered := make(chan struct{}, 10)
	agent := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		entered <- struct{}{}
		select {
		case <-a.Draining():
		case <-ctx.Done():
		}
		return nil
	})
	if err := c.Register(daemon.Spec{ID: "acme:mail/fast", Instances: 2}, agent); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		select {
		case <-entered:
		case <-time.After(time.Minute):
			t.Fatal("no unit runs after a minute")
		}
	}
	api, err := admin.New(admin.Config{Store: store, StoreKind: "memory", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	return server.URL + "/api/v1"
}

// document reads the document that is published.
func document(t *testing.T) (*jsonschema.Compiler, map[string]any) {
	t.Helper()
	f, err := os.Open("../../docs/reference/admin-api.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("admin-api.json", doc); err != nil {
		t.Fatal(err)
	}
	return c, doc.(map[string]any)["paths"].(map[string]any)
}

// values are those of the parameters in paths.
var values = strings.NewReplacer("{node}", "a", "{daemon}", "acme:mail%2Ffast", "{unit}", "acme:mail%2Ffast%2F0")

// TestAnswersFitTheDocument: every read without further requirements answers with a body that the schema of its status
// accepts, and so does a command.
func TestAnswersFitTheDocument(t *testing.T) {
	t.Parallel()
	base := serve(t)
	schemas, paths := document(t)
	checked := 0
	for path, item := range paths {
		for method := range item.(map[string]any) {
			body := ""
			if method == "post" && path == "/commands" {
				body = `{"kind": "daemon.pause", "daemon": "acme:mail/fast", "reason": "test"}`
			}
			if path == "/stream" || path == "/openapi.json" || method == "post" && body == "" {
				continue
			}
			checked++
			status, kind, answer := call(t, strings.ToUpper(method), base+values.Replace(path), body)
			at := fmt.Sprintf("admin-api.json#/paths/%s/%s/responses/%s/content/%s/schema", escape(path), method, documented(status), escape(kind))
			schema, err := schemas.Compile(at)
			if err != nil {
				t.Errorf("%s %s answers %d %s: %v", method, path, status, kind, err)
				continue
			}
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(answer))
			if err == nil {
				err = schema.Validate(value)
			}
			if err != nil {
				t.Errorf("%s %s: %d %s: %v", method, path, status, answer, err)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d calls were checked", checked)
	}
}

// documented returns the key of a status in the document.
func documented(status int) string {
	if status >= 400 {
		return "default"
	}
	return fmt.Sprint(status)
}

// escape escapes a key for a JSON pointer in a URL.
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D", "+", "%2B").Replace(key)
}

func call(t *testing.T, method, url, body string) (int, string, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), answer
}
