package api

import (
	"bytes"
	"flag"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/openapi"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
)

var update = flag.Bool("update", false, "write the OpenAPI document")

// described is what a route takes and gives.
type described struct {
	summary string
	in      any  // the body; nil for none
	may     bool // the body may be left out
	out     any  // nil: 204, without a body
	query   []string
}

// one is how a call settles one claim: the verb and the ID are in the path.
type one struct {
	wire.Settlement
}

// osqueues begins the summary of a route that osqueue's clients call, for the queue "default".
const osqueues = "osqueue's clients: "

// routes describes every route but those of RPC services and of the WebSocket. conform_test.go compares it with answers.
var routes = map[string]described{
	"GET /v1/openapi.json":           {summary: "This document", out: map[string]any{}},
	"GET /v1/queues":                 {summary: "The declared queues that the caller may read", out: wire.QueuesResponse{}},
	"GET /v1/queues/{queue}":         {summary: "The declaration of a queue", out: wire.Declaration{}},
	"PUT /v1/queues/{queue}":         {summary: "Declare a queue; fields that are left out get their defaults", in: wire.Declaration{}, may: true, out: wire.Declaration{}},
	"PATCH /v1/queues/{queue}":       {summary: "Declare a queue; fields that are left out keep their values", in: wire.Declaration{}, may: true, out: wire.Declaration{}},
	"DELETE /v1/queues/{queue}":      {summary: "Remove a queue and its jobs"},
	"PUT /v1/queues/{queue}/reshard": {summary: "Begin to change the number of a queue's shards", in: wire.ReshardRequest{}, out: wire.Declaration{}},
	"GET /v1/queues/{queue}/stats":   {summary: "The counts of a queue", out: wire.Stats{}},

	"POST /v1/queues/{queue}/jobs":         {summary: "Submit one job, or several in jobs", in: wire.EnqueueRequest{}, out: wire.EnqueueResponse{}},
	"GET /v1/queues/{queue}/jobs":          {summary: "The jobs of a queue, the oldest first", out: wire.ListResponse{}, query: []string{"state", "type", "cursor", "limit", "payload"}},
	"GET /v1/queues/{queue}/dead":          {summary: "The dead jobs of a queue", out: wire.ListResponse{}, query: []string{"type", "cursor", "limit", "payload"}},
	"GET /v1/queues/{queue}/jobs/{id}":     {summary: "One job, with its payload", out: wire.JobView{}},
	"POST /v1/queues/{queue}/claim":        {summary: "Claim jobs", in: wire.ClaimRequest{}, may: true, out: wire.ClaimResponse{}},
	"POST /v1/queues/{queue}/settle":       {summary: "Settle claims; one that is refused does not affect the others", in: wire.SettleRequest{}, out: wire.SettleResponse{}},
	"POST /v1/queues/{queue}/dead/redrive": {summary: "Let dead jobs run again", in: wire.ActRequest{}, may: true, out: wire.ActResponse{}},

	"POST /v1/queues/{queue}/jobs/{id}/complete": {summary: "Complete a job that the caller has claimed", in: one{}, out: wire.Outcome{}},
	"POST /v1/queues/{queue}/jobs/{id}/fail":     {summary: "Report that a claimed job has failed", in: one{}, out: wire.Outcome{}},
	"POST /v1/queues/{queue}/jobs/{id}/extend":   {summary: "Extend a claim", in: one{}, out: wire.Outcome{}},
	"POST /v1/queues/{queue}/jobs/{id}/release":  {summary: "Give a claimed job back", in: one{}, out: wire.Outcome{}},

	"POST /v1/queues/{queue}/jobs/{id}/cancel":  {summary: "Cancel a job", in: struct{}{}, may: true, out: wire.ActResponse{}},
	"POST /v1/queues/{queue}/jobs/{id}/retry":   {summary: "Let a delayed job run now", in: struct{}{}, may: true, out: wire.ActResponse{}},
	"POST /v1/queues/{queue}/jobs/{id}/redrive": {summary: "Let a dead job run again", in: struct{}{}, may: true, out: wire.ActResponse{}},
	"DELETE /v1/queues/{queue}/jobs/{id}":       {summary: "Cancel a job", out: wire.ActResponse{}},

	"POST /v1/queues/{queue}/cancel":  {summary: "Cancel jobs; without a selection, all", in: wire.ActRequest{}, may: true, out: wire.ActResponse{}},
	"POST /v1/queues/{queue}/retry":   {summary: "Let delayed jobs run now; without a selection, all", in: wire.ActRequest{}, may: true, out: wire.ActResponse{}},
	"POST /v1/queues/{queue}/redrive": {summary: "Let dead jobs run again; without a selection, all", in: wire.ActRequest{}, may: true, out: wire.ActResponse{}},
	"POST /v1/queues/{queue}/purge":   {summary: "Remove jobs; without a state, all but the active", in: wire.ActRequest{}, may: true, out: wire.ActResponse{}},
	"POST /v1/queues/{queue}/pause":   {summary: "Let claims be empty from now on", in: wire.ActRequest{}, may: true, out: wire.ActResponse{}},
	"POST /v1/queues/{queue}/resume":  {summary: "End a pause", in: wire.ActRequest{}, may: true, out: wire.ActResponse{}},

	"POST /v1/jobs":                {summary: osqueues + "submit a job", in: wire.OsqueueSubmit{}, out: wire.OsqueueReceipt{}},
	"POST /v1/jobs/claim":          {summary: osqueues + "claim a job; {} if there is none", in: wire.OsqueueClaim{}, out: wire.OsqueueClaimed{}},
	"POST /v1/jobs/{id}/heartbeat": {summary: osqueues + "extend a claim", in: wire.OsqueueWorker{}},
	"POST /v1/jobs/{id}/complete":  {summary: osqueues + "complete a job", in: wire.OsqueueWorker{}},
	"GET /v1/jobs":                 {summary: osqueues + "jobs and counts", out: listBody{}},
	"GET /v1/stats":                {summary: osqueues + "counts", out: statsBody{}},
	"GET /state":                   {summary: osqueues + "the broker and its jobs", out: stateBody{}},
	"GET /v1/throttle-stats":       {summary: osqueues + "this node's requests to its object store", out: ThrottleStats{}},
	"GET /healthz":                 {summary: "Whether the queue can answer", out: map[string]string{}},
}

