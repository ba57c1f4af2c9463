package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// With this variable set, the test binary is a program that tests run as another process. Its value names
// the role.
const childVar = "EMITD_TEST_SQLITELOG_CHILD"

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
	"open":    childOpens,
	"publish": childPublishes,
	"relay":   childRelays,
}

// child is another process.
type child struct {
	t      testing.TB
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stderr bytes.Buffer
	ended  bool
}

// spawn starts a child that is killed with the test at the latest.
func spawn(t testing.TB, role, path string, args ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0], append([]string{path}, args...)...)}
	c.cmd.Env = append(os.Environ(), childVar+"="+role)
	c.cmd.Stderr = &c.stderr
	out, err := c.cmd.StdoutPipe()
	ok(t, err)
	c.lines = bufio.NewScanner(out)
	ok(t, c.cmd.Start())
	t.Cleanup(func() { c.kill() })
	return c
}

// line waits for the child's next line.
func (c *child) line() string {
	c.t.Helper()
	if !c.lines.Scan() {
		c.ended = true
		c.t.Fatalf("the child said no more: %v\n%s", c.cmd.Wait(), c.stderr.String())
	}
	return c.lines.Text()
}

// kill ends the child with SIGKILL, and returns its unread output without an incomplete last line.
func (c *child) kill() (lines []string) {
	if c.ended {
		return nil
	}
	c.ended = true
	_ = c.cmd.Process.Kill()
	for c.lines.Scan() {
		lines = append(lines, c.lines.Text())
	}
	_ = c.cmd.Wait()
	return lines
}

// wait reads until the child ends, which must be without an error.
func (c *child) wait() {
	c.t.Helper()
	for c.lines.Scan() {
		continue
	}
	c.ended = true
	if err := c.cmd.Wait(); err != nil {
		c.t.Fatalf("the child ended with %v\n%s", err, c.stderr.String())
	}
}

func childOpens(path string, _ []string) error {
	l, err := Open(context.Background(), Config{Path: path})
	if err != nil {
		return err
	}
	l.Close()
	return nil
}

// childPublishes publishes until it is killed: "name-key n" in order for each of three keys, and prints
// them after each commit. Every fourth transaction is rolled back; its messages end with "undone".
func childPublishes(path string, args []string) error {
	db, err := openApp(path)
	if err != nil {
		return err
	}
	pub, err := New(db, Config{})
	if err != nil {
		return err
	}
	undo := errors.New("undo")
	for n := 0; ; n++ {
		key := fmt.Sprint(args[0], "-", n%3)
		line := fmt.Sprintf("%s %d", key, n)
		for _, undone := range []bool{true, false} {
			if undone && n%4 != 0 {
				continue
			}
			err := pub.InTx(context.Background(), db, func(tx *Tx) error {
				if undone {
					return errors.Join(pub.Publish(context.Background(), tx, text(key, line+" undone")), undo)
				}
				return pub.Publish(context.Background(), tx, text(key, line), text("", line+" loose"))
			})
			if err != nil && (!undone || !errors.Is(err, undo)) {
				return err
			}
		}
		fmt.Printf("%s\n%s loose\n", line, line)
	}
}

// childRelays delivers by printing, in pages of ten, until it is killed. Every seventh message fails at
// first and is parked.
func childRelays(path string, args []string) error {
	ctx := context.Background()
	l, err := Open(ctx, Config{Path: path})
	if err != nil {
		return err
	}
	epoch, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	c, err := l.Claim(ctx, outbox.ClaimRequest{Subscription: "s", Instances: 1, Epoch: epoch})
	if err != nil {
		return err
	}
	parked := map[string]bool{}
	for _, key := range c.Parked() {
		parked[key] = true
	}
	for {
		if err := childStep(ctx, c, parked); err != nil {
			return err
		}
	}
}

func childStep(ctx context.Context, c outbox.Cursor, parked map[string]bool) error {
	lanes, err := c.Due(ctx, 10)
	if err != nil {
		return err
	}
	var out []outbox.Outcome
	for _, rows := range lanes {
		for _, r := range rows {
			fmt.Println(string(r.Payload))
			out = append(out, outbox.Outcome{Row: r, Kind: outbox.Delivered})
		}
	}
	emptied, err := c.StoreParked(ctx, out)
	if err != nil {
		return err
	}
	for _, key := range emptied {
		delete(parked, key)
	}
	p, err := c.Next(ctx, outbox.Limit{Rows: 10})
	if err != nil || p.Mark == nil {
		<-time.After(time.Millisecond)
		return err
	}
	out = nil
	for _, r := range p.Rows {
		switch {
		case parked[r.Key]:
			out = append(out, outbox.Outcome{Row: r, Kind: outbox.Behind})
		case r.Seq%7 == 0:
			out = append(out, outbox.Outcome{Row: r, Kind: outbox.Waiting, Attempts: 1, RetryIn: 2 * time.Millisecond, Cause: "no luck"})
			parked[r.Key] = r.Key != ""
		default:
			fmt.Println(string(r.Payload))
		}
	}
	return c.Advance(ctx, p.Mark, out)
}
