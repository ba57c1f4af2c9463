package supervisor

import (
	"bytes"
	"runtime/pprof"
	"strconv"
	"strings"

	"github.com/emitd/emitd/daemon"
)

// logIgnoredCancel logs that code of the run ignores its cancelled context, with the stacks of that code. It
// ends the process if the spec asks for that.
func (r *run) logIgnoredCancel(what string) {
	r.log().Error(what, "stack", stacks(r.fence), "exit", r.spec.OnAbandoned == "exit")
	if r.spec.OnAbandoned == "exit" {
		r.s.cfg.Exit(1)
	}
}

// stacks returns the stacks of the run's goroutines, as text of bounded length. It finds the
// attempt's goroutine and those that it started by their labels.
func stacks(f daemon.Fence) string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return "unknown: " + err.Error()
	}
	unit := strconv.Quote(labelUnit) + ":" + strconv.Quote(f.Unit.String())
	generation := strconv.Quote(labelGeneration) + ":" + strconv.Quote(strconv.FormatInt(f.Generation, 10))
	var out []string
	for _, group := range strings.Split(profile.String(), "\n\n") {
		if _, labels, ok := strings.Cut(group, "# labels: "); ok {
			labels, _, _ = strings.Cut(labels, "\n")
			if strings.Contains(labels, unit) && strings.Contains(labels, generation) {
				out = append(out, group)
			}
		}
	}
	if len(out) == 0 {
		return "none: no goroutine of the run is left"
	}
	return truncate(strings.Join(out, "\n\n"), maxStack)
}
