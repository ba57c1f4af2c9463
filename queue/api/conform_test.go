package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/emitd/emitd/internal/openapi"
	"github.com/emitd/emitd/queue/api"
)

// conforming compares each answer of a handler with the published document.
type conforming struct {
	*api.Handler
	t    *testing.T
	doc  *openapi.Document
	mux  *http.ServeMux // finds the route of a call
	mu   sync.Mutex
	seen map[string]bool // routes with an answer that is not a refusal
}

func newConforming(t *testing.T, h *api.Handler) *conforming {
	t.Helper()
	doc, err := openapi.Read([]byte(send(h, "GET", "/v1/openapi.json", "").body))
	if err != nil || len(doc.Paths) == 0 {
		t.Fatalf("no document: %v", err)
	}
	c := &conforming{Handler: h, t: t, doc: doc, mux: http.NewServeMux(), seen: map[string]bool{}}
	for path, methods := range doc.Paths {
		for method := range methods {
			c.mux.HandleFunc(strings.ToUpper(method)+" "+path, func(http.ResponseWriter, *http.Request) {})
		}
	}
	return c
}

func (c *conforming) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	c.Handler.ServeHTTP(rec, r)
	_, pattern := c.mux.Handler(r)
	method, path, _ := strings.Cut(pattern, " ")
	op := c.doc.Paths[path][strings.ToLower(method)]
	kind, _, _ := strings.Cut(rec.Header().Get("Content-Type"), ";")
	switch schema, _, ok := op.Response(rec.Code, kind); {
	case rec.Code == http.StatusNoContent && op.Responses["204"] != nil:
	case !ok:
		c.t.Errorf("%s %s: %d %s is not in the document", r.Method, r.URL, rec.Code, kind)
	default:
		var body any
		if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
			c.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		} else if wrong := c.doc.Invalid(schema, body, "answer"); wrong != "" && path != "/v1/openapi.json" {
			c.t.Errorf("%s %s: %s\n%s", r.Method, r.URL, wrong, rec.Body)
		}
	}
	if rec.Code < 300 {
		c.mu.Lock()
		c.seen[pattern] = true
		c.mu.Unlock()
	}
	for name, v := range rec.Header() {
		w.Header()[name] = v
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes()) // of a recorder
}

// TestBodiesAreAsDocumented: each call takes the fields and parameters that the document has, and no others.
func TestBodiesAreAsDocumented(t *testing.T) {
	t.Parallel()
	h := newConforming(t, newLiveAPI(t))
	unknown := func(a answer) bool {
		return a.status == http.StatusBadRequest && strings.Contains(a.body, "unknown ")
	}
	for path, methods := range h.doc.Paths {
		for method, op := range methods {
			at := strings.NewReplacer("{queue}", "never", "{id}", "j").Replace(path)
			method = strings.ToUpper(method)
			if op.RequestBody != nil {
				schema := op.RequestBody.Content["application/json"].Schema
				if ref, ok := schema["$ref"].(string); ok {
					schema = h.doc.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]
				}
				properties, _ := schema["properties"].(map[string]any)
				for name := range properties {
					if a := send(h, method, at, `{"`+name+`": null}`); unknown(a) {
						t.Errorf("%s %s does not take %s: %s", method, path, name, a.body)
					}
				}
				osqueues := !strings.HasPrefix(path, "/v1/queues") // its clients may send more
				if a := send(h, method, at, `{"of_no_use": null}`); !osqueues && !unknown(a) {
					t.Errorf("%s %s takes an unknown field: %d %s", method, path, a.status, a.body)
				}
			}
			for _, p := range op.Parameters {
				if p.In != "query" {
					continue
				}
				if a := send(h, method, at+"?"+p.Name+"=", ""); unknown(a) {
					t.Errorf("%s %s does not take %s: %s", method, path, p.Name, a.body)
				}
				if a := send(h, method, at+"?of_no_use=", ""); !unknown(a) {
					t.Errorf("%s %s takes an unknown parameter: %d %s", method, path, a.status, a.body)
				}
			}
		}
	}
}
