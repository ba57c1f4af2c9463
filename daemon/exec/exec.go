// Package exec runs external commands as daemons.
//
// One run of a unit is one process group. The command gets in its environment
//
//	EMITD_DAEMON      acme:ticker             EMITD_TERM   number of the assigning term
//	EMITD_UNIT        acme:ticker/3           EMITD_NODE   name of the node
//	EMITD_GENERATION  the fence: give it to whatever it writes to, to be compared there
//
// and emitd's own environment without its EMITD_ variables, which may hold secrets. Its output
// is logged line by line; each line also counts as progress (Spec.StallTimeout).
//
//	drain                     SIGTERM to the group; it may finish what is in flight
//	context cancelled         SIGKILL to the group
//	exit 0                    started again after the shortest back-off
//	exit 75 (EX_TEMPFAIL)     the unit is given back (daemon.ErrRelease)
//	any other end             a failure; the tail of stderr is in its error
//	first process ends alone  SIGTERM to the rest of the group, SIGKILL 2 s later
//
// Run returns only when the whole group is gone: no process of it executes anything any more.
// A process that leaves the group (setsid, setpgid) is out of reach, and so is one that changed
// to a user whom emitd may not signal.
//
// # The guardian
//
// A group must end when the assignment's trust does, also when emitd is killed (SIGKILL) or
// stopped (SIGSTOP). One guardian process per node sees to that. It is the same binary, started
// with the first command, in a session of its own, deaf to the signals of a terminal.
//
//	emitd ──fork──▶ gate (waits)                     group exists, command does not run
//	emitd ──watch pgid start deadline──▶ guardian    guardian looks at the group
//	emitd ◀─────────────ok───────────── guardian
//	emitd ──go──▶ gate ──execve──▶ command           only now
//	emitd ──extend pgid deadline──▶ guardian         whenever trust was extended
//	emitd ──forget pgid──▶ guardian, ok, then reap   the group is gone
//
// Promises, and why they hold:
//
//  1. No command runs unwatched. Until the guardian has answered, the group consists of a gate:
//     this binary waiting on a pipe. If emitd dies before "go", the pipe closes and the gate
//     exits.
//  2. Deadlines are absolute readings of a clock that counts suspend (CLOCK_BOOTTIME), and the
//     clock is read before trust is asked for. A pause anywhere between the reading and the
//     guardian shortens what is left and never prolongs it. At its deadline a group is killed.
//  3. When emitd ends in whatever way, its pipe closes and the guardian kills all groups at once.
//     It exits when no process of them is left; until then it keeps the lock file locked that
//     GuardianConfig.Lock names, so that a free lock proves the end of emitd and its groups.
//  4. When the guardian ends or does not answer, emitd kills the groups it watched, the runs
//     fail, and the next attempt starts another guardian.
//  5. Only our own processes are killed. emitd leaves the dead first process of a group unreaped
//     until the guardian has forgotten the group, and a group's number is not reused while it is
//     there. Once emitd is dead, the guardian signals through a handle of the first process
//     (Linux 6.9), or after comparing its start time.
//
// What is left: if emitd and its guardian are killed at the same instant, or the guardian is
// killed while emitd is stopped, nobody watches. Kill one of them, or the whole control group.
package exec

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
)

// Config declares a command as a daemon. ID and Command are needed; the fields that daemon.Spec
// has too mean the same here.
type Config struct {
	ID daemon.ID
	// Command is the program and its arguments; there is no shell. The program is looked up in
	// the PATH that the command gets.
	Command []string
	// Dir is the working directory; default emitd's.
	Dir string
	// Env is added to the environment.
	Env map[string]string

	Instances, Weight                              int
	Requires                                       map[string]string
	Spread                                         string
	AcknowledgeTimeout, DrainTimeout, StallTimeout time.Duration
	MaxFailures                                    int
	OnAbandoned                                    string

	// Logger gets the command's output; default slog.Default.
	Logger *slog.Logger
}

// GuardianConfig says how the node's guardian is made.
type GuardianConfig struct {
	// Lock, if set, is a file that this process holds locked with flock. The guardian inherits
	// it and with it the lock, which is free only when both have ended.
	Lock *os.File
	// Logger defaults to slog.Default.
	Logger *slog.Logger
}

// Spec declares the daemon.
func (c Config) Spec() daemon.Spec {
	return daemon.Spec{
		ID: c.ID, Instances: c.Instances, Weight: c.Weight, Requires: c.Requires, Spread: c.Spread,
		AcknowledgeTimeout: c.AcknowledgeTimeout, DrainTimeout: c.DrainTimeout, StallTimeout: c.StallTimeout,
		MaxFailures: c.MaxFailures, OnAbandoned: c.OnAbandoned,
	}
}

var validEnv = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Validate reports why the command cannot be a daemon, or nil.
func (c Config) Validate() error {
	if err := c.ID.Validate(); err != nil {
		return err
	}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("daemon %s: "+format, append([]any{c.ID}, args...)...))
	}
	if strings.HasPrefix(string(c.ID), daemon.Reserved) {
		bad("ids that begin with %s are reserved", daemon.Reserved)
	}
	switch {
	case len(c.Command) == 0:
		bad("command is empty, want the program and its arguments")
	case c.Command[0] == "":
		bad("the program of command is empty")
	}
	for _, text := range append([]string{c.Dir}, c.Command...) {
		if strings.ContainsRune(text, 0) {
			bad("command and dir cannot contain a zero byte")
			break
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		switch {
		case !validEnv.MatchString(name):
			bad("env %q is no name of an environment variable", name)
		case slices.Contains(ownEnv, name):
			bad("env %s is set by emitd", name)
		case strings.ContainsRune(c.Env[name], 0):
			bad("env %s contains a zero byte", name)
		}
	}
	if err := c.Spec().Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ownEnv are the variables that tell a command what it is.
var ownEnv = []string{"EMITD_DAEMON", "EMITD_UNIT", "EMITD_GENERATION", "EMITD_TERM", "EMITD_NODE"}

// environ returns the environment of the command: inherited, then Env, then its identity.
func (c Config) environ(inherited []string, a *daemon.Assignment) []string {
	env := slices.DeleteFunc(slices.Clone(inherited), func(kv string) bool { return strings.HasPrefix(kv, "EMITD_") })
	if c.Dir != "" {
		env = append(env, "PWD="+c.Dir)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		env = append(env, name+"="+c.Env[name])
	}
	return append(env,
		"EMITD_DAEMON="+string(a.Unit.Daemon), "EMITD_UNIT="+a.Unit.String(),
		"EMITD_GENERATION="+strconv.FormatInt(a.Generation, 10), "EMITD_TERM="+strconv.FormatInt(a.Term, 10),
		"EMITD_NODE="+a.Node)
}

// New returns the agent of a command. Validate says beforehand whether the config is one;
// guardian is the node's, shared by all commands.
func New(cfg Config, guardian *Guardian) daemon.Agent {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Dir != "" {
		if dir, err := filepath.Abs(cfg.Dir); err == nil {
			cfg.Dir = dir
		}
	}
	return &agent{cfg: cfg, guardian: guardian}
}

// agent is a command as a daemon.
type agent struct {
	cfg      Config
	guardian *Guardian
}

var _ daemon.Agent = (*agent)(nil)

// ErrGuardian marks the failure of a run whose guardian ended, did not answer or could not be
// started. The command was killed.
var ErrGuardian = errors.New("guardian is gone")

// exitRelease is the exit code (EX_TEMPFAIL) by which a command gives its unit back.
const exitRelease = 75