// parameters describes the parameters in queries.
var parameters = map[string]map[string]any{
	"state":   {"schema": map[string]any{"type": "string", "enum": []string{"waiting", "delayed", "active", "dead"}}, "description": "Jobs in this state."},
	"type":    {"schema": map[string]any{"type": "string"}, "description": "Jobs of this type."},
	"cursor":  {"schema": map[string]any{"type": "string"}, "description": "That of the answer before: it continues the list."},
	"limit":   {"schema": map[string]any{"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "description": "The most jobs that the answer has."},
	"payload": {"schema": map[string]any{"type": "boolean", "default": false}, "description": "Whether the jobs have their payloads."},
}

// TestDocument: the document that is served and the one in docs/reference are those of the routes and their bodies.
func TestDocument(t *testing.T) {
	t.Parallel()
	h, err := New(nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	served := slices.DeleteFunc(h.Routes(), func(pattern string) bool { return strings.HasSuffix(pattern, "/") || pattern == "GET /v1/ws" })
	slices.Sort(served)
	if known := slices.Sorted(maps.Keys(routes)); !slices.Equal(served, known) {
		t.Fatalf("served    %q\ndescribed %q", served, known)
	}
	text, err := openapi.Encode(documentOf())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"openapi.json", filepath.Join("..", "..", "docs", "reference", "queue-http.json")} {
		if *update {
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, text) {
			t.Errorf("%s differs from the code (%v); go test ./queue/api -run TestDocument -update writes it", file, err)
		}
	}
}

func documentOf() map[string]any {
	g := &openapi.Generator{Root: filepath.Join("..", "..")}
	paths := map[string]map[string]any{}
	for pattern, d := range routes {
		method, path, _ := strings.Cut(pattern, " ")
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(method)] = d.operation(g, method, path)
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "emitd queue", "version": "1",
			"description": "Jobs on object storage: submit, claim, settle, operate. Durations are whole milliseconds. Zero values are left out of answers. See docs/reference/queue-http.md.",
		},
		"servers":  []any{map[string]any{"url": "..", "description": "where this document is"}},
		"security": []any{map[string]any{}, map[string]any{"token": []any{}}},
		"paths":    paths,
		"components": map[string]any{
			"schemas": g.Schemas(), "securitySchemes": map[string]any{"token": map[string]any{"type": "http", "scheme": "bearer"}},
		},
	}
}

