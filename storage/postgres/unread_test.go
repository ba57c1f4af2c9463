package postgres_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// unread is a call whose client takes nothing of the answer, which is larger than all buffers on the way.
type unread struct {
	before string // makes the answer large
	stop   string // locks a row for which the call waits until the client takes nothing more
	call   func(c *cluster) (rows int, err error)
	rows   int
}

// manyNodes, manyUnits and manyEvents are ten megabytes of each.
const (
	manyNodes = `insert into %[1]s.node (incarnation, seq, heard, last_heartbeat_at, heard_at, highest_term, highest_generation,
		registered_at, never_lead, witnessed, departed, state, judged, id, name, advert, end_reason, traits)
		select 'many-' || g, n.seq, n.heard, n.last_heartbeat_at, n.heard_at, 0, 0, n.registered_at, n.never_lead, false, false, n.state, '',
			'many-' || g, n.name, n.advert, '', jsonb_set(n.traits, '{labels}', jsonb_build_object('a', repeat('many ', 250)))
		from %[1]s.node n, generate_series(1, 10000) g where n.name = 'worker'`
	noise     = `(select string_agg(md5(i::text), '') from generate_series(1, 1000) i)`
	manyUnits = `insert into %[1]s.unit (daemon, index, state, name, node_id, incarnation, generation, term, since,
		acknowledge_timeout, drain_timeout, failures, forced, retired, reason, error)
		select u.daemon, g, 'assigning', u.name, u.node_id, u.incarnation, u.generation, u.term, u.since, 60000000000, 60000000000, 0, false, false, '', ` + noise + `
		from %[1]s.unit u, generate_series(1, 400) g where u.index = 0`
	manyEvents = `insert into %[1]s.event (seq, at, kind, node, node_id, incarnation, daemon, term, term_ordinal, generation, reason)
		select c.head + g, now(), 'node.late', '', '', '', '', 0, 0, 0, ` + noise + ` from %[1]s.counter c, generate_series(1, 400) g;
		update %[1]s.counter set head = head + 400, rolled = head + 400`
	lockWorker  = "select from %[1]s.node where name = 'worker' for update"
	lockLeader  = "select from %[1]s.node where name = 'leader' for update"
	lockUnits   = "select from %[1]s.unit for update"
	lockCounter = "select from %[1]s.counter for update"
)

// members counts the member list of a heartbeat.
func (a *actor) members(edits ...func(*storage.Heartbeat)) (int, error) {
	r, err := a.try(append(edits, func(b *storage.Heartbeat) { b.WantMembers = true })...)
	if err != nil {
		return 0, err
	}
	return len(r.Members), nil
}

// No lock waits for a client. A client that takes nothing of its answer, because it was stopped or its host was lost, keeps
// no other node from anything, however large the answer is.
func TestUnreadAnswersHoldNoLock(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]unread{
		"a registration that reads the member list": {manyNodes, lockCounter, func(c *cluster) (int, error) {
			return newProcess(c).members(func(b *storage.Heartbeat) { b.Advert = &daemon.Advert{} })
		}, 10_003},
		"a renewal that reads the member list": {manyNodes, lockLeader, func(c *cluster) (int, error) {
			return c.leader.members(renew(c.term))
		}, 10_002},
		"an election that reads the member list": {manyNodes, lockWorker, func(c *cluster) (int, error) {
			return c.worker.members(depose(c.term, node.Lease{}))
		}, 10_002},
		"a heartbeat with many units": {manyUnits, lockWorker, func(c *cluster) (int, error) {
			r, err := c.worker.try()
			return len(unitsOf(r)), err
		}, 401},
		"a registration with many units": {manyUnits, lockWorker, func(c *cluster) (int, error) {
			r, err := c.worker.try(func(b *storage.Heartbeat) { b.Advert = &daemon.Advert{} })
			return len(unitsOf(r)), err
		}, 401},
		"a renewal with many events": {manyEvents, lockLeader, func(c *cluster) (int, error) {
			r, err := c.leader.try(renew(c.term), func(b *storage.Heartbeat) { b.EventsAfter = 5 })
			if err != nil {
				return 0, err
			}
			return len(r.Events), nil
		}, 400},
		"a commit of many changes": {manyUnits, lockUnits, func(c *cluster) (int, error) {
			commit := storage.Commit{Term: c.term.Ref()}
			for i := range 400 {
				commit.Changes = append(commit.Changes, storage.Change{Unit: unit(i + 1), Step: daemon.Revoke, Generation: c.run.Generation, State: daemon.Assigning})
			}
			out, err := c.store.Commit(context.Background(), commit)
			return applied(out, daemon.Revoking), err
		}, 400},
		"a report of many runs": {manyUnits, lockUnits, func(c *cluster) (int, error) {
			c.worker.seq++
			report := storage.Report{Node: c.worker.id, Seq: c.worker.seq}
			for i := range 400 {
				report.Units = append(report.Units, storage.UnitReport{Unit: unit(i + 1), Generation: c.run.Generation, Step: daemon.Acknowledge})
			}
			out, err := c.store.Report(context.Background(), report)
			return applied(out, daemon.Active), err
		}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.test(t)
		})
	}
}

