package ledger

import "slices"

// dedupWindow is the deduplication window: the IDs of jobs that have ended, in the order in which they
// ended.
type dedupWindow struct {
	chunks []*[windowChunk]ended // the first one begins at position base
	base   uint64                // position of the first entry of the first chunk
	head   uint64                // position of the oldest entry
	tail   uint64                // position behind the newest entry
	ids    idTable               // by position modulo references
	long   map[uint64]string     // IDs of more than 16 bytes, by position
	result map[uint64][]byte
	extra  int64
	spans  []int64 // how long entries are remembered: the distinct values
	// runs are the end positions of the newest checkpoint's runs, ascending. They are adjacent,
	// and the first one contains the oldest entry, if a run does.
	runs []uint64
	// A checkpoint writes the entries that are in no run into runs if they have about least
	// bytes, and ends a run beyond most.
	minRun, most int
	// beforeForget is called with entries before they are forgotten, for a checkpoint in progress.
	beforeForget func(pos uint64)
}

const windowChunk = 128

// The sizes of runs in bytes. For a million IDs, little is written twice, and HEAD names one or two
// dozen runs.
const (
	leastRun   = 2 << 20
	mostRun    = 4 << 20
	endingSize = 48 // bytes of an entry in a checkpoint, without a result
)

// ended is an ID in the window: 32 bytes, and some 40 with its table entry.
type ended struct {
	id    [16]byte
	at    int64 // when it ended
	nonce uint32
	len   uint8
	state State
	span  uint16 // index into window.spans: each entry keeps the window setting under which it ended
}

func (w *dedupWindow) init() {
	w.minRun, w.most = leastRun, mostRun
	w.ids.init(func(ref uint32) [16]byte { return w.at(w.position(ref)).id }, func(ref uint32, p ID) bool { return w.has(w.position(ref), p) })
}

// position converts a reference back to a position. It is unique because the window never holds
// that many entries.
func (w *dedupWindow) position(ref uint32) uint64 {
	return w.head + uint64(ref-uint32(w.head))
}

func reference(pos uint64) uint32 { return uint32(pos) }

func (w *dedupWindow) at(pos uint64) *ended {
	n := pos - w.base
	return &w.chunks[n/windowChunk][n%windowChunk]
}

func (w *dedupWindow) packed(pos uint64) ID {
	e := w.at(pos)
	p := ID{id: e.id, len: e.len}
	if e.len == idLong {
		p.long = w.long[pos]
	}
	return p
}

// has reports whether p is the ID at a position.
func (w *dedupWindow) has(pos uint64, p ID) bool {
	e := w.at(pos)
	return e.id == p.id && e.len == p.len && (p.len != idLong || w.long[pos] == p.long)
}

// get finds an ID that is remembered at this time.
func (w *dedupWindow) get(p ID, now int64) (uint64, bool) {
	ref, ok := w.ids.get(p)
	if !ok {
		return 0, false
	}
	pos := w.position(ref)
	return pos, !w.expired(w.at(pos), now)
}

// expired reports whether an entry is to be forgotten. The window setting at the job's end decides. If
// a longer setting could revive an entry, the result of a replay would depend on when the settings
// were applied.
func (w *dedupWindow) expired(e *ended, now int64) bool { return e.at+w.spans[e.span] <= now }

// spanIndex returns the index of a duration in spans.
func (w *dedupWindow) spanIndex(length int64) uint16 {
	at := slices.Index(w.spans, length)
	if at < 0 && len(w.spans) < 1<<16 {
		w.spans, at = append(w.spans, length), len(w.spans)
	}
	return uint16(max(0, at))
}

// add remembers an ID for this long. If the ID is there already, its time was over.
func (w *dedupWindow) add(p ID, e ended, length int64, result []byte) {
	if ref, ok := w.ids.get(p); ok {
		w.drop(w.position(ref))
	}
	e.span = w.spanIndex(length)
	e.id, e.len = p.id, p.len
	w.put(e)
	if p.len == idLong {
		setEntry(&w.long, w.tail, p.long)
		w.extra += int64(len(p.long)) + 64
	}
	if result != nil {
		setEntry(&w.result, w.tail, result)
		w.extra += int64(len(result)) + 64
	}
	w.ids.add(p, reference(w.tail))
	w.tail++
}

// put writes an entry behind the newest one. The caller moves tail.
func (w *dedupWindow) put(e ended) {
	if w.tail-w.base == uint64(len(w.chunks))*windowChunk {
		w.chunks = append(w.chunks, new([windowChunk]ended))
	}
	*w.at(w.tail) = e
}

// addEmpty adds a position without an entry.
func (w *dedupWindow) addEmpty() {
	w.put(ended{})
	w.tail++
}

// drop forgets the entry at pos; its place stays until the window has moved past it.
func (w *dedupWindow) drop(pos uint64) {
	if w.beforeForget != nil {
		w.beforeForget(pos)
	}
	w.ids.remove(w.at(pos).id, reference(pos))
	w.at(pos).state = None
	if id, ok := w.long[pos]; ok {
		w.extra -= int64(len(id)) + 64
		delete(w.long, pos)
	}
	if r, ok := w.result[pos]; ok {
		w.extra -= int64(len(r)) + 64
		delete(w.result, pos)
	}
}

// forget drops entries whose time is over, and the oldest ones beyond the limit most.
func (w *dedupWindow) forget(now int64, most int) {
	before := w.head
	for w.head < w.tail {
		e := w.at(w.head)
		if e.state != None && !w.expired(e, now) && w.ids.n <= most {
			break
		}
		w.dropOldest()
	}
	if before < w.head && w.head == w.tail {
		w.ids.subtables = nil
	}
}

// dropOldest drops the oldest entry and its position.
func (w *dedupWindow) dropOldest() {
	if w.at(w.head).state != None {
		w.drop(w.head)
	}
	w.head++
	if w.head-w.base == windowChunk {
		w.chunks[0] = nil
		w.chunks = w.chunks[1:]
		w.base = w.head
	}
}

// unneededRuns returns how many runs contain nothing that is remembered, and the oldest position that
// is in no run.
func (w *dedupWindow) unneededRuns() (n int, end uint64) {
	for n < len(w.runs) && w.runs[n] <= w.head {
		n++
	}
	if n == len(w.runs) {
		return n, w.head
	}
	return n, w.runs[len(w.runs)-1]
}

// worthRun reports whether the entries from a position on are enough for a run.
func (w *dedupWindow) worthRun(from uint64) bool {
	size := int(w.tail-from) * endingSize
	for pos := from; pos < w.tail && size < w.minRun && len(w.result)+len(w.long) > 0; pos++ {
		size += len(w.result[pos]) + len(w.long[pos])
	}
	return size >= w.minRun
}

func (w *dedupWindow) bytes() int64 {
	return int64(len(w.chunks))*windowChunk*32 + w.ids.bytes() + w.extra
}
