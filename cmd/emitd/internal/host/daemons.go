package host

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/cmd/emitd/internal/filelock"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/exec"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/storage"
)

// builtin reports whether the id is one of ours.
func builtin(id daemon.ID) bool { return strings.HasPrefix(string(id), daemon.Reserved) }

// daemons makes what every node runs: the sweeper, what the program brings along, and the
// commands of the configuration. end is called when all nodes have stopped.
func (h *host) daemons() (out []Daemon, end func() error, err error) {
	if s, ok := h.up.Store.Store.(storage.Sweeper); ok {
		out = append(out, Daemon{sweeper.Spec(), sweeper.New(h.sweeps(s), sweeper.Config{Logger: h.log})})
	}
	out = append(out, h.Extra...)
	commands, end, err := h.commands()
	if err != nil {
		return nil, nil, err
	}
	out = append(out, commands...)
	out = slices.DeleteFunc(out, func(d Daemon) bool { return !h.Config.Runs(string(d.Spec.ID)) })
	for _, d := range out {
		h.up.Daemons = append(h.up.Daemons, d.Spec)
	}
	return out, end, nil
}

// What the sweeper keeps, and how often it looks.
const (
	keepEvents   = 100_000
	keepEventAge = 30 * 24 * time.Hour
	keepLocks    = 24 * time.Hour
	sweepOften   = 5 * time.Minute // an idle cluster costs its store next to nothing
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

// commands makes the exec daemons. They share one guardian, which inherits the lock file: while
// that is held, nobody takes this process and its commands for dead.
func (h *host) commands() (out []Daemon, end func() error, err error) {
	if len(h.Config.Daemons.Exec) == 0 {
		return nil, func() error { return nil }, nil
	}
	file, err := filelock.Temp(os.TempDir(), time.Now())
	if err != nil {
		return nil, nil, fault.New(fault.StateDir, "lock file of the exec daemons: %w", err).
			Hint("make %s writable, or set TMPDIR", os.TempDir())
	}
	h.lock = file.Name()
	guardian := exec.NewGuardian(exec.GuardianConfig{Lock: file, Logger: h.log})
	for _, e := range h.Config.Daemons.Exec {
		c := h.command(e)
		if err := c.Validate(); err != nil {
			return nil, nil, errors.Join(fault.New(fault.BadDaemon, "%w", err), file.Close())
		}
		out = append(out, Daemon{c.Spec(), exec.New(c, guardian)})
	}
	return out, func() error {
		return errors.Join(guardian.Close(), file.Close(), os.Remove(file.Name()))
	}, nil
}

func (h *host) command(e config.Exec) exec.Config {
	s := e.Spec()
	return exec.Config{
		ID: s.ID, Command: e.Command, Dir: e.Dir, Env: e.Env,
		Instances: s.Instances, Weight: s.Weight, Requires: s.Requires, Spread: s.Spread,
		AcknowledgeTimeout: s.AcknowledgeTimeout, DrainTimeout: s.DrainTimeout, StallTimeout: s.StallTimeout,
		MaxFailures: s.MaxFailures, OnAbandoned: s.OnAbandoned,
		Logger: h.log,
	}
}
