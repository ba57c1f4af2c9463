package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// counted fails the test if the counter is wrong about what heartbeats rely on: no event about
// members after rolled, and how many commands wait.
func (s *stage) counted(t testing.TB, schema string) {
	t.Helper()
	// The query reads one snapshot, because a call whose reply was lost may still be under way.
	wrong := value[string](t, s, fmt.Sprintf(`select concat_ws('; ',
		case when exists (select from %[1]s.event e where e.roll and e.seq > c.rolled) then 'an event about members is after rolled' end,
		case when c.rolled > c.head then 'rolled is after head' end,
		case when c.waiting <> k.n then format('waiting is %%s, %%s commands wait', c.waiting, k.n) end)
		from %[1]s.counter c, (select count(*) as n from %[1]s.command where done_at is null and kind in ('leader.resign', 'node.drain')) k`, schema))
	if wrong != "" {
		t.Error("the counter is wrong: " + wrong)
	}
}

// Without the function, or the right to execute it, no heartbeat is written, and the error says what to do.
func TestFunctionIsNeeded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ spoil, contains string }{
		"forbidden": {"revoke execute on function SCHEMA.heartbeat_8 from public, ROLE", "emitd migrate get"},
		"missing":   {"drop function SCHEMA.heartbeat_8", "emitd migrate up"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			cfg := s.schema(t)
			a := join(t, open(t, cfg), "a")
			s.exec(t, strings.NewReplacer("SCHEMA", cfg.Schema, "ROLE", s.role).Replace(tt.spoil))
			if _, err := a.try(); err == nil || errors.Is(err, storage.ErrUnavailable) || !strings.Contains(err.Error(), tt.contains) {
				t.Errorf("error %v, want %q", err, tt.contains)
			}
			if seq := value[uint64](t, s, "select seq from "+cfg.Schema+".node"); seq >= a.seq {
				t.Errorf("heartbeat %d was written", seq)
			}
		})
	}
}

// If transactions begin in another isolation, the first registration costs a second round trip, and nothing after it does.
func TestOtherIsolationCostsOneRoundTrip(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	proxy := pgtest.NewProxy(t, cfg.URL)
	cfg.URL = proxy.URL() + "&default_transaction_isolation=serializable"
	store := open(t, cfg)
	before := proxy.Queries()
	a := join(t, store, "a")
	if n := proxy.Queries() - before; n != 4 {
		t.Errorf("the first registration: %d round trips, want the refused call, the call, and two for the server's identity", n)
	}
	before = proxy.Queries()
	b := join(t, store, "b")
	if n := proxy.Queries() - before; n != 1 {
		t.Errorf("the second registration: %d round trips, want 1", n)
	}
	term := a.lead()
	a.assign(term, unit(0), b)
	for i, want := range []int64{1, 1, 1} {
		before := proxy.Queries()
		if r := a.beat(renew(term)); r.Verdict != storage.Renew {
			t.Errorf("verdict %v, want a renewal", r.Verdict)
		}
		if n := proxy.Queries() - before; n != want {
			t.Errorf("heartbeat %d: %d round trips, want %d", i+1, n, want)
		}
	}
	if r := b.beat(); len(r.Units) != 1 {
		t.Errorf("%d units, want 1", len(r.Units))
	}
}

// A role that may not write the rows gets an error that says so.
func TestDeniedRows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	a := join(t, open(t, cfg), "a")
	s.exec(t, "revoke update on "+cfg.Schema+".node from "+s.role)
	if _, err := a.try(); err == nil || errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("error %v, want what to grant", err)
	}
}

