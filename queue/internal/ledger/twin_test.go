package ledger

import (
	"cmp"
	"maps"
	"slices"
)

// twin is a slow and obvious ledger: maps, and sorting whenever an order is needed.
type twin struct {
	config Config
	now    int64
	next   uint64
	paused bool
	totals Totals
	jobs   map[uint64]*twinJob
	ended  []twinEnd // in the order in which they ended
	coming map[uint64]*Record
}

type twinJob struct {
	Job
	base  int
	place uint64
}

type twinEnd struct {
	id    string
	until int64
	End
}

func newTwin(c Config) *twin {
	return &twin{config: c, next: 1, jobs: map[uint64]*twinJob{}, coming: map[uint64]*Record{}}
}

func (w *twin) advance(now int64) {
	w.now = max(w.now, now)
	for _, j := range w.jobs {
		if j.State == Delayed && !j.Held && j.At <= w.now {
			j.State, j.At = Waiting, 0
		}
	}
	for len(w.ended) > 0 && (w.ended[0].until <= w.now || len(w.ended) > w.config.DedupIDs) {
		w.ended = w.ended[1:]
	}
}

func (w *twin) find(id string) *twinJob {
	for _, j := range w.jobs {
		if j.ID == id {
			return j
		}
	}
	return nil
}

