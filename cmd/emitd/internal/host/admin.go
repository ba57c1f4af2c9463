package host

import (
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// adminPath is below what the admin API is.
const adminPath = "/api/"

// ofAdmin reports whether a path belongs to the admin API.
func ofAdmin(path string) bool { return strings.HasPrefix(path, adminPath) }

// newAdmin makes the admin API of this process.
func (h *host) newAdmin() (*admin.API, error) {
	return admin.New(admin.Config{
		Store: h.up.Store.Store, StoreKind: h.up.Store.Kind, Cluster: h.Config.Cluster, Timing: coordinator.Timing(h.Config.Timing()),
		ExpectQueues: h.Config.Objects.URL != "" && h.Config.Runs(string(queue.Kind)),
		Explain:      func(err error) error { return explained(err, h.Config.Secrets()) }, Logger: h.log,
	})
}

// explained returns an error as a fault, with the code and the advice for the backend, and without secrets.
func explained(err error, secrets []string) *fault.Fault {
	f := *backend.Fault(err)
	f.What = fault.Redact(f.What, secrets...)
	return &f
}

// refuseAdmin answers a call of the admin API that the listener rejects.
func refuseAdmin(w http.ResponseWriter, e *queue.Error) {
	f := fault.FromQueue(e)
	if f.Code == fault.BadJob {
		f.Code = fault.BadCall
	}
	if wait, ok := refusal.Retryable(e); ok {
		w.Header().Set("Retry-After", strconv.Itoa(int(max(math.Ceil(wait.Seconds()), 1))))
	}
	writeProblem(w, f.Problem(refusal.HTTPStatus(e.Tag)))
}

func writeProblem(w http.ResponseWriter, p fault.Problem) {
	h := w.Header()
	h.Set("Content-Type", fault.ProblemType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(p.Status)
	_ = view.JSONLine(w, p) // an error means that the caller has gone
}
