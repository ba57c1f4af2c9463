// Package format encodes and decodes the objects of a journal. It is pure. The message definitions
// are in journal.proto, so that programs in other languages can read a journal.
//
// # Segments
//
// A segment, a fence and a part of a checkpoint have the same form: a header of 64 bytes, little
// endian, and a body.
//
//	 0  magic    "EMSG"
//	 4  version  2
//	 5  flags    1 body is zstd · 2 fence · 4 part of a checkpoint
//	 6  zero     2 bytes
//	 8  slot     of the segment; of a part: the first slot the checkpoint does not cover
//	16  epoch    of the writer
//	24  put id   random; of a part: the checkpoint's id
//	32  records  count
//	36  raw      length of the body before compression
//	40  crc32c   of the header without this field and of the body as it is stored
//	44  jump     of a fence: how many slots to skip, itself included; of a part: its number
//	48  previous put id of the segment or fence before it in the log; 0: not known
//	56  known    every segment of the log up to this slot existed when this one was written
//
// A header of version 1 ends before "previous". Such objects can still be read. The two fields let
// a reader detect what the checksum of one object cannot: a segment of another journal, and a
// missing segment.
//
// The body is the message Body of journal.proto: a time and batches of records. An unknown version
// or flag is [ErrNewer], any other defect [ErrCorrupt].
//
// A fence has no records and is exactly [FenceSize] bytes long, or 16 bytes shorter in version 1.
// Every other segment is longer, in version 2. So a listing tells fences, which are never deleted,
// from segments without reading them.
//
// A mark is a segment with one batch and no records. It is written when a journal becomes idle, so
// that a second object proves that the last records exist.
//
// # HEAD
//
//	0  magic    "EMHD"
//	4  crc32c   of what follows
//	8  message Head of journal.proto
package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// The kinds of errors; test for them with errors.Is.
var (
	ErrCorrupt = errors.New("the object is corrupt")
	ErrNewer   = errors.New("the object has a newer format")
)

// Sizes in bytes.
const (
	HeaderSize = 64
	FenceSize  = HeaderSize + timeSize
	MaxRaw     = 64 << 20 // length of a body before compression
	// compressAbove is the size in bytes above which a body is compressed.
	compressAbove = 512
)

// MaxWindow is the limit of the window, and so of a fence's jump: a corrupt number must not skip
// far.
const MaxWindow = 1 << 16

// The versions of a header, and the length of a header of the first one.
const (
	version1        = 1
	version         = 2
	firstHeaderSize = 48
)

// The flags of a header.
const (
	flagZstd  = 1
	flagFence = 2
	flagPart  = 4
	allFlags  = flagZstd | flagFence | flagPart
)

var (
	magicSegment = [4]byte{'E', 'M', 'S', 'G'}
	magicHead    = [4]byte{'E', 'M', 'H', 'D'}
	castagnoli   = crc32.MakeTable(crc32.Castagnoli)
)

// Header is the header of a segment, a fence, or a part of a checkpoint.
type Header struct {
	Slot    uint64
	Epoch   int64
	PutID   uint64
	Records uint32
	Raw     uint32
	CRC     uint32
	Jump    uint32
	Fence   bool
	Part    bool
	// Previous is the put ID of the segment or fence before it in the log; 0: not known. Every
	// segment up to the slot AckedUpTo existed when this one was written.
	Previous, AckedUpTo uint64

	zstd bool
	size int // size of the header in bytes
}

// SamePut reports whether both headers are from the same write. Two writes of one slot have
// different put IDs. A cloned virtual machine may repeat its random numbers; then the record count
// and the checksum differ.
func (h Header) SamePut(o Header) bool {
	return h.PutID == o.PutID && h.Records == o.Records && h.CRC == o.CRC
}

