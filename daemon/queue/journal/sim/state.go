package sim

import (
	"encoding/binary"
	"slices"
)

// op is one record, and the slot in which it is.
type op struct {
	id   uint64
	slot uint64
}

// heavy reports whether the state refers to the record's slot as long as it remembers the record.
func (o op) heavy() bool { return o.id%8 == 0 }

// state is what the records make: the newest ones, and a number that depends on all older ones and
// their order.
type state struct {
	tail   []op
	before int // records that are older
	hash   uint64
}

const (
	remembered = 120 // at least
	perChunk   = 40
)

// mix is one step of the number.
func mix(hash uint64, o op) uint64 {
	hash = (hash ^ o.id) * 0x9e3779b97f4a7c15
	return (hash ^ hash>>29 ^ o.slot) * 0xbf58476d1ce4e5b9
}

func (s *state) add(o op) {
	s.tail = append(s.tail, o)
	if len(s.tail) >= 2*remembered {
		for _, o := range s.tail[:remembered] {
			s.hash = mix(s.hash, o)
		}
		s.before += remembered
		s.tail = slices.Clone(s.tail[remembered:])
	}
}

// refers lists the records whose slots the state needs.
func (s *state) refers() []op {
	var refs []op
	for _, o := range s.tail {
		if o.heavy() {
			refs = append(refs, o)
		}
	}
	return refs
}

// chunks is the state as a checkpoint; restore adds one of them.
func (s *state) chunks() [][]byte {
	first := binary.LittleEndian.AppendUint64([]byte{0}, uint64(s.before))
	chunks := [][]byte{binary.LittleEndian.AppendUint64(first, s.hash)}
	for part := range slices.Chunk(s.tail, perChunk) {
		chunk := []byte{1}
		for _, o := range part {
			chunk = binary.LittleEndian.AppendUint64(chunk, o.id)
			chunk = binary.LittleEndian.AppendUint64(chunk, o.slot)
		}
		chunks = append(chunks, chunk)
	}
	return chunks
}

func (s *state) restore(chunk []byte) {
	if chunk[0] == 0 {
		s.before = int(binary.LittleEndian.Uint64(chunk[1:]))
		s.hash = binary.LittleEndian.Uint64(chunk[9:])
		return
	}
	for rest := chunk[1:]; len(rest) >= 16; rest = rest[16:] {
		s.tail = append(s.tail, op{id: binary.LittleEndian.Uint64(rest), slot: binary.LittleEndian.Uint64(rest[8:])})
	}
}
