package api

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// The codecs replace those of the RPC library, whose refusals of bodies that do not decode have no
// tag, hint or details. For such a body, the codec returns a message without fields and stores the
// reason in the message's unknown fields. A decoded message never has unknown fields.
// [Handler.refuseUndecoded] turns the reason into a refusal.

// undecoded is the number of the unknown field with the reason. tooMany is used instead if a list
// has too many elements.
const (
	undecoded protowire.Number = 1
	tooMany   protowire.Number = 2
)

// storeReason makes m a message that only has the reason.
func storeReason(m proto.Message, why error) {
	proto.Reset(m)
	number, text := undecoded, why.Error()
	if e, ok := errors.AsType[*queue.Error](why); ok && e.Tag == queue.TooManyJobs {
		number, text = tooMany, e.Message
	}
	b := protowire.AppendTag(nil, number, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(b, text))
}

// refuseUndecoded refuses calls whose body could not be decoded, or has too many elements.
func (h *Handler) refuseUndecoded() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			m, ok := r.Any().(proto.Message)
			if !ok || len(m.ProtoReflect().GetUnknown()) == 0 {
				return next(ctx, r)
			}
			number, _, tag := protowire.ConsumeTag(m.ProtoReflect().GetUnknown())
			why, _ := protowire.ConsumeString(m.ProtoReflect().GetUnknown()[tag:])
			e := queue.Refuse(queue.BadRequest, "the body is no %s: %.300s", m.ProtoReflect().Descriptor().Name(), why)
			if number == tooMany {
				e = queue.Refuse(queue.TooManyJobs, "%s", why).WithHint("split the call")
			}
			return nil, h.rpcError(ctx, e)
		}
	})
}

// jsonCodec is protobuf's JSON; it refuses unknown fields.
type jsonCodec struct{}

// Name returns the name of the codec it replaces.
func (jsonCodec) Name() string { return "json" }

// Marshal encodes a message.
func (jsonCodec) Marshal(v any) ([]byte, error) {
	m, err := messageOf(v)
	if err != nil {
		return nil, err
	}
	return protojson.Marshal(m)
}

// Unmarshal decodes a message; an empty body is refused.
func (jsonCodec) Unmarshal(b []byte, v any) error {
	m, err := messageOf(v)
	if err != nil {
		return err
	}
	err = limits.JSONMessage(b)
	if err == nil {
		err = protojson.Unmarshal(b, m)
	}
	if err != nil {
		storeReason(m, err)
	}
	return nil
}

// binaryCodec is protobuf's binary form. Unknown fields come from newer clients and are dropped.
type binaryCodec struct{}

// Name is that of the codec it replaces.
func (binaryCodec) Name() string { return "proto" }

// Marshal writes a message.
func (c binaryCodec) Marshal(v any) ([]byte, error) { return c.MarshalAppend(nil, v) }

// MarshalAppend appends an encoded message to b. The RPC library calls it with a reused buffer.
func (binaryCodec) MarshalAppend(b []byte, v any) ([]byte, error) {
	m, err := messageOf(v)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{}.MarshalAppend(b, m)
}

// Unmarshal decodes a message.
func (binaryCodec) Unmarshal(b []byte, v any) error {
	m, err := messageOf(v)
	if err != nil {
		return err
	}
	err = limits.Message(b, m.ProtoReflect().Descriptor())
	if err == nil {
		err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)
	}
	if err != nil {
		storeReason(m, err)
	}
	return nil
}

func messageOf(v any) (proto.Message, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, queue.Refuse(refusal.Internal, "%T is no message", v)
	}
	return m, nil
}
