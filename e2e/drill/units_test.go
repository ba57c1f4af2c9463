package drill

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// TestDrillManyUnitsIdle measures what a leader costs that looks after a hundred thousand units while nothing changes. The
// leader is a process of its own. The units are rows of ten members that send heartbeats and run nothing.
func TestDrillManyUnitsIdle(t *testing.T) {
	ParallelUnlessMeasured(t)
	units, window := 2000, 3*time.Second
	if Full() {
		units, window = 100_000, 30*time.Second
	}
	server, err := pgtest.Start(pgtest.Config{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	c := onServer(t, server)
	c.Instances = 0
	proxy, through := behindProxy(t, c.URL)
	leader := c.StartOn("leader", through)
	c.Leading()
	h := &holders{Cluster: c, units: units}
	h.join(10)
	h.hold()
	c.Until(time.Minute, "the leader has seen all units", func() bool {
		s, err := c.Snapshot()
		return err == nil && len(s.Units) >= units && s.Lease.PassSeq > 0
	})
	c.Pass(2 * c.Timing().SettleWindow)
	s, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	bytes, cpu, own, began := proxy.Answered.Load(), serverCPU(t, server), processCPU(t, leader), time.Now()
	c.Pass(window)
	took := time.Since(began).Seconds()
	after, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	what := fmt.Sprintf("postgres: a leader with %d units, fast, nothing changes", units)
	Amount(t, what+", CPU of the leader (wanted: 5 %)", 100*(processCPU(t, leader)-own).Seconds()/took, "% of one core", 0)
	Amount(t, what+", from the database", float64(proxy.Answered.Load()-bytes)/1000/took, "kB/s", 100)
	Amount(t, what+", CPU of the server", 100*(serverCPU(t, server)-cpu).Seconds()/took, "% of one core", 0)
	Amount(t, what+", passes", float64(after.Lease.PassSeq-s.Lease.PassSeq)/took, "/s", 0)
	if after.Head != s.Head {
		t.Logf("%d events came meanwhile", after.Head-s.Head)
	}
}

// holders are members that only send heartbeats.
type holders struct {
	*Cluster
	units   int
	members []*holder
}

// holder is one of them.
type holder struct {
	mu     sync.Mutex
	who    node.Identity
	seq    uint64
	advert daemon.Advert
	send   bool // the advert
}

// join registers n members, which then send heartbeats until the test ends.
func (h *holders) join(n int) {
	h.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	h.T.Cleanup(func() { cancel(); all.Wait() })
	for i := range n {
		m := &holder{who: node.Identity{
			Name: fmt.Sprintf("h%d", i), ID: node.ID(fmt.Sprintf("0198c5a2-0001-7000-8000-%012x", i)),
			Incarnation: node.Incarnation(fmt.Sprintf("0198c5a2-0002-7000-8000-%012x", i)),
		}, send: true}
		m.advert = daemon.Advert{Kinds: []daemon.Kind{"drill:row"}, Traits: node.Traits{Capacity: 1, NeverLead: true, Timing: lease.Fast().Shared()}}
		h.members = append(h.members, m)
		if err := m.beat(ctx, h.Store); err != nil {
			h.T.Fatal(err)
		}
		all.Go(func() {
			tick := time.NewTicker(h.Timing().HeartbeatInterval)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					_ = m.beat(ctx, h.Store) // the next one repeats it
				}
			}
		})
	}
}

// beat sends one heartbeat.
func (m *holder) beat(ctx context.Context, store storage.Store) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seq++
	hb := storage.Heartbeat{Node: m.who, Seq: m.seq, ConfirmedSeq: m.seq - 1, TTL: lease.Fast().NodeRegistrationTTL, EventsAfter: -1}
	if m.send {
		hb.Advert = &m.advert
	}
	_, err := store.Heartbeat(ctx, hb)
	m.send = m.send && err != nil
	return err
}

// hold inserts the units as rows that the members hold, and then advertises their daemon.
func (h *holders) hold() {
	h.T.Helper()
	execute(h.T.(*testing.T), h.URL, fmt.Sprintf(`insert into emitd.unit (daemon, index, state, name, node_id, incarnation, generation, term, since,
		assigned_at, acknowledge_timeout, drain_timeout, failures, forced, retired, reason, error)
		select 'drill:row', i, 'active', n.name, n.id, n.incarnation, 1, 1, clock_timestamp(), clock_timestamp(), 5000000000, 10000000000, 0, false, false, '', ''
		from generate_series(0, %d - 1) i join (select row_number() over (order by incarnation) - 1 as place, * from emitd.node where name like 'h%%') n
			on n.place = i %% %d`, h.units, len(h.members)))
	execute(h.T.(*testing.T), h.URL, "analyze emitd.unit")
	for _, m := range h.members {
		m.mu.Lock()
		m.advert.Specs, m.send = []daemon.Spec{{ID: "drill:row", Instances: h.units}}, true
		m.mu.Unlock()
	}
}

// processCPU returns the processor time of a node's process.
func processCPU(t *testing.T, n *Node) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.proc.PID()))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	ticks := 0
	for _, v := range f[11:13] {
		n, _ := strconv.Atoi(v)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // the kernel reports hundredths of a second
}
