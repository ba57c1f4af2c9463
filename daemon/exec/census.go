//go:build linux || darwin

package exec

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// census knows which process belongs to which run. It reads the machine's process list once, when it is first
// asked. A new census is made for each occasion.
//
// A process belongs to a run if it is in the process group of the run's first process, or descends from that
// process, whatever group or session it has moved to. A process whose parents have ended is adopted by the guardian
// (on Linux). It is recognised by the variables that its run was given.
type census struct {
	g   *guard
	all map[int]process // nil = the list was not read yet
	of  map[*guardedRun][]process
	// incomplete is set if some processes could not be examined for want of descriptors or memory. No run is then known
	// to be gone.
	incomplete bool
	// bare is set if an adopted process has no environment yet, so it may belong to any run.
	bare bool
}

func newCensus(g *guard) *census { return &census{g: g} }

// members returns the living processes of a run without a control group.
func (c *census) members(w *guardedRun) []process {
	if c.all == nil {
		c.take()
	}
	return c.of[w]
}

func (c *census) take() {
	c.of = map[*guardedRun][]process{}
	c.all = map[int]process{}
	all, err := processes()
	for _, p := range all {
		c.all[p.pid] = p
	}
	c.incomplete = err != nil
	leaders := map[int]*guardedRun{}
	for _, w := range c.g.runs {
		if w.pid != 0 && !w.target.reused() {
			leaders[w.pid] = w
		}
	}
	for _, p := range c.all {
		if p.dead {
			continue
		}
		if w := c.owner(p, leaders); w != nil {
			c.of[w] = append(c.of[w], p)
		}
	}
}

// owner returns the run of a process, or nil.
func (c *census) owner(p process, leaders map[int]*guardedRun) *guardedRun {
	self := os.Getpid()
	var found *guardedRun
	for range len(c.all) { // bounded, because a list that changes while it is read may have a cycle
		found = firstRun(found, leaders[p.pgid], leaders[p.pid])
		parent, known := c.all[p.ppid]
		switch {
		case p.ppid == self:
			if found == nil {
				found = firstRun(leaders[p.sid], c.runOfMark(p))
			}
			return found
		case !known || p.ppid <= 1:
			if adopts { // not of a run: the guardian would have adopted it
				return nil
			}
			return found
		}
		p = parent
	}
	return nil
}

// firstRun returns the first that is not nil.
func firstRun(ws ...*guardedRun) *guardedRun {
	for _, w := range ws {
		if w != nil {
			return w
		}
	}
	return nil
}

// killStarting kills the process that the starter has forked and that has not executed the command yet. It recognises
// that process by its name, which is still that of the thread that forked it.
func (c *census) killStarting() {
	self, name := os.Getpid(), startingName()
	all, _ := processes()
	for _, p := range all {
		if p.ppid == self && p.name == name {
			p.signal(unix.SIGKILL)
		}
	}
}

// signal sends a signal to all processes of the run.
func (w *guardedRun) signal(seen *census, s unix.Signal) {
	strays := w.strayProcesses(seen)
	w.target.signal(s)
	for _, p := range strays {
		p.signal(s)
	}
	if s == unix.SIGKILL && w.cgroup != nil {
		w.cgroup.kill()
	}
}

// strayProcesses returns the processes of the run that have left its process group, parents before their children:
// numbers are given in ascending order. A shell whose child is killed first writes "Killed" before it is killed
// itself, and the last line that a run writes becomes its error.
func (w *guardedRun) strayProcesses(seen *census) []process {
	var all []process
	if w.cgroup != nil {
		all = w.cgroup.members()
	} else if seen.g.hasStrays(w) {
		all = seen.members(w)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(p process) bool { return p.pgid == w.pid })
	slices.SortFunc(all, func(a, b process) int { return cmp.Compare(a.pid, b.pid) })
	for _, p := range all {
		w.strays[p.pid] = true
	}
	return all
}

// runs reports whether a process of the run may execute something. The process list may miss a process that is
// forked while the list is read. An empty list is therefore checked a second time, after a SIGKILL, which also
// reaches processes that are being forked.
func (w *guardedRun) runs(seen *census) bool {
	switch {
	case w.cgroup != nil:
		return !w.exited || w.cgroup.populated()
	case !w.exited:
		return true
	case errors.Is(unix.Kill(-w.pid, 0), unix.ESRCH) && !seen.g.hasStrays(w) && !seen.g.hasStrays(w):
		return false // not even a zombie; two looks, because a look may miss a child if another one is ending
	case len(seen.members(w)) > 0 || seen.incomplete:
		w.seenEmpty = false
		return true
	case w.seenEmpty && !seen.bare:
		return false
	}
	w.seenEmpty = true
	w.target.kill()
	return true
}

// markNames are the variables that distinguish the processes of one run from those of others.
var markNames = []string{"EMITD_UNIT=", "EMITD_GENERATION="}

func marksOf(env [][]byte) []string {
	var out []string
	for _, name := range markNames {
		for _, kv := range slices.Backward(env) {
			if strings.HasPrefix(string(kv), name) {
				out = append(out, string(kv))
				break
			}
		}
	}
	return out
}

// longestExec is how long a process may take to begin to execute a command. It has no environment meanwhile.
const longestExec = instant(time.Second)

// runOfMark returns the run that a process was started for, according to its environment. A process without an
// environment may be executing a command at this moment, and then belong to any run: for a while, no run counts as
// gone because of this census.
func (c *census) runOfMark(p process) *guardedRun {
	g := c.g
	if p.name == roleGuardian { // a process that is being started, or the guardian itself
		return nil
	}
	env, ok := g.marks[p.id()]
	if !ok {
		// Two results are remembered: marks that were found, and that the environment could not be read in
		// time, because each attempt takes that long. An empty environment is not remembered: a process
		// has none for a moment when it begins to execute a command.
		var read bool
		if env, read = environment(p.pid); len(env) > 0 || !read {
			if g.marks == nil || len(g.marks) > 10_000 {
				g.marks = map[string][]string{}
			}
			g.marks[p.id()] = env
		} else {
			if g.bare == nil || len(g.bare) > 10_000 {
				g.bare = map[string]instant{}
			}
			now := readClock()
			if _, seen := g.bare[p.id()]; !seen {
				g.bare[p.id()] = now
			}
			c.bare = c.bare || now-g.bare[p.id()] < longestExec
		}
	}
	for _, w := range g.runs {
		if len(w.marks) == len(markNames) && !slices.ContainsFunc(w.marks, func(m string) bool { return !slices.Contains(env, m) }) {
			return w
		}
	}
	return nil
}

// environment returns the marks in the environment of a process. The kernel reads them from the process's memory,
// which may take arbitrarily long. This waits only 100 ms, and reports false if that was too short.
func environment(pid int) ([]string, bool) {
	found := make(chan []string, 1)
	go func() {
		var marks []string
		for _, kv := range readEnviron(pid) {
			if slices.ContainsFunc(markNames, func(name string) bool { return strings.HasPrefix(kv, name) }) {
				marks = append(marks, kv)
			}
		}
		found <- marks
	}()
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	select {
	case marks := <-found:
		return marks, true
	case <-t.C:
		return nil, false
	}
}
