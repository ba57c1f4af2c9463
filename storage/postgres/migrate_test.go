package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// bare is a configuration of the owner, for a schema that does not exist.
func (s *stage) bare() postgres.Config {
	return postgres.Config{URL: s.url, Schema: fmt.Sprintf("s%d", s.n.Add(1))}
}

// steps returns which steps of the status were applied.
func steps(t *testing.T, cfg postgres.Config) (taken []bool) {
	t.Helper()
	all, err := postgres.MigrationStatus(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range all {
		if m.Version != i+1 || m.Name == "" {
			t.Errorf("step %d is %+v", i+1, m)
		}
		taken = append(taken, !m.AppliedAt.IsZero())
	}
	return taken
}

// The status of a database shows what was applied: nothing if there is no schema, nothing if the
// schema is empty, and nothing again after migrating down.
func TestMigrationStatus(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.bare()
	want := func(taken bool) {
		t.Helper()
		got := steps(t, cfg)
		if len(got) != postgres.Version {
			t.Fatalf("%d steps, want %d", len(got), postgres.Version)
		}
		for i, have := range got {
			if have != taken {
				t.Errorf("step %d: applied %v, want %v", i+1, have, taken)
			}
		}
	}
	want(false)
	s.exec(t, "create schema "+cfg.Schema)
	want(false)
	migrate(t, cfg, postgres.Version, postgres.Version)
	want(true)
	migrate(t, cfg, postgres.Version, 0)
	migrate(t, cfg, 0, postgres.Version)
	want(false)
	if n := value[int](t, s, "select count(*) from pg_class where relnamespace = $1::regnamespace", cfg.Schema); n != 0 {
		t.Errorf("%d tables and indexes are left", n)
	}
	if n := value[int](t, s, "select count(*) from pg_proc where pronamespace = $1::regnamespace", cfg.Schema); n != 0 {
		t.Errorf("%d functions are left", n)
	}
}

// migrate migrates to a version and expects that many steps.
func migrate(t *testing.T, cfg postgres.Config, target, want int) {
	t.Helper()
	taken, err := postgres.Migrate(context.Background(), cfg, target)
	if err != nil || len(taken) != want {
		t.Fatalf("migrate to %d: %d steps, want %d: %v", target, len(taken), want, err)
	}
}

// Programs that start at the same time apply each step once.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.bare()
	var all []<-chan result[[]postgres.Migration]
	for range 4 {
		all = append(all, later(func() ([]postgres.Migration, error) {
			return postgres.Migrate(context.Background(), cfg, postgres.Version)
		}))
	}
	taken := 0
	for _, c := range all {
		taken += len(await(t, "a migration", c).get(t))
	}
	if taken != postgres.Version {
		t.Errorf("%d steps were taken, want %d", taken, postgres.Version)
	}
}

// While a schema is being created, and after the creation was interrupted, other programs see nothing of it. They would take
// a part of it for the schema of an older program, and refuse it.
func TestNobodySeesHalfASchema(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.bare()
	s.exec(t, "create schema "+cfg.Schema)
	middle := s.begin(t, "create table "+cfg.Schema+".unit_state ()") // a late step waits for this
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := later(func() ([]postgres.Migration, error) { return postgres.Migrate(ctx, cfg, postgres.Version) })
	s.blocked(t, 1)
	nothing := func(when string) {
		t.Helper()
		if taken := steps(t, cfg); slices.Contains(taken, true) {
			t.Errorf("%s: steps %v are there", when, taken)
		}
	}
	nothing("during the creation")
	cancel()
	if r := await(t, "the stopped creation", stopped); r.err == nil {
		t.Error("the creation was not stopped")
	}
	nothing("after a creation that was stopped")
	if err := middle.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	migrate(t, cfg, postgres.Version, postgres.Version)
}

// A program that is stopped in the middle of a migration does not block others for long.
func TestStoppedMigrationIsRolledBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.bare()
	proxy := pgtest.NewProxy(t, cfg.URL)
	through := cfg
	through.URL = proxy.URL()
	middle := s.begin(t, "create schema "+cfg.Schema) // of which it is not known yet whether it commits
	migrate := func(ctx context.Context, cfg postgres.Config) <-chan result[[]postgres.Migration] {
		return later(func() ([]postgres.Migration, error) { return postgres.Migrate(ctx, cfg, postgres.Version) })
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := migrate(ctx, through)
	s.blocked(t, 1)
	proxy.Stall(true)
	if err := middle.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if taken := await(t, "the other migration", migrate(context.Background(), cfg)).get(t); len(taken) != postgres.Version {
		t.Errorf("%d steps were taken, want %d", len(taken), postgres.Version)
	}
	proxy.Stall(false)
	cancel()
	await(t, "the stopped migration", stopped)
}

