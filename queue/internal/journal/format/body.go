package format

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of the messages Body and Batch.
const (
	bodyTime     = 1
	bodyBatch    = 2
	batchAfter   = 1
	batchRecords = 2
)

// overhead is the most bytes that a batch takes in addition to its message.
const overhead = 16

// timeSize is the encoded size of a body's time: a tag and 8 bytes.
const timeSize = 9

// Body is the body of a segment while records are added to it. The zero Body is empty.
type Body struct {
	raw     []byte
	records uint32
	last    int64 // time of the newest batch, µs since 1970
}

// NewBody returns an empty body of this time.
func NewBody(at int64) Body {
	raw := protowire.AppendTag(make([]byte, 0, 256), bodyTime, protowire.Fixed64Type)
	return Body{raw: protowire.AppendFixed64(raw, uint64(at)), last: at}
}

// Add adds a batch; at must not be before the time of the previous one.
func (b *Body) Add(at int64, records ...[]byte) {
	size := 0
	for _, r := range records {
		size += 1 + protowire.SizeBytes(len(r))
	}
	after := uint64(at - b.last)
	if after > 0 {
		size += 1 + protowire.SizeVarint(after)
	}
	b.raw = slices.Grow(b.raw, size+overhead)
	b.raw = protowire.AppendTag(b.raw, bodyBatch, protowire.BytesType)
	b.raw = protowire.AppendVarint(b.raw, uint64(size))
	if after > 0 {
		b.raw = protowire.AppendTag(b.raw, batchAfter, protowire.VarintType)
		b.raw = protowire.AppendVarint(b.raw, after)
	}
	for _, r := range records {
		b.raw = protowire.AppendTag(b.raw, batchRecords, protowire.BytesType)
		b.raw = protowire.AppendBytes(b.raw, r)
	}
	b.records += uint32(len(records))
	b.last = at
}

// Len returns the size of the body in bytes.
func (b *Body) Len() int { return len(b.raw) }

// Records returns the number of records.
func (b *Body) Records() int { return int(b.records) }

// Batch is the records of one call of Append.
type Batch struct {
	At  int64 // µs since 1970
	raw []byte
}

// Records returns the records in order. They point into the segment.
func (b Batch) Records() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for rest := b.raw; len(rest) > 0; {
			num, typ, n := protowire.ConsumeTag(rest)
			rest = rest[n:]
			if num != batchRecords || typ != protowire.BytesType {
				rest = rest[protowire.ConsumeFieldValue(num, typ, rest):]
				continue
			}
			r, n := protowire.ConsumeBytes(rest)
			if rest = rest[n:]; !yield(r) {
				return
			}
		}
	}
}

// parseBody validates a body completely, so that its batches can be read without errors.
func parseBody(raw []byte) (at int64, batches []Batch, records uint32, err error) {
	if len(raw) < timeSize || raw[0] != bodyTime<<3|byte(protowire.Fixed64Type) {
		return 0, nil, 0, fmt.Errorf("%w: the body has no time", ErrCorrupt)
	}
	at = int64(binary.LittleEndian.Uint64(raw[1:]))
	last := at
	for rest := raw[timeSize:]; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 || num != bodyBatch || typ != protowire.BytesType {
			return 0, nil, 0, fmt.Errorf("%w: field %d of the body", ErrCorrupt, num)
		}
		msg, m := protowire.ConsumeBytes(rest[n:])
		if m < 0 {
			return 0, nil, 0, fmt.Errorf("%w: a batch is cut off", ErrCorrupt)
		}
		rest = rest[n+m:]
		after, count, err := checkBatch(msg)
		if err != nil {
			return 0, nil, 0, err
		}
		last += int64(after)
		records += count
		batches = append(batches, Batch{At: last, raw: msg})
	}
	return at, batches, records, nil
}

func checkBatch(msg []byte) (after uint64, records uint32, err error) {
	for len(msg) > 0 {
		num, typ, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return 0, 0, fmt.Errorf("%w: a field of a batch is cut off", ErrCorrupt)
		}
		msg = msg[n:]
		switch {
		case num == batchAfter && typ == protowire.VarintType:
			after, n = protowire.ConsumeVarint(msg)
		case num == batchRecords && typ == protowire.BytesType:
			_, n = protowire.ConsumeBytes(msg)
			records++
		default:
			return 0, 0, fmt.Errorf("%w: field %d of a batch", ErrCorrupt, num)
		}
		if n < 0 || after > 1<<62 {
			return 0, 0, fmt.Errorf("%w: field %d of a batch is cut off", ErrCorrupt, num)
		}
		msg = msg[n:]
	}
	return after, records, nil
}
