package broker

import (
	"context"
	"slices"

	"github.com/emitd/emitd/queue"
)

// The number of a queue's shards changes in stages, which the list of queues names; see the package
// comment. This file has the changes of the list. Each is one compare-and-set.

// format returns the format in which the list must be stored.
func (f *registryFile) format() int {
	if slices.ContainsFunc(f.Queues, func(q registryQueue) bool { return q.Resharding.Stage != "" }) {
		return reshardingFormat
	}
	return registryFormat
}

// Reshard begins to change the number of a queue's shards, and returns the queue's settings. The brokers do
// the rest: Settings.Resharding shows how far they are. Nothing happens if the queue has this many shards, or
// is on its way there. A change that is being prepared is cancelled by asking for the present number; a later one
// must end before the next begins.
//
// All nodes must run a version that knows this call. With an older one among them, the change waits in the
// stage [queue.Preparing], in which the queue is served as before.
func (r *Registry) Reshard(ctx context.Context, name string, shards int) (queue.Settings, error) {
	if shards < 1 || shards > maxShards {
		return queue.Settings{}, queue.Refuse(queue.BadRequest, "queue %q: shards is %d, want 1 to %d", name, shards, maxShards)
	}
	return r.changeStage(ctx, name, func(f *registryFile, q *registryQueue) (bool, error) {
		switch x := q.Resharding; {
		case x.Stage == "" && q.Shards == shards, x.Stage == queue.Importing && q.Shards == shards:
			return false, nil
		case x.Stage == queue.Importing:
			return false, busyResharding(q, q.Shards).WithHint("wait until it has ended")
		case x.Stage != "" && x.Shards == shards:
			return false, nil
		case x.Stage == queue.Preparing && q.Shards == shards:
			q.Resharding = registryResharding{}
			q.Layout++ // so that the nodes' specs have a higher revision
			return true, nil
		case x.Stage == queue.Preparing:
			return false, busyResharding(q, x.Shards).WithHint("wait until it has ended, or cancel it: emitd queue reshard %s --shards %d", name, q.Shards)
		case x.Stage != "":
			return false, busyResharding(q, x.Shards).WithHint("wait until it has ended")
		}
		if err := f.checkShards(name, shards, r.maxShards); err != nil {
			return false, err
		}
		f.Next++
		q.Resharding = registryResharding{Stage: queue.Preparing, Shards: shards, Incarnation: f.Next}
		return true, nil
	})
}

func busyResharding(q *registryQueue, shards int) *queue.Error {
	return queue.Refuse(queue.ReshardConflict, "queue %q is being resharded to %d shards (%s)", q.Name, shards, q.Resharding.Stage)
}

// changeStage changes a queue's entry in the list, and returns the settings that are in force then.
func (r *Registry) changeStage(ctx context.Context, name string, step func(f *registryFile, q *registryQueue) (bool, error)) (queue.Settings, error) {
	if err := checkName(name); err != nil {
		return queue.Settings{}, err
	}
	var made queue.Settings
	err := r.change(ctx, func(f *registryFile) (bool, error) {
		at := slices.IndexFunc(f.Queues, func(q registryQueue) bool { return q.Name == name })
		if at < 0 {
			return false, noQueue(name)
		}
		q := f.Queues[at]
		changed, err := step(f, &q)
		f.Queues[at], made = q, q.settings()
		return changed, err
	})
	if err != nil {
		return queue.Settings{}, err
	}
	if r.onChange != nil {
		r.onChange(made)
	}
	return made, nil
}

// advance moves a change of the number of shards from one stage to the next. Nothing happens if another node
// has done it.
func (r *Registry) advance(ctx context.Context, set *queue.Settings) error {
	_, err := r.changeStage(ctx, set.Name, func(f *registryFile, q *registryQueue) (bool, error) {
		x := q.Resharding
		if x != registryResharding(set.Resharding) || q.Incarnation != set.Incarnation {
			return false, nil
		}
		switch x.Stage {
		case queue.Preparing:
			q.Resharding.Stage = queue.Moving
		case queue.Moving:
			q.Resharding = registryResharding{Stage: queue.Importing, Shards: q.Shards, Incarnation: q.Incarnation}
			q.Shards, q.Incarnation = x.Shards, x.Incarnation
			q.Layout++
		case queue.Importing:
			q.Resharding = registryResharding{}
			f.Removed = append(slices.Clone(f.Removed), removedQueue{q.Name, x.Incarnation, x.Shards})
		default:
			return false, nil
		}
		return true, nil
	})
	return err
}