// The text that is printed for a database that the program may not change creates the same schema.
func TestMigrationSQL(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.bare()
	run := func(version int, up bool) {
		t.Helper()
		text, err := postgres.MigrationSQL(cfg, version, up)
		if err != nil {
			t.Fatal(err)
		}
		s.exec(t, "begin;\n"+text+"commit;\n")
	}
	for version := 1; version <= postgres.Version; version++ {
		run(version, true)
	}
	join(t, open(t, cfg), "a").beat()
	other := s.bare()
	migrate(t, other, postgres.Version, postgres.Version)
	const shape = `select string_agg(line, e'\n' order by line) from (
		select concat_ws(' ', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, c.reloptions) as line
		from pg_class c join pg_attribute a on a.attrelid = c.oid
		where c.relnamespace = $1::text::regnamespace and a.attnum > 0
		union all
		select replace(pg_get_functiondef(p.oid), $1::text, 'schema') from pg_proc p where p.pronamespace = $1::text::regnamespace) as x`
	if a, b := value[string](t, s, shape, cfg.Schema), value[string](t, s, shape, other.Schema); a != b {
		t.Errorf("the printed schema is another:\n%s\n%s", a, b)
	}
	for version := postgres.Version; version >= 1; version-- {
		run(version, false)
	}
	if _, err := postgres.OpenConfig(context.Background(), cfg); !errors.Is(err, storage.ErrSchema) {
		t.Errorf("error %v after the way down", err)
	}
	for _, version := range []int{0, postgres.Version + 1} {
		if _, err := postgres.MigrationSQL(cfg, version, true); err == nil {
			t.Errorf("version %d was printed", version)
		}
	}
}

// A store opens only on a schema that fits. An older schema is refused, and so is a newer one that
// this program does not understand; the error says what to do. A newer one that this program works
// with is accepted.
func TestOpenWantsItsSchema(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		migrate bool
		spoil   string // what to change in the schema
		have    int
		hint    string // empty: the store opens
	}{
		{"no schema", false, "", 0, "emitd migrate up"},
		{"an empty schema", false, "create schema %s", 0, "emitd migrate up"},
		{"an older schema", true, "delete from %s.migration where version = (select max(version) from %[1]s.migration)", postgres.Version - 1, "emitd migrate up"},
		{"a newer schema", true, "insert into %s.migration (version, name, compatible) values (99, 'later', 99)", 99, "upgrade"},
		{"a newer schema that is compatible", true, "insert into %s.migration (version, name, compatible) values (99, 'later', 1)", 99, ""},
		{"its own schema", true, "select '%s'", postgres.Version, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			cfg := s.bare()
			if tt.migrate {
				migrate(t, cfg, postgres.Version, postgres.Version)
			}
			if tt.spoil != "" {
				s.exec(t, fmt.Sprintf(tt.spoil, cfg.Schema))
			}
			store, err := postgres.OpenConfig(context.Background(), cfg)
			if tt.hint == "" {
				if err != nil {
					t.Fatal(err)
				}
				store.Close()
				return
			}
			var schema *storage.SchemaError
			if !errors.As(err, &schema) || schema.Have != tt.have || schema.Want != postgres.Version || !strings.Contains(schema.Hint, tt.hint) {
				t.Fatalf("error %v (%+v), want version %d and a hint of %q", err, schema, tt.have, tt.hint)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error holds the password: %v", err)
			}
		})
	}
}

