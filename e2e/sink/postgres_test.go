package sink_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
	sinkpkg "github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/postgres"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// faults makes a table refuse rows by ID.
const faults = `
create table fault (id uuid primary key, kind text);
create function failing() returns trigger language plpgsql as $$
begin
	case (select kind from fault where id = new.id)
	when 'refuse' then raise exception 'no such tenant';
	when 'falter' then raise exception 'busy' using errcode = '55P03';
	when 'hang' then perform pg_sleep(3);
	when 'wait' then perform pg_advisory_xact_lock(4711);
	else null;
	end case;
	return new;
end $$;
create trigger failing before insert on emitd_sink.message for each row execute function failing();
`

// database is a target database.
type database struct {
	url  string
	pool *pgxpool.Pool
}

func newDatabase(t testing.TB) *database {
	t.Helper()
	d := &database{url: pgtest.Database(t)}
	var err error
	if d.pool, err = pgxpool.New(t.Context(), d.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.pool.Close)
	s := d.open(t, postgres.Config{})
	d.exec(t, s.Schema()+faults)
	return d
}

func (d *database) open(t testing.TB, cfg postgres.Config) *postgres.Sink {
	t.Helper()
	cfg.URL = sinkpkg.Secret(d.url)
	s, err := postgres.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (d *database) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (d *database) fail(t *testing.T, f sinktest.Fault, ids []uuid.UUID) {
	t.Helper()
	if f == sinktest.Down {
		name := d.pool.Config().ConnConfig.Database
		d.pool.Close()
		admin, err := pgx.Connect(t.Context(), strings.Replace(d.url, name, "postgres", 1))
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close(t.Context())
		if _, err := admin.Exec(t.Context(), "drop database "+name+" with (force)"); err != nil {
			t.Fatal(err)
		}
		return
	}
	d.exec(t, "delete from fault")
	d.exec(t, "insert into fault select unnest($1::uuid[]), $2", ids, string(f))
}

func (d *database) received(t *testing.T) []sinktest.Taken {
	t.Helper()
	rows, err := d.pool.Query(t.Context(), "select id::text, coalesce(key, '') from emitd_sink.message order by delivered_at, ctid")
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (m sinktest.Taken, err error) {
		return m, r.Scan(&m.ID, &m.Key)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	sinktest.Suite{Dedup: true, New: func(t *testing.T) *sinktest.Harness {
		d := newDatabase(t)
		return &sinktest.Harness{Sink: d.open(t, postgres.Config{}), Received: d.received, Fail: d.fail}
	}}.Run(t)
}

func TestPostgresFence(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	t.Run("story", fence{
		topic: "orders", compares: true, received: d.received,
		open: func(t *testing.T) fencer { return d.open(t, postgres.Config{}) },
	}.run)
}

// TestPostgresTakeOverWaitsForWhatIsUnderWay checks that a delivery in flight delays the takeover, so
// that its rows are there when the new relay begins.
func TestPostgresTakeOverWaitsForWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	old, young := d.open(t, postgres.Config{}), d.open(t, postgres.Config{})
	all(t, []error{raise(t, old, "0-63", 5)}, nil)
	rows := sinktest.Rows("orders", 5, 2)
	d.fail(t, "wait", []uuid.UUID{rows[4].ID})

	holder, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context()))
	if _, err := holder.Exec(t.Context(), "select pg_advisory_xact_lock(4711)"); err != nil {
		t.Fatal(err)
	}
	delivered := make(chan []error, 1)
	go func() {
		delivered <- old.Deliver(t.Context(), outbox.Delivery{Subscription: "billing", Range: "0-63", Epoch: 5, Rows: rows})
	}()
	d.waiting(t, 1)
	fenced := make(chan error, 1)
	go func() { fenced <- young.Fence(t.Context(), "billing", "0-63", 6) }()
	d.waiting(t, 2)
	select {
	case err := <-fenced:
		t.Fatalf("the take-over went past a delivery that is under way: %v", err)
	default:
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if errs := <-delivered; errs != nil {
		t.Fatal(errs)
	}
	if err := <-fenced; err != nil {
		t.Fatal(err)
	}
	all(t, deliver(t, old, "0-63", 5, rows), outbox.ErrFenced)
	all(t, deliver(t, young, "0-63", 6, rows), nil)
	if n := len(d.received(t)); n != 5 {
		t.Errorf("%d messages, want 5", n)
	}
}