func (d described) operation(g *openapi.Generator, method, path string) map[string]any {
	content := func(kind string, of any) map[string]any {
		return map[string]any{kind: map[string]any{"schema": d.schema(g, of)}}
	}
	answer := map[string]any{"description": "the answer"}
	status := "204"
	if d.out != nil {
		status, answer["content"] = "200", content("application/json", d.out)
	}
	out := map[string]any{
		"operationId": nameOf(method, path), "summary": d.summary,
		"responses": map[string]any{status: answer, "default": map[string]any{"description": "a refusal", "content": content(refusal.MediaType, refusal.Problem{})}},
	}
	if d.in != nil {
		out["requestBody"] = map[string]any{"required": !d.may, "content": content("application/json", d.in)}
	}
	var params []any
	for _, name := range []string{"queue", "id"} {
		if strings.Contains(path, "{"+name+"}") {
			what := map[string]string{"queue": "The name of a queue.", "id": "The ID of a job."}[name]
			params = append(params, map[string]any{"name": name, "in": "path", "required": true, "schema": map[string]any{"type": "string"}, "description": what})
		}
	}
	for _, name := range d.query {
		p := map[string]any{"name": name, "in": "query"}
		maps.Copy(p, parameters[name])
		params = append(params, p)
	}
	if path == "/v1/jobs" && method == http.MethodPost {
		params = append(params, map[string]any{"name": "Idempotency-Key", "in": "header", "schema": map[string]any{"type": "string"}, "description": "Makes a repetition harmless."})
	}
	if params != nil {
		out["parameters"] = params
	}
	return out
}

// schema returns the schema of a body.
func (d described) schema(g *openapi.Generator, of any) map[string]any {
	if _, ok := of.(one); ok { // what is in the path is not in the body
		properties := map[string]any{}
		for _, f := range reflect.VisibleFields(reflect.TypeFor[wire.Settlement]()) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "verb" || name == "id" {
				continue
			}
			kind := f.Type
			if kind.Kind() == reflect.Pointer {
				kind = kind.Elem()
			}
			schema := g.Schema(kind)
			if text := g.Comment(reflect.TypeFor[wire.Settlement](), f); text != "" {
				schema["description"] = text
			}
			properties[name] = schema
		}
		return map[string]any{"type": "object", "properties": properties}
	}
	if t := reflect.TypeOf(of); t.Name() != "" || t.Kind() != reflect.Struct {
		if t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Interface {
			return map[string]any{"type": "object"}
		}
		return g.Schema(t)
	}
	return map[string]any{"type": "object", "properties": map[string]any{}}
}

// nameOf makes the name of an operation of its route.
func nameOf(method, path string) string {
	name := strings.ToLower(method)
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return strings.ContainsRune("/{}.-", r) }) {
		if part != "v1" && part != "queue" {
			name += strings.ToUpper(part[:1]) + part[1:]
		}
	}
	if strings.HasSuffix(path, "/{queue}") {
		name += "One"
	}
	return name
}
