package api

import (
	"net/http"
	"strings"
)

// Right is the permission that a call needs.
type Right string

// The rights. Declaring has its own right: a queue costs memory and units on every node as long as
// it exists, and a program that only submits jobs must not cause that.
const (
	RightRead    Right = "read"    // see queues, jobs and counts
	RightWork    Right = "work"    // submit jobs, claim and settle them
	RightOperate Right = "operate" // change what others submitted: cancel, redrive, purge, pause
	RightDeclare Right = "declare" // create, change and remove queues
)

// RightOf returns the right that a call needs. It is the only place that decides this. The listener
// calls it and lets only callers with that right through.
func (h *Handler) RightOf(r *http.Request) Right {
	_, pattern := h.mux.Handler(r)
	return rightOf(pattern)
}

// rightOf decides by the pattern of a route. An unknown pattern needs the highest right.
func rightOf(pattern string) Right {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok { // an RPC service, or no route at all
		return RightWork
	}
	if path == "/v1/ws" {
		return RightWork
	}
	last := path[strings.LastIndexByte(path, '/')+1:]
	switch {
	case method == http.MethodGet:
		return RightRead
	case path == "/v1/queues/{queue}":
		return RightDeclare
	case method != http.MethodPost:
		return RightOperate
	}
	switch last {
	case "jobs", "claim", "settle", "complete", "fail", "extend", "release", "heartbeat":
		return RightWork
	}
	return RightOperate
}
