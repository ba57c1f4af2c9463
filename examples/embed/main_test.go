package main

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"
)

// TestTwoNodesShareTheCounters runs the program twice on one file, stops one, and sees all four
// counters go on without a number lost or repeated.
func TestTwoNodesShareTheCounters(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "embed.db")
	stop := map[string]func() error{}
	for _, name := range []string{"a", "b"} {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- run(ctx, path, name) }()
		stop[name] = func() error {
			cancel()
			return <-done
		}
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	await(t, db, 2)
	if err := stop["a"](); err != nil {
		t.Errorf("a stopped with %v", err)
	}
	await(t, db, least(db)+3)
	if err := stop["b"](); err != nil {
		t.Errorf("b stopped with %v", err)
	}
}

// least returns the lowest of the four counters; 0 while one is missing.
func least(db *sql.DB) (n int) {
	var units int
	if err := db.QueryRow(`SELECT count(*), coalesce(min(n), 0) FROM counter`).Scan(&units, &n); err != nil || units < 4 {
		return 0
	}
	return n
}

// await waits until every counter has come so far.
func await(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		if least(db) >= n {
			return
		}
	}
	t.Fatalf("the counters did not all come to %d within a minute", n)
}
