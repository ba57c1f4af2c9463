package stored

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite" // the driver

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/bootclock"
	"github.com/emitd/emitd/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	defer drill.Cleanup()
	return pgtest.Run(m)
}

// fixture is a copy of what one release has stored.
type fixture struct {
	t        *testing.T
	kind     Kind
	dir      string
	facts    Facts
	observe  string // the program
	released Observed
	Locations
}

// Observed is the part of program observe's output that the test decides by.
type Observed struct {
	Snapshot struct {
		Term  struct{ Term, TermOrdinal int64 }
		Units []unit
	}
	Locks []struct {
		Name, Owner string
		Number      int64
	}
}

type unit struct {
	Unit, State string
	Generation  int64
	Node        string
}

// TestStored reads the fixtures of each release, and lets a node go on with them.
func TestStored(t *testing.T) {
	releases, err := filepath.Glob(filepath.Join("testdata", "*", string(SQLite), FactsFile))
	if err != nil || len(releases) == 0 {
		t.Fatal("no fixtures:", err)
	}
	program := filepath.Join(t.TempDir(), "observe")
	if out, err := exec.Command("go", "build", "-o", program, "./observe").CombinedOutput(); err != nil {
		t.Fatalf("build observe: %v\n%s", err, out)
	}
	drill.Binary(t)
	for _, path := range releases {
		release := filepath.Dir(filepath.Dir(path))
		for _, kind := range Kinds {
			t.Run(filepath.Base(release)+"/"+string(kind), func(t *testing.T) {
				t.Parallel()
				f := open(t, kind, filepath.Join(release, string(kind)), program)
				f.reads()
				f.serves()
			})
		}
	}
}

// open makes a copy of a fixture.
func open(t *testing.T, kind Kind, from, program string) *fixture {
	t.Helper()
	f := &fixture{t: t, kind: kind, dir: t.TempDir(), observe: program}
	f.decode(f.file(filepath.Join(from, FactsFile)), &f.facts)
	f.decode(f.facts.Observed, &f.released)
	if kind == Postgres {
		f.Locations = Database(pgtest.Database(t))
		f.load(string(f.file(filepath.Join(from, DumpFile))))
		f.upgrade()
		return f
	}
	data := filepath.Join(f.dir, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(f.file(filepath.Join(from, DataFile)), data); err != nil {
		t.Fatal(err)
	}
	f.Locations = kind.Files(data)
	if kind == SQLite {
		f.thisBoot(filepath.Join(data, "cluster.db"))
	}
	return f
}

// thisBoot makes a copied file one of this host and boot, whose clock says what the wall clock says. Without it,
// the first process to open the file would rightly end everything in it, because the machine that wrote it is not
// this one (sqlite.ReasonRebooted).
func (f *fixture) thisBoot(path string) {
	f.t.Helper()
	id := strings.TrimSpace(string(f.file("/proc/sys/kernel/random/boot_id")))
	db, err := sql.Open("sqlite", path)
	if err != nil {
		f.t.Fatal(err)
	}
	_, err = db.ExecContext(f.t.Context(), "UPDATE emitd_meta SET boot_id = ?, clock_base = ?",
		id, time.Now().UnixNano()-int64(bootclock.Now()))
	if err := errors.Join(err, db.Close()); err != nil {
		f.t.Fatal("write the boot into the file:", err)
	}
}

// load runs a dump in the database.
func (f *fixture) load(dump string) {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.Store)
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(f.t.Context()))
	if _, err := conn.PgConn().Exec(f.t.Context(), dump).ReadAll(); err != nil {
		f.t.Fatal("load the dump:", err)
	}
}

// upgrade migrates the schemas of an earlier release, as an operator does before a node of today starts. Until then
// today's emitd refuses them and says what to run. Nodes of the earlier release go on: what they call stays.
func (f *fixture) upgrade() {
	f.t.Helper()
	f.migrate("E5103", []string{"node", "ls"}, "emitd migrate up")
	f.load("select from pg_catalog.pg_proc where oid = 'emitd.heartbeat_1'::regproc and 1 = (select compatible from emitd.migration where version = 2)")
	f.migrate("E4104", []string{"outbox", "stats"}, "emitd migrate up --outbox")
}

