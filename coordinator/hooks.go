package coordinator

import (
	"context"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Hooks are told what happens on and around this node. Nil functions are skipped.
//
// What every hook may rely on:
//
//  1. None is skipped while the process runs, and none is called twice for one occurrence.
//  2. A slow or panicking hook delays only itself and its own Hooks value: never the heartbeat,
//     an election, an agent or another value joined by Tee. Panics are logged and counted.
//  3. OnLeaderElected has a goroutine of its own for each term and may block until ctx ends.
//     OnLeaderElected of the next term waits until it has returned.
//  4. OnLeaderLost has one goroutine of its own, so that nothing delays it: it comes when the
//     leadership's context ends, at most 100 ms later, and does not wait for OnLeaderElected.
//  5. All others share one goroutine, in the order in which things happened here.
//
// Node hooks are called on every node, for every node including itself, from what the node's own
// heartbeats bring; after an outage the differences come at once. Daemon hooks are about this
// node only.
//
// A hook that is under way when Run returns was given StopTimeout to come to an end; hooks that
// wait behind it are still called if the process goes on.
type Hooks struct {
	// OnLeaderElected is called when this node leads. ctx ends when leadership does; its cause
	// is a [LostError].
	OnLeaderElected func(ctx context.Context, t node.Term)
	// OnLeaderLost is called when this node no longer leads.
	OnLeaderLost func(t node.Term, why node.LossReason)

	// OnNodeRegistered is called when a node has joined.
	OnNodeRegistered func(m node.Member)
	// OnNodeRemoved is called when a node has left or was declared dead.
	OnNodeRemoved func(m node.Member, reason string)

	// OnDaemonAssigned is called when this node was given a unit, before it is started.
	OnDaemonAssigned func(f daemon.Fence)
	// OnDaemonStarted is called when the agent was entered (or, with WaitReady, is ready).
	OnDaemonStarted func(f daemon.Fence)
	// OnDaemonDraining is called when the run was told to finish.
	OnDaemonDraining func(f daemon.Fence)
	// OnDaemonStopped is called when the run has returned and will not be started again under
	// this fence; reason is empty when nobody had asked for it.
	OnDaemonStopped func(f daemon.Fence, reason string)
	// OnDaemonFailed is called at each failed attempt of the agent, before it is repeated.
	OnDaemonFailed func(f daemon.Fence, err error)

	joined []Hooks // by Tee; flat
}

// Tee joins two: both are told everything, neither waits for the other.
func Tee(a, b Hooks) Hooks {
	all := append(a.each(), b.each()...)
	return Hooks{joined: all}
}

// each lists the single values that h consists of.
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
