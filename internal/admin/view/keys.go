package view

import (
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/storage"
)

// KeyChange is a change of the keys of a keyed daemon, as people ask for it.
type KeyChange struct {
	// Daemon is the daemon whose keys change.
	Daemon daemon.ID `json:"daemon"`
	// Add is the keys to add, at most 1,000 together with those to remove. A key has 1 to 256 bytes of printable text.
	Add []string `json:"add,omitempty"`
	// Remove is the keys to remove. Their units finish the work in flight and end.
	Remove []string `json:"remove,omitempty"`
	// Actor is who asks, for the history. It does not count if the server knows the caller.
	Actor string `json:"actor,omitempty"`
	// Reason is why, for the history.
	Reason string `json:"reason,omitempty"`
	// WithoutSpec allows a daemon that no node declares yet.
	WithoutSpec bool `json:"undeclared,omitempty"`
}

// Check returns the change for the store, or why it cannot be made in the cluster of the snapshot.
func (c KeyChange) Check(snap *daemon.Snapshot) (storage.KeyChange, error) {
	out := storage.KeyChange{Daemon: c.Daemon, Add: c.Add, Remove: c.Remove, Actor: c.Actor, Reason: c.Reason}
	if err := out.Validate(); err != nil {
		return out, fault.New(fault.BadKeys, "%w; nothing was changed", err)
	}
	declared, keyed := false, false
	for _, m := range snap.Nodes {
		if !m.Present() {
			continue
		}
		for _, spec := range snap.Advert(m).Specs {
			if spec.ID == c.Daemon {
				declared, keyed = true, keyed || spec.Keyed()
			}
		}
	}
	known := slices.ContainsFunc(snap.Units, func(r daemon.Record) bool { return r.Unit.Daemon == c.Daemon && r.Unit.Key != "" })
	switch {
	case keyed || !declared && (known || c.WithoutSpec):
		return out, nil
	case declared:
		return out, fault.New(fault.BadKeys, "%s has a number of instances, and no keys; nothing was changed", c.Daemon).
			Hint("declare it with keyed: true (Go: Instances: daemon.Keyed)")
	}
	return out, fault.New(fault.NoDaemon, "no node declares a daemon %q", c.Daemon).Hint("start a node that declares it, or allow that: --undeclared")
}