// migrate demands that a command is refused with an error that names another one, and runs that one.
func (f *fixture) migrate(code string, refused []string, hint string) {
	f.t.Helper()
	out, err := exec.CommandContext(f.t.Context(), drill.Binary(f.t), append(refused, f.Args...)...).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte(code)) || !bytes.Contains(out, []byte(hint)) {
		f.t.Fatalf("the schema of the release: %v\n%s", err, out)
	}
	f.output(drill.Binary(f.t), append(strings.Fields(hint)[1:], f.Args...)...)
}

// reads checks that the code of today reads each fact as the release did, while no node runs.
func (f *fixture) reads() {
	f.t.Helper()
	f.same("observe", f.facts.Observed, f.output(f.observe, "-locks", f.Store))
	offline, _ := f.kind.Reads()
	f.compare(offline)
	if f.kind == Bucket {
		f.emitd("queue", "verify")
	}
}

// compare compares what commands print with what those of the release printed.
func (f *fixture) compare(commands [][]string) {
	f.t.Helper()
	for _, args := range commands {
		name := strings.Join(args, " ")
		f.same(name, f.facts.Commands[name], f.emitd(args...))
	}
}

// emitd runs a command of today's emitd on the fixture.
func (f *fixture) emitd(args ...string) []byte {
	f.t.Helper()
	return f.output(drill.Binary(f.t), append(append(args, "-o", "json"), f.Args...)...)
}

func (f *fixture) output(program string, args ...string) []byte {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), program, args...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("emitd %s: %v\n%s%s", strings.Join(args, " "), err, out, problems.Bytes())
	}
	return out
}

func (f *fixture) file(path string) []byte {
	f.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	return data
}

func (f *fixture) decode(data []byte, into any) {
	f.t.Helper()
	if err := json.Unmarshal(bytes.ReplaceAll(data, []byte(`"term_ordinal"`), []byte(`"TermOrdinal"`)), into); err != nil {
		f.t.Fatalf("%v in %.200s", err, data)
	}
}

// changing are the fields that may differ although the store is the same: ages, rates, what is counted since the
// node's start, and names of the place where the store is.
var changing = map[string]bool{
	"now": true, "store_id": true, "expired": true, "held_seconds": true, "oldest_age_ms": true,
	"enqueue_rate": true, "complete_rate": true, "index_bytes": true, "dedup_bytes": true, "broker": true, "epoch": true,
	"until": true, "retained_bytes": true, "change_time": true, "partitions_ahead": true, "duplicates": true,
}

// same checks that got has every field and element of want with the same value. It may have more fields.
func (f *fixture) same(what string, want, got []byte) {
	f.t.Helper()
	var wanted, found any
	f.decode(want, &wanted)
	f.decode(got, &found)
	f.contains(what, wanted, found)
}

func (f *fixture) contains(where string, want, got any) {
	f.t.Helper()
	switch want := want.(type) {
	case map[string]any:
		f.fields(where, want, got)
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			f.t.Errorf("%s: %v, want %v", where, got, want)
			return
		}
		for i := range want {
			f.contains(fmt.Sprintf("%s[%d]", where, i), want[i], list[i])
		}
	default:
		if !reflect.DeepEqual(want, got) {
			f.t.Errorf("%s: %v, want %v", where, got, want)
		}
	}
}

func (f *fixture) fields(where string, want map[string]any, got any) {
	f.t.Helper()
	object, ok := got.(map[string]any)
	if !ok {
		f.t.Errorf("%s: %v, want %v", where, got, want)
		return
	}
	for name, value := range want {
		switch {
		case changing[name] && !strings.Contains(where, "embargoes"):
		case want["name"] == "stored:released" && name != "name":
			// Whoever asks for a lock that was released has it from then on, with a higher number.
			if name == "number" && object[name].(float64) <= value.(float64) {
				f.t.Errorf("%s: the number %v is not above %v", where, object[name], value)
			}
		case want["unit"] == "acme:broken/0" && strings.HasPrefix(where, "daemon ls") && (name == "reason" || name == "state"):
			// They say for how long nobody may have the unit, and that is over.
		case strings.HasPrefix(where, "node ls") && value == "live" && object[name] == "late":
			// Nobody has declared it dead, but it is not heard any more.
		default:
			f.contains(where+"."+name, value, object[name])
		}
	}
}

// until waits for what other processes do.
func (f *fixture) until(what string, is func() bool) {
	f.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	bound := time.After(time.Minute)
	for !is() {
		select {
		case <-tick.C:
		case <-bound:
			f.t.Fatalf("not within a minute: %s", what)
		}
	}
}