// A heartbeat answers and does the same by the function and by the statements, which also serve heartbeats that ask for
// members.
func TestBothWaysAnswerAlike(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		who  func(c *cluster) *actor
		edit func(c *cluster) func(*storage.Heartbeat)
	}{
		{"a follower with a unit", worker, everything},
		{"a leader that renews", leader, func(c *cluster) func(*storage.Heartbeat) { return renew(c.term) }},
		{"a pass is told", leader, func(c *cluster) func(*storage.Heartbeat) {
			return func(b *storage.Heartbeat) { b.TermRequest.Renew, b.TermRequest.PassSeq = c.term.Number, 7 }
		}},
		{"a term that was published as lost", leader, func(c *cluster) func(*storage.Heartbeat) {
			return func(b *storage.Heartbeat) {
				b.TermRequest.Renew, b.TermRequest.LostThrough = c.term.Number, c.term.Number
			}
		}},
		{"a leader that may lead no longer", barred, func(c *cluster) func(*storage.Heartbeat) { return renew(c.term) }},
		{"a term of another", worker, func(c *cluster) func(*storage.Heartbeat) { return renew(c.term) }},
		{"a term that is over", leader, func(c *cluster) func(*storage.Heartbeat) {
			return func(b *storage.Heartbeat) { b.TermRequest.Renew = c.term.Number - 1 }
		}},
		{"no events wanted", worker, func(*cluster) func(*storage.Heartbeat) { return func(*storage.Heartbeat) {} }},
		{"events from the middle", worker, func(*cluster) func(*storage.Heartbeat) {
			return func(b *storage.Heartbeat) { b.EventsAfter = 2 }
		}},
		{"a reader that is ahead", worker, func(*cluster) func(*storage.Heartbeat) {
			return func(b *storage.Heartbeat) { b.EventsAfter = 1000 }
		}},
		{"higher numbers seen", worker, func(*cluster) func(*storage.Heartbeat) {
			return func(b *storage.Heartbeat) { b.HighestTerm, b.HighestGeneration = 1<<50, 1<<51 }
		}},
		{"a late repetition", worker, func(*cluster) func(*storage.Heartbeat) {
			return func(b *storage.Heartbeat) { b.Seq = 1 }
		}},
		{"a node that left", departed, everything},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			simple, other := newTwin(t), newTwin(t)
			type answer struct {
				reply *storage.Reply
				err   error
			}
			var answers []answer
			for _, c := range []*cluster{simple, other} {
				who := tt.who(c)
				r, err := who.try(tt.edit(c), func(b *storage.Heartbeat) { b.WantMembers = c == other })
				answers = append(answers, answer{r, err})
			}
			if fmt.Sprint(answers[0].err != nil, errors.Unwrap(answers[0].err)) != fmt.Sprint(answers[1].err != nil, errors.Unwrap(answers[1].err)) {
				t.Errorf("errors %v and %v", answers[0].err, answers[1].err)
			}
			if a, b := essence(simple, answers[0].reply), essence(other, answers[1].reply); !reflect.DeepEqual(a, b) {
				t.Errorf("replies differ:\n%+v\n%+v", a, b)
			}
			const row = "select string_agg(concat_ws(' ', name, seq, heard, heard_at > registered_at, highest_term > 0, highest_generation, state), e'\\n' order by name) from %s.node"
			if a, b := value[string](t, simple.stage, simple.in(row)), value[string](t, other.stage, other.in(row)); a != b {
				t.Errorf("nodes differ:\n%s\n%s", a, b)
			}
			const lease = "select concat_ws(' ', renewals, pass_seq, last_pass_at is not null, expires_at > clock_timestamp()) from %s.lease"
			if a, b := value[string](t, simple.stage, simple.in(lease)), value[string](t, other.stage, other.in(lease)); a != b {
				t.Errorf("leases differ: %s and %s", a, b)
			}
		})
	}
}

func worker(c *cluster) *actor { return c.worker }
func leader(c *cluster) *actor { return c.leader }

func departed(c *cluster) *actor {
	c.worker.seq++
	err := c.store.Leave(context.Background(), storage.Leave{Node: c.worker.id, Seq: c.worker.seq, Deregister: true, Reason: node.Resigned})
	if err != nil {
		c.worker.t.Fatal(err)
	}
	return c.worker
}

// barred registers the leader anew, as one that may never lead.
func barred(c *cluster) *actor {
	c.leader.beat(func(b *storage.Heartbeat) { b.Advert = &daemon.Advert{Traits: node.Traits{NeverLead: true}} })
	return c.leader
}

func everything(*cluster) func(*storage.Heartbeat) {
	return func(b *storage.Heartbeat) { b.EventsAfter = 0 }
}

