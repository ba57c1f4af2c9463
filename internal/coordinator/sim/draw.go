package sim

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

func (w *world) drawPPM() int64 { return w.rng.Int64N(2*maxPPM+1) - maxPPM }

// drawHost draws a machine: its clock, its labels, and sometimes a peculiarity.
func (w *world) drawHost(i int) *host {
	h := &host{
		index: i,
		name:  fmt.Sprintf("node-%d", i),
		t:     w.t,
		clock: clock{offset: int64(time.Hour) + w.rng.Int64N(int64(1000*time.Hour)), ppm: w.drawPPM()},
	}
	h.advert.Traits = node.Traits{
		Capacity: 1 + w.rng.IntN(3),
		Labels:   map[string]string{"zone": string(rune('a' + w.rng.IntN(3)))},
	}
	if w.cfg.Faults != None && w.chance(0.5) { // the others are in containers of their own
		h.advert.Traits.Host.BootID = fmt.Sprintf("machine-%d", w.rng.IntN(w.cfg.Nodes))
	}
	h.sluggish = w.cfg.Faults != None && w.chance(0.15)
	if i > 0 && w.chance(0.1) {
		h.advert.Traits.NeverLead = true
	}
	if i > 0 && w.chance(0.1) {
		h.advert.Traits.NoDaemons = true
	}
	for _, k := range w.works {
		h.advert.Specs = append(h.advert.Specs, k.Spec)
		if i == 0 || !w.chance(0.1) {
			h.advert.Kinds = append(h.advert.Kinds, k.Spec.WithDefaults().Kind)
		}
	}
	h.full = h.advert
	if w.chance(w.otherTimings() / 2) {
		h.t = w.cfg.Shorter
	}
	return h
}

// drawWork draws what the cluster runs.
func (w *world) drawWork() []Work {
	n := 1 + w.rng.IntN(5)
	out := make([]Work, n)
	for i := range out {
		out[i] = w.drawOne(i)
	}
	if w.cfg.Faults&Bursts != 0 {
		work := w.t.MinWorkTime // what a start may take with the shortest timings
		if w.otherTimings() > 0 {
			work = w.cfg.Shorter.MinWorkTime
		}
		units, each := 60+w.rng.IntN(60), w.between(work/4, work/2)
		out = append(out, Work{
			Spec: daemon.Spec{ID: "acme:burst", Instances: units, WaitReady: true}, Drain: Span{0, time.Second}, Cancel: Span{0, w.t.StopTimeout / 10},
			OneByOne: each, Ready: Span{0, 4 * time.Duration(units) * each},
		})
	}
	if w.cfg.Faults&Keys != 0 {
		k := w.drawOne(n)
		k.Spec.ID, k.Spec.Instances = "acme:keyed", daemon.Keyed
		out = append(out, k)
	}
	return out
}

func (w *world) drawOne(i int) Work {
	t := w.t
	k := Work{
		Spec: daemon.Spec{
			ID: daemon.ID(fmt.Sprintf("acme:d%d", i)), Instances: 1 + w.rng.IntN(4), Weight: 1 + w.rng.IntN(2),
			WaitReady: w.chance(0.3),
		},
		Drain:  Span{0, time.Second},
		Cancel: Span{0, t.StopTimeout / 10},
	}
	if w.chance(0.3) {
		k.Cancel = Span{toReturn(t) * 9 / 10, toReturn(t)}
	}
	if w.chance(0.3) {
		k.Drain = Span{t.DrainTimeout / 2, t.DrainTimeout * 3 / 2}
	}
	if w.chance(0.2) { // longer than the time after which a silent node is declared dead
		k.Spec.DrainTimeout = w.between(t.NodeRegistrationTTL, 2*t.NodeRegistrationTTL)
		k.Drain = Span{k.Spec.DrainTimeout / 2, k.Spec.DrainTimeout * 3 / 2}
	}
	k.Stubborn = w.chance(0.1)
	if k.Spec.WaitReady {
		k.Ready = Span{0, t.MinWorkTime}
	}
	if w.cfg.Faults&BadAgents == 0 || w.chance(0.6) {
		return k
	}
	switch w.rng.IntN(5) {
	case 0:
		k.Stuck, k.StuckFor = 0.3, w.upTo(time.Hour)
	case 1:
		k.Fails, k.FailsOn = w.between(time.Second, time.Hour), -1
	case 2:
		k.Fails, k.FailsOn = w.between(time.Second, time.Minute), w.rng.IntN(w.cfg.Nodes)
	case 3:
		k.Returns = w.between(time.Second, time.Hour)
	case 4:
		k.Releases = w.between(time.Minute, time.Hour)
	}
	return k
}
