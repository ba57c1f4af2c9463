package host

import (
	"context"
	"maps"
	"math"
	"net/http"
	"slices"
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
	c := admin.Config{
		Store: h.up.Store.Store, StoreKind: h.up.Store.Kind, Cluster: h.Config.Cluster, Timing: coordinator.Timing(h.Config.Timing()),
		MaxMovesPerRound: h.maxMoves(),
		ExpectQueues:     h.Config.Objects.URL != "" && h.Config.Runs(string(queue.Kind)),
		Queues:           adminQueues{h.front}, Settings: h.adminSettings,
		Trends: h.trends.show, Actor: actorOf, Authorize: authorizeAdmin,
		Explain: func(err error) error { return explained(err, h.Config.Secrets()) }, Logger: h.log,
	}
	if h.guard.grants.Load() != nil {
		c.Sessions = sessions{h.guard, h}
	}
	if h.Config.HasOutbox() {
		c.Outbox = h.adminOutbox
	}
	return admin.New(c)
}

// adminOutbox returns the outbox once it is open.
func (h *host) adminOutbox() (*admin.Outbox, error) {
	box := h.relays.box.Load()
	if box == nil {
		return nil, fault.New(fault.Unreachable, "the outbox of this node is not open yet").Hint("ask another node; the log of this one says why")
	}
	return &admin.Outbox{Kind: box.Kind, Group: h.Config.Node.Group, Operator: box.Operator}, nil
}

// adminSettings returns the settings of this process, without secrets.
func (h *host) adminSettings() []admin.Setting {
	var out []admin.Setting
	for _, s := range h.Config.Settings() {
		set := admin.Setting{Key: s.Key, Value: s.Value, Origin: s.Origin, Note: s.Note}
		for _, o := range s.Overrides {
			set.Overrides = append(set.Overrides, admin.Override{Layer: string(o.Layer), Name: o.Name, Value: o.Text})
		}
		out = append(out, set)
	}
	return out
}

// adminQueues are the queues as this process reaches them now.
type adminQueues struct{ f *queueAPI }

var _ admin.Queues = adminQueues{}

// Queues implements [admin.Queues].
func (q adminQueues) Queues(ctx context.Context) ([]queue.Settings, error) {
	if open := q.f.queues.Load(); open != nil {
		return open.List(ctx)
	}
	if q.f.open == nil {
		return q.served(ctx)
	}
	return closed(q).List(ctx)
}

// served returns the names of the queues that have units: all that a process without an object store knows of them.
func (q adminQueues) served(ctx context.Context) ([]queue.Settings, error) {
	snap, err := q.f.h.up.Store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, r := range snap.Units {
		if name, ok := strings.CutPrefix(string(r.Unit.Daemon), string(queue.Kind)+"/"); ok && !r.Retired {
			names[name] = true
		}
	}
	out := []queue.Settings{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out = append(out, queue.Settings{Name: name})
	}
	return out, nil
}

// Get implements [queue.Operator].
func (q adminQueues) Get(ctx context.Context, name, id string) (*queue.Info, []byte, error) {
	return q.f.jobs().Get(ctx, name, id)
}

// List implements [queue.Operator].
func (q adminQueues) List(ctx context.Context, name string, what queue.Query) (*queue.Page, error) {
	return q.f.jobs().List(ctx, name, what)
}

// Stats implements [queue.Operator].
func (q adminQueues) Stats(ctx context.Context, name string) (*queue.Stats, error) {
	return q.f.jobs().Stats(ctx, name)
}

// Do implements [queue.Operator].
func (q adminQueues) Do(ctx context.Context, name string, c queue.Command) (int, error) {
	return q.f.jobs().Do(ctx, name, c)
}

// Reshard implements [admin.Queues].
func (q adminQueues) Reshard(ctx context.Context, name string, shards int) (queue.Settings, error) {
	if open := q.f.queues.Load(); open != nil {
		return open.Reshard(ctx, name, shards)
	}
	return queue.Settings{}, q.f.why()
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
