package ledger

// stringInterner interns strings that many jobs share: each gets a small number for as long as a job uses
// it.
type stringInterner struct {
	of   map[string]uint32
	text []string
	uses []int
	free []uint32
	size int64
	last uint32 // the last one that was interned: it is likely the next one, too
}

func (n *stringInterner) get(s string) (uint32, bool) {
	id, ok := n.of[s]
	return id, ok
}

func (n *stringInterner) intern(s string) uint32 {
	if id := n.last; int(id) < len(n.text) && n.uses[id] > 0 && n.text[id] == s {
		n.uses[id]++
		return id
	}
	id, ok := n.of[s]
	if !ok {
		if last := len(n.free) - 1; last >= 0 {
			id, n.free = n.free[last], n.free[:last]
		} else {
			id = uint32(len(n.text))
			n.text, n.uses = append(n.text, ""), append(n.uses, 0)
		}
		setEntry(&n.of, s, id)
		n.text[id] = s
		n.size += int64(len(s)) + 64
	}
	n.uses[id]++
	n.last = id
	return id
}

func (n *stringInterner) release(id uint32) {
	n.uses[id]--
	if n.uses[id] == 0 {
		n.size -= int64(len(n.text[id])) + 64
		delete(n.of, n.text[id])
		n.text[id] = ""
		n.free = append(n.free, id)
	}
}

// Policy is a retry policy. Times are in milliseconds.
type Policy struct {
	Max        uint16 // most attempts
	Back       bool   // a retried job goes behind the others
	Factor     float32
	Jitter     float32
	Backoff    int64
	MaxBackoff int64
}

// Wait returns how long a job waits after this many failed attempts. spread is a random number in
// [0, 1).
func (p Policy) Wait(attempts int, spread float64) int64 {
	wait := float64(p.Backoff)
	for n := 1; n < attempts && wait < float64(p.MaxBackoff); n++ {
		wait *= max(1, float64(p.Factor))
	}
	wait = min(wait, float64(max(p.MaxBackoff, p.Backoff)))
	return max(0, int64(wait*(1+float64(p.Jitter)*(2*spread-1))))
}

// policies interns retry policies like names. If 65,535 are in use, a further one is stored with
// its job.
type policies struct {
	of   map[Policy]uint16
	all  []Policy
	uses []int
	free []uint16
	last uint16
}

const ownPolicy = 0xffff

func (p *policies) intern(v Policy) uint16 {
	if id := p.last; int(id) < len(p.all) && p.uses[id] > 0 && p.all[id] == v {
		p.uses[id]++
		return id
	}
	id, ok := p.of[v]
	if !ok {
		if last := len(p.free) - 1; last >= 0 {
			id, p.free = p.free[last], p.free[:last]
			p.all[id] = v
		} else if len(p.all) < ownPolicy {
			id = uint16(len(p.all))
			p.all, p.uses = append(p.all, v), append(p.uses, 0)
		} else {
			return ownPolicy
		}
		setEntry(&p.of, v, id)
	}
	p.uses[id]++
	p.last = id
	return id
}

func (p *policies) release(id uint16) {
	if id == ownPolicy {
		return
	}
	p.uses[id]--
	if p.uses[id] == 0 {
		delete(p.of, p.all[id])
		p.free = append(p.free, id)
	}
}

func (l *Ledger) policy(j *job) Policy {
	if j.policy == ownPolicy {
		return *j.more.policy
	}
	return l.policies.all[j.policy]
}