// A deployment migrates first: programs that need an earlier version go on after the newest was applied, and find the
// functions that they call. This program is refused until then, and after the way back.
func TestProgramsOfAllVersions(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.bare()
	migrate(t, cfg, 1, 1)
	refused := func(have int) {
		t.Helper()
		var schema *storage.SchemaError
		if _, err := postgres.OpenConfig(context.Background(), cfg); !errors.As(err, &schema) || schema.Have != have || !strings.Contains(schema.Hint, "emitd migrate up") {
			t.Errorf("error %v, want that the schema is at version %d, and what to run", err, have)
		}
	}
	refused(1)
	s.exec(t, "create function "+cfg.Schema+".heartbeat_1() returns void language sql as ''") // as the first programs did
	migrate(t, cfg, 2, 1)
	refused(2)
	migrate(t, cfg, postgres.Version, postgres.Version-2)
	join(t, open(t, cfg), "a").beat()
	if oldest := value[int](t, s, "select max(compatible) from "+cfg.Schema+".migration"); oldest != 1 {
		t.Errorf("programs of version %d and newer may go on, want 1", oldest)
	}
	s.exec(t, "select "+cfg.Schema+".heartbeat_1()")
	s.exec(t, "select "+cfg.Schema+".heartbeat_2('1000', 'nobody', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)")
	const anyRevision = "'00000000-0000-0000-0000-000000000000'"
	s.exec(t, "select "+cfg.Schema+".register_7('1000', 'old', 'old', 'old', 1000000, 1, 0, 0, 0, false, 'hash', '{}', '{}', '', 0, 0, false)")
	s.exec(t, "select "+cfg.Schema+".heartbeat_4('1000', 'old', 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, "+anyRevision+")")
	if seq := value[int](t, s, "select seq from "+cfg.Schema+".node where name = 'old'"); seq != 2 {
		t.Errorf("the row of an earlier program has heartbeat %d, want 2", seq)
	}
	migrate(t, cfg, 1, postgres.Version-1)
	refused(1)
	migrate(t, cfg, 0, 1)
}

// A schema that goes back while programs run is refused with the version that it has then.
func TestSchemaGoesBackUnderAStore(t *testing.T) {
	t.Parallel()
	for _, target := range []int{3, 6, 7} {
		s := newStage(t)
		cfg := s.bare()
		migrate(t, cfg, postgres.Version, postgres.Version)
		a := join(t, open(t, cfg), "a")
		migrate(t, cfg, target, postgres.Version-target)
		for what, edit := range map[string]func(*storage.Heartbeat){
			"a heartbeat":    func(*storage.Heartbeat) {},
			"a registration": func(b *storage.Heartbeat) { b.Advert = &daemon.Advert{} },
		} {
			var schema *storage.SchemaError
			if _, err := a.try(edit); !errors.As(err, &schema) || schema.Have != target || schema.Want != postgres.Version {
				t.Errorf("%s: error %v, want that the schema is at version %d", what, err, target)
			}
		}
	}
}

// No program migrates a schema that a newer program has migrated further.
func TestMigrateLeavesNewerAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.bare()
	migrate(t, cfg, postgres.Version, postgres.Version)
	s.exec(t, "insert into "+cfg.Schema+".migration (version, name, compatible) values (99, 'later', 1)")
	for _, target := range []int{0, postgres.Version} {
		var schema *storage.SchemaError
		if taken, err := postgres.Migrate(context.Background(), cfg, target); !errors.As(err, &schema) || schema.Have != 99 || len(taken) != 0 {
			t.Errorf("migrate to %d: %v, error %v", target, taken, err)
		}
	}
	if _, err := postgres.Migrate(context.Background(), cfg, postgres.Version+1); err == nil {
		t.Error("a version that does not exist was migrated to")
	}
	all, err := postgres.MigrationStatus(context.Background(), cfg)
	if err != nil || len(all) != postgres.Version+1 || all[len(all)-1].Version != 99 {
		t.Errorf("status %+v, error %v", all, err)
	}
}

// A role that may use the tables but not create any opens the store and cannot migrate; the error
// says so.
func TestMigrateNeedsRights(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.bare()
	cfg.URL = s.user
	if _, err := postgres.Migrate(context.Background(), cfg, postgres.Version); err == nil || !strings.Contains(err.Error(), "may not create the tables of schema "+cfg.Schema) ||
		!strings.Contains(err.Error(), "emitd migrate get") || strings.Contains(err.Error(), "grant usage") {
		t.Errorf("error %v, want what is missing", err)
	}
	if _, err := postgres.OpenConfig(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "Config.AutoMigrate") {
		t.Errorf("error %v, want how a program makes the tables", err)
	}
}
