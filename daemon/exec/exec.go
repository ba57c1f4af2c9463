// Package exec runs external commands as daemons.
//
// One run of a unit is one process group. The command gets these variables in its environment:
//
//	EMITD_DAEMON      acme:ticker             EMITD_TERM   number of the assigning term
//	EMITD_UNIT        acme:ticker/3           EMITD_NODE   name of the node
//	EMITD_GENERATION  the fence: give it to whatever it writes to, to be compared there
//
// It also gets, from emitd's own environment, PATH, HOME, USER, LOGNAME, SHELL, LANG, LANGUAGE,
// LC_*, TZ, TMPDIR and TERM, the variables that Config.InheritEnv names, and those of Config.Env.
// It does not get any other variable of emitd, such as passwords. The package logs the command's
// output line by line. Each line also counts as progress (Spec.StallTimeout).
//
//	drain                     SIGTERM to all its processes; they may finish the work in flight
//	context cancelled         SIGKILL to all its processes
//	exit 0                    started again after the shortest back-off
//	exit 75 (EX_TEMPFAIL)     the unit is given back (daemon.ErrRelease)
//	any other end             a failure; the tail of stderr is in its error
//	first process ends alone  SIGTERM to the rest, SIGKILL 2 s later
//
// A command with a schedule (Config.Schedule) is run once for each due time, which it gets as EMITD_DUE
// (RFC 3339). Exit code 0 is a success. Any other end is a failure of this call, which is repeated as
// [daemon.Periodic] says. A drain waits for the command and sends no signal.
//
// Run returns only when no process of the run executes anything any more. That includes processes
// that have left the process group (setsid, setpgid). How they are found depends on the system:
//
//   - On Linux, each run has a control group of its own if emitd may create one.
//   - On Linux without control groups, they are found as descendants of the first process. If their
//     parents have ended, they are found by EMITD_UNIT and EMITD_GENERATION in their environment. A
//     process that has neither parents nor these variables ends with the node.
//   - On macOS, a process that has lost its parents cannot be found. The package logs a warning if
//     it still holds the command's output.
//   - Without a control group, a process that changed to a user whom emitd may not signal cannot be
//     ended on any system.
//
// # The guardian
//
// A command must end when the assignment's validity (its trust) does, even if emitd is killed
// (SIGKILL) or stopped (SIGSTOP). One guardian process per node ensures that. It is the same
// binary, started with the first command, in a session of its own, and it ignores the signals of a
// terminal. All commands are its children.
//
//	emitd ──start command deadline──▶ guardian ──fork, exec──▶ command
//	emitd ──extend deadline──▶ guardian            whenever trust was extended
//	emitd ──signal──▶ guardian ──▶ all processes   drain, cancel
//	emitd ◀──gone── guardian                       no process is left
//
// What the guardian promises, and why each promise holds:
//
//  1. No command runs unguarded. The guardian itself starts it, and receives the deadline together with the
//     order to start. After the deadline it does not start the command any more.
//  2. Deadlines are absolute readings of a clock that counts suspend (CLOCK_BOOTTIME). The clock is
//     read before the remaining trust is. A pause anywhere between that reading and the guardian
//     shortens the remaining time and never extends it. At its deadline a run is killed.
//  3. When emitd ends, in whatever way, its socket closes and the guardian kills all runs at once.
//     The guardian exits when no process of them is left. Until then it holds the lock on the file
//     that GuardianConfig.Lock names, so a free lock proves the end of emitd and its commands.
//     Commands do not inherit the lock file, nor anything else except their output. If the guardian
//     is stopped by then and does nothing, it is killed 5 s later (on Linux).
//  4. When the guardian ends, its commands end at once, even while emitd is stopped (on Linux). The
//     kernel kills the guardian's children. The reaper, the process between emitd and the guardian,
//     adopts and kills everything else. When the reaper ends, the guardian kills all runs and ends.
//     If both are killed in the same instant, the kernel still kills the first processes, and emitd
//     kills their groups once it runs. The next guardian kills the processes in control groups that
//     have no guardian. The runs fail, and the next attempt starts another guardian. A guardian
//     that does not answer emitd is killed.
//  5. Only the run's own processes are killed. They are signalled through a handle of the process
//     (Linux 6.9), or after a comparison of its start time.
//  6. A command on a file system that does not answer delays the start of other commands, but no
//     deadline.
package exec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/schedule"
)