// TestPostgresTakeOverFromAStoppedRelay checks that a relay that stops in the middle of a delivery blocks
// its successor only until the database's timeout, and that nothing of that delivery is visible.
func TestPostgresTakeOverFromAStoppedRelay(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	u, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, u.Host)
	u.Host = w.addr()
	old, err := postgres.New(t.Context(), postgres.Config{URL: sinkpkg.Secret(u.String())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = old.Close() })
	young := d.open(t, postgres.Config{})
	all(t, []error{raise(t, old, "0-63", 5)}, nil)
	rows := sinktest.Rows("orders", 5, 2)
	d.fail(t, "wait", []uuid.UUID{rows[4].ID})

	holder, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context()))
	if _, err := holder.Exec(t.Context(), "select pg_advisory_xact_lock(4711)"); err != nil {
		t.Fatal(err)
	}
	delivered := make(chan []error, 1)
	go func() {
		delivered <- old.Deliver(t.Context(), outbox.Delivery{Subscription: "billing", Range: "0-63", Epoch: 5, Rows: rows})
	}()
	d.waiting(t, 1)
	w.hold(true) // it does not get the answers to its statements, so it will not commit
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	bounded, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := young.Fence(bounded, "billing", "0-63", 6); err != nil {
		t.Fatalf("the take-over: %v", err)
	}
	if n := len(d.received(t)); n != 0 {
		t.Errorf("%d messages of a delivery that was rolled back", n)
	}
	all(t, deliver(t, young, "0-63", 6, rows), nil)
	w.hold(false)
	for i, err := range sinktest.Spread(<-delivered, len(rows)) {
		if err == nil || errors.Is(err, outbox.ErrPermanent) {
			t.Errorf("row %d of the stopped relay: %v, want another attempt", i, err)
		}
	}
	if n := len(d.received(t)); n != 5 {
		t.Errorf("%d messages, want 5", n)
	}
}

// TestPostgresStoppedWhileTablesAreMade checks that a relay that stops while it creates the tables blocks
// nothing.
func TestPostgresStoppedWhileTablesAreMade(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select pg_advisory_xact_lock(hashtextextended('emitd sink', 0))"); err != nil {
		t.Fatal(err)
	}
	proxy := pgtest.NewProxy(t, d.url)
	stopped, err := postgres.New(t.Context(), postgres.Config{Create: true, URL: sinkpkg.Secret(proxy.URL())})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = stopped.Fence(ctx, "billing", "0-63", 5)
	}()
	d.waiting(t, 1)
	proxy.Stall(true)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.open(t, postgres.Config{Create: true, Timeout: 10 * time.Second}).Fence(t.Context(), "billing", "0-63", 6); err != nil {
		t.Errorf("its successor: %v", err)
	}
	proxy.Stall(false)
	cancel()
	<-over
	_ = stopped.Close()
}

// waiting waits until a number of sessions wait for a lock.
func (d *database) waiting(t *testing.T, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d sessions wait for a lock", want), func() bool {
		var n int
		err := d.pool.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n >= want
	})
}

// TestPostgresStatementOnce checks that a user's statement takes effect once for each message, even if
// the message is delivered again by another relay, in another order, or twice at once.
func TestPostgresStatementOnce(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, "create table balance (tenant text primary key, amount int not null); insert into balance values ('acme', 0)")
	cfg := postgres.Config{Create: true, Schema: "side", Statement: `update balance set amount = amount + (convert_from(@payload, 'UTF8')::jsonb->>'n')::int
		where tenant = @headers::jsonb->>'tenant' and @id::uuid is not null`}
	rows := sinktest.Rows("orders", 20, 3)
	results := make(chan []error, 8)
	for i := range 4 {
		s := d.open(t, cfg)
		for range 2 {
			go func() {
				results <- deliver(t, s, "0-63", 5, append(rows[i:len(rows):len(rows)], rows[:i]...))
			}()
		}
	}
	for range 8 {
		all(t, <-results, nil)
	}
	var amount int
	if err := d.pool.QueryRow(t.Context(), "select amount from balance").Scan(&amount); err != nil {
		t.Fatal(err)
	}
	if want := 19 * 20 / 2; amount != want {
		t.Errorf("the sum is %d, want %d", amount, want)
	}
}

