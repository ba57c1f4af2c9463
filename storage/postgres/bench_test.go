package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
	"github.com/emitd/emitd/storage/storagetest"
)

// durable starts a server whose commits wait for the disk, as in production.
func durable(b *testing.B) *pgtest.Server {
	b.Helper()
	server, err := pgtest.Start(pgtest.Config{Durable: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { server.Close() })
	return server
}

// BenchmarkStore runs the benchmarks that all backends share.
func BenchmarkStore(b *testing.B) {
	url := durable(b).URL("postgres")
	var n atomic.Int64
	storagetest.Bench(b, storagetest.Factory{
		Open: func(t testing.TB) storagetest.Backend {
			cfg := postgres.Config{URL: url, Schema: fmt.Sprintf("s%d", n.Add(1)), AutoMigrate: true}
			return storagetest.Backend{Store: open(t, cfg)}
		},
		Lacks: storagetest.Clock | storagetest.FrozenClock | storagetest.Tx | storagetest.StateWrites,
	})
}

// syncTime returns how long a server's disk takes to store a few bytes durably, the median of many.
func syncTime(b *testing.B, server *pgtest.Server) time.Duration {
	b.Helper()
	f, err := os.CreateTemp(server.Data(), "sync")
	if err != nil {
		b.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	took := make([]time.Duration, 101)
	for i := range took {
		began := time.Now()
		if _, err := f.WriteAt(make([]byte, 200), 0); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// BenchmarkHeartbeat compares the heartbeat of this package with the obvious form: four statements,
// each a round trip (write the own row, try to lead, read the leader, read the own units). It
// measures 1 node, and 16 at once. A node has two units in both. Neither form prepares statements,
// as behind a transaction pooler; fourPrepared does.
//
// batchOverFourStatement is the figure that matters. WAL-B/tick is what the server writes to its
// log; of 16 nodes, 15 are followers. The ratio depends on the disk. The four statements of
// different nodes wait for each other at the leader's row while it is written. On a disk that
// stores at once, only the ratio of processor time remains. bareOverFourStatement is the best that
// the machine can reach: the four statements sent together, without anything that makes them safe.
// sync-µs is the disk's time.
func BenchmarkHeartbeat(b *testing.B) {
	server := durable(b)
	url, sync := server.URL("postgres"), syncTime(b, server)
	for _, nodes := range []int{1, 16} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for _, form := range []struct {
				name string
				tick func(i int) error
			}{
				{"batch", batchForm(b, url, fmt.Sprintf("batch%d", nodes), nodes)},
				{"fourStatement", fourForm(b, url, fmt.Sprintf("four%d", nodes), nodes, pgx.QueryExecModeExec)},
				{"fourPrepared", fourForm(b, url, fmt.Sprintf("prepared%d", nodes), nodes, pgx.QueryExecModeCacheStatement)},
			} {
				b.Run(form.name, func(b *testing.B) { race(b, url, nodes, form.tick) })
			}
			batch := batchForm(b, url, fmt.Sprintf("batchturns%d", nodes), nodes)
			four := fourForm(b, url, fmt.Sprintf("fourturns%d", nodes), nodes, pgx.QueryExecModeExec)
			b.Run("batchOverFourStatement", func(b *testing.B) {
				compare(b, nodes, batch, four)
				b.ReportMetric(float64(sync.Microseconds()), "sync-µs")
			})
			bare := bareForm(b, url, fmt.Sprintf("fourturns%d", nodes), nodes)
			b.Run("bareOverFourStatement", func(b *testing.B) { compare(b, nodes, bare, four) })
		})
	}
}

// compare alternates two forms, a few ticks each, so that other load on the machine slows both. It
// reports how many ticks of the first take as long as one of the second.
func compare(b *testing.B, nodes int, first, second func(i int) error) {
	const round = 25 // ticks of each node
	forms := []func(i int) error{first, second}
	var spent [2]time.Duration
	for _, tick := range forms {
		run(b, nodes, 20*nodes, tick)
	}
	b.ResetTimer()
	for done := 0; done < b.N; done += round * nodes {
		for i, tick := range forms {
			began := time.Now()
			run(b, nodes, min(round*nodes, b.N-done), tick)
			spent[i] += time.Since(began)
		}
	}
	b.ReportMetric(spent[1].Seconds()/spent[0].Seconds(), "x")
}

// race makes that many nodes tick as fast as they can, b.N times in total, after connections and
// plans were made.
func race(b *testing.B, url string, nodes int, tick func(i int) error) {
	run(b, nodes, 20*nodes, tick)
	log := logPosition(b, url)
	b.ResetTimer()
	began := time.Now()
	run(b, nodes, b.N, tick)
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "ticks/s")
	b.StopTimer()
	b.ReportMetric(float64(logPosition(b, url)-log)/float64(b.N), "WAL-B/tick")
}

