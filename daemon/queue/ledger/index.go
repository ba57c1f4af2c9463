package ledger

import (
	"hash/maphash"
	"slices"
	"unsafe"
)

// index finds what an ID stands for: an open-addressed table of 32-bit slots, in parts that grow one
// by one, so that no insertion waits for a rehash of all. A slot has a reference of 27 bits and five
// bits of the ID's hash: looking for an ID that is not there, the usual case, touches few jobs.
type index struct {
	seed  maphash.Seed
	parts [parts]part
	n     int
	of    func(uint32) packed // the ID of a reference
}

const (
	parts = 256
	// references is how many there are, from 0 on.
	references = 1<<27 - 1
)

type part struct {
	slots []uint32 // tag, reference + 1; 0 is empty
	n     int
}

func (x *index) init(of func(uint32) packed) { x.seed, x.of = maphash.MakeSeed(), of }

func (x *index) hash(p packed) uint64 {
	return maphash.Bytes(x.seed, p.id[:]) // the length is compared, not hashed
}

// slot is what stands for a reference; its upper bits are those of the hash below the part's.
func slot(h uint64, ref uint32) uint32 { return uint32(h>>51)<<27 | (ref + 1) }

func refOf(slot uint32) uint32 { return (slot & references) - 1 }

func (x *index) get(p packed) (uint32, bool) {
	h := x.hash(p)
	t := &x.parts[h>>56]
	if t.n == 0 {
		return 0, false
	}
	mask, tag := uint64(len(t.slots)-1), uint32(h>>51)&31
	for at := h & mask; t.slots[at] != 0; at = (at + 1) & mask {
		if s := t.slots[at]; s>>27 == tag && x.of(refOf(s)) == p {
			return refOf(s), true
		}
	}
	return 0, false
}

// touch reads where an ID will be looked for, so that it is in the processor's cache then.
func (x *index) touch(p packed) uint32 {
	h := x.hash(p)
	t := &x.parts[h>>56]
	if len(t.slots) == 0 {
		return 0
	}
	return t.slots[h&uint64(len(t.slots)-1)]
}

// add enters a reference that is not in the table.
func (x *index) add(p packed, ref uint32) {
	h := x.hash(p)
	t := &x.parts[h>>56]
	if 4*(t.n+1) > 3*len(t.slots) {
		x.resize(t, max(8, 2*len(t.slots)))
	}
	t.put(h, slot(h, ref))
	t.n++
	x.n++
}

// reserve makes room for so many that will be added: as much as they would take anyway.
func (x *index) reserve(n uint64) {
	each := int(min(n, references)) / parts
	for i := range x.parts {
		t, size := &x.parts[i], 8
		for 4*each > 3*size {
			size *= 2
		}
		if each > 0 && size > len(t.slots) {
			x.resize(t, size)
		}
	}
}

func (t *part) put(h uint64, s uint32) {
	mask := uint64(len(t.slots) - 1)
	at := h & mask
	for t.slots[at] != 0 {
		at = (at + 1) & mask
	}
	t.slots[at] = s
}

// remove takes a reference out and closes the gap, so that no tombstones gather.
func (x *index) remove(p packed, ref uint32) {
	h := x.hash(p)
	t := &x.parts[h>>56]
	mask := uint64(len(t.slots) - 1)
	at := h & mask
	for t.slots[at] != slot(h, ref) {
		at = (at + 1) & mask
	}
	for next := (at + 1) & mask; t.slots[next] != 0; next = (next + 1) & mask {
		home := x.hash(x.of(refOf(t.slots[next]))) & mask
		if (next-home)&mask >= (next-at)&mask { // it may stand where the gap is
			t.slots[at] = t.slots[next]
			at = next
		}
	}
	t.slots[at] = 0
	t.n--
	x.n--
	if len(t.slots) > 8 && 8*t.n < len(t.slots) {
		x.resize(t, len(t.slots)/2)
	}
}

func (x *index) resize(t *part, size int) {
	old := t.slots
	t.slots = make([]uint32, size)
	for _, s := range old {
		if s != 0 {
			t.put(x.hash(x.of(refOf(s))), s)
		}
	}
}

func (x *index) bytes() int64 {
	var n int64
	for i := range x.parts {
		n += 4 * int64(len(x.parts[i].slots))
	}
	return n
}

