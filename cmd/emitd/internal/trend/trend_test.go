package trend

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

var begin = time.Unix(1_800_000_000, 0)

// process is a process with some metrics.
type process struct {
	name    string
	ring    *Ring
	sampler *Sampler
	metrics *prometheus.Registry

	jobs      *prometheus.GaugeVec
	submitted *prometheus.CounterVec
	commits   *prometheus.HistogramVec
	pending   *prometheus.GaugeVec
}

func newProcess(name string) *process {
	p := &process{
		name: name, ring: NewRing(), metrics: prometheus.NewRegistry(),
		jobs:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "emitd_queue_depth"}, []string{"queue", "emitd_queue_state", "node"}),
		submitted: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "messaging_client_sent_messages_total"}, []string{"messaging_destination_name", "emitd_outbox_subscription"}),
		commits:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "emitd_queue_commit_duration_seconds", Buckets: []float64{0.01, 0.1, 1}}, []string{"queue"}),
		pending:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "emitd_outbox_pending"}, []string{"emitd_outbox_subscription"}),
	}
	p.sampler = NewSampler(p.ring)
	p.metrics.MustRegister(p.jobs, p.submitted, p.commits, p.pending)
	return p
}

// sample samples at the end of the step with that number from begin on.
func (p *process) sample(t *testing.T, step int) {
	t.Helper()
	metrics, err := p.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	p.sampler.Sample(metrics, after(step+1))
}

func after(steps int) time.Time { return begin.Add(time.Duration(steps) * Step) }

// fetched is what a call of another process gets.
func fetched(t *testing.T, p *process, after int64) *Page {
	t.Helper()
	text, err := json.Marshal(p.ring.Since(p.name, after))
	page := new(Page)
	if err == nil {
		err = json.Unmarshal(text, page)
	}
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// lines returns the newest points of all lines, as text.
func lines(r *Ring, queue, subscription string, now time.Time, newest int) map[string]string {
	out := map[string]string{}
	for _, l := range r.Lines(queue, subscription, now) {
		text := ""
		for _, v := range l.Points[Steps-newest:] {
			if v == nil {
				text += " -"
			} else {
				text += fmt.Sprintf(" %v", *v)
			}
		}
		out[strings.TrimSpace(l.Name+" "+l.Series)] = text[1:]
	}
	return out
}

func check(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s is %s, want %s", name, got[name], w)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("there is also %s: %s", name, got[name])
		}
	}
}

// TestSample: counters become rates of each step, distributions those of what ended in it, and gauges stay as they are. Of
// other processes' metrics of the same name nothing is taken.
func TestSample(t *testing.T) {
	t.Parallel()
	p := newProcess("a")
	p.jobs.WithLabelValues("q", "ready", "n0").Set(3)
	p.jobs.WithLabelValues("q", "ready", "n1").Set(4) // another node of the process
	p.submitted.WithLabelValues("q", "").Add(50)
	p.submitted.WithLabelValues("", "billing").Add(20)
	p.pending.WithLabelValues("billing").Set(9)
	for range 100 {
		p.commits.WithLabelValues("q").Observe(0.055)
	}
	p.sample(t, 0)
	p.commits.WithLabelValues("q").Observe(0.5)
	p.submitted.WithLabelValues("q", "").Add(5)
	p.sample(t, 1)
	p.sample(t, 1) // nothing is counted twice
	check(t, lines(p.ring, "q", "", after(2), 3), map[string]string{
		"queue.jobs ready": "- 7 7", "queue.submitted": "- 5 0.5",
		"queue.commit.duration p50": "- 0.055 0.5", "queue.commit.duration p95": "- 0.0955 0.5", "queue.commit.duration p99": "- 0.0991 0.5",
	})
	check(t, lines(p.ring, "", "billing", after(2), 3), map[string]string{"outbox.pending": "- 9 9", "outbox.delivered": "- 2 0"})
	check(t, lines(p.ring, "", "", after(2), 3), map[string]string{})
}

// TestTogether: what several processes have measured is added once, and stays when one of them has gone.
func TestTogether(t *testing.T) {
	t.Parallel()
	a, b := newProcess("a"), newProcess("b")
	all := NewRing()
	ofA, ofB := int64(-1), int64(-1)
	for step := range 4 {
		a.jobs.WithLabelValues("q", "dead", "").Set(float64(step))
		a.pending.WithLabelValues("billing").Set(float64(step))
		a.commits.WithLabelValues("q").Observe(0.05)
		a.sample(t, step)
		ofA = all.Add(fetched(t, a, ofA), ofA, after(step+1))
		if step > 1 {
			continue // b has gone
		}
		b.jobs.WithLabelValues("q", "dead", "").Set(10)
		b.pending.WithLabelValues("billing").Set(1)
		b.commits.WithLabelValues("q").Observe(0.07)
		b.sample(t, step)
		for range 2 {
			ofB = all.Add(fetched(t, b, -1), ofB, after(step+1)) // more than was asked for
		}
	}
	check(t, lines(all, "q", "", after(4), 4), map[string]string{
		"queue.jobs dead": "10 11 2 3", "queue.commit.duration p50": "0.055 0.055 0.05 0.05", "queue.commit.duration p95": "0.0955 0.0955 0.05 0.05",
		"queue.commit.duration p99": "0.0991 0.0991 0.05 0.05",
	})
	check(t, lines(all, "", "billing", after(4), 4), map[string]string{"outbox.pending": "1 1 2 3"})
}