func (u unread) test(t *testing.T) {
	var proxy *pgtest.Proxy
	c := newCluster(t, func(cfg *postgres.Config) {
		proxy = pgtest.NewProxy(t, cfg.URL)
		cfg.URL = proxy.URL()
	})
	direct := c.cfg
	direct.URL = c.user
	another := open(t, direct)
	c.exec(t, c.in(u.before))
	middle := c.begin(t, c.in(u.stop))
	called := later(func() (int, error) { return u.call(c) })
	c.blocked(t, 1)
	proxy.StopReading(true)
	commit(t, middle)
	const working = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and state = 'active'"
	eventually(t, "the server waits for the client", func() bool { // or it has answered with less, and is idle
		return value[int](t, c.stage, "select count(*) "+working+" and wait_event is distinct from 'ClientWrite'") == 0
	})
	if locks := value[string](t, c.stage, `select coalesce(string_agg(distinct l.mode || ' ' || coalesce(l.relation::regclass::text, l.locktype), ', '), '')
		from pg_locks l where l.pid in (select pid `+working+`) and l.locktype <> 'virtualxid' and l.mode <> 'AccessShareLock'`); locks != "" {
		t.Errorf("the server waits for the client with %s", locks)
	}
	if _, err := another.Submit(context.Background(), storage.Command{ID: "c", Kind: daemon.CommandResign}); err != nil {
		t.Errorf("a command: %v", err)
	}
	proxy.StopReading(false)
	if n := await(t, "the answer", called).get(t); n != u.rows {
		t.Errorf("the answer has %d rows, want %d", n, u.rows)
	}
}

func unitsOf(r *storage.Reply) []daemon.Record {
	if r == nil {
		return nil
	}
	return r.Units
}

// applied counts the outcomes that were applied, with the row in this state.
func applied(out []storage.Outcome, state daemon.State) (n int) {
	for _, o := range out {
		if o.Applied && o.Record.State == state && o.Record.Unit == o.Unit {
			n++
		}
	}
	return n
}

// What a function answers while it has locks is small as text, in which quotes and backslashes are several times as long.
func TestAnswersOfFunctionsAreSmall(t *testing.T) {
	t.Parallel()
	for _, units := range []int{3, 10, 20} {
		c := newCluster(t)
		c.exec(t, c.in(fmt.Sprintf(`insert into %%[1]s.unit (daemon, index, state, name, node_id, incarnation, generation, term, since,
			acknowledge_timeout, drain_timeout, failures, forced, retired, reason, error)
			select u.daemon, g, 'assigning', u.name, u.node_id, u.incarnation, u.generation, u.term, u.since, 60000000000, 60000000000, 0, false, false, '', repeat('\', 500)
			from %%[1]s.unit u, generate_series(1, %d) g where u.index = 0`, units-1)))
		who := string(c.worker.id.Incarnation)
		for _, call := range []string{
			"heartbeat_8('1000', $1, 1000, 0, 0, 0, 0, 0, 0, 0, -1, -1, '00000000-0000-0000-0000-000000000000')",
			"register_8('1000', $1, 'new', 'new', 1000000, 2000, 0, 0, 0, false, 'hash', '{}', '{}', '', -1, -1, false)",
		} {
			if n := value[int](t, c.stage, "select octet_length("+c.cfg.Schema+"."+call+"::text)", who); n > 9000 {
				t.Errorf("%s answers %d bytes with %d units", call, n, units)
			}
		}
		c.worker.seq = 3000
		if n := len(c.worker.beat().Units); n != units {
			t.Errorf("%d units, want %d", n, units)
		}
	}
}

// The outcomes that are sent with locks are few enough for rows with long texts.
func TestFewOutcomesAreSmall(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(t, c.in("update %s.unit set reason = repeat('r', 200), error = repeat('e', 1000)"))
	if n := value[int](t, c.stage, c.in("select octet_length(u::text) from %s.unit u")) * postgres.FewRows; n > postgres.LargestAnswer {
		t.Errorf("%d outcomes have %d bytes", postgres.FewRows, n)
	}
}
