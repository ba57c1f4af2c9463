package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// registration is a case of TestBothWaysRegisterAlike: what happened before, and who registers.
type registration struct {
	before string // changes the row of the worker, or the counter
	who    func(c *cluster) *actor
	edit   func(c *cluster, b *storage.Heartbeat)
}

// newProcess is a process that the store has never seen.
func newProcess(c *cluster) *actor {
	return &actor{t: c.worker.t, store: c.store, id: node.Identity{
		Name: "new", ID: "0198c5a2-0003-7000-8000-0000000000aa", Incarnation: "0198c5a2-0004-7000-8000-0000000000aa", // no others have these
	}}
}

// successor is a new process with the ID of the worker.
func successor(c *cluster) *actor {
	a := newProcess(c)
	a.id.ID = c.worker.id.ID
	return a
}

func named(name string) func(*cluster, *storage.Heartbeat) {
	return func(_ *cluster, b *storage.Heartbeat) { b.Advert.Traits.Cluster = name }
}

func readsAfter(seq int64) func(*cluster, *storage.Heartbeat) {
	return func(_ *cluster, b *storage.Heartbeat) { b.EventsAfter = seq }
}

// A registration answers and does the same by the function and by the statements, which also serve registrations that do
// more. Here the second is one that also says of a run that it has returned, which changes nothing.
func TestBothWaysRegisterAlike(t *testing.T) {
	t.Parallel()
	const worker = "update %[1]s.node set "
	const removed = worker + "state = 'removed', judged = 'late', witnessed = true, ended_at = clock_timestamp(), end_reason = 'gone' where name = 'worker'"
	self := func(c *cluster) *actor { return c.worker }
	for name, tt := range map[string]registration{
		"a newcomer":                             {who: newProcess},
		"a newcomer that reads all events":       {who: newProcess, edit: readsAfter(0)},
		"a newcomer that is ahead":               {who: newProcess, edit: readsAfter(1000)},
		"a newcomer that may never lead":         {who: newProcess, edit: func(_ *cluster, b *storage.Heartbeat) { b.Advert.Traits.NeverLead = true }},
		"a newcomer that has seen higher":        {who: newProcess, edit: func(_ *cluster, b *storage.Heartbeat) { b.HighestTerm, b.HighestGeneration = 1<<50, 1<<51 }},
		"it names the cluster":                   {who: newProcess, edit: named("shop")},
		"it belongs to the cluster":              {before: "update %[1]s.counter set cluster = 'shop'", who: newProcess, edit: named("shop")},
		"another cluster":                        {before: "update %[1]s.counter set cluster = 'bank'", who: newProcess, edit: named("shop")},
		"a member of another cluster":            {before: "update %[1]s.counter set cluster = 'bank'", who: self, edit: named("shop")},
		"another cluster and an ID in use":       {before: "update %[1]s.counter set cluster = 'bank'", who: successor, edit: named("shop")},
		"an ID in use":                           {who: successor},
		"an ID whose process is silent":          {before: worker + "last_heartbeat_at = clock_timestamp() - interval '3 days' where name = 'worker'", who: successor},
		"an ID whose process has its own TTL":    {before: worker + `traits = jsonb_set(traits, '{timing}', '{"node_registration_ttl": 3600000000000000}'), last_heartbeat_at = clock_timestamp() - interval '3 days' where name = 'worker'`, who: successor},
		"an ID whose process was removed":        {before: removed, who: successor},
		"an ID stamped before a clock step":      {before: worker + "last_heartbeat_at = clock_timestamp() + interval '3 days' where name = 'worker'", who: successor},
		"a member that changes what it offers":   {who: self, edit: func(_ *cluster, b *storage.Heartbeat) { b.Advert.Kinds = []daemon.Kind{"acme:other"} }},
		"a member that has heard more":           {who: self, edit: func(_ *cluster, b *storage.Heartbeat) { b.ConfirmedSeq = b.Seq - 1 }},
		"a member that asks late":                {before: worker + "seq = 1000 where name = 'worker'", who: self},
		"a member that was removed":              {before: removed, who: self, edit: readsAfter(3)},
		"a member that was removed, asking late": {before: removed + "; " + worker + "seq = 1000 where name = 'worker'", who: self},
		"a member that has left":                 {who: departed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			byFunction, byStatements := newTwin(t), newTwin(t)
			a, b := tt.register(byFunction, nil), tt.register(byStatements, []daemon.Fence{{Unit: unit(9), Generation: 1}})
			if !reflect.DeepEqual(a, b) {
				t.Errorf("by the function:\n%+v\nby the statements:\n%+v", a, b)
			}
		})
	}
}