// newTwin is a cluster in which two commands wait.
func newTwin(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	for _, id := range []string{"first", "second"} {
		if _, err := c.store.Submit(context.Background(), storage.Command{ID: id, Kind: daemon.CommandDrain, Args: []byte(`{"a": "\"(,)"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// essence is the part of a reply that two clusters must share after the same calls.
func essence(c *cluster, r *storage.Reply) any {
	if r == nil {
		return nil
	}
	type event struct {
		Seq  int64
		Kind daemon.EventKind
		Node string
	}
	var events []event
	for _, e := range r.Events {
		events = append(events, event{e.Seq, e.Kind, e.Node})
	}
	var units, commands []string
	for _, u := range r.Units {
		units = append(units, fmt.Sprint(u.Unit, u.State, u.Holder.Name, u.Generation == c.run.Generation, u.Term == c.term.Number))
	}
	for _, k := range r.Commands {
		commands = append(commands, k.ID+string(k.Args))
	}
	return []any{
		r.Seq, r.Verdict, r.Head, r.EventsMissing, r.Term.Ordinal, r.Term.Leader.Name, r.Lease.Renewals, r.Lease.PassSeq,
		r.StoreID != "", r.StoreSince.IsZero(), events, units, commands,
	}
}

// Each statement of the function reads after the write. The reply therefore contains everything
// that another transaction committed while the heartbeat waited for its row.
func TestFunctionReadsAfterItsWrite(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	head := c.worker.beat().Head
	middle := c.begin(t, c.in("select from %s.node where name = 'worker' for update"))
	reply := later(func() (*storage.Reply, error) {
		return c.worker.try(func(b *storage.Heartbeat) { b.EventsAfter = head })
	})
	c.blocked(t, 1)
	join(t, c.store, "other")
	if _, err := c.store.Submit(context.Background(), storage.Command{ID: "c", Kind: daemon.CommandDrain}); err != nil {
		t.Fatal(err)
	}
	out, err := c.store.Commit(context.Background(), storage.Commit{Term: c.term.Ref(), Changes: []storage.Change{
		{Unit: unit(0), Step: daemon.Revoke, Generation: c.run.Generation, State: daemon.Active},
	}})
	if err != nil || !out[0].Applied {
		t.Fatalf("%+v, %v", out, err)
	}
	renewals := c.leader.beat(renew(c.term)).Lease.Renewals
	commit(t, middle)
	r := await(t, "the heartbeat", reply).get(t)
	if len(r.Events) != 1 || r.Events[0].Kind != daemon.NodeRegistered || r.Head != head+3 {
		t.Errorf("events %+v up to %d, want the registration up to %d", r.Events, r.Head, head+3)
	}
	if len(r.Commands) != 1 || len(r.Units) != 1 || r.Units[0].State != daemon.Revoking || r.Lease.Renewals != renewals {
		t.Errorf("commands %+v, units %+v, lease %+v", r.Commands, r.Units, r.Lease)
	}
}

// A schema without the counter's row is broken, and the error says so: a heartbeat on it changes
// nothing.
func TestCounterIsGone(t *testing.T) {
	t.Parallel()
	for name, members := range map[string]bool{"by the function": false, "by statements": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTwin(t)
			seq := c.in("select seq from %s.node where name = 'worker'")
			before := value[int64](t, c.stage, seq)
			c.exec(t, c.in("delete from %s.counter"))
			if _, err := c.worker.try(func(b *storage.Heartbeat) { b.WantMembers = members }); err == nil || !strings.Contains(err.Error(), "counter has no row") {
				t.Errorf("the heartbeat: %v", err)
			}
			if after := value[int64](t, c.stage, seq); !members && after != before {
				t.Errorf("the node's row counts heartbeat %d, want %d", after, before)
			}
			if _, err := c.store.Snapshot(context.Background()); err == nil || !strings.Contains(err.Error(), "counter has no row") {
				t.Errorf("the snapshot: %v", err)
			}
		})
	}
}

// A heartbeat waits for a lock on the server no longer than its caller waits, even if no message of
// the caller arrives any more. A transaction that locks a row for long therefore does not collect
// sessions.
func TestFunctionDoesNotOutwaitItsCaller(t *testing.T) {
	t.Parallel()
	var proxy *pgtest.Proxy
	c := newCluster(t, func(cfg *postgres.Config) {
		proxy = pgtest.NewProxy(t, cfg.URL)
		cfg.URL = proxy.URL()
	})
	c.begin(t, c.in("select from %s.node where name = 'worker' for update"))
	c.blocked(t, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	beat := later(func() (*storage.Reply, error) {
		return c.store.Heartbeat(ctx, storage.Heartbeat{Node: c.worker.id, Seq: 1000, TTL: time.Hour, EventsAfter: -1})
	})
	c.blocked(t, 1)
	proxy.Stall(true)
	if r := await(t, "the heartbeat", beat); !errors.Is(r.err, storage.ErrUnavailable) {
		t.Errorf("the heartbeat that waits for a lock: %v, want %v", r.err, storage.ErrUnavailable)
	}
	c.blocked(t, 0)
}

// A command that is submitted while another is marked done is counted, whichever commits first.
// Heartbeats would never ask for a command that is not counted.
func TestCommandsAreCountedInOrder(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ctx := context.Background()
	submit := func(id string) (*storage.Command, error) {
		return c.store.Submit(ctx, storage.Command{ID: id, Kind: daemon.CommandDrain})
	}
	if _, err := submit("old"); err != nil {
		t.Fatal(err)
	}
	middle := c.begin(t, c.in("select from %s.counter for update"))
	submitted := later(func() (*storage.Command, error) { return submit("new") })
	c.blocked(t, 1)
	c.leader.seq++
	left := later(func() (struct{}, error) {
		return struct{}{}, c.store.Leave(ctx, storage.Leave{Node: c.leader.id, Seq: c.leader.seq, Command: "old"})
	})
	c.blocked(t, 2)
	commit(t, middle)
	await(t, "the submission", submitted).get(t)
	await(t, "the fulfilment", left).get(t)
	c.counted(t, c.cfg.Schema)
	got := c.worker.beat().Commands
	if ids := slices.Collect(func(yield func(string) bool) {
		for _, k := range got {
			yield(k.ID)
		}
	}); !slices.Equal(ids, []string{"new"}) {
		t.Errorf("commands %v, want [new]", ids)
	}
}

// Two nodes that mark the same command done at once, one of them with an event and one without,
// both finish.
func TestFulfilmentDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	t.Cleanup(func() { c.noDeadlocks(t) })
	ctx := context.Background()
	if _, err := c.store.Submit(ctx, storage.Command{ID: "c", Kind: daemon.CommandDrain}); err != nil {
		t.Fatal(err)
	}
	middle := c.begin(t, c.in("select from %s.command for update"))
	leave := func(a *actor, resign int64) <-chan result[struct{}] {
		a.seq++
		l := storage.Leave{Node: a.id, Seq: a.seq, Resign: resign, Command: "c"}
		return later(func() (struct{}, error) { return struct{}{}, c.store.Leave(ctx, l) })
	}
	worker := leave(c.worker, 0)
	c.blocked(t, 1)
	leader := leave(c.leader, c.term.Number)
	c.blocked(t, 2)
	commit(t, middle)
	await(t, "the worker's call", worker).get(t)
	await(t, "the leader's call", leader).get(t)
	c.counted(t, c.cfg.Schema)
}

// A heartbeat works on a schema that was dropped and created again while the store was open. No
// plan of a session outlives its tables.
func TestSchemaMadeAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	store := open(t, cfg)
	a := join(t, store, "a")
	for range 8 {
		a.beat() // until the session caches its plans
	}
	owner := cfg
	owner.URL = s.url
	for _, version := range []int{0, postgres.Version} {
		if _, err := postgres.Migrate(context.Background(), owner, version); err != nil {
			t.Fatal(err)
		}
		if version > 0 {
			s.grant(t, cfg, postgres.Roles{Node: s.role})
		}
		if _, err := a.try(); version == 0 && !errors.Is(err, storage.ErrSchema) || version != 0 && !errors.Is(err, storage.ErrNotRegistered) {
			t.Errorf("version %d: error %v", version, err)
		}
	}
	b := join(t, store, "b")
	if r := b.beat(); r.Head != 1 {
		t.Errorf("head %d, want 1", r.Head)
	}
}
