package ledger

import (
	"hash/maphash"
	"slices"
	"unsafe"
)

// idTable is a hash table from IDs to references. It has subtables that grow one by one, so that no
// insertion waits for a rehash of the whole table. A subtable consists of buckets of one cache line (as
// in Facebook's F14). An ID is in the bucket of its hash, or in a later one if that was full. A
// lookup usually touches one cache line, and reads a job only if eight bits of the hash agree. A
// removal moves no other entry and reads no job.
type idTable struct {
	seed      maphash.Seed
	subtables *[subtables]subtable // nil: the table is empty, and takes no memory
	n         int
	key       func(ref uint32) [16]byte   // returns the hashed bytes of a reference's ID
	same      func(ref uint32, p ID) bool // reports whether a reference has this ID
}

const (
	subtables  = 256
	bucketSize = 12
	// references is the number of references, from 0 on.
	references = 1 << 32
)

type subtable struct {
	buckets []bucket
	n       int
	most    int // highest n since the last tidy
}

type bucket struct {
	tags     [bucketSize]uint8 // eight bits of the hash; 0: the place is free
	overflow uint32            // how many IDs are in a later bucket because this one was full
	refs     [bucketSize]uint32
}

func (x *idTable) init(key func(uint32) [16]byte, same func(uint32, ID) bool) {
	x.seed, x.key, x.same = maphash.MakeSeed(), key, same
}

// hash uses the first bytes only: the length is compared.
func (x *idTable) hash(id [16]byte) uint64 { return maphash.Bytes(x.seed, id[:]) }

func tagOf(h uint64) uint8 { return max(1, uint8(h>>48)) }

func (t *subtable) home(h uint64) int { return int(h & (1<<32 - 1) * uint64(len(t.buckets)) >> 32) }

func (t *subtable) next(at int) int {
	if at++; at == len(t.buckets) {
		return 0
	}
	return at
}

func (x *idTable) get(p ID) (uint32, bool) {
	if x.n == 0 {
		return 0, false
	}
	h := x.hash(p.id)
	t := &x.subtables[h>>56]
	if t.n == 0 {
		return 0, false
	}
	tag, at := tagOf(h), t.home(h)
	for range t.buckets { // in a small subtable, every bucket may have overflowed
		b := &t.buckets[at]
		for i, other := range b.tags {
			if other == tag && x.same(b.refs[i], p) {
				return b.refs[i], true
			}
		}
		if b.overflow == 0 {
			break
		}
		at = t.next(at)
	}
	return 0, false
}

// prefetch reads the bucket where an ID will be looked up, so that it is in the processor's cache by
// then.
func (x *idTable) prefetch(p ID) uint32 {
	if x.n == 0 {
		return 0
	}
	h := x.hash(p.id)
	t := &x.subtables[h>>56]
	if len(t.buckets) == 0 {
		return 0
	}
	return t.buckets[t.home(h)].overflow
}

// add adds a reference that is not in the table.
func (x *idTable) add(p ID, ref uint32) {
	if x.subtables == nil {
		x.subtables = new([subtables]subtable)
	}
	h := x.hash(p.id)
	t := &x.subtables[h>>56]
	if 8*(t.n+1) > 7*bucketSize*len(t.buckets) {
		x.resize(t, len(t.buckets)+len(t.buckets)/2+1)
	}
	t.put(h, ref)
	t.n++
	t.most = max(t.most, t.n)
	x.n++
}

func (t *subtable) put(h uint64, ref uint32) {
	for at := t.home(h); ; at = t.next(at) {
		b := &t.buckets[at]
		for i, tag := range b.tags {
			if tag == 0 {
				b.tags[i], b.refs[i] = tagOf(h), ref
				return
			}
		}
		b.overflow++
	}
}

