package main

import (
	"bytes"
	"context"
	"database/sql"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"
)

// TestTwoNodesShareTheCounters runs the program twice on one file and stops one. All four counters must
// continue without a lost or repeated number, and all four hooks must be called.
func TestTwoNodesShareTheCounters(t *testing.T) {
	t.Parallel()
	var printed lines
	log.SetOutput(&printed)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	path := filepath.Join(t.TempDir(), "embed.db")
	db := record(t, path)

	a := start(t, path, "a")
	await(t, "a leads", func() bool { return printed.match(`elected: term 1$`) })
	b := start(t, path, "b")
	await(t, "b has joined and all count", func() bool { return printed.match(`joined: b$`) && least(t, db) >= 2 })
	if err := a(); err != nil {
		t.Errorf("a stopped with %v", err)
	}
	now := least(t, db)
	await(t, "b knows that a has left, leads and counts on", func() bool {
		return printed.match(`left: a, shutdown$`) && printed.match(`elected: term 2$`) && least(t, db) >= now+3
	})
	if err := b(); err != nil {
		t.Errorf("b stopped with %v", err)
	}
	for _, hook := range []string{`joined: a$`, `lost: term 1, shutdown$`, `lost: term 2, shutdown$`} {
		if !printed.match(hook) {
			t.Errorf("no hook said %q:\n%s", hook, printed.String())
		}
	}
	check(t, db)
}

// start runs the program. The returned function stops it and returns its error.
func start(t *testing.T, path, name string) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, path, name) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// record creates the program's table with a history of each change, written in the same transaction.
func record(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	const noted = ` ON counter BEGIN INSERT INTO history (unit, generation, n) VALUES (new.unit, new.generation, new.n); END`
	for _, statement := range []string{
		table,
		`CREATE TABLE history (seq INTEGER PRIMARY KEY, unit TEXT, generation INTEGER, n INTEGER)`,
		`CREATE TRIGGER first AFTER INSERT` + noted,
		`CREATE TRIGGER later AFTER UPDATE` + noted,
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return db
}

// check checks every change. Each counter must count from 1 in steps of one, by runs with growing
// generations, and some counters must have continued in another run.
func check(t *testing.T, db *sql.DB) {
	t.Helper()
	type state struct{ n, generation int }
	units := map[string]state{}
	rows, err := db.Query(`SELECT unit, generation, n FROM history ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	moved := 0
	for rows.Next() {
		var unit string
		var is state
		if err := rows.Scan(&unit, &is.generation, &is.n); err != nil {
			t.Fatal(err)
		}
		was := units[unit]
		if is.n != was.n+1 {
			t.Errorf("%s: generation %d wrote %d after %d of generation %d", unit, is.generation, is.n, was.n, was.generation)
		}
		if is.generation < was.generation {
			t.Errorf("%s: generation %d wrote after %d", unit, is.generation, was.generation)
		}
		if was.n > 0 && is.generation != was.generation {
			moved++
		}
		units[unit] = is
	}
	if err := rows.Err(); err != nil || len(units) != 4 || moved == 0 {
		t.Errorf("%d counters, %d went on in another run, want 4 and some: %v", len(units), moved, err)
	}
}

// least returns the lowest of the four counters, 0 while one is missing.
func least(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	var units int
	if err := db.QueryRow(`SELECT count(*), coalesce(min(n), 0) FROM counter`).Scan(&units, &n); err != nil {
		t.Fatal(err)
	}
	if units < 4 {
		return 0
	}
	return n
}

// await waits until a condition holds, at most a minute.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		if so() {
			return
		}
	}
	t.Fatalf("not within a minute: %s", what)
}

// lines collects what the program logs.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// match reports whether a line matches.
func (l *lines) match(pattern string) bool {
	return regexp.MustCompile(`(?m)` + pattern).MatchString(l.String())
}
