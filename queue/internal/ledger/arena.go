package ledger

import (
	"crypto/sha256"
	"unsafe"
)

// job has the fields that every job needs. Its size, 80 bytes, is most of what a waiting job costs.
type job struct {
	id         [16]byte
	text       *byte   // the payload, if it is in memory; see payload
	more       *extras // fields that only few jobs have; nil: none
	number     uint64
	created    int64
	pos        uint32 // position in the heap or FIFO of its state
	ttl        uint32 // position in the heap of times to live, + 1; 0: not in it
	typ        uint32
	size       uint32 // of the payload, unless that is an object of its own
	segment    uint32 // index of the segment of the log that has the payload; 0: none, it is only in memory
	policy     uint16
	attempts   uint16
	deliveries uint16
	priority   int8
	state      State
	idLen      uint8
	flags      uint8
}

// Flags of a job.
const (
	held       = 1 << iota // the record about it is not durable yet
	phase                  // whether it was last saved by an even or an odd checkpoint
	movedToEnd             // its place is not its number: see extras.place
	begun                  // the current delivery was counted as an attempt
	inFIFO                 // it waits in the FIFO of its ready queue, not in the heap
)

// extras has the fields that active, dead, retried, grouped and otherwise unusual jobs need.
type extras struct {
	id                  string // if it has more than 16 bytes
	group               string
	blob                string // key of the payload object
	size                int    // size of that object
	cause               string
	place               uint64
	expires             int64 // for active and dead jobs
	diedAt              int64
	uncountedDeliveries uint16  // deliveries that do not count toward the limit: those before an operator last put the dead job back, and those that reached no worker
	policy              *Policy // if it could not be interned
	claim               *claim  // the claim of an active job; otherwise the last claim, if it is known
}

// claim is one delivery of a job.
type claim struct {
	worker     string
	request    string
	epoch      int64
	visibility int64
	until      int64 // end of the claim while the job is held
	nonce      uint32
	tokenless  bool
}

const (
	moreSize  = int64(unsafe.Sizeof(extras{}))
	claimSize = int64(unsafe.Sizeof(claim{}))
)

func (m *extras) bytes() int64 {
	n := moreSize + int64(len(m.id)+len(m.group)+len(m.blob)+len(m.cause))
	if m.claim != nil {
		n += claimSize + int64(len(m.claim.worker)+len(m.claim.request))
	}
	return n
}

// updateExtras runs f on the job's extras. It allocates them if needed, and updates the count of their bytes.
func (l *Ledger) updateExtras(j *job, f func(*extras)) {
	m := l.ensureExtras(j)
	l.extraBytes -= m.bytes()
	f(m)
	l.extraBytes += m.bytes()
}

func (l *Ledger) ensureExtras(j *job) *extras {
	if j.more == nil {
		j.more = &extras{}
		l.extraBytes += j.more.bytes()
	}
	return j.more
}

// freeExtras frees the job's extras if nothing in them is set.
func (l *Ledger) freeExtras(j *job) {
	m := j.more
	if m == nil || m.id != "" || m.group != "" || m.blob != "" || m.cause != "" || m.place != 0 || m.uncountedDeliveries != 0 || m.policy != nil {
		return
	}
	l.extraBytes -= m.bytes()
	j.more = nil
}

// payload returns the job's payload, or "" if it is not in memory.
func (j *job) payload() string {
	if j.text == nil {
		return ""
	}
	return unsafe.String(j.text, j.size)
}

// setPayload keeps a payload in memory.
func (j *job) setPayload(text string) {
	if j.size = uint32(len(text)); text != "" {
		j.text = unsafe.StringData(text)
	}
}

// place returns the number that orders jobs of one priority.
func (j *job) place() uint64 {
	if j.flags&movedToEnd != 0 {
		return j.more.place
	}
	return j.number
}

func (j *job) packed() ID {
	p := ID{id: j.id, len: j.idLen}
	if j.idLen == idLong {
		p.long = j.more.id
	}
	return p
}

// has reports whether p is the job's ID.
func (j *job) has(p ID) bool {
	return j.id == p.id && j.idLen == p.len && (p.len != idLong || j.more.id == p.long)
}