func (h Header) put(b []byte) {
	copy(b, magicSegment[:])
	b[4], b[5], b[6], b[7] = version, 0, 0, 0
	if h.zstd {
		b[5] |= flagZstd
	}
	if h.Fence {
		b[5] |= flagFence
	}
	if h.Part {
		b[5] |= flagPart
	}
	binary.LittleEndian.PutUint64(b[8:], h.Slot)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.Epoch))
	binary.LittleEndian.PutUint64(b[24:], h.PutID)
	binary.LittleEndian.PutUint32(b[32:], h.Records)
	binary.LittleEndian.PutUint32(b[36:], h.Raw)
	binary.LittleEndian.PutUint32(b[40:], h.CRC)
	binary.LittleEndian.PutUint32(b[44:], h.Jump)
	binary.LittleEndian.PutUint64(b[48:], h.Previous)
	binary.LittleEndian.PutUint64(b[56:], h.AckedUpTo)
}

// DecodeHeader decodes the header of an object. b is at least the first [HeaderSize] bytes, or the
// whole object if it is shorter. The checksum covers the body too and is not checked.
func DecodeHeader(b []byte) (Header, error) {
	size := HeaderSize
	if len(b) > 4 && b[4] == version1 {
		size = firstHeaderSize
	}
	switch {
	case len(b) < size:
		return Header{}, fmt.Errorf("%w: it has %d bytes, a header has %d", ErrCorrupt, len(b), size)
	case [4]byte(b) != magicSegment:
		return Header{}, fmt.Errorf("%w: it does not begin with %q", ErrCorrupt, magicSegment)
	case b[4] != version && b[4] != version1:
		return Header{}, fmt.Errorf("%w: segment version %d, this program reads %d", ErrNewer, b[4], version)
	case b[5]&^allFlags != 0 || b[6] != 0 || b[7] != 0:
		return Header{}, fmt.Errorf("%w: segment flags % x", ErrNewer, b[5:8])
	}
	h := Header{
		Slot:    binary.LittleEndian.Uint64(b[8:]),
		Epoch:   int64(binary.LittleEndian.Uint64(b[16:])),
		PutID:   binary.LittleEndian.Uint64(b[24:]),
		Records: binary.LittleEndian.Uint32(b[32:]),
		Raw:     binary.LittleEndian.Uint32(b[36:]),
		CRC:     binary.LittleEndian.Uint32(b[40:]),
		Jump:    binary.LittleEndian.Uint32(b[44:]),
		zstd:    b[5]&flagZstd != 0,
		Fence:   b[5]&flagFence != 0,
		Part:    b[5]&flagPart != 0,
		size:    size,
	}
	if size == HeaderSize {
		h.Previous, h.AckedUpTo = binary.LittleEndian.Uint64(b[48:]), binary.LittleEndian.Uint64(b[56:])
	}
	return h, h.check()
}

// check returns an error for values that no writer makes.
func (h Header) check() error {
	switch {
	case h.Raw > MaxRaw:
		return fmt.Errorf("%w: a body of %d bytes, at most %d are allowed", ErrCorrupt, h.Raw, MaxRaw)
	case h.Epoch < 1:
		return fmt.Errorf("%w: epoch %d", ErrCorrupt, h.Epoch)
	case h.Fence && (h.Part || h.zstd || h.Records != 0 || h.Raw != timeSize || h.Jump < 1 || h.Jump > MaxWindow):
		return fmt.Errorf("%w: a fence with %d records, %d bytes, jump %d", ErrCorrupt, h.Records, h.Raw, h.Jump)
	case !h.Fence && h.Records == 0 && (h.Part || h.size == firstHeaderSize), !h.Fence && !h.Part && h.Jump != 0:
		return fmt.Errorf("%w: a segment with %d records and jump %d", ErrCorrupt, h.Records, h.Jump)
	}
	return nil
}

// CanFollow reports whether the object can come after the one with this put ID in the log. It can if
// one of the two is not known.
func (h Header) CanFollow(putID uint64) bool {
	return h.Previous == 0 || putID == 0 || h.Previous == putID
}

func checksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:40])
	return crc32.Update(sum, castagnoli, b[44:])
}
