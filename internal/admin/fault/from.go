package fault

import (
	"context"
	"errors"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/operator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage"
)

// From turns an error of the library's packages into a fault, by its type.
func From(err error) *Fault {
	var (
		inUse  *storage.IDInUseError
		schema *storage.SchemaError
		slow   *coordinator.SlowStoreError
		other  *storage.OtherClusterError
		one    *Fault
		refuse *queue.Error
	)
	switch {
	case errors.As(err, &one):
		return one
	case errors.As(err, &refuse):
		return FromQueue(refuse)
	case errors.Is(err, outbox.ErrSchema):
		return &Fault{Code: OutboxSchema, What: err.Error(), Err: err}
	case errors.Is(err, outbox.ErrNotFound):
		return &Fault{Code: NoMessage, What: err.Error(), Err: err}
	case errors.As(err, &inUse):
		return &Fault{Code: IDInUse, What: inUse.Error(), Err: err}
	case errors.As(err, &slow):
		return &Fault{Code: SlowStore, What: slow.Error(), Err: err}
	case errors.As(err, &other):
		return &Fault{Code: OtherCluster, What: other.Error(), Err: err}
	case errors.Is(err, storage.ErrNodesLive):
		return &Fault{Code: NodesLive, What: err.Error(), Err: err}
	case errors.As(err, &schema):
		return fromSchema(schema, err)
	case errors.Is(err, storage.ErrTermLost):
		return &Fault{Code: NotLeader, What: "not the leader any more: " + err.Error(), Err: err}
	case errors.Is(err, storage.ErrFull):
		return &Fault{Code: StoreFull, What: err.Error(), Err: err}
	case errors.Is(err, storage.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return &Fault{Code: Unreachable, What: "store unreachable: " + err.Error(), Err: err}
	}
	return &Fault{Code: Internal, What: err.Error(), Err: err}
}

func fromSchema(s *storage.SchemaError, err error) *Fault {
	f := &Fault{Code: OldSchema, What: s.Error(), Do: s.Hint, Err: err}
	switch {
	case s.Have == 0:
		f.Code = NotMigrated
	case s.Have > s.Want:
		f.Code = NewSchema
	}
	return f
}

// ofQueue maps a queue's refusals to codes.
var ofQueue = map[queue.Tag]Code{
	queue.Unavailable: QueueDown, queue.QueueNotOwner: QueueDown, queue.UnknownOutcome: QueueUnknown,
	queue.QueueNotFound: NoQueue, queue.JobNotFound: NoJob, queue.StaleClaim: StaleClaim,
	queue.QueueFull: QueueFull, queue.Unauthorized: NotAllowed, queue.Damaged: QueueDamaged,
	queue.TooManyShards: QueueShards, queue.ReshardConflict: QueueMoving,
}

// FromQueue turns a queue's refusal into a fault.
func FromQueue(refused *queue.Error) *Fault {
	code, ok := ofQueue[refused.Tag]
	if !ok {
		code = BadJob
	}
	return &Fault{Code: code, What: refused.Message, Do: refused.Hint, Err: refused}
}

// FromCommand turns an error of coordinator/operator into a fault: why the command was not carried out. cause turns the
// errors of a store into faults. Any other error is returned as it is.
func FromCommand(err error, cause func(error) *Fault) error {
	var refused *operator.RefusedError
	var pending *operator.PendingError
	switch {
	case errors.As(err, &refused) && refused.Command.Outcome() == daemon.ResultConflict:
		return New(CommandConflict, "%s", refused.Command.Result).Because("nothing was changed.")
	case errors.As(err, &refused):
		return New(CommandRefused, "%s", refused.Command.Result).Because("nothing was changed.")
	case errors.As(err, &pending) && pending.Err == nil:
		return New(CommandWaits, "%s", pending.Error())
	case errors.As(err, &pending):
		return New(CommandUnknown, "it is not known whether command %s was carried out: %s", pending.Command.ID, cause(pending.Err).What)
	}
	return err
}
