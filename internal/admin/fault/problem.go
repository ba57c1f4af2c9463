package fault

import (
	"cmp"
	"net/http"
)

// Problem is a fault as the answer to an HTTP call, in the form of RFC 9457.
type Problem struct {
	// Type identifies the kind of refusal. It is urn:emitd:error: and the code.
	Type string `json:"type"`
	// Title says what the code means.
	Title string `json:"title"`
	// Status is that of the answer.
	Status int `json:"status"`
	// Detail says what happened.
	Detail string `json:"detail"`
	// Code is that of the command line; docs/reference/errors.md has them all.
	Code Code `json:"code"`
	// Why says what follows, such as that nothing was changed.
	Why string `json:"why,omitempty"`
	// Hint says what to do.
	Hint string `json:"hint,omitempty"`
}

// ProblemType is the media type of a Problem.
const ProblemType = "application/problem+json"

// statuses has the status of an answer for each exit code of the command line.
var statuses = map[int]int{
	ExitUsage: http.StatusBadRequest, ExitNotFound: http.StatusNotFound, ExitConflict: http.StatusConflict,
	ExitUnreachable: http.StatusServiceUnavailable, ExitDegraded: http.StatusServiceUnavailable,
}

// Problem returns the fault as an answer. status is that of the answer; 0 takes the one that the code has.
func (f *Fault) Problem(status int) Problem {
	e, _ := Lookup(f.Code)
	if f.Code == CommandUnknown {
		status = cmp.Or(status, http.StatusServiceUnavailable)
	}
	return Problem{
		Type: "urn:emitd:error:" + string(f.Code), Title: e.Title, Status: cmp.Or(status, statuses[e.Exit], http.StatusInternalServerError),
		Detail: f.What, Code: f.Code, Why: f.Why, Hint: f.Advice(),
	}
}
