package outbox

import (
	"bytes"
	"context"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/pgtest"
)

// TestDrillOtherServer moves the database to another server under running relays: to a promoted standby
// that lost the newest commits, and to a new server restored from a dump, with lower transaction IDs.
// What is on the new server must be delivered, in order. What was lost with the old one may have been
// delivered before.
func TestDrillOtherServer(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	for name, move := range map[string]func(t *testing.T, from *pgtest.Server) (prepare func(), finish func() *pgtest.Server){
		"promotion": promotion,
		"restore":   restore,
	} {
		t.Run(name, func(t *testing.T) {
			drill.ParallelUnlessMeasured(t)
			otherServer(t, name, move)
		})
	}
}

func otherServer(t *testing.T, name string, move func(*testing.T, *pgtest.Server) (func(), func() *pgtest.Server)) {
	old := startServer(t)
	prepare, finish := move(t, old)
	db, h := onServer(t, old), newHook(t)
	direct, err := url.Parse(db.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := drill.NewProxy(t, direct.Host)
	through := *direct
	through.Host = proxy.Address()
	db.url = through.String()
	c := relays(t, db, h.receiver(), 2)
	c.relaying()
	before := write(t, db, 8)
	before.more(500)
	prepare()
	before.more(500) // these are lost
	before.end()

	next := finish()
	now := reach(t, next)
	kept := inLog(t, now.url)
	proxy.Switch(address(t, now.url))
	proxy.Cut()
	c.db, c.Store = now, now.store
	after := write(t, now, 8)
	after.more(500)
	c.relaying()
	after.more(500)
	after.end()
	c.drained()

	gone := before.ledger.keep(kept)
	after.ledger.follow(before.ledger)
	var seen []arrival
	early := 0
	for _, a := range h.receiver().arrivals(c) {
		if gone[a.id] {
			early++
		} else {
			seen = append(seen, a)
		}
	}
	v := after.ledger.check(seen)
	what := "postgres, " + name + " under living relays"
	t.Logf("%s: %d committed messages are not on the new server, %d of them were delivered before", what, len(gone), early)
	if len(gone) == 0 {
		t.Error("nothing was lost with the old server: the drill drilled nothing")
	}
	v.report(t, what, byFailover)
}

// keep removes the messages that are not on the new server, and returns them.
func (l *writtenRecord) keep(kept map[uuid.UUID]bool) (gone map[uuid.UUID]bool) {
	gone = map[uuid.UUID]bool{}
	for id := range l.place {
		if !kept[id] {
			gone[id] = true
			delete(l.place, id)
		}
	}
	return gone
}

// follow puts another ledger before this one.
func (l *writtenRecord) follow(first *writtenRecord) {
	for id, place := range l.place {
		l.place[id] = place + first.length[l.key[id]]
	}
	for id, place := range first.place {
		l.place[id], l.key[id] = place, first.key[id]
	}
	for id := range first.undone {
		l.undone[id] = true
	}
}

// promotion prepares a standby that stops replicating before the last commits.
func promotion(t *testing.T, from *pgtest.Server) (prepare func(), finish func() *pgtest.Server) {
	standby, err := from.Standby(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, standby) })
	return func() { must(t, standby.Stop(pgtest.Fast)) }, func() *pgtest.Server {
		must(t, from.Stop(pgtest.Kill))
		must(t, standby.Start())
		must(t, standby.Promote(t.Context()))
		return standby
	}
}

// restore prepares a dump that is taken before the last commits, for a new server.
func restore(t *testing.T, from *pgtest.Server) (prepare func(), finish func() *pgtest.Server) {
	bin, err := pgtest.Binaries()
	must(t, err)
	dump := filepath.Join(t.TempDir(), "dump.sql")
	tool := func(name string, args ...string) {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, name), args...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out.String())
		}
	}
	return func() { tool("pg_dump", "-d", from.URL("postgres"), "-f", dump) }, func() *pgtest.Server {
		must(t, from.Stop(pgtest.Kill))
		next := startServer(t)
		tool("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", next.URL("postgres"), "-f", dump)
		return next
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// address returns the host and port of a URL.
func address(t *testing.T, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	must(t, err)
	return u.Host
}

// inLog returns the ids of all messages in the log.
func inLog(t *testing.T, text string) map[uuid.UUID]bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, text)
	must(t, err)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT dedup_id FROM emitd.outbox`)
	must(t, err)
	kept := map[uuid.UUID]bool{}
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error { kept[id] = true; return nil })
	must(t, err)
	return kept
}