// logPosition returns how many bytes the server has written to its log.
func logPosition(b *testing.B, url string) (bytes int64) {
	b.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, "select (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&bytes); err != nil {
		b.Fatal(err)
	}
	return bytes
}

func run(b *testing.B, nodes, ticks int, tick func(i int) error) {
	var left atomic.Int64
	left.Store(int64(ticks))
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := tick(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// batchForm makes a cluster on a store and returns the heartbeat of its i-th node. The first is the
// leader, the others are followers.
func batchForm(b *testing.B, url, schema string, nodes int) func(i int) error {
	b.Helper()
	ctx := context.Background()
	store := open(b, postgres.Config{URL: url, Schema: schema, AutoMigrate: true, MaxConns: max(nodes, 4)})
	beats := make([]storage.Heartbeat, nodes)
	var term node.Term
	var changes []storage.Change
	for i := range beats {
		beats[i] = storage.Heartbeat{
			Node: node.Identity{
				Name: fmt.Sprintf("node-%d", i), ID: node.ID(fmt.Sprintf("0198c5a2-0001-7000-8000-%012d", i)),
				Incarnation: node.Incarnation(fmt.Sprintf("0198c5a2-0002-7000-8000-%012d", i)),
			},
			Advert: &daemon.Advert{Traits: node.Traits{Version: "v1", Capacity: 4, Labels: map[string]string{"zone": "a"}}},
			Seq:    1, TTL: time.Minute, TermRequest: storage.TermRequest{Campaign: i == 0, Lease: time.Hour},
		}
		reply, err := store.Heartbeat(ctx, beats[i])
		if err != nil {
			b.Fatal(err)
		}
		if i == 0 {
			term = reply.Term
		}
		beats[i].Advert, beats[i].TermRequest = nil, storage.TermRequest{}
		for k := range 2 {
			u := daemon.Unit{Daemon: "acme:bench", Index: 2*i + k}
			changes = append(changes, storage.Change{Unit: u},
				storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: beats[i].Node})
		}
	}
	if _, err := store.Commit(ctx, storage.Commit{Term: term.Ref(), Changes: changes}); err != nil {
		b.Fatal(err)
	}
	beats[0].TermRequest = storage.TermRequest{Renew: term.Number, Lease: time.Hour}
	page, err := store.Events(ctx, 0, 1)
	if err != nil {
		b.Fatal(err)
	}
	return func(i int) error {
		beat := &beats[i]
		beat.Seq++
		beat.ConfirmedSeq, beat.EventsAfter = beat.Seq-1, page.Head
		reply, err := store.Heartbeat(ctx, *beat)
		if err == nil && len(reply.Units) != 2 {
			err = fmt.Errorf("%d units, want 2", len(reply.Units))
		}
		return err
	}
}

// fourForm returns the tick of the i-th node in the four-statement form.
func fourForm(b *testing.B, url, schema string, nodes int, mode pgx.QueryExecMode) func(i int) error {
	b.Helper()
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		b.Fatal(err)
	}
	cfg.MaxConns = int32(max(nodes, 4))
	cfg.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	in := strings.NewReplacer("four.", schema+".", "schema four", "schema "+schema).Replace
	_, err = pool.Exec(ctx, in(`create schema four;
		create table four.node (id text primary key, name text not null, last_seen_at timestamptz not null);
		create table four.leader (name text primary key, node text not null, term bigint not null, expires_at timestamptz not null);
		create table four.assignment (daemon text primary key, node text not null, state text not null, generation bigint not null,
			assigned_at timestamptz not null, deadline timestamptz);
		create index on four.assignment (node);
		insert into four.assignment select 'acme:bench/' || g, 'node-' || g / 2, 'active', 1, now() from generate_series(0, 31) g;
		insert into four.node select 'node-' || g, 'node-' || g, now() from generate_series(0, 15) g;
		insert into four.leader values ('leader', 'node-0', 1, now() + interval '1 minute');`),
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		b.Fatal(err)
	}
	upsertSQL := in(`insert into four.node (id, name, last_seen_at) values ($1, $1, clock_timestamp())
		on conflict (id) do update set name = excluded.name, last_seen_at = excluded.last_seen_at`)
	electSQL := in(`insert into four.leader (name, node, term, expires_at) values ('leader', $1, 1, clock_timestamp() + interval '1 minute')
		on conflict (name) do update set node = excluded.node, expires_at = excluded.expires_at,
			term = case when four.leader.node = excluded.node then four.leader.term else four.leader.term + 1 end
		where four.leader.node = excluded.node or four.leader.expires_at < clock_timestamp()`)
	leaderSQL := in(`select node, term, expires_at from four.leader where name = 'leader'`)
	unitsSQL := in(`select daemon, node, state, generation, assigned_at, deadline from four.assignment where node = $1`)
	return func(i int) error {
		name := fmt.Sprintf("node-%d", i)
		_, upsert := pool.Exec(ctx, upsertSQL, name)
		_, elect := pool.Exec(ctx, electSQL, name)
		var leader string
		var term int64
		var expires time.Time
		read := pool.QueryRow(ctx, leaderSQL).Scan(&leader, &term, &expires)
		rows, err := pool.Query(ctx, unitsSQL, name)
		if err == nil {
			var got int
			for rows.Next() {
				var d, n, s string
				var g int64
				var at time.Time
				var deadline *time.Time
				err = errors.Join(err, rows.Scan(&d, &n, &s, &g, &at, &deadline))
				got++
			}
			err = errors.Join(err, rows.Err())
			if got != 2 {
				err = errors.Join(err, fmt.Errorf("%d units, want 2", got))
			}
		}
		return errors.Join(upsert, elect, read, err)
	}
}

// bareForm does what the four statements do as one message, in the schema of a fourForm.
func bareForm(b *testing.B, url, schema string, nodes int) func(i int) error {
	b.Helper()
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		b.Fatal(err)
	}
	cfg.MaxConns = int32(max(nodes, 4))
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	texts := make([]string, nodes)
	for i := range texts {
		texts[i] = strings.NewReplacer("four.", schema+".", "$1", fmt.Sprintf("'node-%d'", i)).Replace(
			`update four.node set name = $1, last_seen_at = clock_timestamp() where id = $1;
			update four.leader set expires_at = clock_timestamp() + interval '1 minute' where name = 'leader' and node = $1;
			select node, term, expires_at from four.leader where name = 'leader';
			select daemon, node, state, generation, assigned_at, deadline from four.assignment where node = $1`)
	}
	return func(i int) error {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		results, err := conn.Conn().PgConn().Exec(ctx, texts[i]).ReadAll()
		if err == nil && (len(results) != 4 || len(results[3].Rows) != 2) {
			err = fmt.Errorf("%d answers, want 4, with 2 units", len(results))
		}
		return err
	}
}
