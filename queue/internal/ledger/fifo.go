package ledger

// fifo is a list of waiting jobs in the order in which they are claimed. Jobs that are submitted
// one after the other are added at its end and claimed from its front, without a search.
type fifo struct {
	jobs  []uint32 // from front on; gap: the job has left
	front int
	live  int
	base  uint32 // position of jobs[0]; positions wrap around
}

const (
	gap         = 1<<32 - 1
	minCapacity = 1024 // places that are kept even if they are not needed
)

// last returns the job at the end. The list must not be empty.
func (n *fifo) last() uint32 { return n.jobs[len(n.jobs)-1] }

// push adds a job at the end and returns its position.
func (n *fifo) push(i uint32) uint32 {
	if len(n.jobs) == cap(n.jobs) && 2*n.front > len(n.jobs) {
		n.base += uint32(n.front)
		n.jobs = n.jobs[:copy(n.jobs, n.jobs[n.front:])]
		n.front = 0
	}
	n.jobs = append(n.jobs, i)
	n.live++
	return n.base + uint32(len(n.jobs)-1)
}

// remove removes the job at a position. The first and the last place are never gaps.
func (n *fifo) remove(pos uint32) {
	n.jobs[pos-n.base] = gap
	n.live--
	if n.live == 0 {
		n.base += uint32(len(n.jobs))
		n.jobs, n.front = n.jobs[:0], 0
		if cap(n.jobs) > minCapacity {
			n.jobs = nil
		}
		return
	}
	for n.jobs[n.front] == gap {
		n.front++
	}
	for n.last() == gap {
		n.jobs = n.jobs[:len(n.jobs)-1]
	}
}

// mostlyGaps reports whether most places are gaps.
func (n *fifo) mostlyGaps() bool { return len(n.jobs)-n.front > max(2*n.live, minCapacity) }

// compact removes the gaps. It calls moved with each job's new position.
func (n *fifo) compact(moved func(i, pos uint32)) {
	rest := n.jobs[n.front:]
	n.base += uint32(len(n.jobs))
	n.jobs, n.front = make([]uint32, 0, n.live), 0
	for _, i := range rest {
		if i != gap {
			moved(i, n.base+uint32(len(n.jobs)))
			n.jobs = append(n.jobs, i)
		}
	}
}
