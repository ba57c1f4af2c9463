// Package pgtest gives tests and drills a real Postgres of their own.
//
// # What it promises
//
//   - [Database] is a new, empty database for one test, on one private server per test binary. The
//     server starts with the first test that needs it, and [Main] stops it.
//   - A [Server] lives in a temporary folder of its own. It listens on a free loopback port and on
//     a socket in that folder, and trusts every client. It can be stopped in each of Postgres'
//     ways, killed, restarted, cloned as a standby, promoted, and given a wrong clock.
//   - No process outlives the test binary, even if that is killed with SIGKILL (on Linux: the
//     kernel signals the server). The package never touches existing clusters of the machine.
//   - Postgres refuses to run as root. If the tests run as root, the server runs as the user
//     postgres, or nobody if there is none.
//
// # Where the binaries come from
//
// EMITD_TEST_PG_BIN (a folder with initdb and postgres), else the output of pg_config --bindir,
// else the newest of /usr/lib/postgresql/*/bin. EMITD_TEST_POSTGRES_URL replaces the private
// server: databases are then created there, by the role in the URL. If a component is missing, the
// test fails with a line that says how to get it. Nothing is skipped.
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Install says how to get a missing Postgres.
const Install = "make deps, or apt-get install postgresql"

// sharedServer is the server of this test binary.
var sharedServer struct {
	sync.Mutex
	server    *Server
	err       error
	templates map[string]string // database by key
}

// Main runs the tests of a package, stops its server and exits. Call it from TestMain.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run does what [Main] does, but returns the exit code instead of ending the process, for a TestMain that has more to
// clean up.
func Run(m *testing.M) int {
	code := m.Run()
	sharedServer.Lock()
	if sharedServer.server != nil {
		if err := sharedServer.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
	}
	sharedServer.Unlock()
	return code
}

// Database creates an empty database and returns its URL. It is dropped when the test ends, even if
// clients are still connected.
func Database(t testing.TB) string {
	t.Helper()
	return create(t, "template1")
}

// Template is like [Database]; the function prepare has filled the database. prepare runs once per key in this test
// binary; every further call copies its result.
func Template(t testing.TB, key string, prepare func(url string) error) string {
	t.Helper()
	sharedServer.Lock()
	defer sharedServer.Unlock()
	name, ok := sharedServer.templates[key]
	if !ok {
		base := adminURL(t)
		name = unique("template")
		admin(t, base, "create database "+name)
		if err := prepare(with(base, name)); err != nil {
			t.Fatalf("pgtest: prepare the template %s: %v", key, err)
		}
		if sharedServer.templates == nil {
			sharedServer.templates = map[string]string{}
		}
		sharedServer.templates[key] = name
	}
	return createLocked(t, name)
}

func create(t testing.TB, template string) string {
	t.Helper()
	sharedServer.Lock()
	defer sharedServer.Unlock()
	return createLocked(t, template)
}

// createLocked copies one database at a time, because Postgres refuses to copy a database that is
// being copied.
func createLocked(t testing.TB, template string) string {
	t.Helper()
	base := adminURL(t)
	name := unique("test")
	admin(t, base, "create database "+name+" template "+template)
	t.Cleanup(func() { admin(t, base, "drop database if exists "+name+" with (force)") })
	return with(base, name)
}

// adminURL returns the URL of a database from which others are created. The caller holds the lock.
func adminURL(t testing.TB) string {
	t.Helper()
	if given := os.Getenv("EMITD_TEST_POSTGRES_URL"); given != "" {
		return given
	}
	if sharedServer.server == nil && sharedServer.err == nil {
		sharedServer.server, sharedServer.err = Start(Config{})
	}
	if sharedServer.err != nil {
		t.Fatal(sharedServer.err)
	}
	return sharedServer.server.URL("postgres")
}

// admin runs one statement.
func admin(t testing.TB, base, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// with returns the URL of another database on the same server.
func with(base, database string) string {
	u, err := url.Parse(base)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		panic("pgtest: EMITD_TEST_POSTGRES_URL is not a postgres:// URL")
	}
	u.Path = "/" + database
	return u.String()
}

// WithUser returns the URL with another user and password.
func WithUser(base, user, password string) string {
	u, err := url.Parse(base)
	if err != nil {
		panic("pgtest: " + err.Error())
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// unique returns a name for a database or role that no other test binary on the same server has.
func unique(kind string) string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return "emitd_" + kind + "_" + hex.EncodeToString(b[:])
}

// Role creates a role that can log in and owns nothing. It is dropped when the test ends, together
// with what was granted to it in the database of the URL.
func Role(t testing.TB, base string) string {
	t.Helper()
	name := unique("role")
	admin(t, base, "create role "+name+" login password 'secret'")
	t.Cleanup(func() {
		admin(t, base, "drop owned by "+name)
		admin(t, base, "drop role "+name)
	})
	return name
}

// errMissing says that a component is missing and how to get it.
func errMissing(what, install string) error {
	return errors.New("pgtest: " + what + " not found: " + install)
}
