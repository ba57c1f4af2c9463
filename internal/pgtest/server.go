package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/testproc"
)

// Config configures a server. The zero value is a small server that does not wait for the disk.
type Config struct {
	// Settings are written into postgresql.conf.
	Settings map[string]string
	// HBA are lines of pg_hba.conf, before the ones that trust every client.
	HBA []string
	// Durable makes commits wait for the disk, as in production. Benchmarks need it.
	Durable bool
	// FakeTime gives the server a clock of its own; see Server.StepClock.
	FakeTime bool
}

// Mode is a way to stop a server; the names are those of pg_ctl.
type Mode syscall.Signal

// The ways to stop a server.
const (
	Fast      = Mode(syscall.SIGINT)  // roll back and disconnect everybody, write a checkpoint
	Immediate = Mode(syscall.SIGQUIT) // no checkpoint: the next start recovers
	Kill      = Mode(syscall.SIGKILL) // like a kill by the kernel
)

// Server is one private Postgres. It is not safe for concurrent use.
type Server struct {
	Port int
	dir  string // holds data, log, the socket and the clock's offset
	bin  string
	cfg  Config
	proc *testproc.Process
}

// Start creates a data directory (what Postgres calls a cluster) and starts a server on it.
func Start(cfg Config) (*Server, error) {
	s, err := newServer(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.initialise(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newServer makes the folder.
func newServer(cfg Config) (*Server, error) {
	bin, err := Binaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "emitd-pg-")
	if err != nil {
		return nil, fmt.Errorf("pgtest: make a folder: %w", err)
	}
	s := &Server{dir: dir, bin: bin, cfg: cfg}
	if err := giveAway(dir); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) initialise() error {
	// initdb need not flush its files: they are deleted after the test. Whether commits are flushed is a setting of
	// its own.
	err := s.run("initdb", "-D", s.Data(), "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8")
	if err != nil {
		return err
	}
	return s.configure()
}

// configure appends to the files that initdb or pg_basebackup wrote. Of several settings the last
// one counts.
func (s *Server) configure() error {
	settings := map[string]string{
		"listen_addresses": "127.0.0.1", "unix_socket_directories": s.dir,
		"max_connections": "200", "shared_buffers": "64MB",
		"log_min_messages": "warning", "timezone": "UTC", "log_timezone": "UTC",
	}
	if !s.cfg.Durable {
		// A server that is killed loses nothing without fsync: the kernel keeps running and has what was written.
		settings["fsync"] = "off"
	}
	maps.Copy(settings, s.cfg.Settings)
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = '%s'\n", key, strings.ReplaceAll(settings[key], "'", "''"))
	}
	if err := s.amend("postgresql.conf", func(old string) string { return old + "\n" + text.String() }); err != nil {
		return err
	}
	return s.amend("pg_hba.conf", func(old string) string { return strings.Join(append(slices.Clone(s.cfg.HBA), old), "\n") })
}

// amend rewrites a file in place, so that its owner and mode stay.
func (s *Server) amend(name string, change func(string) string) error {
	path := filepath.Join(s.Data(), name)
	old, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(change(string(old))), 0o600)
	}
	if err != nil {
		return fmt.Errorf("pgtest: configure: %w", err)
	}
	return nil
}

// run runs one of Postgres' tools to its end.
func (s *Server) run(tool string, args ...string) error {
	_, err := s.Tool(tool, args...)
	return err
}

// Tool runs one of Postgres' own programs, such as pg_ctl, as the server's user, and returns its
// output.
func (s *Server) Tool(tool string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(s.bin, tool), args...)
	cmd.SysProcAttr = attributes(0)
	cmd.Env, cmd.Dir = s.environment(), s.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("pgtest: %s: %w\n%s", tool, err, out)
	}
	return string(out), nil
}

// environment is the server's environment: it has none of the test's PG* variables.
func (s *Server) environment() []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "HOME=" + s.dir}
	if lib := os.Getenv("LD_LIBRARY_PATH"); lib != "" {
		env = append(env, "LD_LIBRARY_PATH="+lib)
	}
	return env
}

