package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

var _ = also("hold", childHolds)

// childHolds opens a fenced transaction, reports that, stops, and ends it once it is continued.
func childHolds(path string, args []string) error {
	ctx := context.Background()
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		return err
	}
	f := daemon.Fence{Unit: daemon.Unit{Daemon: "acme:holder"}, Generation: int64(number(args, 0))}
	if err := s.StampFence(ctx, f); err != nil {
		return err
	}
	return s.InTx(ctx, db, f, func(*sql.Tx) error {
		continued := make(chan os.Signal, 1)
		signal.Notify(continued, syscall.SIGCONT)
		fmt.Println("inside")
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return err
		}
		<-continued // this thread may run a little further before all are stopped
		return nil
	})
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	ok(c.t, c.cmd.Process.Signal(s))
}

// A process that is stopped inside a transaction blocks writers. Their errors come in time and name
// it. Readers go on. Once it continues, everything does.
func TestStoppedWriter(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*child){
		"continued": func(c *child) { c.signal(syscall.SIGCONT); c.rest() },
		"killed":    func(c *child) { c.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "store.db")
			s := mustOpen(t, Config{Path: path})
			c := spawn(t, "hold", path, "5")
			if got := c.line(); got != "inside" {
				t.Fatalf("the child says %q", got)
			}
			waitFor(t, "the child to be stopped", func() bool { _, stopped := s.WriteLockHolder(); return stopped })

			const limit = 300 * time.Millisecond
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			began := time.Now()
			_, err := s.Heartbeat(ctx, storage.Heartbeat{Node: someone("a"), Seq: 1, Advert: plainAdvert})
			if took := time.Since(began); took > limit+2*time.Second {
				t.Errorf("a call with %v to go took %v", limit, took)
			}
			var locked *LockedError
			if !errors.As(err, &locked) || !errors.Is(err, storage.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v, want a LockedError that is unavailable and beyond its deadline", err)
			}
			if locked.PID != c.cmd.Process.Pid || !locked.Stopped {
				t.Errorf("blames process %d (stopped: %v), want %d: %v", locked.PID, locked.Stopped, c.cmd.Process.Pid, err)
			}
			if want := fmt.Sprintf("kill -CONT %d", c.cmd.Process.Pid); !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
			_, err = s.Snapshot(context.Background())
			ok(t, err) // readers go on

			end(c)
			_, err = s.Heartbeat(context.Background(), storage.Heartbeat{Node: someone("a"), Seq: 1, Advert: plainAdvert})
			ok(t, err)
			if pid, _ := s.WriteLockHolder(); pid != 0 {
				t.Errorf("process %d is still named as the blocker", pid)
			}
		})
	}
}
