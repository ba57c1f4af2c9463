package host

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
	"github.com/emitd/emitd/cmd/emitd/internal/trend"
	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/node"
)

// trends are what the cluster has measured in the last hour. Each process samples its own metrics. A process that is asked
// for all fetches from the others what it has not yet, with the token of whoever asks, and keeps it: so it still has it
// when a node has gone.
type trends struct {
	h       *host
	process string // identifies this process in pages
	own     *trend.Ring
	sampler *trend.Sampler

	mu       sync.Mutex  // held while others are asked, and for what follows
	gathered time.Time   // when others were asked last
	all      *trend.Ring // what all have measured; nil until somebody has asked
	from     map[string]*source
	result   admin.Trends // without lines
}

// source is a process whose measurements are in all.
type source struct {
	process string
	through int64 // the newest step that was added
	called  time.Time
	answers bool // to the last call
}

// sourceTimeout is how long a call for all trends waits for other processes.
const sourceTimeout = 2 * time.Second

func newTrends(h *host) *trends {
	t := &trends{h: h, process: uuid.NewString(), own: trend.NewRing(), from: map[string]*source{}}
	t.sampler = trend.NewSampler(t.own)
	return t
}

// run samples at the end of each step, until done is closed.
func (t *trends) run(done <-chan struct{}) {
	for {
		timer := time.NewTimer(time.Until(time.Now().Truncate(trend.Step).Add(trend.Step)))
		select {
		case <-done:
			timer.Stop()
			return
		case <-timer.C:
			t.sample(time.Now())
		}
	}
}

// sample adds what this process has measured in the step that ended before now.
func (t *trends) sample(now time.Time) {
	metrics, err := t.h.tel.ReadMetrics()
	if err != nil && len(metrics) == 0 {
		t.h.log.Debug("cannot read the metrics of this process", "error", err)
		return
	}
	t.sampler.Sample(metrics, now)
}

// serve answers calls of other nodes for what this process has measured.
func (t *trends) serve(w http.ResponseWriter, r *http.Request) {
	after := int64(-1)
	if q := r.URL.Query(); q.Get("process") == t.process { // of another process, nothing is known here
		if n, err := strconv.ParseInt(q.Get("after"), 10, 64); err == nil {
			after = n
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(t.own.Since(t.process, after)) // an error means that the caller has gone
}

// show implements [admin.Config.Trends].
func (t *trends) show(r *http.Request, queue, subscription string) (*admin.Trends, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Others answer only who may read the whole cluster. Whoever may read one queue gets what is here.
	everything := allowed(r.Context(), access.Need{Role: access.Read}) == nil
	now := time.Now()
	t.takeOwn(now)
	if everything && now.Sub(t.gathered) >= trend.Step {
		if t.gather(r); r.Context().Err() == nil { // or the next caller asks again
			t.gathered = now
		}
	}
	out := t.result
	for _, l := range t.all.Lines(queue, subscription, now) {
		out.Trends = append(out.Trends, admin.Trend{Name: l.Name, Series: l.Series, Unit: l.Unit, Points: l.Points})
	}
	out.At, out.Step = now.Truncate(trend.Step), trend.Step
	return &out, nil
}

// takeOwn adds what this process has measured since the last time. The caller holds mu.
func (t *trends) takeOwn(now time.Time) {
	if t.all == nil {
		t.all = trend.NewRing()
		t.result.Nodes = 1
	}
	here := t.source(t.h.up.Advertised)
	here.called = now
	t.take(here, t.own.Since(t.process, here.through), now)
}

// gather adds what other processes have measured since the last time. The caller holds mu.
func (t *trends) gather(r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), sourceTimeout)
	defer cancel()
	others, err := t.h.others(ctx)
	if err != nil {
		return // the store is away: what is here is shown
	}
	slices.SortStableFunc(others, func(a, b node.Member) int { // those first that were asked longest ago
		return cmp.Or(t.source(a.Address).called.Compare(t.source(b.Address).called), cmp.Compare(a.Name, b.Name))
	})
	t.fetch(ctx, r.Header.Get("Authorization"), others)
	t.result = admin.Trends{Nodes: 1}
	for _, m := range others {
		if t.from[m.Address].answers {
			t.result.Nodes++
		} else {
			t.result.Missing = append(t.result.Missing, m.Name)
		}
	}
	for address, s := range t.from {
		if time.Since(s.called) > time.Hour {
			delete(t.from, address)
		}
	}
}

func (t *trends) source(address string) *source {
	s := t.from[address]
	if s == nil {
		s = &source{through: -1}
		t.from[address] = s
	}
	return s
}

// take adds a page of a process.
func (t *trends) take(s *source, page *trend.Page, now time.Time) {
	if s.process != page.Process {
		s.process, s.through = page.Process, -1
	}
	s.through = t.all.Add(page, s.through, now)
}

// fetch asks other processes, until ctx ends.
func (t *trends) fetch(ctx context.Context, authorization string, others []node.Member) {
	c := nodeapi.Caller{TLS: t.h.guard.peers(), Authorization: authorization, Forwards: true}
	for _, m := range others {
		t.source(m.Address).answers = false
	}
	each(others, func(m node.Member) {
		if ctx.Err() != nil {
			return
		}
		s := t.from[m.Address] // nobody writes to the map meanwhile
		s.called = time.Now()
		body, err := c.Get(ctx, m.Address, nodeapi.Trends, url.Values{"process": {s.process}, "after": {strconv.FormatInt(s.through, 10)}})
		var page trend.Page
		if err == nil {
			err = json.Unmarshal(body, &page)
		}
		if err != nil {
			t.h.log.Debug("a node does not say what it has measured", "node", m.Name, "error", fault.Of(err)[0].What)
			return
		}
		t.take(s, &page, time.Now())
		s.answers = true
	})
}