// expected returns the record of the job for which an ID is reserved.
func (w *twin) expected(id string) *Record {
	for _, r := range w.coming {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func (w *twin) known(id string) (State, bool) {
	if w.expected(id) != nil {
		return None, true
	}
	if j := w.find(id); j != nil {
		return j.State, j.Held
	}
	e, _ := w.end(id)
	return e.State, false
}

// fresh reports whether an ID is unknown.
func (w *twin) fresh(id string) bool {
	state, held := w.known(id)
	return state == None && !held
}

func (w *twin) end(id string) (End, bool) {
	for _, e := range w.ended {
		if e.id == id && e.until > w.now {
			return e.End, true
		}
	}
	return End{}, false
}

// apply applies a record and reports whether all of it made sense.
func (w *twin) apply(r *Record, now int64) bool {
	w.advance(max(now, r.At))
	switch r.Kind {
	case Enqueue:
		return w.enqueue(r)
	case Pause, Resume:
		w.paused = r.Kind == Pause
		return true
	case Configure:
		w.config = r.Config
		w.advance(now)
		return true
	}
	good := true
	for n, number := range r.Numbers {
		j := w.jobs[number]
		good = j != nil && w.one(j, r, n) && good
	}
	w.advance(now)
	return good
}

func (w *twin) enqueue(r *Record) bool {
	if e := w.expected(r.ID); e != nil && e.Numbers[0] != r.Numbers[0] {
		return false
	}
	delete(w.coming, r.Numbers[0])
	if _, known := w.end(r.ID); known || w.jobs[r.Numbers[0]] != nil || w.find(r.ID) != nil {
		return false
	}
	j := &twinJob{place: r.Numbers[0], Job: Job{
		Number: r.Numbers[0], ID: r.ID, Type: r.Type, Group: r.Group, Payload: string(r.Payload), Blob: r.Blob,
		Size: len(r.Payload) + r.Size, Priority: r.Priority, Policy: r.Policy, Created: r.At, Expires: r.Expires, State: Waiting,
	}}
	if r.RunAt > w.now {
		j.State, j.At = Delayed, r.RunAt
	}
	w.jobs[j.Number] = j
	w.next = max(w.next, j.Number+1)
	w.totals.Enqueued++
	return true
}

// one applies a record to one job.
func (w *twin) one(j *twinJob, r *Record, n int) bool {
	was := j.State
	switch r.Kind {
	case Claim:
		if d := uint64(j.Deliveries); d > r.Deliveries[n] || d == r.Deliveries[n] && (was != Active || j.Epoch >= r.Epoch) {
			return true
		}
		if was == Dead {
			return false
		}
		j.State, j.At, j.Deliveries, j.Begun = Active, r.Until, int(r.Deliveries[n]), false
		j.Worker, j.Request, j.Epoch, j.Visibility, j.Nonce, j.Tokenless = r.Worker, r.Request, r.Epoch, r.Visibility, r.Nonce, r.Tokenless
	case AttemptStarted:
		if was == Active && uint64(j.Deliveries) == r.Deliveries[n] && j.Epoch == r.Epoch {
			j.begin()
		}
		return true
	case Expire:
		if was != Active || uint64(j.Deliveries) != r.Deliveries[n] || j.Epoch != r.Epoch {
			return true
		}
		j.begin()
		w.totals.Failed++
		j.Cause = cmp.Or(r.Cause, j.Cause)
		j.wait(r, n)
	case Release:
		if was != Active {
			return false
		}
		if j.wait(r, n); r.Undelivered {
			j.Cause, j.base = cmp.Or(r.Cause, j.Cause), j.base+1
		}
		if r.RunAt > w.now {
			j.State, j.At = Delayed, r.RunAt
		}
	case Complete:
		if was != Active {
			return false
		}
		w.totals.Completed++
		w.forget(j, End{State: Completed, At: r.At, Nonce: j.Nonce, Result: r.Result})
	case Cancel, Purge:
		if r.Kind == Cancel {
			w.totals.Cancelled++
		}
		w.forget(j, End{State: Cancelled, At: r.At})
	case Fail:
		if was != Active {
			return false
		}
		j.begin()
		w.totals.Failed++
		j.Cause = r.Cause
		if r.Dead {
			w.totals.Died++
			j.State, j.At = Dead, r.At
			break
		}
		j.wait(r, n)
		if r.RunAt > w.now {
			j.State, j.At = Delayed, r.RunAt
		}
	case DeadLetter:
		if was == Dead {
			return false
		}
		if was == Active && !r.Undelivered {
			j.begin()
			w.totals.Failed++
		}
		if r.TTLExpired {
			w.totals.Expired++
		} else {
			w.totals.Died++
		}
		j.State, j.At, j.Cause = Dead, r.At, r.Cause
	case Redrive:
		if was != Dead {
			return false
		}
		j.wait(&Record{}, 0)
		j.Cause, j.Attempts, j.Begun, j.base, j.Expires = "", 0, false, j.Deliveries, 0
	case MakeReady:
		if was != Delayed && was != Waiting {
			return false
		}
		j.State, j.At = Waiting, 0
	}
	j.Held = false
	j.Begun = j.Begun && j.State == Active
	return true
}

func (j *twinJob) begin() {
	if !j.Begun {
		j.Attempts++
	}
	j.Begun = true
}

// wait ends the claim.
func (j *twinJob) wait(r *Record, n int) {
	j.State, j.At = Waiting, 0
	j.Worker, j.Request, j.Epoch, j.Visibility, j.Nonce, j.Tokenless = "", "", 0, 0, 0, false
	if len(r.Places) > 0 && r.Places[n] != 0 {
		j.place = r.Places[n]
	}
}

func (w *twin) forget(j *twinJob, e End) {
	delete(w.jobs, j.Number)
	w.ended = slices.DeleteFunc(w.ended, func(e twinEnd) bool { return e.id == j.ID })
	w.ended = append(w.ended, twinEnd{j.ID, e.At + w.config.DedupWindow, e})
}

// sorted returns the jobs by number.
func (w *twin) sorted() []Job {
	out := []Job{}
	for _, number := range slices.Sorted(maps.Keys(w.jobs)) {
		j := w.jobs[number]
		j.UncountedDeliveries, j.deliveriesSinceBase = j.base, j.Deliveries-j.base
		out = append(out, j.Job)
	}
	return out
}

// order returns the numbers of the jobs that may be claimed, in order.
func (w *twin) order(types []string) []uint64 {
	var jobs []*twinJob
	for _, j := range w.jobs {
		if j.State == Waiting && !j.Held && (len(types) == 0 || slices.Contains(types, j.Type)) {
			jobs = append(jobs, j)
		}
	}
	slices.SortFunc(jobs, func(a, b *twinJob) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.place, b.place))
	})
	var out []uint64
	for _, j := range jobs {
		out = append(out, j.Number)
	}
	return out
}

// due returns the numbers of jobs whose time has come, sorted.
func (w *twin) due(late bool) []uint64 {
	out := []uint64{}
	for _, j := range w.jobs {
		if j.Held {
			continue
		}
		if !late && j.State == Active && j.At <= w.now || late && j.State <= Delayed && j.Expires != 0 && j.Expires <= w.now {
			out = append(out, j.Number)
		}
	}
	slices.Sort(out)
	return out
}