// ID is a job's ID in 16 bytes. A UUID in its canonical text is stored in binary; an ID of up to 16
// bytes as it is. For a longer one, the 16 bytes are a hash, and the text is stored as well.
type ID struct {
	id   [16]byte
	len  uint8
	long string
}

const (
	idUUID = 0x20
	idLong = 0x21
)

// Pack converts the text of an ID.
func Pack(id string) ID {
	p := ID{len: uint8(min(len(id), idLong))}
	switch {
	case len(id) <= 16:
		copy(p.id[:], id)
	case len(id) == 36 && parseUUID(id, &p.id):
		p.len = idUUID
	default:
		p.len, p.long = idLong, id
		sum := sha256.Sum256([]byte(id))
		copy(p.id[:], sum[:])
	}
	return p
}

// uuidHex is the position of each byte in the text of a UUID.
var uuidHex = [16]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

// parseUUID parses only the canonical text in lower case, because String must return the same text.
func parseUUID(id string, to *[16]byte) bool {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return false
	}
	for i, at := range uuidHex {
		high, low := unhex[id[at]], unhex[id[at+1]]
		if high|low > 15 {
			return false
		}
		to[i] = high<<4 | low
	}
	return true
}

const digits = "0123456789abcdef"

// unhex is the value of a hexadecimal digit, or more than 15.
var unhex = func() (t [256]byte) {
	for c := range t {
		t[c] = 0xff
	}
	for v, c := range digits {
		t[c] = byte(v)
	}
	return t
}()

func (p ID) String() string {
	switch p.len {
	case idLong:
		return p.long
	case idUUID:
		var text [36]byte
		text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
		for i, at := range uuidHex {
			text[at], text[at+1] = digits[p.id[i]>>4], digits[p.id[i]&15]
		}
		return string(text[:])
	}
	return string(p.id[:p.len])
}

// arena stores jobs in chunks, so that growing never copies. It frees empty chunks.
type arena struct {
	chunks []*chunk
	room   []uint32 // chunks with free places; the last one is used next
	n      int
	spare  uint32 // a chunk that is kept although it is empty
}

const (
	chunkBits = 6 // small, for queues with few jobs: a chunk has 5 KB
	chunkSize = 1 << chunkBits
)

type chunk struct {
	jobs [chunkSize]job
	live int
	used int    // places that were used at least once
	next uint32 // list of free places, linked by job.pos; chunkSize: none
}

func (a *arena) at(i uint32) *job { return &a.chunks[i>>chunkBits].jobs[i&(chunkSize-1)] }

// alloc returns a zero job.
func (a *arena) alloc() uint32 {
	if len(a.room) == 0 {
		a.chunks = append(a.chunks, nil)
		a.room = append(a.room, uint32(len(a.chunks)-1))
	}
	n := a.room[len(a.room)-1]
	c := a.chunks[n]
	if c == nil {
		c = &chunk{next: chunkSize}
		a.chunks[n] = c
	}
	at := c.next
	if at != chunkSize {
		c.next = c.jobs[at].pos
		c.jobs[at] = job{}
	} else {
		at = uint32(c.used)
		c.used++
	}
	c.live++
	a.n++
	if c.live == chunkSize {
		a.room = a.room[:len(a.room)-1]
	}
	return n<<chunkBits | at
}

func (a *arena) free(i uint32) {
	n, at := i>>chunkBits, i&(chunkSize-1)
	c := a.chunks[n]
	if c.live == chunkSize {
		a.room = append(a.room, n)
	}
	c.jobs[at] = job{pos: c.next}
	c.next = at
	c.live--
	a.n--
	if c.live > 0 {
		return
	}
	// One empty chunk is kept, so that a queue that is nearly empty does not allocate for every
	// job.
	if s := a.chunks[a.spare]; s != nil && s.live == 0 && a.spare != n {
		a.chunks[n] = nil
		return
	}
	a.spare = n
}

func (a *arena) bytes() int64 {
	n := int64(cap(a.chunks))*8 + int64(cap(a.room))*4
	for _, c := range a.chunks {
		if c != nil {
			n += int64(unsafe.Sizeof(*c))
		}
	}
	return n
}
