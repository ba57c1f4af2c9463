package host

import (
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/filelock"
	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/exec"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/internal/admin/fault"
)

// builtin reports whether an ID is that of a built-in daemon.
func builtin(id daemon.ID) bool { return strings.HasPrefix(string(id), daemon.Reserved) }

// daemons makes the daemons that all nodes of the process run alike: those of Options.Extra and the
// commands of the configuration. end is called when all nodes have stopped.
func (h *host) daemons() (out []Daemon, end func() error, err error) {
	commands, end, err := h.commands()
	if err != nil {
		return nil, nil, err
	}
	return slices.Concat(h.Extra, commands), end, nil
}

// sweeper makes the daemon that removes old data from a node's store; nil if the store needs no sweeping.
// What people may still want to see is kept for a while.
func (h *host) sweeper(c *coordinator.Coordinator) []Daemon {
	tasks := c.SweepTasks(coordinator.Retention{NodeAge: time.Hour, LockAge: 24 * time.Hour})
	if len(tasks) == 0 {
		return nil
	}
	return []Daemon{{sweeper.Spec(), sweeper.New(tasks, sweeper.Config{Logger: h.log})}}
}

// commands makes the exec daemons. They share one guardian, which inherits the lock file. While any
// process holds the lock, no other node takes this process and its commands for dead.
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
		ID: s.ID, Command: e.Command, Dir: e.Dir, Env: e.Env, InheritEnv: e.InheritEnv,
		User: e.User, Group: e.Group,
		Revision: s.Revision, Instances: s.Instances, Weight: s.Weight, Requires: s.Requires, Spread: s.Spread,
		AcknowledgeTimeout: s.AcknowledgeTimeout, DrainTimeout: s.DrainTimeout, StallTimeout: s.StallTimeout,
		MaxFailures: s.MaxFailures, OnAbandoned: s.OnAbandoned, NoRebalance: s.NoRebalance,
		Schedule: e.Periodic(),
		Logger:   h.log,
		Record: func(a *daemon.Assignment) (func(stream, text string, truncated bool), func(error)) {
			r := h.runs.Begin(a.Unit.String(), a.Node, a.Generation)
			return r.Line, r.End
		},
	}
}
