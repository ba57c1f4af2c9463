package api

import (
	"net/http"
	"strings"
)

// Right is what a caller must be allowed for a call.
type Right string

// The rights. Declaring is one of its own: a queue costs memory and units on every node for as long as it
// is there, which a program that submits jobs has no business with.
const (
	RightRead    Right = "read"    // see queues, jobs and counts
	RightWork    Right = "work"    // submit jobs, claim them, say what became of them
	RightOperate Right = "operate" // change what others submitted: cancel, redrive, purge, pause
	RightDeclare Right = "declare" // make, change and remove queues
)

// RightOf returns the right that a call needs. It is the one place that decides that; whoever knows the
// caller asks it before the call, and lets only those through who have the right.
func (h *Handler) RightOf(r *http.Request) Right {
	_, pattern := h.mux.Handler(r)
	return rightOf(pattern)
}

// rightOf decides by the pattern of a route. What nobody has thought of needs the most.
func rightOf(pattern string) Right {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok { // an RPC service, or nothing: there is nothing to be had there
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