func TestPostgresColumns(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	s := d.open(t, postgres.Config{})
	row := sinktest.Rows("orders", 1, 1)[0]
	row.TraceParent, row.Payload = "00-a-b-01", []byte{0, 0xff}
	all(t, deliver(t, s, "0-63", 5, []outbox.Row{row}), nil)
	var got string
	err := d.pool.QueryRow(t.Context(), `select concat_ws('|', id, subscription, topic, key, type, headers->>'tenant', encode(payload, 'hex'), traceparent, tracestate,
		created_at at time zone 'UTC', delivered_at > created_at - interval '10 years') from emitd_sink.message`).Scan(&got)
	want := row.ID.String() + "|billing|orders|key-0|order.placed|acme|00ff|00-a-b-01|2026-11-20 09:00:00|t"
	if err != nil || got != want {
		t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
	}
}

// asPlainRole makes later connections use a role to which all policies apply, with rights on the existing
// tables.
const asPlainRole = `do $$ declare r text := current_database() || '_plain'; begin
	execute format('create role %I', r);
	execute format('grant usage on schema emitd_sink, public to %I', r);
	execute format('grant select, insert, update, delete on all tables in schema emitd_sink, public to %I', r);
	execute format('alter database %I set role = %I', current_database(), r);
end $$;`

func TestPostgresErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, sql, message string
		cfg                postgres.Config
		kind               error
	}{
		{name: "table is missing", sql: "drop table emitd_sink.message", kind: outbox.ErrSinkDown, message: `relation "emitd_sink.message" does not exist`},
		{name: "fence is missing", sql: "drop table emitd_sink.fence", kind: outbox.ErrSinkDown, message: "42P01"},
		{name: "other columns", sql: "alter table emitd_sink.message drop column topic", kind: outbox.ErrSinkDown, message: "42703"},
		{name: "read-only", sql: "do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$", kind: outbox.ErrSinkDown, message: "25006"},
		{name: "check", sql: "alter table emitd_sink.message add check (type <> 'order.placed')", kind: outbox.ErrPermanent, message: "23514"},
		{name: "foreign key", sql: "create table tenant (id text primary key); alter table emitd_sink.message add foreign key (topic) references tenant", message: "23503"},
		{name: "row-level security", sql: asPlainRole + "alter table emitd_sink.message enable row level security; create policy others on emitd_sink.message using (true) with check (topic <> 'orders')", message: "42501"},
		{name: "no rights", sql: asPlainRole + "do $$ begin execute format('revoke insert on emitd_sink.message from %I', current_database() || '_plain'); end $$", kind: outbox.ErrSinkDown, message: "42501"},
		{name: "bad statement", cfg: postgres.Config{Statement: "insert into nowhere values (@id)"}, kind: outbox.ErrSinkDown, message: "nowhere"},
		{name: "bad data", cfg: postgres.Config{Statement: "select @type::int / 1"}, kind: outbox.ErrPermanent, message: "22P02"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			if c.sql != "" {
				d.exec(t, c.sql)
			}
			rows := sinktest.Rows("orders", 3, 0)
			for i, err := range deliver(t, d.open(t, c.cfg), "0-63", 5, rows) {
				if err == nil || !strings.Contains(err.Error(), c.message) || errors.Is(err, outbox.ErrPermanent) != errors.Is(c.kind, outbox.ErrPermanent) ||
					errors.Is(err, outbox.ErrSinkDown) != errors.Is(c.kind, outbox.ErrSinkDown) {
					t.Errorf("row %d: %v, want %v with %s", i, err, c.kind, c.message)
				}
			}
		})
	}
}

func TestPostgresSecretsAndConfig(t *testing.T) {
	t.Parallel()
	s, err := postgres.New(t.Context(), postgres.Config{URL: "postgres://u:hunter2@127.0.0.1:1/db?connect_timeout=2"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, err := range deliver(t, s, "0-63", 5, sinktest.Rows("orders", 1, 1)) {
		if !errors.Is(err, outbox.ErrSinkDown) || strings.Contains(err.Error(), "hunter2") {
			t.Error(err)
		}
	}
	for want, cfg := range map[string]postgres.Config{
		"url is empty":                {},
		"url does not parse":          {URL: "postgres://u:hunter2@h:port/"},
		"must be names":               {URL: "postgres://h", Table: "a;b"},
		"must not be negative":        {URL: "postgres://h", Timeout: -time.Second},
		"names @payloud, want one of": {URL: "postgres://h", Statement: "select @payloud"},
		"\"a.b.c\" must be name":      {URL: "postgres://h", Table: "a.b.c"},
	} {
		if _, err := postgres.New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want …%s…", err, want)
		}
	}
}
