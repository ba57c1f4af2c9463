package host

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/storage"
)

// builtin reports whether the id is one of ours.
func builtin(id daemon.ID) bool { return strings.HasPrefix(string(id), daemon.Reserved) }

// What the sweeper keeps, and how often it looks.
const (
	keepEvents   = 100_000
	keepEventAge = 30 * 24 * time.Hour
	keepLocks    = 24 * time.Hour
	sweepOften   = time.Minute
	sweepSeldom  = 10 * time.Minute
)

// sweeps returns what there is to remove from the store. Tombstones stay for two registrations,
// so that a late heartbeat cannot bring a node back, and then some for people to look at.
func (h *host) sweeps(s storage.Sweeper) []sweeper.Task {
	tombstones := max(2*h.Config.Timing().NodeRegistrationTTL, time.Hour)
	return []sweeper.Task{
		{Name: "nodes", Every: sweepOften, Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
			return s.SweepNodes(ctx, f, tombstones, limit)
		}},
		{Name: "events", Every: sweepOften, Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
			return s.SweepEvents(ctx, f, keepEventAge, keepEvents, limit)
		}},
		{Name: "locks", Every: sweepSeldom, Step: func(ctx context.Context, f daemon.Fence, limit int) (int, error) {
			return s.SweepLocks(ctx, f, keepLocks, limit)
		}},
	}
}

// daemons returns what every node runs, and what ends it with the process.
func (h *host) daemons() (out []Daemon, end func(), err error) {
	if s, ok := h.up.Store.Store.(storage.Sweeper); ok {
		out = append(out, Daemon{sweeper.Spec(), sweeper.New(h.sweeps(s), sweeper.Config{Logger: h.log})})
	}
	out = append(out, h.Extra...)
	out = slices.DeleteFunc(out, func(d Daemon) bool { return !h.Config.Runs(string(d.Spec.ID)) })
	for _, d := range out {
		h.up.Daemons = append(h.up.Daemons, d.Spec)
	}
	return out, func() {}, nil
}

func (h *host) lockFile() string { return "" }

func (h *host) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", h.about)
	mux.Handle("GET /metrics", h.tel.Metrics())
	return mux
}