// register registers, and returns what two clusters must share afterwards.
func (r registration) register(c *cluster, returned []daemon.Fence) any {
	t := c.worker.t
	t.Helper()
	who := r.who(c)
	if r.before != "" {
		c.exec(t, fmt.Sprintf(r.before, c.cfg.Schema))
	}
	reply, err := who.try(func(b *storage.Heartbeat) {
		b.ReturnedRuns = returned
		b.Advert = &daemon.Advert{Kinds: []daemon.Kind{"acme:reports"}, Traits: node.Traits{Version: "v2", Labels: map[string]string{"a": `'"(,)\`}}}
		if r.edit != nil {
			r.edit(c, b)
		}
	})
	var inUse *storage.IDInUseError
	var other *storage.OtherClusterError
	refused := ""
	switch {
	case errors.As(err, &inUse):
		refused = fmt.Sprint("in use by ", inUse.Holder.Name, inUse.ID == inUse.Holder.ID, inUse.Holder.Incarnation == c.worker.id.Incarnation, inUse.SeenAt.IsZero(), inUse.Host)
	case errors.As(err, &other):
		refused = fmt.Sprint("cluster ", *other)
	case err != nil:
		refused = fmt.Sprint(errors.Is(err, storage.ErrStaleSeq), errors.Is(err, storage.ErrNotRegistered))
	}
	const rows = `select string_agg(concat_ws(' ', name, id in (select o.id from %[1]s.node o where o.name = 'worker'), seq, heard, heard_at > registered_at,
		registered_at > (select t.elected_at from %[1]s.term t), last_heartbeat_at >= registered_at, highest_term > 0, highest_generation > 0, never_lead, witnessed, departed, state, judged, end_reason,
		ended_at is null, advert, traits), e'\n' order by name) from %[1]s.node`
	const history = `select concat_ws(' ', head, rolled, cluster, (select string_agg(concat_ws(' ', seq, kind, node, node_id <> '', incarnation <> '', daemon,
		index, term_ordinal, reason), ', ' order by seq) from %[1]s.event), (select string_agg(hash || body, ' ' order by hash) from %[1]s.advert)) from %[1]s.counter`
	return []any{refused, essence(c, reply), value[string](t, c.stage, fmt.Sprintf(rows, c.cfg.Schema)), value[string](t, c.stage, fmt.Sprintf(history, c.cfg.Schema))}
}

// Without the function, or the right to execute it, no node registers, and the error says what to do.
func TestRegistrationNeedsItsFunction(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ spoil, contains string }{
		"forbidden": {"revoke execute on function SCHEMA.register_8 from public, ROLE", "emitd migrate get"},
		"missing":   {"drop function SCHEMA.register_8", "emitd migrate up"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			cfg := s.schema(t)
			store := open(t, cfg)
			s.exec(t, strings.NewReplacer("SCHEMA", cfg.Schema, "ROLE", s.role).Replace(tt.spoil))
			_, err := newProcess(&cluster{stage: s, cfg: cfg, store: store, worker: &actor{t: t}}).try(func(b *storage.Heartbeat) { b.Advert = &daemon.Advert{} })
			if err == nil || errors.Is(err, storage.ErrUnavailable) || !strings.Contains(err.Error(), tt.contains) {
				t.Errorf("error %v, want %q", err, tt.contains)
			}
			var schema *storage.SchemaError
			if errors.As(err, &schema) && schema.Have != postgres.Version-1 {
				t.Errorf("the schema is at version %d", schema.Have)
			}
		})
	}
}

// A registration that waits for others gives up in time, and leaves nothing behind.
func TestRegistrationGivesUpInTime(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *postgres.Config) { cfg.QueryTimeout = 2_000_000_000 })
	middle := c.begin(t, c.in("select from %s.counter for update"))
	_, err := newProcess(c).try(func(b *storage.Heartbeat) { b.Advert = &daemon.Advert{} })
	if !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("error %v, want that the store is away", err)
	}
	eventually(t, "nothing waits in the server", func() bool { return c.waiting(t) == 0 })
	commit(t, middle)
	if n := value[int](t, c.stage, c.in("select count(*) from %s.node where name = 'new'")); n != 0 {
		t.Error("a registration that failed left a row")
	}
}

// A node that registers while the cluster is renamed belongs to the cluster of the new name, or is refused. It is not a member
// that nobody has seen.
func TestRegistrationWaitsForRenaming(t *testing.T) {
	t.Parallel()
	returned := func(b *storage.Heartbeat) { b.ReturnedRuns = []daemon.Fence{{Unit: unit(9), Generation: 1}} }
	for name, tt := range map[string]struct {
		who  func(*cluster) *actor
		edit func(*storage.Heartbeat)
	}{
		"a newcomer":                           {newProcess, func(*storage.Heartbeat) {}},
		"a newcomer that does more":            {newProcess, returned},
		"a member that was silent":             {worker, func(*storage.Heartbeat) {}},
		"a member that was silent, doing more": {worker, returned},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			ctx := context.Background()
			c.exec(t, c.in(`update %[1]s.counter set cluster = 'shop';
				update %[1]s.node set last_heartbeat_at = clock_timestamp() - interval '3 days';
				create function %[1]s.stop() returns trigger language plpgsql as 'begin perform pg_advisory_xact_lock(4711); return new; end';
				create trigger stop before update of cluster on %[1]s.counter for each row execute function %[1]s.stop()`))
			middle := c.begin(t, "select pg_advisory_xact_lock(4711)")
			renamed := later(func() (struct{}, error) { return struct{}{}, c.store.RenameCluster(ctx, "shop", "bank", time.Hour) })
			c.blocked(t, 1)
			who := tt.who(c)
			registered := later(func() (*storage.Reply, error) {
				return who.try(func(b *storage.Heartbeat) {
					b.Advert = &daemon.Advert{Traits: node.Traits{Cluster: "shop"}}
					tt.edit(b)
				})
			})
			eventually(t, "the registration waits or is done", func() bool { return c.waiting(t) == 2 || len(registered) == 1 })
			commit(t, middle)
			await(t, "the renaming", renamed).get(t)
			if r := await(t, "the registration", registered); !errors.Is(r.err, storage.ErrOtherCluster) {
				t.Errorf("error %v, want %v", r.err, storage.ErrOtherCluster)
			}
			if n := value[int](t, c.stage, c.in("select count(*) from %s.node where last_heartbeat_at > clock_timestamp() - interval '1 day'")); n != 0 {
				t.Errorf("%d nodes of the former name are live", n)
			}
		})
	}
}

// A text that is registered again is not written again, unless a sweep could delete it soon.
func TestAdvertsAreWrittenOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	store := open(t, cfg)
	join(t, store, "a")
	version := "select string_agg(xmin::text || ctid::text, ' ') from " + cfg.Schema + ".advert"
	before := value[string](t, s, version)
	join(t, store, "b")
	if after := value[string](t, s, version); after != before {
		t.Errorf("the text %s was written again: %s", before, after)
	}
	s.exec(t, "update "+cfg.Schema+".advert set used_at = clock_timestamp() - interval '2 hours'")
	join(t, store, "c")
	if !value[bool](t, s, "select every(used_at > clock_timestamp() - interval '1 minute') from "+cfg.Schema+".advert") {
		t.Error("the text was not marked as used")
	}
}

// A node that catches up reads the events about members by their own index.
func TestCatchingUpUsesItsIndex(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	open(t, cfg)
	s.exec(t, `insert into `+cfg.Schema+`.event (seq, at, kind, node, node_id, incarnation, daemon, term, term_ordinal, generation, reason)
		select g, now(), case when g % 1000 = 0 then 'node.late' else 'fence.waiting' end, '', '', '', '', 0, 0, 0, '' from generate_series(1, 50000) g`)
	rows, err := s.pool.Query(context.Background(), "explain select e from "+cfg.Schema+".event e where e.seq > 1 and e.seq <= 50000 and e.roll order by e.seq limit 500")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, line)
	}
	if text := strings.Join(plan, "\n"); !strings.Contains(text, "event_roll") {
		t.Errorf("the plan is\n%s", text)
	}
}

// What no node advertises any more is swept, although no node is gone.
func TestFormerAdvertsAreSwept(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 10 {
		c.worker.beat(func(b *storage.Heartbeat) {
			b.Advert = &daemon.Advert{Kinds: []daemon.Kind{daemon.Kind(fmt.Sprint("acme:k", i))}}
		})
	}
	c.exec(t, c.in("update %s.advert set used_at = clock_timestamp() - interval '2 hours'"))
	fence := daemon.Fence{Unit: unit(0), Generation: c.run.Generation}
	stamp(t, c.store, fence)
	if _, err := c.store.SweepNodes(t.Context(), fence, time.Hour, 100); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, c.stage, c.in("select count(*) from %s.advert")); n != 2 {
		t.Errorf("%d texts are left, want those of the two nodes", n)
	}
}
