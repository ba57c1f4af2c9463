package sim

import (
	"encoding/binary"
	"slices"
)

// op is one record and its slot.
type op struct {
	id   uint64
	slot uint64
}

// isReferenced reports whether the state refers to the record's slot as long as it remembers the record.
func (o op) isReferenced() bool { return o.id%8 == 0 }

// state is the state that the records make: the newest records, and a hash of all older ones in
// their order.
type state struct {
	tail   []op
	before int // number of older records
	hash   uint64
	runs   []int // where the runs of the newest checkpoint end, counted like before
}

const (
	remembered = 120 // at least this many records
	perChunk   = 40
	perRun     = 25
)

// mix adds one record to the hash.
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

// referencedOps returns the records whose slots the state needs.
func (s *state) referencedOps() []op {
	var refs []op
	for _, o := range s.tail {
		if o.isReferenced() {
			refs = append(refs, o)
		}
	}
	return refs
}

// parts is a state as a checkpoint: how many runs of the previous checkpoint it drops, the new
// runs, and the rest as chunks.
type parts struct {
	drop   int
	made   [][]byte
	chunks [][]byte
	runs   []int // where the checkpoint's runs end
}

// The kinds of chunks: the first one, one with records, a run.
const (
	first = iota
	some
	run
)

// parts divides the state into chunks and runs. The records that are in no run become runs if there
// are enough.
func (s *state) parts() parts {
	var p parts
	for p.drop < len(s.runs) && s.runs[p.drop] <= s.before {
		p.drop++
	}
	p.runs = slices.Clone(s.runs[p.drop:])
	from := s.before
	if n := len(p.runs); n > 0 {
		from = p.runs[n-1]
	}
	rest := s.tail[from-s.before:]
	if len(rest) >= perRun {
		for stretch := range slices.Chunk(rest, perChunk) {
			p.made = append(p.made, encode(binary.LittleEndian.AppendUint64([]byte{run}, uint64(from)), stretch))
			from += len(stretch)
			p.runs = append(p.runs, from)
		}
		rest = nil
	}
	head := binary.LittleEndian.AppendUint64([]byte{first}, uint64(s.before))
	p.chunks = [][]byte{binary.LittleEndian.AppendUint64(head, s.hash)}
	for part := range slices.Chunk(rest, perChunk) {
		p.chunks = append(p.chunks, encode([]byte{some}, part))
	}
	return p
}

func encode(chunk []byte, ops []op) []byte {
	for _, o := range ops {
		chunk = binary.LittleEndian.AppendUint64(chunk, o.id)
		chunk = binary.LittleEndian.AppendUint64(chunk, o.slot)
	}
	return chunk
}

// restore adds a run or a chunk. A run may begin with records that are older than the state.
func (s *state) restore(chunk []byte) {
	kind, n := chunk[0], binary.LittleEndian.Uint64
	chunk = chunk[1:]
	switch kind {
	case first:
		before := int(n(chunk))
		s.tail = s.tail[min(max(before-s.before, 0), len(s.tail)):]
		s.before, s.hash = before, n(chunk[8:])
		return
	case run:
		if len(s.runs) == 0 {
			s.before = int(n(chunk))
		}
		chunk = chunk[8:]
		s.runs = append(s.runs, s.before+len(s.tail)+len(chunk)/16)
	}
	for ; len(chunk) >= 16; chunk = chunk[16:] {
		s.tail = append(s.tail, op{id: n(chunk), slot: n(chunk[8:])})
	}
}