// numbers finds jobs by number, and walks them in order. Numbers come in order and leave in any;
// a block of 1,024 of them that has become sparse is kept as a list.
type numbers struct {
	blocks map[uint64]*block
	order  []uint64 // of blocks, ascending; those that are gone are skipped
	// The block that was asked for last: mostly the next one, too.
	key  uint64
	last *block
}

const (
	blockBits = 10
	blockSize = 1 << blockBits
	sparse    = 64 // live numbers below which a block is a list
)

type block struct {
	live  int
	dense []uint32 // job + 1 by number; nil: see list
	list  []pair
}

type pair struct {
	low uint32 // of the number
	job uint32
}

func (b *block) find(low uint32) (int, bool) {
	return slices.BinarySearchFunc(b.list, low, func(p pair, low uint32) int { return int(p.low) - int(low) })
}

// block returns the block of a number, or nil.
func (x *numbers) block(key uint64) *block {
	if x.last == nil || x.key != key {
		x.key, x.last = key, x.blocks[key]
	}
	return x.last
}

func (x *numbers) get(number uint64) (uint32, bool) {
	b := x.block(number >> blockBits)
	if b == nil {
		return 0, false
	}
	low := uint32(number & (blockSize - 1))
	if b.dense != nil {
		return b.dense[low] - 1, b.dense[low] != 0
	}
	at, ok := b.find(low)
	if !ok {
		return 0, false
	}
	return b.list[at].job, true
}

func (x *numbers) add(number uint64, job uint32) {
	key, low := number>>blockBits, uint32(number&(blockSize-1))
	b := x.block(key)
	if b == nil {
		if x.blocks == nil {
			x.blocks = map[uint64]*block{}
		}
		b = &block{}
		x.blocks[key], x.last = b, b
		if at, ok := slices.BinarySearch(x.order, key); !ok {
			x.order = slices.Insert(x.order, at, key)
		}
	}
	b.live++
	if b.dense == nil && b.live > sparse {
		b.dense = make([]uint32, blockSize)
		for _, p := range b.list {
			b.dense[p.low] = p.job + 1
		}
		b.list = nil
	}
	if b.dense != nil {
		b.dense[low] = job + 1
		return
	}
	at, _ := b.find(low)
	b.list = slices.Insert(b.list, at, pair{low, job})
}

func (x *numbers) remove(number uint64) {
	key, low := number>>blockBits, uint32(number&(blockSize-1))
	b := x.block(key)
	b.live--
	switch {
	case b.live == 0:
		delete(x.blocks, key)
		x.last = nil
		if len(x.order) > 64 && len(x.order) > 2*len(x.blocks) {
			x.order = slices.DeleteFunc(x.order, func(key uint64) bool { return x.blocks[key] == nil })
		}
	case b.dense != nil:
		b.dense[low] = 0
		if b.live <= sparse/2 {
			b.list = make([]pair, 0, b.live)
			for low, job := range b.dense {
				if job != 0 {
					b.list = append(b.list, pair{uint32(low), job - 1})
				}
			}
			b.dense = nil
		}
	default:
		at, _ := b.find(low)
		b.list = slices.Delete(b.list, at, at+1)
	}
}

// from calls f for the jobs from number on, in order, until it returns false. f may remove the job
// it is called for, no other.
func (x *numbers) from(number uint64, f func(number uint64, job uint32) bool) {
	for key := number >> blockBits; ; key++ {
		at, _ := slices.BinarySearch(x.order, key) // anew each time: f may have removed blocks
		if at == len(x.order) {
			return
		}
		key = x.order[at]
		if b := x.blocks[key]; b != nil && !b.walk(key<<blockBits, number, f) {
			return
		}
	}
}

func (b *block) walk(base, number uint64, f func(uint64, uint32) bool) bool {
	if b.dense == nil {
		for _, p := range slices.Clone(b.list) {
			if n := base + uint64(p.low); n >= number && !f(n, p.job) {
				return false
			}
		}
		return true
	}
	for low, job := range b.dense {
		if n := base + uint64(low); job != 0 && n >= number && !f(n, job-1) {
			return false
		}
	}
	return true
}

func (x *numbers) bytes() int64 {
	n := int64(cap(x.order)) * 8
	for _, b := range x.blocks {
		n += 48 + int64(unsafe.Sizeof(*b)) + 4*int64(cap(b.dense)) + 8*int64(cap(b.list))
	}
	return n
}
