package pgtest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pooler starts PgBouncer in transaction mode before the server of a URL and returns the URL of
// the same database through it. It ends with the test.
func Pooler(t testing.TB, base string) string {
	t.Helper()
	bin, err := findPooler()
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal("pgtest: the URL does not parse")
	}
	dir, err := os.MkdirTemp("", "emitd-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	users := write("users", fmt.Sprintf("%q %q\n", u.User.Username(), password))
	// Three server connections for all clients: they change hands at every transaction.
	ini := write("ini", fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 3
server_idle_timeout = 5
`, u.Hostname(), u.Port(), port, users))
	if err := giveAway(dir); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-q", ini)
	cmd.SysProcAttr, cmd.Dir = attributes(syscall.SIGKILL), dir
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := launch(cmd)
	if err != nil {
		t.Fatalf("pgtest: start pgbouncer: %v", err)
	}
	t.Cleanup(func() {
		proc.signal(syscall.SIGKILL)
		<-proc.done
	})
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	pooled := u.String()
	if err := answers(proc, pooled); err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("pgtest: pgbouncer: %v\n%s", err, text)
	}
	return pooled
}

func findPooler() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errMissing("pgbouncer", "make deps, or apt-get install pgbouncer")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("pgtest: find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// answers waits until the server behind a URL answers.
func answers(proc *process, base string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, base)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-proc.done:
			return fmt.Errorf("ended at its start: %w", proc.err)
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