// remove removes a reference that is in the table.
func (x *idTable) remove(id [16]byte, ref uint32) {
	h := x.hash(id)
	t := &x.subtables[h>>56]
	t.n--
	x.n--
	for at := t.home(h); ; at = t.next(at) {
		b := &t.buckets[at]
		for i, other := range b.refs {
			if other == ref && b.tags[i] != 0 {
				b.tags[i] = 0
				return
			}
		}
		b.overflow--
	}
}

// bucketsFor returns how many buckets n IDs need, with room to grow.
func bucketsFor(n int) int { return (n*3/2 + bucketSize - 1) / bucketSize }

// reserve allocates room for n IDs that will be added. Beyond 16 million the table grows by itself:
// a corrupt number must not allocate all memory.
func (x *idTable) reserve(n uint64) {
	each := bucketsFor(int(min(n, 1<<24)) / subtables)
	if x.subtables == nil && each > 0 {
		x.subtables = new([subtables]subtable)
	}
	if x.subtables == nil {
		return
	}
	for i := range x.subtables {
		if t := &x.subtables[i]; each > len(t.buckets) {
			x.resize(t, each)
		}
	}
}

// tidy releases memory that was not needed since the last call.
func (x *idTable) tidy() {
	if x.subtables == nil {
		return
	}
	empty := true
	for i := range x.subtables {
		t := &x.subtables[i]
		if size := bucketsFor(t.most); 4*size < len(t.buckets) {
			x.resize(t, size)
		}
		t.most = t.n
		empty = empty && len(t.buckets) == 0
	}
	if empty {
		x.subtables = nil
	}
}

func (x *idTable) resize(t *subtable, size int) {
	old := t.buckets
	t.buckets = make([]bucket, size)
	for i := range old {
		b := &old[i]
		for n, tag := range b.tags {
			if tag != 0 {
				t.put(x.hash(x.key(b.refs[n])), b.refs[n])
			}
		}
	}
}

func (x *idTable) bytes() int64 {
	if x.subtables == nil {
		return 0
	}
	n := int64(unsafe.Sizeof(*x.subtables))
	for i := range x.subtables {
		n += int64(unsafe.Sizeof(bucket{})) * int64(cap(x.subtables[i].buckets))
	}
	return n
}

// numberTable maps job numbers to jobs, and iterates in their order. Numbers are added in order and
// removed in any order. A block of 1,024 of them that has become sparse is stored as a list.
type numberTable struct {
	blocks map[uint64]*block
	order  []uint64 // keys of blocks, ascending; those without a block are skipped
	// The block of the last lookup: it is likely the next one, too.
	key  uint64
	last *block
}

const (
	blockBits = 10
	blockSize = 1 << blockBits
	sparse    = 64 // below this many live numbers a block is a list
)

type block struct {
	live  int
	dense []uint32 // job + 1, by number; nil: see list
	list  []pair
}

type pair struct {
	low uint32 // lower bits of the number
	job uint32
}

func (b *block) find(low uint32) (int, bool) {
	return slices.BinarySearchFunc(b.list, low, func(p pair, low uint32) int { return int(p.low) - int(low) })
}

// block returns the block of a number, or nil.
func (x *numberTable) block(key uint64) *block {
	if x.last == nil || x.key != key {
		x.key, x.last = key, x.blocks[key]
	}
	return x.last
}

func (x *numberTable) get(number uint64) (uint32, bool) {
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

func (x *numberTable) add(number uint64, job uint32) {
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

func (x *numberTable) remove(number uint64) {
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
// it is called for, but no other.
func (x *numberTable) from(number uint64, f func(number uint64, job uint32) bool) {
	for key := number >> blockBits; ; key++ {
		at, _ := slices.BinarySearch(x.order, key) // searched anew each time: f may have removed blocks
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

func (x *numberTable) bytes() int64 {
	n := int64(cap(x.order)) * 8
	for _, b := range x.blocks {
		n += 48 + int64(unsafe.Sizeof(*b)) + 4*int64(cap(b.dense)) + 8*int64(cap(b.list))
	}
	return n
}