// Config declares a command as a daemon. ID and Command are required. The fields that daemon.Spec
// also has mean the same here.
type Config struct {
	ID daemon.ID
	// Command is the program and its arguments; there is no shell. The program is looked up in the
	// PATH that the command gets.
	Command []string
	// Dir is the working directory; default emitd's.
	Dir string
	// Env is added to the environment. InheritEnv names more variables that the command gets from
	// emitd's own environment: names, or beginnings of names followed by *.
	Env        map[string]string
	InheritEnv []string
	// User and Group, names or numbers, say with whose rights the command runs; default emitd's.
	// Only root may choose others.
	User, Group string

	Revision                                       int64
	Instances, Weight                              int
	Requires                                       map[string]string
	Spread                                         string
	AcknowledgeTimeout, DrainTimeout, StallTimeout time.Duration
	MaxFailures                                    int
	OnAbandoned                                    string
	NoRebalance                                    bool

	// Schedule, if set, says when the command is run, instead of all the time. Its function is not used.
	Schedule *daemon.Periodic

	due time.Time // of this call, if there is a schedule

	// Logger gets the command's output; default slog.Default.
	Logger *slog.Logger
	// Record, if set, is called when a run begins, which may be an attempt after a failure. line gets each
	// line of output that is logged; stream is stdout or stderr, and truncated means that the line was longer. It
	// is called from several goroutines and must not block. end is called once, when no process of the run
	// is left, with the result of the run.
	Record func(a *daemon.Assignment) (line func(stream, text string, truncated bool), end func(error))
}

// GuardianConfig configures the node's guardian.
type GuardianConfig struct {
	// Lock, if set, is a file that this process holds locked with flock. The guardian inherits the
	// file and with it the lock, which is free only when both have ended.
	Lock *os.File
	// Logger defaults to slog.Default.
	Logger *slog.Logger

	noCgroup bool // for tests: behave as on a system without control groups
}

// Spec returns the spec of the daemon.
func (c Config) Spec() daemon.Spec {
	return daemon.Spec{
		ID: c.ID, Revision: c.Revision, Instances: c.Instances, Weight: c.Weight, Requires: c.Requires, Spread: c.Spread,
		WaitReady:          true, // a unit is active once its command runs
		AcknowledgeTimeout: c.AcknowledgeTimeout, DrainTimeout: c.DrainTimeout, StallTimeout: c.StallTimeout,
		MaxFailures: c.MaxFailures, OnAbandoned: c.OnAbandoned, NoRebalance: c.NoRebalance,
	}
}

var (
	validEnv     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	validPattern = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)?\*?$`)
)

// ValidPattern reports whether the text may be in InheritEnv.
func ValidPattern(text string) bool { return text != "" && validPattern.MatchString(text) }

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
			bad("env %q is not the name of an environment variable", name)
		case slices.Contains(ownEnv, name):
			bad("env %s is set by emitd", name)
		case strings.ContainsRune(c.Env[name], 0):
			bad("env %s contains a zero byte", name)
		}
	}
	for _, name := range c.InheritEnv {
		switch {
		case !ValidPattern(name):
			bad("inherit_env %q is neither the name of an environment variable nor a prefix followed by *", name)
		case slices.Contains(ownEnv, name):
			bad("inherit_env %s is set by emitd", name)
		}
	}
	if err := c.Spec().Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Schedule != nil {
		if err := c.periodic(nil).Validate(); err != nil {
			bad("%w", err)
		}
		if err := schedule.CheckStall(c.StallTimeout); err != nil {
			bad("%w", err)
		}
	}
	return errors.Join(errs...)
}

// periodic returns the agent that runs the command at its due times.
func (c Config) periodic(g *agent) *daemon.Periodic {
	p := *c.Schedule
	p.Logger = c.Logger
	p.Do = func(ctx context.Context, a *daemon.Assignment, due time.Time) error { return g.once(ctx, a, due) }
	return &p
}

// New returns the agent of a command. Call Validate before. guardian is the node's, shared by all
// commands.
func New(cfg Config, guardian *Guardian) daemon.Agent {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Dir != "" {
		if dir, err := filepath.Abs(cfg.Dir); err == nil {
			cfg.Dir = dir
		}
	}
	g := &agent{cfg: cfg, guardian: guardian}
	if cfg.Schedule != nil {
		return cfg.periodic(g)
	}
	return g
}

// agent is a command as a daemon.
type agent struct {
	cfg      Config
	guardian *Guardian
}

var _ daemon.Agent = (*agent)(nil)

// Run runs the command once; see the package comment.
func (g *agent) Run(ctx context.Context, a *daemon.Assignment) error {
	return g.once(ctx, a, time.Time{})
}

// ErrGuardianGone marks the failure of a run whose guardian ended, did not answer or could not be
// started. The command was killed.
var ErrGuardianGone = errors.New("the guardian has ended")

// exitRelease is the exit code (EX_TEMPFAIL) by which a command gives its unit back.
const exitRelease = 75
