package format

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Segment is a decoded object. Its slices point into the decoded bytes.
type Segment struct {
	Header  Header
	At      int64 // time of the body, µs since 1970
	Batches []Batch
	Size    int // size of the object in bytes
}

// Last returns the time of the newest batch.
func (s *Segment) Last() int64 {
	if len(s.Batches) == 0 {
		return s.At
	}
	return s.Batches[len(s.Batches)-1].At
}

// Codec encodes and decodes segments. Several goroutines may use it. Any number of journals may
// share it, and should: the compressor's tables take hundreds of kilobytes, and only a few journals
// compress at the same time. Unused tables are freed by the garbage collector.
type Codec struct {
	encoders sync.Pool // of *zstd.Encoder
	decoders sync.Pool // of *zstd.Decoder
	buffers  sync.Pool // of *[]byte, as destination of the compressor: the size is not known before
}

// NewCodec returns a codec. It has no goroutines and needs no closing. It allocates its tables at
// the first compression or decompression; an idle journal does neither.
func NewCodec() *Codec {
	return &Codec{encoders: sync.Pool{New: newEncoder}, decoders: sync.Pool{New: newDecoder}, buffers: sync.Pool{New: newRoom}}
}

func newRoom() any { return new(make([]byte, HeaderSize, 64<<10)) }

func newEncoder() any {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // the options are constants
	}
	return enc
}

func newDecoder() any {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxRaw))
	if err != nil {
		panic(err)
	}
	return dec
}

// Encode returns the bytes of a segment with this body, and sets the computed fields of h.
func (c *Codec) Encode(h *Header, body *Body) []byte {
	h.Records, h.Raw, h.zstd, h.size = body.records, uint32(len(body.raw)), false, HeaderSize
	var out []byte
	if len(body.raw) > compressAbove {
		room := c.buffers.Get().(*[]byte)
		encoder := c.encoders.Get().(*zstd.Encoder)
		*room = encoder.EncodeAll(body.raw, (*room)[:HeaderSize])
		c.encoders.Put(encoder)
		// A segment that compresses to the size of a fence must not look like one in a
		// listing.
		if h.zstd = len(*room) < HeaderSize+len(body.raw) && len(*room) > FenceSize; h.zstd {
			out = bytes.Clone(*room)
		}
		c.buffers.Put(room)
	}
	if !h.zstd {
		out = append(make([]byte, HeaderSize, HeaderSize+len(body.raw)), body.raw...)
	}
	h.put(out)
	h.CRC = checksum(out)
	h.put(out)
	return out
}

// Decode decodes a whole object and checks its checksum.
func (c *Codec) Decode(b []byte) (*Segment, error) {
	h, err := DecodeHeader(b)
	if err != nil {
		return nil, err
	}
	if sum := checksum(b); sum != h.CRC {
		return nil, fmt.Errorf("%w: checksum %08x of %d bytes, the header says %08x", ErrCorrupt, sum, len(b), h.CRC)
	}
	raw := b[h.size:]
	if h.zstd {
		// A corrupt length must not allocate much memory; for a correct one this is enough.
		room := min(int(h.Raw), 256*len(b))
		decoder := c.decoders.Get().(*zstd.Decoder)
		raw, err = decoder.DecodeAll(raw, make([]byte, 0, room))
		c.decoders.Put(decoder)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	if len(raw) != int(h.Raw) {
		return nil, fmt.Errorf("%w: a body of %d bytes, the header says %d", ErrCorrupt, len(raw), h.Raw)
	}
	s := &Segment{Header: h, Size: len(b)}
	var records uint32
	if s.At, s.Batches, records, err = parseBody(raw); err != nil {
		return nil, err
	}
	if records != h.Records {
		return nil, fmt.Errorf("%w: %d records, the header says %d", ErrCorrupt, records, h.Records)
	}
	return s, nil
}
