// Package trend keeps what was measured in the last hour, in memory of a bounded size: one value of each measure for each
// step of 10 s.
//
// A process samples its own metrics into a [Ring]. A page of that ring is added to another process's ring. Each step of
// each process is added once, so the result is what both have measured together, also after one of them has gone.
//
// Steps are numbered by the wall clocks of the processes. A clock that is wrong shifts what its process has measured;
// nothing else depends on it.
package trend

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// The length of a step, and how many steps are kept: one hour.
const (
	Step  = 10 * time.Second
	Steps = 360
)

// Bounds of the memory of one ring: about 3 kB for each plain series, and for each distribution up to 40 kB if it has
// values in every step. Further series are not kept.
const (
	mostPlain         = 1000
	mostDistributions = 120
)

// ahead is how many steps another process's clock may be ahead.
const ahead = 6

// Key names a series.
type Key struct {
	Name         string `json:"name"` // of the measure, such as queue.jobs
	Queue        string `json:"queue,omitempty"`
	Subscription string `json:"subscription,omitempty"`
	Series       string `json:"series,omitempty"` // which of several of that name, such as waiting
}

// compare orders keys as they are shown.
func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(rank[k.Name], rank[other.Name]), cmp.Compare(k.Queue, other.Queue), cmp.Compare(k.Subscription, other.Subscription), cmp.Compare(k.Series, other.Series))
}

// Distribution is how long things took that ended in one step.
type Distribution struct {
	Counts []uint64 `json:"counts"` // by the measure's bounds, and what is above the last one
	Sum    float64  `json:"sum"`    // in seconds
}

// Point is what was measured in one step: a plain value or a distribution.
type Point struct {
	Step   int64         `json:"step"`
	Plain  float64       `json:"plain,omitempty"`
	Spread *Distribution `json:"spread,omitempty"`
}

// Series is a series with its points, the oldest first. A step in which nothing was measured has none.
type Series struct {
	Key
	Bounds []float64 `json:"bounds,omitempty"` // of the distributions
	Points []Point   `json:"points"`
}

// Page is a part of a ring: the steps after one, up to Last.
type Page struct {
	Process string   `json:"process"` // another one after a restart
	Last    int64    `json:"last"`
	Series  []Series `json:"series"`
}

// Ring keeps the last hour.
type Ring struct {
	mu            sync.Mutex
	last          int64 // the newest step
	series        map[Key]*[Steps]*Point
	bounds        map[string][]float64 // of distributions, by the measure's name
	plain, spread int                  // how many series there are of each kind
}

// NewRing returns an empty ring.
func NewRing() *Ring {
	return &Ring{series: map[Key]*[Steps]*Point{}, bounds: map[string][]float64{}}
}

// StepAt returns the number of the step that a moment is in.
func StepAt(t time.Time) int64 { return t.Unix() / int64(Step/time.Second) }

// begin makes a step the newest one. What is older than the hour goes. If the clock was set back, everything goes. The
// caller holds mu.
func (r *Ring) begin(step int64) {
	if step == r.last {
		return
	}
	if step < r.last || step-r.last >= Steps {
		r.series, r.plain, r.spread = map[Key]*[Steps]*Point{}, 0, 0
	}
	oldest := step - Steps + 1
	for key, points := range r.series {
		empty := true
		for i, p := range points {
			if p != nil && p.Step < oldest {
				points[i] = nil
			} else if p != nil {
				empty = false
			}
		}
		if empty {
			delete(r.series, key)
			r.count(key, -1)
		}
	}
	r.last = step
}

// count counts a series that comes or goes.
func (r *Ring) count(key Key, n int) {
	if measured[key.Name].kind == spread {
		r.spread += n
	} else {
		r.plain += n
	}
}

// accepts reports whether a series can be kept. A process of another version may have other ones. The caller holds mu.
func (r *Ring) accepts(s *Series) bool {
	m, known := measured[s.Name]
	switch {
	case !known || (m.kind == spread) != (len(s.Bounds) > 0):
		return false
	case m.kind == spread && r.bounds[s.Name] == nil:
		r.bounds[s.Name] = s.Bounds
	}
	return slices.Equal(r.bounds[s.Name], s.Bounds)
}