// TestHour: what is older than an hour goes, and so does a series of which nothing is left.
func TestHour(t *testing.T) {
	t.Parallel()
	p := newProcess("a")
	p.jobs.WithLabelValues("old", "ready", "").Set(1)
	p.sample(t, 0)
	p.jobs.DeleteLabelValues("old", "ready", "")
	p.jobs.WithLabelValues("new", "ready", "").Set(1)
	for step := 1; step < Steps; step++ {
		p.sample(t, step)
	}
	if got := lines(p.ring, "old", "", after(Steps), Steps); len(got) != 1 {
		t.Errorf("the first step is not there: %v", got)
	}
	p.sample(t, Steps)
	if got := lines(p.ring, "old", "", after(Steps+1), Steps); len(got) != 0 || p.ring.plain != 1 {
		t.Errorf("the first step is still there: %v, %d series", got, p.ring.plain)
	}
	if page := p.ring.Since("a", 0); len(page.Series) != 1 || len(page.Series[0].Points) != Steps {
		t.Errorf("the ring has %d series", len(page.Series))
	}
}

// TestClocks: a clock that is set back begins anew, and a process whose clock is far ahead adds nothing.
func TestClocks(t *testing.T) {
	t.Parallel()
	p := newProcess("a")
	p.jobs.WithLabelValues("q", "ready", "").Set(1)
	p.sample(t, 5000)
	all := NewRing()
	if through := all.Add(fetched(t, p, -1), -1, after(100)); through != -1 || len(all.series) != 0 {
		t.Errorf("a page from the future was added up to %d", through)
	}
	through := all.Add(fetched(t, p, -1), -1, after(5001))
	p.sample(t, 100)
	if n := len(p.ring.Since("a", -1).Series[0].Points); n != 1 {
		t.Errorf("after the clock was set back there are %d points", n)
	}
	through = all.Add(fetched(t, p, through), through, after(101))
	if got := lines(all, "q", "", after(101), 2); got["queue.jobs ready"] != "- 1" || through != StepAt(after(100)) {
		t.Errorf("after the clock was set back: %v, up to %d", got, through)
	}
}

// TestBounds: however many series come, the ring keeps a bounded number, and its memory is what the decision says.
func TestBounds(t *testing.T) {
	t.Parallel()
	r := NewRing()
	page := &Page{Process: "x", Last: StepAt(begin)}
	for i := range 3000 {
		name := fmt.Sprintf("q%d", i)
		page.Series = append(page.Series,
			Series{Key: Key{Name: "queue.jobs", Queue: name}, Points: []Point{{Step: page.Last, Plain: 1}}},
			Series{Key: Key{Name: "queue.commit.duration", Queue: name}, Bounds: []float64{1}, Points: []Point{{Step: page.Last, Spread: &Distribution{Counts: []uint64{1, 0}}}}},
			Series{Key: Key{Name: "queue.commit.duration", Queue: name, Series: "x"}, Bounds: []float64{2}, Points: []Point{{Step: page.Last, Spread: &Distribution{Counts: []uint64{1, 0}}}}},
			Series{Key: Key{Name: "of a later version", Queue: name}, Points: []Point{{Step: page.Last, Plain: 1}}},
			Series{Key: Key{Name: "queue.commit.duration", Queue: name}, Bounds: []float64{1}, Points: []Point{{Step: page.Last, Spread: &Distribution{Counts: []uint64{1}}}, {Step: page.Last}}},
		)
	}
	r.Add(page, -1, begin)
	if len(r.series) != mostPlain+mostDistributions || r.plain != mostPlain || r.spread != mostDistributions {
		t.Errorf("%d series, %d and %d", len(r.series), r.plain, r.spread)
	}
	if got := r.Lines("q0", "", begin.Add(Step)); len(got) != 1+len(percentiles) {
		t.Errorf("%d lines of q0", len(got))
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts []uint64
		sum    float64
		part   float64
		want   float64
	}{
		{[]uint64{0, 1, 0}, 0.123456, 0.99, 0.1235}, // a single value is exact
		{[]uint64{10, 0, 0}, 1, 0.5, 0.05},
		{[]uint64{5, 5, 0}, 3, 0.5, 0.1},
		{[]uint64{5, 5, 0}, 3, 0.75, 0.55},
		{[]uint64{0, 0, 3}, 60, 0.5, 1}, // more than the last bound
		{[]uint64{0, 2, 0}, 1, 1, 1},
	} {
		if got := (&Distribution{c.counts, c.sum}).quantile([]float64{0.1, 1}, c.part); got != c.want {
			t.Errorf("%v, %v: %v, want %v", c.counts, c.part, got, c.want)
		}
	}
}

// BenchmarkSample shows what a step costs a process with 50 queues.
func BenchmarkSample(b *testing.B) {
	p := newProcess("a")
	for i := range 50 {
		name := fmt.Sprintf("q%d", i)
		p.jobs.WithLabelValues(name, "ready", "").Set(1)
		p.submitted.WithLabelValues(name, "").Add(1)
		p.commits.WithLabelValues(name).Observe(0.05)
	}
	b.ReportAllocs()
	step := 0
	for b.Loop() {
		var metrics []*dto.MetricFamily
		metrics, err := p.metrics.Gather()
		if err != nil {
			b.Fatal(err)
		}
		step++
		p.sampler.Sample(metrics, after(step))
	}
}
