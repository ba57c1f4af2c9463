package coordinator

import (
	"cmp"
	"slices"
	"strings"

	"github.com/emitd/emitd/daemon"
)

// declared are the daemons that a node declares, and their agents. There may be thousands, so the node's advert has the same
// specs, not a copy.
type declared struct {
	specs  []daemon.Spec  // sorted by ID
	agents []daemon.Agent // of the spec at the same index
	shared bool           // an advert has specs: they must not be changed
}

// find returns the index of a daemon, or where it belongs.
func (d *declared) find(id daemon.ID) (at int, ok bool) {
	return slices.BinarySearchFunc(d.specs, id, func(s daemon.Spec, id daemon.ID) int { return cmp.Compare(s.ID, id) })
}

// put adds a daemon, or replaces the one with its ID.
func (d *declared) put(spec daemon.Spec, agent daemon.Agent) {
	d.unshare()
	at, ok := d.find(spec.ID)
	if ok {
		d.specs[at], d.agents[at] = spec, agent
		return
	}
	d.specs, d.agents = slices.Insert(d.specs, at, spec), slices.Insert(d.agents, at, agent)
}

// remove removes a daemon, and reports whether there was one.
func (d *declared) remove(id daemon.ID) bool {
	at, ok := d.find(id)
	if ok {
		d.unshare()
		d.specs, d.agents = slices.Delete(d.specs, at, at+1), slices.Delete(d.agents, at, at+1)
	}
	return ok
}

// isSource reports whether a daemon is the one that calls the source of a keyed daemon.
func (d *declared) isSource(id daemon.ID) bool {
	at, ok := d.find(id)
	if ok {
		_, ok = d.agents[at].(*keySync)
	}
	return ok
}

// unshare lets the specs be changed.
func (d *declared) unshare() {
	if d.shared {
		d.specs, d.shared = slices.Clone(d.specs), false
	}
}

// share returns the specs for an advert.
func (d *declared) share() []daemon.Spec {
	d.shared = true
	return slices.Clip(d.specs)
}

// agent returns the agent that runs a daemon. One of a built-in kind runs every daemon of that kind ("emit:queue/…").
func (d *declared) agent(id daemon.ID) (daemon.Agent, bool) {
	if at, ok := d.find(id); ok {
		return d.agents[at], true
	}
	for i := range d.specs {
		if k := string(d.specs[i].Kind); strings.HasPrefix(k, daemon.Reserved) && strings.HasPrefix(string(id), k+"/") {
			return d.agents[i], true
		}
	}
	return nil, false
}