// Start starts a stopped server, on the port it had.
func (s *Server) Start() error {
	if s.proc != nil {
		return errors.New("pgtest: the server runs already")
	}
	env := s.environment()
	if s.cfg.FakeTime {
		if err := s.StepClock(0); err != nil {
			return err
		}
		clock, err := s.preload()
		if err != nil {
			return err
		}
		env = append(env, clock...)
	}
	// Another process may have taken the port meanwhile, or children of a killed server may still
	// hold its shared memory for a moment.
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	var err error
	for range 100 {
		if err = s.start(env); err == nil {
			return nil
		}
		<-again.C
	}
	return err
}

func (s *Server) start(env []string) error {
	port := s.Port
	if port == 0 {
		var err error
		if port, err = freePort(); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("pgtest: open the log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.Data(), "-p", strconv.Itoa(port))
	cmd.SysProcAttr = attributes(syscall.SIGQUIT)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, s.dir, log, log
	proc, err := testproc.Start(cmd)
	if err != nil {
		return fmt.Errorf("pgtest: start postgres: %w", err)
	}
	if err := s.ready(proc); err != nil {
		proc.Signal(syscall.SIGQUIT)
		<-proc.Done
		return err
	}
	s.Port, s.proc = port, proc
	return nil
}

// ready waits until the server writes in its own pid file that it accepts connections. A port that
// answers proves nothing, because it may be another server's.
func (s *Server) ready(proc *testproc.Process) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for {
		select {
		case <-proc.Done:
			return fmt.Errorf("pgtest: postgres ended at its start: %w\n%s", proc.Err(), s.Log())
		case <-late.C:
			return fmt.Errorf("pgtest: postgres was not ready in a minute\n%s", s.Log())
		case <-tick.C:
		}
		text, err := os.ReadFile(filepath.Join(s.Data(), "postmaster.pid"))
		lines := strings.Split(string(text), "\n")
		if err != nil || len(lines) < 8 || lines[0] != strconv.Itoa(proc.PID()) {
			continue
		}
		if state := strings.TrimSpace(lines[7]); state == "ready" || state == "standby" {
			return nil
		}
	}
}

// Stop stops the server and waits for its end. It does nothing if the server is stopped.
func (s *Server) Stop(mode Mode) error {
	if s.proc == nil {
		return nil
	}
	proc := s.proc
	s.proc = nil
	proc.Signal(syscall.Signal(mode))
	select {
	case <-proc.Done:
		return nil
	case <-time.After(time.Minute):
		proc.Signal(syscall.SIGQUIT)
		<-proc.Done
		return fmt.Errorf("pgtest: postgres did not stop in a minute and was ended\n%s", s.Log())
	}
}

// Restart stops the server in the given way and starts it again.
func (s *Server) Restart(mode Mode) error {
	if err := s.Stop(mode); err != nil {
		return err
	}
	return s.Start()
}

// Close ends the server and removes its folder.
func (s *Server) Close() error {
	return errors.Join(s.Stop(Immediate), os.RemoveAll(s.dir))
}

// Standby clones the running server and starts the clone as its streaming standby, which is
// asynchronous unless the settings say otherwise.
func (s *Server) Standby(cfg Config) (*Server, error) {
	clone, err := newServer(cfg)
	if err != nil {
		return nil, err
	}
	err = clone.run("pg_basebackup", "-D", clone.Data(), "-d", s.URL("postgres"), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	if err == nil {
		err = clone.configure()
	}
	if err == nil {
		err = clone.Start()
	}
	if err != nil {
		return nil, errors.Join(err, clone.Close())
	}
	return clone, nil
}

// Promote makes a standby a primary on a new timeline, and waits until it accepts writes.
func (s *Server) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("pgtest: promote: %w", err)
	}
	defer conn.Close(ctx)
	var ok bool
	if err := conn.QueryRow(ctx, "select pg_promote()").Scan(&ok); err != nil || !ok {
		return fmt.Errorf("pgtest: promote: %t, %w", ok, err)
	}
	return nil
}

// URL returns the URL of a database over TCP.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.Port, database)
}

// SocketURL returns the URL of a database over the Unix socket.
func (s *Server) SocketURL(database string) string {
	return fmt.Sprintf("postgres:///%s?host=%s&port=%d&user=postgres", database, s.dir, s.Port)
}

// Data returns the data folder.
func (s *Server) Data() string { return filepath.Join(s.dir, "data") }

// PID returns the process id of the running server, 0 if it is stopped.
func (s *Server) PID() int {
	if s.proc == nil {
		return 0
	}
	return s.proc.PID()
}

// Log returns the end of the server's log.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return ""
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(len(lines)-20, 0):], []byte("\n")))
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }
