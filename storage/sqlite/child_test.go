package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// The test binary is also the program that tests run as other processes. With this variable set, it
// does what the variable says and ends.
const childVar = "EMITD_TEST_SQLITE_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childVar); role != "" {
		if err := roles[role](os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// roles are what a child can do with the file at path.
var roles = map[string]func(path string, args []string) error{
	"open":   childOpens,
	"beat":   childBeats,
	"submit": childSubmits,
	"hammer": childHammers,
	"count":  childCounts,
}

// also adds a role that not every system supports.
func also(name string, role func(path string, args []string) error) bool {
	roles[name] = role
	return true
}

// child is another process.
type child struct {
	t      testing.TB
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stderr bytes.Buffer
	ended  bool
}

// spawn starts a child, which is killed with the test at the latest.
func spawn(t testing.TB, role, path string, args ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0], append([]string{path}, args...)...)}
	c.cmd.Env = append(os.Environ(), childVar+"="+role)
	c.cmd.Stderr = &c.stderr
	out, err := c.cmd.StdoutPipe()
	ok(t, err)
	c.lines = bufio.NewScanner(out)
	ok(t, c.cmd.Start())
	t.Cleanup(c.kill)
	return c
}

// line waits for the child's next line.
func (c *child) line() string {
	c.t.Helper()
	if !c.lines.Scan() {
		err := c.cmd.Wait()
		c.ended = true
		c.t.Fatalf("the child said no more: %v\n%s", err, c.stderr.String())
	}
	return c.lines.Text()
}

// rest reads the child's output until the child ends, which must be without an error.
func (c *child) rest() (lines []string) {
	c.t.Helper()
	for c.lines.Scan() {
		lines = append(lines, c.lines.Text())
	}
	c.ended = true
	if err := c.cmd.Wait(); err != nil {
		c.t.Fatalf("the child ended with %v\n%s", err, c.stderr.String())
	}
	return lines
}

// kill ends the child by a signal that cannot be caught, and returns the rest of its output.
func (c *child) kill() {
	if c.ended {
		return
	}
	c.ended = true
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// someone is a process's identity.
func someone(name string) node.Identity {
	return node.Identity{Name: name, ID: node.ID(uuid.NewString()), Incarnation: node.Incarnation(uuid.NewString())}
}

var plainAdvert = &daemon.Advert{Traits: node.Traits{Version: "v1", Capacity: 1}}

func number(args []string, i int) int {
	n, err := strconv.Atoi(args[i])
	if err != nil {
		panic(err)
	}
	return n
}

// childOpens opens and closes the store.
func childOpens(path string, _ []string) error {
	s, err := Open(context.Background(), path)
	if err != nil {
		return err
	}
	return s.Close()
}

// childBeats opens the store, waits for the time to begin, and registers. It sends N heartbeats,
// campaigns each time with a lease that is over at once, and prints the terms that it won.
func childBeats(path string, args []string) error {
	ctx := context.Background()
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer s.Close()
	<-time.After(time.Until(time.UnixMilli(int64(number(args, 0)))))
	who := someone(fmt.Sprint("child-", os.Getpid()))
	var reply *storage.Reply
	for seq := range number(args, 1) {
		beat := storage.Heartbeat{Node: who, Seq: uint64(seq + 1), TTL: time.Hour, EventsAfter: -1}
		beat.TermRequest = storage.TermRequest{Lease: -time.Second, Campaign: true}
		if reply == nil {
			beat.Advert = plainAdvert
		} else {
			beat.TermRequest.SeenTerm, beat.TermRequest.SeenRenewals, beat.TermRequest.LostThrough = reply.Term.Number, reply.Lease.Renewals, reply.Term.Number
		}
		if reply, err = s.Heartbeat(ctx, beat); err != nil {
			return err
		}
		if reply.Verdict == storage.Elect {
			fmt.Println(reply.Term.Number)
		}
	}
	return nil
}

// childSubmits submits commands and prints the ID of each after it was stored.
func childSubmits(path string, args []string) error {
	ctx := context.Background()
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		id := args[0] + "-" + strconv.Itoa(i)
		if _, err := s.Submit(ctx, storage.Command{ID: id, Kind: daemon.CommandResign}); err != nil {
			return err
		}
		fmt.Println(id)
	}
}

// childHammers stamps without pause for that many milliseconds from the given time on. It prints
// how many stamps it made, and the longest time of one.
func childHammers(path string, args []string) error {
	ctx := context.Background()
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer s.Close()
	begin := time.UnixMilli(int64(number(args, 0)))
	end := begin.Add(time.Duration(number(args, 1)) * time.Millisecond)
	<-time.After(time.Until(begin))
	unit := daemon.Unit{Daemon: "acme:hammer", Index: os.Getpid()}
	n, longest := 0, time.Duration(0)
	for now := time.Now(); now.Before(end); {
		n++
		if err := s.StampFence(ctx, daemon.Fence{Unit: unit, Generation: int64(n)}); err != nil {
			return err
		}
		took := time.Since(now)
		now, longest = now.Add(took), max(longest, took)
	}
	fmt.Println(n, longest.Milliseconds())
	return nil
}

// childCounts stamps a unit with one generation after another, each higher than all others. Under
// its fence it adds to a user's counter until it is superseded. Only the run itself may change what
// it read after its stamp. It prints how many additions were acknowledged.
func childCounts(path string, args []string) error {
	ctx := context.Background()
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer s.Close()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer db.Close()
	unit := daemon.Unit{Daemon: "acme:counter"}
	acked := 0
	for range number(args, 0) {
		lock, err := storage.Lock{}, storage.ErrLocked
		for owner := uuid.NewString(); errors.Is(err, storage.ErrLocked); {
			lock, err = s.Acquire(ctx, "generation", owner, time.Hour, lock)
		}
		if err != nil {
			return err
		}
		f := daemon.Fence{Unit: unit, Generation: lock.Number}
		switch err := s.StampFence(ctx, f); {
		case errors.Is(err, daemon.ErrStale):
			continue
		case err != nil:
			return err
		}
		var count int // stamp, then read
		if err := db.QueryRowContext(ctx, "SELECT n FROM counter").Scan(&count); err != nil {
			return err
		}
		for err == nil {
			count++
			err = s.InTx(ctx, db, f, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE counter SET n = ?", count)
				return err
			})
			if err == nil {
				acked++
			}
			if acked%7 == 0 {
				break // leave it to the others for a while
			}
		}
		if err != nil && !errors.Is(err, daemon.ErrStale) {
			return err
		}
	}
	fmt.Println(acked)
	return nil
}

func numbers(t testing.TB, line string) (out []int) {
	t.Helper()
	for f := range strings.FieldsSeq(line) {
		n, err := strconv.Atoi(f)
		ok(t, err)
		out = append(out, n)
	}
	return out
}
