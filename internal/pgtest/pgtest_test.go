//go:build unix

package pgtest_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/internal/pgtest"
)

// TestMain is also the binary that is killed; see TestKilled.
func TestMain(m *testing.M) {
	if os.Getenv("PGTEST_VICTIM") != "" {
		victim()
		return
	}
	pgtest.Main(m)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func request[T any](t *testing.T, conn *pgx.Conn, sql string) (v T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func report(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func start(t *testing.T, cfg pgtest.Config) *pgtest.Server {
	t.Helper()
	s, err := pgtest.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A database is new, belongs to one test, and is gone when the test has ended, even while a client
// is connected to it.
func TestDatabase(t *testing.T) {
	t.Parallel()
	outside := connect(t, pgtest.Database(t))
	var first string
	t.Run("inside", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), pgtest.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		report(t, conn, "create table mine (i int)") // stays connected
		first = request[string](t, conn, "select current_database()::text")
	})
	if first == request[string](t, outside, "select current_database()::text") {
		t.Fatal("two tests share a database")
	}
	if n := request[int](t, outside, "select count(*) from pg_database where datname = '"+first+"'"); n != 0 {
		t.Errorf("the database of a test that ended is still there")
	}
}

// A template is prepared once, and each test has a copy of its own.
func TestTemplate(t *testing.T) {
	t.Parallel()
	prepared := 0
	prepare := func(url string) error {
		prepared++
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(t.Context(), "create table thing (i int)")
		return errors.Join(err, conn.Close(t.Context()))
	}
	a := connect(t, pgtest.Template(t, "thing", prepare))
	b := connect(t, pgtest.Template(t, "thing", prepare))
	report(t, a, "insert into thing values (1)")
	if n := request[int](t, b, "select count(*) from thing"); n != 0 || prepared != 1 {
		t.Errorf("the copy has %d rows, prepared %d times; want 0 rows, once", n, prepared)
	}
}

// Committed data is there after every way of stopping.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := start(t, pgtest.Config{})
	report(t, connect(t, s.SocketURL("postgres")), "create table thing (i int)")
	for i, mode := range []pgtest.Mode{pgtest.Fast, pgtest.Immediate, pgtest.Kill} {
		report(t, connect(t, s.URL("postgres")), "insert into thing values (1)")
		if err := s.Restart(mode); err != nil {
			t.Fatalf("restart %d: %v", i, err)
		}
		if n := request[int](t, connect(t, s.URL("postgres")), "select count(*) from thing"); n != i+1 {
			t.Errorf("after end %d there are %d rows, want %d", i, n, i+1)
		}
	}
}

// A promoted standby accepts writes, on another timeline of the same system.
func TestFailover(t *testing.T) {
	t.Parallel()
	primary := start(t, pgtest.Config{})
	standby, err := primary.Standby(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Close() })
	const system = "select system_identifier::text from pg_control_system()"
	const timeline = "select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
	before := request[string](t, connect(t, primary.URL("postgres")), timeline)
	if err := primary.Stop(pgtest.Kill); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, standby.URL("postgres"))
	report(t, conn, "create table thing (i int)")
	if after := request[string](t, conn, timeline); after == before {
		t.Errorf("the timeline is still %s", after)
	}
	if request[string](t, conn, system) == "" {
		t.Error("no system identifier")
	}
}

// A server's clock steps while it runs, also for connections that are already open.
func TestStepClock(t *testing.T) {
	t.Parallel()
	s := start(t, pgtest.Config{FakeTime: true})
	conn := connect(t, s.URL("postgres"))
	ahead := func() time.Duration { return time.Until(request[time.Time](t, conn, "select clock_timestamp()")) }
	for _, want := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		if err := s.StepClock(want); err != nil {
			t.Fatal(err)
		}
		if got := ahead(); (got - want).Abs() > time.Minute {
			t.Errorf("the clock is %v ahead, want %v", got, want)
		}
	}
}

// The server reads its clock in signal handlers too: its timeouts end statements, never the server.
func TestSteppedClockIsReadInSignalHandlers(t *testing.T) {
	t.Parallel()
	s := start(t, pgtest.Config{FakeTime: true})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			conn, err := pgx.Connect(t.Context(), s.URL("postgres")+"&statement_timeout=2")
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			for range 500 {
				_, err := conn.Exec(t.Context(), `DO $$ BEGIN LOOP PERFORM clock_timestamp(), array_agg(repeat('x', 200)) FROM generate_series(1, 50); END LOOP; END $$`)
				if _, ok := errors.AsType[*pgconn.PgError](err); !ok || conn.IsClosed() {
					t.Errorf("a statement ended with %v; the server's log:\n%s", err, s.Log())
					return
				}
			}
		})
	}
	clients.Wait()
}

func TestPooler(t *testing.T) {
	t.Parallel()
	url := pgtest.Pooler(t, pgtest.Database(t))
	conn, err := pgx.Connect(t.Context(), url+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if n := request[int](t, conn, "select 1"); n != 1 {
		t.Error(n)
	}
}

// A request whose reply is lost was carried out. Stalled data arrives later. A cut connection is
// gone.
func TestProxy(t *testing.T) {
	t.Parallel()
	base := pgtest.Database(t)
	p := pgtest.NewProxy(t, base)
	direct, through := connect(t, base), connect(t, p.URL())
	report(t, through, "create table thing (i int)")

	p.LoseReplies(1)
	if _, err := through.Exec(t.Context(), "insert into thing values (1)"); err == nil {
		t.Error("the reply was not lost")
	}
	if n := request[int](t, direct, "select count(*) from thing"); n != 1 {
		t.Errorf("the statement whose reply was lost left %d rows, want 1", n)
	}

	through = connect(t, p.URL())
	before := p.Queries()
	p.Stall(true)
	answered := make(chan error, 1)
	go func() {
		_, err := through.Exec(context.Background(), "insert into thing values (2)", pgx.QueryExecModeSimpleProtocol)
		answered <- err
	}()
	for range 20 {
		if n := request[int](t, direct, "select count(*) from thing"); n != 1 {
			t.Fatalf("a stalled statement arrived")
		}
	}
	p.Stall(false)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if n := p.Queries() - before; n != 1 {
		t.Errorf("%d round trips were counted, want 1", n)
	}

	p.Cut()
	if _, err := through.Exec(t.Context(), "select 1"); err == nil {
		t.Error("a cut connection answers")
	}
}

// A missing server is an error that says how to get one.
func TestMissing(t *testing.T) {
	t.Setenv("EMITD_TEST_PG_BIN", t.TempDir())
	_, err := pgtest.Start(pgtest.Config{})
	if err == nil || !strings.Contains(err.Error(), pgtest.Install) {
		t.Errorf("error %v does not say %q", err, pgtest.Install)
	}
}

// victim starts a server, prints its process ID and waits to be killed.
func victim() {
	s, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(strconv.Itoa(s.PID()) + " " + s.Data() + "\n")
	select {}
}

// A test binary that is killed leaves no server behind.
func TestKilled(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PGTEST_VICTIM=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	text, data, _ := strings.Cut(strings.TrimSpace(line), " ")
	t.Cleanup(func() { os.RemoveAll(strings.TrimSuffix(data, "/data")) })
	pid, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(30 * time.Second)
	for syscall.Kill(pid, 0) == nil && !zombie(pid) {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("the server (pid %d) outlives the test binary", pid)
		}
	}
}

// zombie reports whether a process has ended and was not waited for, as on a system where no
// process adopts orphans.
func zombie(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(text), ") Z ")
}
