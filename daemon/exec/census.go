//go:build linux || darwin

package exec

import (
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// census knows which process belongs to which run. It looks at the machine's processes once, when
// it is first asked; a new one is made for each occasion.
//
// A process belongs to a run if it is in the process group of the run's first process, or descends
// from that process, whatever group or session it has moved to. One whose parents have ended is
// adopted by the guardian (on Linux). It is known by the variables that its run was given.
type census struct {
	g   *guard
	all map[int]process // nil = not looked yet
	of  map[*ward][]process
	// blind is set if not all processes could be looked at, for want of descriptors or memory: then
	// nothing is known to be gone.
	blind bool
}

func newCensus(g *guard) *census { return &census{g: g} }

// members returns the living processes of a run without a control group.
func (c *census) members(w *ward) []process {
	if c.all == nil {
		c.take()
	}
	return c.of[w]
}

func (c *census) take() {
	c.of = map[*ward][]process{}
	c.all = map[int]process{}
	all, err := processes()
	for _, p := range all {
		c.all[p.pid] = p
	}
	c.blind = err != nil
	leaders := map[int]*ward{}
	for _, w := range c.g.wards {
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
func (c *census) owner(p process, leaders map[int]*ward) *ward {
	self := os.Getpid()
	var found *ward
	for range len(c.all) { // a list that changes while it is read may have a circle
		found = cmpWard(found, leaders[p.pgid], leaders[p.pid])
		parent, known := c.all[p.ppid]
		switch {
		case p.ppid == self:
			if found == nil {
				found = cmpWard(leaders[p.sid], c.g.marked(p))
			}
			return found
		case !known || p.ppid <= 1:
			if adopts { // not ours: it would have been adopted
				return nil
			}
			return found
		}
		p = parent
	}
	return nil
}

// cmpWard returns the first that is not nil.
func cmpWard(ws ...*ward) *ward {
	for _, w := range ws {
		if w != nil {
			return w
		}
	}
	return nil
}

// killUnborn kills the process that the starter has made and that is not the command yet: it still has the
// name of the thread that made it.
func (c *census) killUnborn() {
	self, name := os.Getpid(), nameOfUnborn()
	all, _ := processes()
	for _, p := range all {
		if p.ppid == self && p.name == name {
			p.signal(unix.SIGKILL)
		}
	}
}

// signal sends to all processes of the run.
func (w *ward) signal(seen *census, s unix.Signal) {
	strays := w.away(seen)
	w.target.signal(s)
	for _, p := range strays {
		p.signal(s)
	}
	if s == unix.SIGKILL && w.cgroup != nil {
		w.cgroup.kill()
	}
}

// away returns the processes of the run that have left its process group.
func (w *ward) away(seen *census) []process {
	var all []process
	if w.cgroup != nil {
		all = w.cgroup.members()
	} else if seen.g.hasStrays(w) {
		all = seen.members(w)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(p process) bool { return p.pgid == w.pid })
	for _, p := range all {
		w.strays[p.pid] = true
	}
	return all
}

// runs reports whether some process of the run may execute something. The look at the list of
// processes may miss one that forks meanwhile, so an empty list is made sure of: SIGKILL also
// reaches what is being forked.
func (w *ward) runs(seen *census) bool {
	switch {
	case w.cgroup != nil:
		return !w.exited || w.cgroup.populated()
	case !w.exited:
		return true
	case errors.Is(unix.Kill(-w.pid, 0), unix.ESRCH) && !seen.g.hasStrays(w):
		return false // not even a zombie
	case len(seen.members(w)) > 0 || seen.blind:
		w.empty = false
		return true
	case w.empty:
		return false
	}
	w.empty = true
	w.target.kill()
	return true
}

// markNames are the variables that tell the processes of one run from those of others.
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

// marked returns the run that a process was started for, as its environment says.
func (g *guard) marked(p process) *ward {
	if p.name == roleGuardian { // what is being started, or this
		return nil
	}
	env, ok := g.marks[p.id()]
	if !ok {
		// A process that is becoming a command has no environment for a moment, so that nothing is kept but
		// what was found, and that a process does not let itself be read, as that takes a moment each time.
		var read bool
		if env, read = environment(p.pid); len(env) > 0 || !read {
			if g.marks == nil || len(g.marks) > 10_000 {
				g.marks = map[string][]string{}
			}
			g.marks[p.id()] = env
		}
	}
	for _, w := range g.wards {
		if len(w.marks) == len(markNames) && !slices.ContainsFunc(w.marks, func(m string) bool { return !slices.Contains(env, m) }) {
			return w
		}
	}
	return nil
}

// environment returns the marks in the environment of a process. The kernel reads it from the
// process's memory, which may take as long as that process likes: this waits a moment only, and
// reports false if that was too short.
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
