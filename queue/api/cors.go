package api

import (
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// Preflight reports whether a request is a CORS preflight. Browsers send it without a token. A
// listener that requires tokens lets it through, because it has no effect.
func Preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
}

// Refuse answers a request that the listener rejects, in the form of its path: a problem document,
// or the error of the service's protocol. Pages of configured origins can read the answer.
func (h *Handler) Refuse(w http.ResponseWriter, r *http.Request, e *queue.Error) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	h.setCORSHeaders(w, r)
	h.writeRefusal(w, r, e)
}

// writeRefusal answers with a refusal in the form of the path.
func (h *Handler) writeRefusal(w http.ResponseWriter, r *http.Request, e *queue.Error) {
	service := slices.ContainsFunc(h.services, func(path string) bool { return strings.HasPrefix(r.URL.Path, path) })
	if !service {
		refuse(w, e)
		return
	}
	_ = connect.NewErrorWriter().Write(w, r, h.rpcError(r.Context(), e)) // an error means that the client has gone
}

// setCORSHeaders adds the headers with which pages of a configured origin can read the answer. It reports
// whether the request's origin is one.
func (h *Handler) setCORSHeaders(w http.ResponseWriter, r *http.Request) (named bool) {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	w.Header().Add("Vary", "Origin")
	if named = slices.Contains(h.opts.Origins, origin); named {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Expose-Headers", exposedHeaders)
	}
	return named
}

// preflight answers a CORS preflight.
func preflight(w http.ResponseWriter, r *http.Request, named bool) {
	if !named {
		refuse(w, queue.Refuse(refusal.Forbidden, "the origin %.100q is not allowed", r.Header.Get("Origin")))
		return
	}
	w.Header().Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE")
	w.Header().Set("Access-Control-Allow-Headers", allowedHeaders)
	w.Header().Set("Access-Control-Max-Age", "7200")
	w.WriteHeader(http.StatusNoContent)
}

var (
	allowedHeaders = strings.Join([]string{
		"Authorization", "Content-Type", "Idempotency-Key", "Connect-Protocol-Version", "Connect-Timeout-Ms", "Grpc-Timeout",
		"X-Grpc-Web", "X-User-Agent",
	}, ", ")
	exposedHeaders = strings.Join([]string{
		"Retry-After", "Connect-Protocol-Version", "Grpc-Status", "Grpc-Message", "Grpc-Status-Details-Bin", headerTag,
	}, ", ")
)
