package coordinator

import (
	"context"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Hooks are functions that are called when something happens on or around this node. Nil functions
// are skipped.
//
// Rules for every hook:
//
//  1. No hook is skipped while the process runs, and none is called twice for one event.
//  2. A slow or panicking hook delays only itself and its own Hooks value. It never delays a
//     heartbeat, an election, an agent, or another value joined by Tee. Panics are logged and counted.
//  3. OnLeaderElected has its own goroutine for each term and may block until ctx ends.
//     OnLeaderElected of the next term waits until it has returned.
//  4. OnLeaderLost has its own goroutine, so nothing delays it. It is called when the context of
//     the leadership ends, at most 100 ms later, and does not wait for OnLeaderElected to return.
//  5. All other hooks share one goroutine and are called in the order of events on this node.
//
// Node hooks are called on every node, for every node including itself. They follow what the node's
// own heartbeats return; after an outage all differences come at once. Daemon hooks are about this
// node only.
//
// A hook that is running when Run ends has StopTimeout to return. Hooks queued behind it are still
// called if the process goes on.
type Hooks struct {
	// OnLeaderElected is called when this node becomes leader. ctx ends when its leadership does,
	// with a [LostError] as the cause.
	OnLeaderElected func(ctx context.Context, t node.Term)
	// OnLeaderLost is called when this node is no longer leader.
	OnLeaderLost func(t node.Term, why node.LossReason)

	// OnNodeRegistered is called when a node has joined.
	OnNodeRegistered func(m node.Member)
	// OnNodeRemoved is called when a node has left or was declared dead.
	OnNodeRemoved func(m node.Member, reason string)

	// OnDaemonAssigned is called when this node was given a unit, before the unit is started.
	OnDaemonAssigned func(f daemon.Fence)
	// OnDaemonStarted is called when the agent has been called, or is ready if its spec has
	// WaitReady.
	OnDaemonStarted func(f daemon.Fence)
	// OnDaemonDraining is called when the run was told to finish.
	OnDaemonDraining func(f daemon.Fence)
	// OnDaemonStopped is called when the run has returned and will not be started again under this
	// fence. reason is empty if the run ended by itself.
	OnDaemonStopped func(f daemon.Fence, reason string)
	// OnDaemonFailed is called after each failed attempt of the agent, before the next one.
	OnDaemonFailed func(f daemon.Fence, err error)

	joined []Hooks // the values joined by Tee; not nested
}

// Tee joins two values. Both are called for everything, and neither waits for the other.
func Tee(a, b Hooks) Hooks {
	all := append(a.each(), b.each()...)
	return Hooks{joined: all}
}

// each returns the single values that h consists of.
func (h Hooks) each() []Hooks {
	parts := append([]Hooks(nil), h.joined...)
	h.joined = nil
	if !h.empty() {
		parts = append(parts, h)
	}
	return parts
}

func (h Hooks) empty() bool {
	return h.OnLeaderElected == nil && h.OnLeaderLost == nil && h.OnNodeRegistered == nil && h.OnNodeRemoved == nil &&
		h.OnDaemonAssigned == nil && h.OnDaemonStarted == nil && h.OnDaemonDraining == nil &&
		h.OnDaemonStopped == nil && h.OnDaemonFailed == nil
}
