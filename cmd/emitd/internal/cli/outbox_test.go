package cli

import (
	"bufio"
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sqlite"
)

// emitd runs the program on a new, empty outbox.
func emitd(t *testing.T) func(in string, args ...string) (code int, out, err string) {
	t.Helper()
	store := config.SQLiteURL(filepath.Join(t.TempDir(), "app.db"))
	run := func(in string, args ...string) (int, string, string) {
		var out, err bytes.Buffer
		code := Main(t.Context(), append(args, "--store", store, "--timeout", "1m"), Streams{In: strings.NewReader(in), Out: &out, Err: &err})
		return code, out.String(), err.String()
	}
	if code, _, err := run("", "migrate", "up", "--outbox"); code != 0 {
		t.Fatal(err)
	}
	return run
}

// TestPayloadLimit checks that a payload that is too long is refused with its whole transaction.
func TestPayloadLimit(t *testing.T) {
	t.Parallel()
	run := emitd(t)
	fits := strings.Repeat("x", outbox.MaxPayload)
	if code, _, err := run("small\n"+fits+"x\n", "outbox", "publish", "t", "-"); code != fault.ExitUsage ||
		!strings.Contains(err, "error E4103: publish message 2 of 2 to \"t\": the payload has 1048577 bytes, the limit is 1048576") {
		t.Errorf("code %d: %s", code, err)
	}
	code, out, err := run(fits+"\r\n\nlast line without an end", "outbox", "publish", "t", "-", "-o", "name")
	if code != 0 || len(strings.Fields(out)) != 2 {
		t.Errorf("code %d, ids %q: %s", code, out, err)
	}
}

// TestManyLines checks that more lines than fit into one transaction are published, each once.
func TestManyLines(t *testing.T) {
	t.Parallel()
	run := emitd(t)
	code, out, err := run(strings.Repeat("x\n", 2*linesOnce+1), "outbox", "publish", "t", "-", "-o", "name")
	ids := map[string]bool{}
	for _, id := range strings.Fields(out) {
		ids[id] = true
	}
	if code != 0 || len(ids) != 2*linesOnce+1 {
		t.Errorf("code %d, %d ids: %s", code, len(ids), err)
	}
	if code, out, _ := run("", "outbox", "publish", "t", "-"); code != 0 || out != "" {
		t.Errorf("nothing: code %d, %q", code, out)
	}
}

// TestPublishSlowInput checks that a line is published before the command waits for the next one, that --timeout
// bounds each transaction, and not the input, and that --delay begins when a line is published.
func TestPublishSlowInput(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	store := config.SQLiteURL(path)
	if code := Main(t.Context(), []string{"migrate", "up", "--outbox", "--store", store}, Streams{Out: io.Discard, Err: io.Discard}); code != 0 {
		t.Fatal(code)
	}
	in, feed := io.Pipe()
	out, said := io.Pipe()
	const timeout = 2 * time.Second
	var text bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- Main(t.Context(), []string{"outbox", "publish", "t", "-", "--store", store, "--timeout", timeout.String(), "--delay", "1h", "-o", "name"}, Streams{In: in, Out: said, Err: &text})
		in.Close()
		said.Close()
	}()
	ids := bufio.NewReader(out)
	begun := time.Now()
	for line := 0; line < 3 || time.Since(begun) < timeout+time.Second; line++ {
		if _, err := fmt.Fprintf(feed, "line %d\n", line); err != nil {
			t.Fatalf("line %d is not read: %v", line, err)
		}
		if _, err := ids.ReadString('\n'); err != nil {
			t.Fatalf("line %d: %v; code %d: %s", line, err, <-ended, text.String())
		}
	}
	feed.Close()
	if code := <-ended; code != 0 {
		t.Errorf("code %d: %s", code, text.String())
	}
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var times int
	if err := db.QueryRow("SELECT count(DISTINCT not_before) FROM emitd_outbox_delayed").Scan(&times); err != nil || times < 2 {
		t.Errorf("all lines are delayed until %d times: %v", times, err)
	}
}

// TestStatusDoesNotWait checks that an outbox that accepts connections and never answers is shown as
// unknown.
func TestStatusDoesNotWait(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	store := config.SQLiteURL(filepath.Join(t.TempDir(), "app.db"))
	run := func(args ...string) (int, string, string) {
		var out, err bytes.Buffer
		code := Main(t.Context(), append(args, "--store", store, "--timeout", "1m", "--outbox.url", "postgres://u@"+l.Addr().String()+"/d"), Streams{Out: &out, Err: &err})
		return code, out.String(), err.String()
	}
	if code, _, err := run("migrate", "up"); code != 0 {
		t.Fatal(err)
	}
	code, out, text := run("status")
	if code != 0 || !strings.HasPrefix(out, "CLUSTER ") || !strings.Contains(out, " OUTBOX unknown: it has not answered within 1.0s\n") {
		t.Errorf("code %d: %s%s", code, out, text)
	}
}

// TestDoctorChecksTheOutbox checks that doctor finds the outbox as status does, even if the operator's
// configuration names no subscription, and that a database without an outbox has none.
func TestDoctorChecksTheOutbox(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	run := func(args ...string) string {
		t.Helper()
		var out, err bytes.Buffer
		Main(t.Context(), append(args, "--store", config.SQLiteURL(path), "--timeout", "1m"), Streams{Out: &out, Err: &err})
		return out.String() + err.String()
	}
	run("migrate", "up")
	if text := run("doctor"); strings.Contains(text, "outbox") {
		t.Errorf("without an outbox: %s", text)
	}
	run("migrate", "up", "--outbox")
	run("outbox", "publish", "t", "x")
	l, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := l.Claim(t.Context(), outbox.ClaimRequest{Subscription: "billing", Instances: 1, Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := c.Next(t.Context(), outbox.Limit{})
	if err != nil || len(p.Rows) != 1 {
		t.Fatal(len(p.Rows), err)
	}
	if err := c.Advance(t.Context(), p.Mark, []outbox.Outcome{{Row: p.Rows[0], Kind: outbox.Dead, Attempts: 1, Cause: "x"}}); err != nil {
		t.Fatal(err)
	}
	if text := run("doctor"); !strings.Contains(text, "subscription billing: 1 dead messages, 0 keys are held") {
		t.Errorf("with a dead message: %s", text)
	}
}

func TestMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 9, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "1h": now.Add(-time.Hour), "2030-01-01T00:00:00Z": time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		if got, err := moment("--since", text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1h", "0s", "yesterday", "2030-01-01", "2030-01-31T09:00:01Z"} {
		if _, err := moment("--since", text, now); err == nil {
			t.Errorf("%q is a moment", text)
		}
	}
}
