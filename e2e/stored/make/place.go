package main

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"

	_ "modernc.org/sqlite" // the driver

	"github.com/emitd/emitd/e2e/stored"
	"github.com/emitd/emitd/internal/pgtest"
)

// place is where the cluster of a scene has its stores.
type place struct {
	stored.Locations
	save  func(to string) error
	close func() error
}

func prepare(kind stored.Kind, work string) (*place, error) {
	if kind == stored.Postgres {
		return database()
	}
	data := filepath.Join(work, "data")
	for _, dir := range []string{data, filepath.Join(data, "cluster"), filepath.Join(data, "queues")} {
		if kind == stored.SQLite && dir != data {
			continue
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
	}
	return &place{kind.Files(data), func(to string) error {
		if kind == stored.SQLite {
			if err := errors.Join(tidy(filepath.Join(data, "cluster.db")), tidy(filepath.Join(data, "outbox.db"))); err != nil {
				return err
			}
		}
		packed, err := stored.Pack(data)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, stored.DataFile), packed, 0o600)
	}, func() error { return nil }}, nil
}

// tidy writes the log of a SQLite file back into it, and removes the files beside it that hold no data.
func tidy(path string) error {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	_, err = db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Remove(path + ".wake"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func database() (*place, error) {
	server, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		return nil, err
	}
	return &place{stored.Database(server.URL("postgres")), func(to string) error {
		dump, err := server.Tool("pg_dump", "--dbname", server.URL("postgres"), "--inserts", "--no-owner", "--no-privileges",
			"--schema", "emitd", "--schema", "outbox")
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, stored.DumpFile), []byte(statements(dump)), 0o600)
	}, server.Close}, nil
}

// statements returns a dump without comments at the beginning of lines, commands of psql and empty lines.
// Any server can then run it as one text.
func statements(dump string) string {
	var b strings.Builder
	for line := range strings.Lines(dump) {
		if line == "\n" || strings.HasPrefix(line, "--") || strings.HasPrefix(line, `\`) {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}
