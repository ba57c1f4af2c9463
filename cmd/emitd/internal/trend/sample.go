package trend

import (
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Sampler puts what a process measures into its ring.
type Sampler struct {
	ring   *Ring
	before map[Key]Point // what counters and distributions were at the last sample
}

// NewSampler returns a sampler for a process that begins now: its counters begin at 0.
func NewSampler(r *Ring) *Sampler { return &Sampler{ring: r, before: map[Key]Point{}} }

// Sample adds the metrics of the process as those of the step that has ended before now.
func (s *Sampler) Sample(metrics []*dto.MetricFamily, now time.Time) {
	step := StepAt(now) - 1
	byName := make(map[string]*dto.MetricFamily, len(metrics))
	for _, f := range metrics {
		byName[f.GetName()] = f
	}
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	if step == s.ring.last {
		return // it was added
	}
	s.ring.begin(step)
	for i := range measures {
		m := &measures[i]
		for key, series := range m.read(byName[m.metric], step) {
			if m.kind == rate || m.kind == spread {
				now := series.Points[0]
				series.Points[0] = now.since(s.before[key])
				s.before[key] = now
			}
			if p := series.Points[0]; (p.Spread == nil || p.Spread.all() > 0) && s.ring.accepts(series) {
				s.ring.add(key, p)
			}
		}
	}
}

// read returns the series of a measure, each with one point.
func (m *measure) read(f *dto.MetricFamily, step int64) map[Key]*Series {
	out := map[Key]*Series{}
	for _, metric := range f.GetMetric() {
		key, ok := m.key(metric.GetLabel())
		if !ok {
			continue
		}
		p, bounds := pointOf(metric, step)
		if s := out[key]; s != nil && len(s.Bounds) == len(bounds) {
			s.Points[0] = m.join(s.Points[0], p)
			continue
		}
		out[key] = &Series{Key: key, Bounds: bounds, Points: []Point{p}}
	}
	return out
}

// key returns the key of a metric with these labels; ok is false if it does not belong to the measure.
func (m *measure) key(labels []*dto.LabelPair) (key Key, ok bool) {
	key.Name = m.name
	for _, l := range labels {
		switch l.GetName() {
		case m.queue:
			key.Queue = l.GetValue()
		case m.subscription:
			key.Subscription = l.GetValue()
		case m.series:
			key.Series = l.GetValue()
		case subscriptionLabel: // the relays' metrics of the same name
			if l.GetValue() != "" {
				return key, false
			}
		}
	}
	return key, (m.queue == "") == (key.Queue == "") && (m.subscription == "") == (key.Subscription == "")
}

// pointOf returns the value of a metric and, for a histogram, its bounds.
func pointOf(metric *dto.Metric, step int64) (Point, []float64) {
	p := Point{Step: step}
	switch {
	case metric.GetGauge() != nil:
		p.Plain = finite(metric.GetGauge().GetValue())
	case metric.GetCounter() != nil:
		p.Plain = finite(metric.GetCounter().GetValue())
	case metric.GetHistogram() != nil:
		h := metric.GetHistogram()
		p.Spread = &Distribution{Sum: finite(h.GetSampleSum())}
		var bounds []float64
		var below uint64
		for _, b := range h.GetBucket() {
			if math.IsInf(b.GetUpperBound(), 1) {
				continue
			}
			bounds = append(bounds, b.GetUpperBound())
			p.Spread.Counts = append(p.Spread.Counts, b.GetCumulativeCount()-below)
			below = b.GetCumulativeCount()
		}
		p.Spread.Counts = append(p.Spread.Counts, h.GetSampleCount()-below)
		return p, bounds
	}
	return p, nil
}

func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

// since returns what was added to a counter or a distribution. A part of it may have ended and begun again at 0.
func (p Point) since(before Point) Point {
	out := Point{Step: p.Step, Plain: max(p.Plain-before.Plain, 0)}
	if p.Spread == nil {
		return out
	}
	out.Spread = &Distribution{Counts: make([]uint64, len(p.Spread.Counts)), Sum: p.Spread.Sum}
	if before.Spread != nil && len(before.Spread.Counts) == len(p.Spread.Counts) {
		out.Spread.Sum = max(p.Spread.Sum-before.Spread.Sum, 0)
	}
	for i, n := range p.Spread.Counts {
		if before.Spread != nil && i < len(before.Spread.Counts) {
			n -= min(n, before.Spread.Counts[i])
		}
		out.Spread.Counts[i] = n
	}
	return out
}

// all returns how many values there are.
func (d *Distribution) all() (n uint64) {
	for _, c := range d.Counts {
		n += c
	}
	return n
}
