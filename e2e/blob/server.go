// Package blob tests the object stores against real servers: versitygw, an S3 gateway over a directory,
// fake-gcs-server, and the bucket in memory behind the S3 protocol. Each runs in a process of its own, so
// that it can be killed.
//
// The process is the test binary itself, started again with [serverVariable] set. A test package that
// uses Start calls [Main] from its TestMain.
package blob

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/gcs"
	"github.com/emitd/emitd/storage/blob/s3"
)

// Kind is a kind of server.
type Kind string

// The servers.
const (
	Versity Kind = "versitygw"
	FakeGCS Kind = "fake-gcs-server"
	Memory  Kind = "memory"
)

const (
	serverVariable = "EMITD_E2E_BLOB_SERVER" // kind,address,directory
	bucket         = "emitd-test"
	access         = "emitd-test-access"
	secret         = "emitd-test-secret"
	readyTimeout   = 30 * time.Second
)

// statusTaken is the exit status of a server whose port was taken.
const statusTaken = 98

// errTaken says that another process has the server's port.
var errTaken = errors.New("its port is taken")

// Main runs a server instead of the tests if the process was started as one.
func Main(m interface{ Run() int }) {
	if what := os.Getenv(serverVariable); what != "" {
		err := serve(what)
		fmt.Fprintln(os.Stderr, err)
		if strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) { // not every server wraps it
			os.Exit(statusTaken)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func serve(what string) error {
	part := strings.SplitN(what, ",", 3)
	if len(part) != 3 {
		return fmt.Errorf("%s=%q: want kind,address,directory", serverVariable, what)
	}
	// The server ends when the test that holds the other end of its standard input ends.
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	// A client that connects before this is printed may reach another process that was faster.
	l, err := net.Listen("tcp", part[1])
	if err != nil {
		return err
	}
	_ = l.Close()
	fmt.Println("the port is free")
	switch Kind(part[0]) {
	case FakeGCS:
		return serveGCS(part[1])
	case Memory:
		return serveMemory(part[1])
	}
	return serveVersity(part[1], part[2])
}

// Server is a server's process and its data.
type Server struct {
	kind    Kind
	address string
	dir     string

	mu    sync.Mutex
	cmd   *exec.Cmd
	in    *os.File
	ended chan struct{} // closed when the process has ended
}

// Start starts a server on an empty directory; it ends with the test.
func Start(t testing.TB, kind Kind) *Server {
	t.Helper()
	return startOn(t, kind, freeAddress(t))
}

// startTries bounds how many addresses are tried, because a free port may be taken before the server
// listens on it.
const startTries = 5

// startOn is Start with the address to try first.
func startOn(t testing.TB, kind Kind, address string) *Server {
	t.Helper()
	s := &Server{kind: kind, address: address, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.dir, bucket), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	for try := 1; ; try++ {
		err := s.Run()
		if err == nil {
			return s
		}
		if !errors.Is(err, errTaken) || try == startTries {
			t.Fatal(err)
		}
		s.Kill()
		s.address = freeAddress(t)
	}
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Run starts the process and waits until it accepts connections.
func (s *Server) Run() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd, output, ended := exec.Command(os.Args[0]), newOutput(), make(chan struct{})
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%s,%s", serverVariable, s.kind, s.address, s.dir))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = read, output, os.Stderr
	if err := cmd.Start(); err != nil {
		return errors.Join(err, write.Close())
	}
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its exit status is read elsewhere
	}()
	s.mu.Lock()
	s.cmd, s.in, s.ended = cmd, write, ended
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	if err := s.await(ctx, output.first, cmd, ended); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", s.address)
		if err == nil {
			return conn.Close()
		}
		if err := s.await(ctx, tick.C, cmd, ended); err != nil {
			return err
		}
	}
}

// await waits for next, or returns an error if the process has ended.
func (s *Server) await(ctx context.Context, next <-chan time.Time, cmd *exec.Cmd, ended <-chan struct{}) error {
	select {
	case <-next:
		return nil
	case <-ended:
		if cmd.ProcessState.ExitCode() == statusTaken {
			return fmt.Errorf("%s on %s: %w", s.kind, s.address, errTaken)
		}
		return fmt.Errorf("%s on %s ended: %s", s.kind, s.address, cmd.ProcessState)
	case <-ctx.Done():
		return fmt.Errorf("%s does not listen on %s after %s", s.kind, s.address, readyTimeout)
	}
}

// output collects the output of a process, and signals the first output.
type output struct{ first chan time.Time }

func newOutput() *output { return &output{make(chan time.Time, 1)} }

// Write implements io.Writer.
func (s *output) Write(p []byte) (int, error) {
	select {
	case s.first <- time.Now():
	default:
	}
	return len(p), nil
}

// Kill ends the process as kill -9 does, and waits for it.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.ended
	_ = s.in.Close()
	s.cmd = nil
}

// URL returns the address of a prefix as users write it.
func (s *Server) URL(prefix string) string {
	if s.kind == FakeGCS {
		return fmt.Sprintf("gs://%s/%s?endpoint=http://%s", bucket, prefix, s.address)
	}
	return S3URL(s.address, prefix)
}

// S3URL returns the address of a prefix at a server that speaks S3's protocol, as users write it.
func S3URL(address, prefix string) string {
	return fmt.Sprintf("s3://%s/%s?endpoint=http://%s&path_style=true&region=us-east-1", bucket, prefix, address)
}

// S3Credentials are the environment variables that S3URL needs.
func S3Credentials() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + access, "AWS_SECRET_ACCESS_KEY=" + secret}
}

// Credentials returns the environment variables that URL needs.
func (s *Server) Credentials() []string {
	if s.kind == FakeGCS {
		return nil
	}
	return S3Credentials()
}

// Open opens a prefix by its URL.
func (s *Server) Open(t testing.TB, prefix string) blob.Bucket {
	t.Helper()
	return s.OpenOver(t, prefix, nil)
}

// OpenOver is Open with the caller's HTTP client, if it is not nil.
func (s *Server) OpenOver(t testing.TB, prefix string, client *http.Client) blob.Bucket {
	t.Helper()
	var b blob.Bucket
	var err error
	if s.kind == FakeGCS {
		b, err = s.openGCS(prefix, client)
	} else {
		b, err = s.openS3(prefix, secret, client)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s *Server) openGCS(prefix string, client *http.Client) (blob.Bucket, error) {
	config, err := gcs.ParseURL(s.URL(prefix), "")
	if err != nil {
		return nil, err
	}
	config.Client = client
	return gcs.Open(context.Background(), config)
}

func (s *Server) openS3(prefix, secret string, client *http.Client) (blob.Bucket, error) {
	config, err := s3.ParseURL(s.URL(prefix))
	if err != nil {
		return nil, err
	}
	config.Client = client
	config.Credentials = credentials.NewStaticCredentialsProvider(access, secret, "")
	return s3.Open(context.Background(), config)
}
