package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// large is a store with a large cluster: 1,000 nodes, 10,000 units and 100,000 events.
type large struct {
	*historyStore
	snap *daemon.Snapshot
}

func (l *large) Snapshot(context.Context) (*daemon.Snapshot, error) {
	snap := *l.snap
	return &snap, nil
}

var _ storage.Store = (*large)(nil)

func newLarge() *large {
	now := time.Unix(1_000_000, 0)
	advert := &daemon.Advert{Kinds: []daemon.Kind{}}
	l := &large{newHistory(1, 100_000), &daemon.Snapshot{Now: now, StoreID: "s", Head: 100_000, Adverts: map[string]*daemon.Advert{"x": advert}}}
	for i := range 100 {
		id := daemon.ID(fmt.Sprintf("acme:daemon-%03d", i))
		advert.Kinds = append(advert.Kinds, daemon.Kind(id))
		advert.Specs = append(advert.Specs, daemon.Spec{ID: id, Instances: 100})
	}
	for i := range 1000 {
		who := node.Identity{Name: fmt.Sprintf("node-%04d", i), ID: node.ID(fmt.Sprintf("id-%04d", i)), Incarnation: node.Incarnation(fmt.Sprintf("inc-%04d", i))}
		l.snap.Nodes = append(l.snap.Nodes, node.Member{
			Identity: who, State: node.Live, Advert: "x", RegisteredAt: now.Add(-time.Hour), LastHeartbeatAt: now, ConfirmedAt: now,
			Traits: node.Traits{Labels: map[string]string{"zone": fmt.Sprintf("z%d", i%3)}, Capacity: 1, FirstRegisteredAt: now.Add(-time.Hour)},
		})
	}
	l.snap.Term = node.Term{Number: 7, Ordinal: 7, Leader: l.snap.Nodes[0].Identity, ElectedAt: now.Add(-time.Hour)}
	l.snap.Lease = node.Lease{ExpiresAt: now.Add(time.Minute), LastPassAt: now}
	for i := range 10_000 {
		l.snap.Units = append(l.snap.Units, daemon.Record{
			Unit: daemon.Unit{Daemon: daemon.ID(fmt.Sprintf("acme:daemon-%03d", i/100)), Index: i % 100}, State: daemon.Active,
			Holder: l.snap.Nodes[i%1000].Identity, Generation: int64(i + 1), Since: now.Add(-time.Hour), Reason: "least loaded",
		})
	}
	return l
}

// sent is an answer that is sent to somebody far away: nobody here keeps it.
type sent struct {
	header        http.Header
	status, bytes int
}

func (s *sent) Header() http.Header    { return s.header }
func (s *sent) WriteHeader(status int) { s.status = status }
func (s *sent) Write(p []byte) (int, error) {
	s.bytes += len(p)
	return len(p), nil
}

// BenchmarkLarge shows what a call costs in a large cluster, when nothing is shared with other calls.
func BenchmarkLarge(b *testing.B) {
	l := newLarge()
	for _, path := range []string{
		"/overview", "/nodes?limit=100", "/units?limit=100", "/units?state=unassigned", "/units/acme:daemon-050/7", "/daemons", "/status",
		"/events?limit=100", "/events?kind=leader.*&limit=100", "/events?daemon=acme:none", "/terms?limit=100",
	} {
		b.Run(path, func(b *testing.B) {
			a, err := New(Config{Store: l})
			if err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			for b.Loop() {
				a.reads.forget()
				a.leaders.forget()
				begun := time.Now()
				w := &sent{header: http.Header{}}
				a.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodGet, root+path, nil))
				took = append(took, time.Since(begun))
				if w.status != http.StatusOK || w.bytes == 0 {
					b.Fatal(w.status, w.bytes)
				}
			}
			slices.SortFunc(took, cmp.Compare)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms/p99")
		})
	}
}
