package ledger

// line is waiting jobs in their order: each comes before those behind it. Jobs that are submitted
// one after the other stand in a line, and are claimed from its front, without a search.
type line struct {
	jobs  []uint32 // from front on; gap: the job has gone
	front int
	live  int
	base  uint32 // position of jobs[0]; positions go round
}

const (
	gap       = 1<<32 - 1
	shortLine = 1024 // places that are kept though they are not needed
)

// last returns the job at the end; there is one.
func (n *line) last() uint32 { return n.jobs[len(n.jobs)-1] }

// push puts a job behind the others and returns its position.
func (n *line) push(i uint32) uint32 {
	if len(n.jobs) == cap(n.jobs) && 2*n.front > len(n.jobs) {
		n.base += uint32(n.front)
		n.jobs = n.jobs[:copy(n.jobs, n.jobs[n.front:])]
		n.front = 0
	}
	n.jobs = append(n.jobs, i)
	n.live++
	return n.base + uint32(len(n.jobs)-1)
}

// remove takes the job at a position out. The first and the last place are never gaps.
func (n *line) remove(pos uint32) {
	n.jobs[pos-n.base] = gap
	n.live--
	if n.live == 0 {
		n.base += uint32(len(n.jobs))
		n.jobs, n.front = n.jobs[:0], 0
		if cap(n.jobs) > shortLine {
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

// gaping reports whether most of the line is gaps.
func (n *line) gaping() bool { return len(n.jobs)-n.front > max(2*n.live, shortLine) }

// close closes the gaps; moved is told each job's new position.
func (n *line) close(moved func(i, pos uint32)) {
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
