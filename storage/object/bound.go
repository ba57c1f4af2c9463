package object

import (
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// addition says what a write adds to the cluster object, and so how large it may make the object. A cluster at its bound
// must go on: a leader that cannot renew, or a removal that is refused, would end it for good.
type addition int

const (
	// addsNothing: heartbeats, registrations, reports, deaths, removals and sweeps.
	addsNothing addition = iota
	// addsWork: more units are held or fenced, or their states are longer.
	addsWork
	// addsRows: there are more units, states, commands or locks.
	addsRows
)

// bound returns how large a write with this addition may make the object.
func bound(most int, adds addition) int {
	switch adds {
	case addsRows:
		return most
	case addsWork:
		return most + most/16
	default:
		return most + most/8
	}
}

// adds returns what c adds to the content before it.
func (c *cluster) adds(before *cluster) addition {
	switch {
	case len(c.Units) > len(before.Units), len(c.UnitStates) > len(before.UnitStates),
		len(c.Commands) > len(before.Commands), len(c.Locks) > len(before.Locks):
		return addsRows
	case len(c.Fences) > len(before.Fences), c.held() > before.held(), c.stateBytes() > before.stateBytes():
		return addsWork
	}
	return addsNothing
}

// held is the number of units that somebody has.
func (c *cluster) held() int {
	n := 0
	for _, r := range c.Units {
		if !r.State.IsFree() {
			n++
		}
	}
	return n
}

// stateBytes is the size of what the runs of units have left.
func (c *cluster) stateBytes() int {
	n := 0
	for _, s := range c.UnitStates {
		n += len(s.Data)
	}
	return n
}

// added returns what a leader's change of a unit may add.
func added(ch storage.Change) addition {
	switch {
	case ch.Step == "" && ch.State == "": // a unit that is retired, or declared again, has a row
		return addsRows
	case ch.Step == daemon.Assign:
		return addsWork
	}
	return addsNothing
}
