package api

import (
	"context"
	"encoding/json"

	"connectrpc.com/connect"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/batch"
	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/internal/queue/wire/osqueuev1"
	"github.com/emitd/emitd/internal/queue/wire/osqueuev1/osqueuev1connect"
	"github.com/emitd/emitd/internal/queue/wire/queuev1"
	"github.com/emitd/emitd/internal/queue/wire/queuev1/queuev1connect"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// headerTag is the header with the tag of a refusal in a Connect or gRPC error. The error's details
// contain the whole refusal as emitd.queue.v1.Refusal.
const headerTag = "Emitd-Tag"

// rpc mounts the two services.
func (h *Handler) rpc() {
	options := []connect.HandlerOption{
		connect.WithReadMaxBytes(int(h.limiter.maxBody)), connect.WithCompressMinBytes(4 << 10),
		connect.WithCodec(jsonCodec{}), connect.WithCodec(binaryCodec{}), connect.WithInterceptors(h.refuseUndecoded()),
	}
	path, service := osqueuev1connect.NewQueueServiceHandler(osqueueService{h}, options...)
	h.mount(path, h.rpcBodies(service))
	path, service = queuev1connect.NewQueueServiceHandler(batchService{h}, options...)
	h.mount(path, h.rpcBodies(service))
}

// codes maps tags to Connect's codes; other tags are internal errors.
var codes = map[queue.Tag]connect.Code{
	queue.BadRequest: connect.CodeInvalidArgument, queue.TooManyJobs: connect.CodeInvalidArgument,
	queue.PayloadTooLarge: connect.CodeInvalidArgument, queue.Unauthorized: connect.CodeUnauthenticated,
	queue.JobNotFound: connect.CodeNotFound, queue.QueueNotFound: connect.CodeNotFound,
	queue.StaleClaim: connect.CodeAborted, queue.QueueFull: connect.CodeResourceExhausted,
	queue.TooManyShards: connect.CodeResourceExhausted, queue.ReshardConflict: connect.CodeAborted,
	queue.QueueNotOwner: connect.CodeUnavailable, queue.Unavailable: connect.CodeUnavailable,
	queue.UnknownOutcome: connect.CodeUnavailable, queue.Damaged: connect.CodeDataLoss, refusal.Unsupported: connect.CodeUnimplemented,
	refusal.Forbidden: connect.CodePermissionDenied,
}

// rpcError converts an error into Connect's, with the tag in its text, headers and details.
func (h *Handler) rpcError(ctx context.Context, err error) error {
	e := h.refusal(ctx, err)
	code, ok := codes[e.Tag]
	if !ok {
		code = connect.CodeInternal
	}
	out := connect.NewError(code, e)
	out.Meta().Set(headerTag, string(e.Tag))
	if wait, ok := refusal.Retryable(e); ok {
		out.Meta().Set("Retry-After", seconds(wait.Milliseconds()))
	}
	if d, err := connect.NewErrorDetail(batch.Refusal(e)); err == nil {
		out.AddDetail(d)
	}
	return out
}

// reply ends a unary call.
func reply[T any](ctx context.Context, h *Handler, msg *T, err error) (*connect.Response[T], error) {
	if err != nil {
		return nil, h.rpcError(ctx, err)
	}
	return connect.NewResponse(msg), nil
}

// osqueueService implements osqueue's service on the queue "default".
type osqueueService struct{ h *Handler }

var _ osqueuev1connect.QueueServiceHandler = osqueueService{}

// SubmitJob enqueues a job.
func (s osqueueService) SubmitJob(ctx context.Context, r *connect.Request[osqueuev1.SubmitJobRequest]) (*connect.Response[osqueuev1.SubmitJobResponse], error) {
	body := wire.OsqueueSubmit{Type: r.Msg.GetType()}
	if n := r.Msg.MaxAttempts; n != nil {
		attempts := int(*n)
		body.MaxAttempts = &attempts
	}
	if p := r.Msg.GetPayload(); len(p) > 0 {
		if !json.Valid(p) {
			return nil, s.h.rpcError(ctx, queue.Refuse(queue.BadRequest, "payload is not JSON").
				WithHint("emitd.queue.v1.QueueService takes any bytes"))
		}
		body.Payload = p
	}
	out, err := s.h.submit(ctx, body, "")
	return reply(ctx, s.h, &osqueuev1.SubmitJobResponse{JobId: out.JobID}, err)
}

// ClaimJob claims a job for a worker.
func (s osqueueService) ClaimJob(ctx context.Context, r *connect.Request[osqueuev1.ClaimJobRequest]) (*connect.Response[osqueuev1.ClaimJobResponse], error) {
	out, err := s.h.claimOne(ctx, wire.OsqueueClaim{WorkerID: r.Msg.GetWorkerId(), Types: r.Msg.GetTypes()})
	msg := &osqueuev1.ClaimJobResponse{}
	if out.JobID != "" {
		msg.JobId, msg.Payload, msg.Type = &out.JobID, out.Payload, out.Type
	}
	return reply(ctx, s.h, msg, err)
}

// Heartbeat extends a claim.
func (s osqueueService) Heartbeat(ctx context.Context, r *connect.Request[osqueuev1.HeartbeatRequest]) (*connect.Response[osqueuev1.HeartbeatResponse], error) {
	err := s.h.settleWorker(ctx, queue.Extend, r.Msg.GetJobId(), r.Msg.GetWorkerId())
	return reply(ctx, s.h, &osqueuev1.HeartbeatResponse{}, err)
}

// CompleteJob completes a job.
func (s osqueueService) CompleteJob(ctx context.Context, r *connect.Request[osqueuev1.CompleteJobRequest]) (*connect.Response[osqueuev1.CompleteJobResponse], error) {
	err := s.h.settleWorker(ctx, queue.Complete, r.Msg.GetJobId(), r.Msg.GetWorkerId())
	return reply(ctx, s.h, &osqueuev1.CompleteJobResponse{}, err)
}

// GetStats returns the counts of the jobs.
func (s osqueueService) GetStats(ctx context.Context, _ *connect.Request[osqueuev1.GetStatsRequest]) (*connect.Response[osqueuev1.GetStatsResponse], error) {
	st, err := s.h.osqueueStats(ctx)
	return reply(ctx, s.h, &osqueuev1.GetStatsResponse{
		Total: int32Of(st.Total), Unclaimed: int32Of(st.Unclaimed), InProgress: int32Of(st.InProgress), BrokerAddress: st.BrokerAddress,
	}, err)
}

// ListJobs lists the oldest jobs.
func (s osqueueService) ListJobs(ctx context.Context, _ *connect.Request[osqueuev1.ListJobsRequest]) (*connect.Response[osqueuev1.ListJobsResponse], error) {
	list, err := s.h.osqueueList(ctx)
	msg := &osqueuev1.ListJobsResponse{
		Total: int32Of(list.Total), Unclaimed: int32Of(list.Unclaimed), InProgress: int32Of(list.InProgress),
		CompletedTotal: int32Of(list.CompletedTotal), BrokerAddress: list.BrokerAddress,
	}
	for _, j := range list.Jobs {
		msg.Jobs = append(msg.Jobs, &osqueuev1.JobInfo{
			Id: j.ID, Status: j.Status, Payload: j.Payload, Type: j.Type, WorkerId: j.WorkerID, CreatedAt: j.CreatedAt,
			Attempts: int32Of(int64(j.Attempts)), MaxAttempts: int32Of(int64(j.MaxAttempts)), Heartbeat: j.Heartbeat,
		})
	}
	return reply(ctx, s.h, msg, err)
}

// batchService implements the project's own service.
type batchService struct{ h *Handler }

var _ queuev1connect.QueueServiceHandler = batchService{}

// Enqueue makes jobs durable.
func (s batchService) Enqueue(ctx context.Context, r *connect.Request[queuev1.EnqueueRequest]) (*connect.Response[queuev1.EnqueueResponse], error) {
	out, err := func() (*queuev1.EnqueueResponse, error) {
		name, err := queueOf(r.Msg.GetQueue())
		if err != nil {
			return nil, err
		}
		jobs, err := batch.Jobs(r.Msg)
		if err != nil {
			return nil, err
		}
		receipts, err := s.h.svc.Enqueue(ctx, name, jobs)
		return batch.EnqueueResponse(receipts), err
	}()
	return reply(ctx, s.h, out, err)
}

// Claim claims jobs.
func (s batchService) Claim(ctx context.Context, r *connect.Request[queuev1.ClaimRequest]) (*connect.Response[queuev1.ClaimResponse], error) {
	out, err := func() (*queuev1.ClaimResponse, error) {
		name, err := queueOf(r.Msg.GetQueue())
		if err != nil {
			return nil, err
		}
		req, err := batch.Claim(r.Msg)
		if err != nil {
			return nil, err
		}
		claims, err := s.h.svc.Claim(ctx, name, req)
		return batch.ClaimResponse(claims), err
	}()
	return reply(ctx, s.h, out, err)
}

// Settle settles claims.
func (s batchService) Settle(ctx context.Context, r *connect.Request[queuev1.SettleRequest]) (*connect.Response[queuev1.SettleResponse], error) {
	out, err := func() (*queuev1.SettleResponse, error) {
		name, err := queueOf(r.Msg.GetQueue())
		if err != nil {
			return nil, err
		}
		what, err := batch.Settlements(r.Msg)
		if err != nil {
			return nil, err
		}
		outcomes, err := s.h.svc.Settle(ctx, name, what)
		return batch.SettleResponse(outcomes), err
	}()
	return reply(ctx, s.h, out, err)
}

func queueOf(name string) (string, error) {
	if name == "" {
		return queue.DefaultQueue, nil
	}
	return name, limits.Queue(name)
}