// add adds a point to a series that is accepted. The caller holds mu.
func (r *Ring) add(key Key, p Point) {
	m := measured[key.Name]
	if (m.kind == spread) != (p.Spread != nil) || p.Spread != nil && len(p.Spread.Counts) != len(r.bounds[key.Name])+1 {
		return
	}
	points := r.series[key]
	if points == nil {
		if m.kind == spread && r.spread >= mostDistributions || m.kind != spread && r.plain >= mostPlain {
			return
		}
		points = new([Steps]*Point)
		r.series[key] = points
		r.count(key, 1)
	}
	at := &points[p.Step%Steps]
	if *at == nil || (*at).Step != p.Step {
		*at = &p
		return
	}
	joined := m.join(**at, p)
	*at = &joined
}

// Add adds a page of another process's ring, and returns the newest step that it has. after is what Add has returned for
// that process before.
func (r *Ring) Add(page *Page, after int64, now time.Time) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := StepAt(now)
	switch {
	case page.Last > newest+ahead:
		return after
	case page.Last < after: // its clock was set back, and it has begun anew
		after = -1
	}
	if r.last > newest+ahead {
		r.begin(newest)
	}
	r.begin(max(r.last, min(page.Last, newest)))
	for _, s := range page.Series {
		if !r.accepts(&s) {
			continue
		}
		for _, p := range s.Points {
			if p.Step > after && p.Step <= page.Last && p.Step > r.last-Steps && p.Step <= r.last {
				r.add(s.Key, p)
			}
		}
	}
	return page.Last
}

// Since returns what the ring has after a step.
func (r *Ring) Since(process string, after int64) *Page {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after > r.last { // the clock was set back, and the ring has begun anew
		after = -1
	}
	page := &Page{Process: process, Last: r.last, Series: []Series{}}
	for key, points := range r.series {
		s := Series{Key: key, Bounds: r.bounds[key.Name]}
		for step := max(after+1, r.last-Steps+1, 0); step <= r.last; step++ {
			if p := points[step%Steps]; p != nil && p.Step == step {
				s.Points = append(s.Points, *p)
			}
		}
		if s.Points != nil {
			page.Series = append(page.Series, s)
		}
	}
	return page
}

// Line is one line of a plot: a value for each step of the hour.
type Line struct {
	Key
	Unit   string     // of the values, in UCUM as in OpenTelemetry
	Points []*float64 // the oldest first; nil: nothing was measured
}

// percentiles are those that are shown of a distribution.
var percentiles = []struct {
	name string
	part float64
}{{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}}

// Lines returns the lines of a queue, of a subscription or, if both are empty, of the cluster. The last point of each is
// that of the step before now.
func (r *Ring) Lines(queue, subscription string, now time.Time) []Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := StepAt(now) - Steps
	var out []Line
	for key, points := range r.series {
		if key.Queue != queue || key.Subscription != subscription {
			continue
		}
		m := measured[key.Name]
		if m.kind != spread {
			out = append(out, Line{key, m.unit, values(points, first, m.plain)})
			continue
		}
		for _, q := range percentiles {
			name := key
			name.Series = join(key.Series, q.name)
			out = append(out, Line{name, m.unit, values(points, first, func(p Point) float64 { return p.Spread.quantile(r.bounds[key.Name], q.part) })})
		}
	}
	slices.SortFunc(out, func(a, b Line) int { return a.compare(b.Key) })
	return out
}

// values returns a value for each step of the hour.
func values(points *[Steps]*Point, first int64, of func(Point) float64) []*float64 {
	out := make([]*float64, Steps)
	for _, p := range points {
		if p == nil || p.Step < first || p.Step >= first+Steps {
			continue
		}
		v := of(*p)
		out[p.Step-first] = &v
	}
	return out
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + " " + b
}
