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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/testproc"
)

// PgBouncer is a pooler in transaction mode.
type PgBouncer struct {
	URL string // of the database, through the pooler

	bin, dir string
	proc     *testproc.Process
}

// Pooler starts PgBouncer in transaction mode in front of the server of a URL. It returns the URL
// of the same database through it. The pooler ends with the test.
func Pooler(t testing.TB, base string) string {
	t.Helper()
	return NewPgBouncer(t, base).URL
}

// NewPgBouncer is Pooler for tests that restart the pooler. Settings are lines of its
// configuration.
func NewPgBouncer(t testing.TB, base string, settings ...string) *PgBouncer {
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
	b := &PgBouncer{bin: bin, dir: dir}
	for try := 1; ; try++ { // another process may take the port before pgbouncer does
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		if err := b.configure(u, port, settings); err != nil {
			t.Fatalf("pgtest: configure pgbouncer: %v", err)
		}
		pooled := *u
		pooled.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		b.URL = pooled.String()
		if err = b.start(); err == nil {
			t.Cleanup(b.kill)
			return b
		}
		if try == 5 {
			t.Fatal(err)
		}
	}
}

// configure writes the files.
func (b *PgBouncer) configure(server *url.URL, port int, settings []string) error {
	password, _ := server.User.Password()
	users := fmt.Sprintf("%q %q\n", server.User.Username(), password)
	// All clients share three server connections, so these change hands at every transaction.
	ini := fmt.Sprintf(`[databases]
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
%s
`, server.Hostname(), server.Port(), port, filepath.Join(b.dir, "users"), strings.Join(settings, "\n"))
	for name, text := range map[string]string{"users": users, "ini": ini} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return giveAway(b.dir)
}

// amend adds settings to the configuration. Of two with one name, the later one counts.
func (b *PgBouncer) amend(settings []string) error {
	ini := filepath.Join(b.dir, "ini")
	text, err := os.ReadFile(ini)
	if err != nil {
		return err
	}
	return os.WriteFile(ini, append(text, strings.Join(settings, "\n")+"\n"...), 0o644)
}

// start runs the process and waits until it answers.
func (b *PgBouncer) start() error {
	cmd := exec.Command(b.bin, "-q", filepath.Join(b.dir, "ini"))
	cmd.SysProcAttr, cmd.Dir = attributes(syscall.SIGKILL), b.dir
	log, err := os.Create(filepath.Join(b.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if b.proc, err = testproc.Start(cmd); err != nil {
		return fmt.Errorf("pgtest: start pgbouncer: %w", err)
	}
	if err := answers(b.proc, b.URL); err != nil {
		b.kill()
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("pgtest: pgbouncer: %w\n%s", err, text)
	}
	return nil
}

func (b *PgBouncer) kill() {
	b.proc.Signal(syscall.SIGKILL)
	<-b.proc.Done
}

// Restart kills the process, and with it all connections, and starts it again at the same address. Further settings
// replace those with the same names.
func (b *PgBouncer) Restart(t testing.TB, settings ...string) {
	t.Helper()
	b.kill()
	if err := b.amend(settings); err != nil {
		t.Fatal(err)
	}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
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
func answers(proc *testproc.Process, base string) error {
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
		case <-proc.Done:
			return fmt.Errorf("ended at its start: %w", proc.Err())
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
