package ledger

// A lane is the waiting jobs of one type, as a heap with four children per node: fewer cache misses
// than with two.
type lane struct {
	heap []uint32
}

const arity = 4

// less reports whether job a is claimed before job b.
func (l *Ledger) less(a, b uint32) bool {
	x, y := l.jobs.at(a), l.jobs.at(b)
	if x.priority != y.priority {
		return x.priority > y.priority
	}
	return x.place() < y.place()
}

// ready puts a job into its lane.
func (l *Ledger) ready(i uint32) {
	j := l.jobs.at(i)
	for int(j.typ) >= len(l.lanes) {
		l.lanes = append(l.lanes, lane{})
	}
	if j.number < l.oldest {
		l.oldest = j.number
	}
	n := &l.lanes[j.typ]
	if len(n.heap) == 0 {
		l.busy = append(l.busy, j.typ)
	}
	n.heap = append(n.heap, i)
	l.up(n, len(n.heap)-1)
}

// unready takes a job out of its lane.
func (l *Ledger) unready(i uint32) {
	j := l.jobs.at(i)
	n := &l.lanes[j.typ]
	at, last := int(j.pos), len(n.heap)-1
	n.heap[at] = n.heap[last]
	n.heap = n.heap[:last]
	if at < last {
		l.jobs.at(n.heap[at]).pos = uint32(at)
		l.down(n, at)
		l.up(n, at)
	}
	if cap(n.heap) > 1024 && cap(n.heap) > 4*last {
		n.heap = append(make([]uint32, 0, 2*last), n.heap...)
	}
	if last == 0 {
		for at, typ := range l.busy {
			if typ == j.typ {
				l.busy[at] = l.busy[len(l.busy)-1]
				l.busy = l.busy[:len(l.busy)-1]
				break
			}
		}
	}
}

func (l *Ledger) up(n *lane, at int) {
	i := n.heap[at]
	for at > 0 {
		parent := (at - 1) / arity
		if !l.less(i, n.heap[parent]) {
			break
		}
		n.heap[at] = n.heap[parent]
		l.jobs.at(n.heap[at]).pos = uint32(at)
		at = parent
	}
	n.heap[at] = i
	l.jobs.at(i).pos = uint32(at)
}

func (l *Ledger) down(n *lane, at int) {
	i := n.heap[at]
	for {
		first := arity*at + 1
		if first >= len(n.heap) {
			break
		}
		best := first
		for c := first + 1; c < min(first+arity, len(n.heap)); c++ {
			if l.less(n.heap[c], n.heap[best]) {
				best = c
			}
		}
		if !l.less(n.heap[best], i) {
			break
		}
		n.heap[at] = n.heap[best]
		l.jobs.at(n.heap[at]).pos = uint32(at)
		at = best
	}
	n.heap[at] = i
	l.jobs.at(i).pos = uint32(at)
}

// timers is a heap of times at which something happens to jobs.
type timers struct {
	heap []timer
	jobs *arena
	ttl  bool // the heap of times to live: the position is kept apart
}

type timer struct {
	at    int64
	job   uint32
	order uint32 // the lower half of the job's number: kept here, as the job itself is far away
}

const timerSize = 16

func (t *timers) init(jobs *arena, ttl bool) { t.jobs, t.ttl = jobs, ttl }

func (t *timers) place(at int, e timer) {
	t.heap[at] = e
	if t.ttl {
		t.jobs.at(e.job).ttl = uint32(at) + 1
	} else {
		t.jobs.at(e.job).pos = uint32(at)
	}
}

// before orders by time, then by number, so that equal states act alike.
func before(a, b timer) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

func (t *timers) add(at int64, job uint32) {
	t.heap = append(t.heap, timer{})
	t.up(len(t.heap)-1, timer{at, job, uint32(t.jobs.at(job).number)})
}

// move gives an entry another time.
func (t *timers) move(pos uint32, at int64) {
	e := t.heap[pos]
	e.at = at
	t.down(int(pos), e)
	t.up(int(t.posOf(e.job)), e)
}

func (t *timers) posOf(job uint32) uint32 {
	if t.ttl {
		return t.jobs.at(job).ttl - 1
	}
	return t.jobs.at(job).pos
}

func (t *timers) remove(pos uint32) {
	last := len(t.heap) - 1
	e := t.heap[last]
	gone := t.heap[pos].job
	t.heap = t.heap[:last]
	if int(pos) < last {
		t.down(int(pos), e)
		t.up(int(t.posOf(e.job)), e)
	}
	if t.ttl {
		t.jobs.at(gone).ttl = 0
	}
	if cap(t.heap) > 1024 && cap(t.heap) > 4*last {
		t.heap = append(make([]timer, 0, 2*last), t.heap...)
	}
}

func (t *timers) up(at int, e timer) {
	for at > 0 {
		parent := (at - 1) / arity
		if !before(e, t.heap[parent]) {
			break
		}
		t.place(at, t.heap[parent])
		at = parent
	}
	t.place(at, e)
}

func (t *timers) down(at int, e timer) {
	for {
		first := arity*at + 1
		if first >= len(t.heap) {
			break
		}
		best := first
		for c := first + 1; c < min(first+arity, len(t.heap)); c++ {
			if before(t.heap[c], t.heap[best]) {
				best = c
			}
		}
		if !before(t.heap[best], e) {
			break
		}
		t.place(at, t.heap[best])
		at = best
	}
	t.place(at, e)
}

func (t *timers) bytes() int64 { return int64(cap(t.heap)) * timerSize }
