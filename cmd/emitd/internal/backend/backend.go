// Package backend opens the cluster store that store.url names, and the outbox database that outbox.url
// names. It is the only place in the program that knows which backends exist. Everything else uses
// storage.Store, outbox.Log and faults.
//
// # Who migrates
//
// [Policy] decides whether opening a store creates or migrates its schema:
//
//	           sqlite                     postgres
//	ReadOnly   refuse                     refuse                     reads and operators' commands
//	Auto       create, bring up to date   create in an empty store,  a node (default)
//	                                      refuse an older schema
//	Always     create, bring up to date   create, bring up to date   emitd serve --migrate
//	Never      refuse                     refuse                     emitd serve --migrate=never
//
// An object store has no schema. Each object names its format, and a newer format is refused.
//
// A SQLite file belongs to one host, so its processes are upgraded together. A Postgres schema is shared
// with nodes of the previous version, so migrating it is the operator's decision. If a schema is refused,
// the fault says what to run. No policy migrates down: a newer schema is always refused.
package backend

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/sqlite"
)

// Policy says which changes of the schema are allowed on opening.
type Policy string

// The policies.
const (
	ReadOnly Policy = "read-only"
	Auto     Policy = "auto"
	Always   Policy = "always"
	Never    Policy = "never"
)

// Options configure how a store is opened.
type Options struct {
	Config config.Config
	Policy Policy
	Logger *slog.Logger
	Meter  metric.MeterProvider // nil means OpenTelemetry's global one
}

// Store is an open store.
type Store struct {
	storage.Store
	Kind string // for people: sqlite, postgres, object, memory
	// Migrated lists the migrations that were applied on opening.
	Migrated []Migration

	close   func() error
	blocker func() (pid int, stopped bool)
	wakes   func(context.Context) error
}

// Close closes the store.
func (s *Store) Close() error { return s.close() }

// Blocker returns the process that keeps all others from writing, if the backend knows it.
func (s *Store) Blocker() (pid int, stopped bool) {
	if s.blocker == nil {
		return 0, false
	}
	return s.blocker()
}

// CheckWakeUps tests the store's wake-ups. known is false if the store has none, or none that may fail to
// arrive. The error is [postgres.ErrNoNotifications] if they do not arrive.
func (s *Store) CheckWakeUps(ctx context.Context) (known bool, err error) {
	if s.wakes == nil {
		return false, nil
	}
	return true, s.wakes(ctx)
}

// Migration is one version of a schema.
type Migration struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

// driver is one kind of store.
type driver struct {
	open    func(context.Context, Options) (*Store, error)
	status  func(context.Context, Options) ([]Migration, error)
	migrate func(context.Context, Options) ([]Migration, error)
	sql     func(config.Config, int) (string, error)
}

func driverOf(cfg config.Config) (driver, error) {
	switch scheme(cfg.Store.URL) {
	case "sqlite":
		return sqliteDriver, nil
	case "postgres", "postgresql":
		return postgresDriver, nil
	case "file", "s3", "gs":
		return objectDriver, nil
	case "":
		return driver{}, fault.New(fault.StoreURL, "store.url is not set, so there is no cluster to read")
	}
	return driver{}, fault.New(fault.StoreURL, "store.url has the scheme %q, want sqlite, postgres, file, s3 or gs", scheme(cfg.Store.URL))
}

func scheme(address string) string {
	s, _, _ := strings.Cut(address, ":")
	return s
}

// Open opens the store. Its errors are faults.
func Open(ctx context.Context, o Options) (*Store, error) {
	d, err := driverOf(o.Config)
	if err != nil {
		return nil, err
	}
	return faulty(d.open(ctx, o))
}

// faulty turns an error into a fault.
func faulty[T any](v T, err error) (T, error) {
	if err != nil {
		return v, Fault(err)
	}
	return v, nil
}

// Status lists every version that the store or the program knows. Versions that are not applied have a
// zero AppliedAt.
func Status(ctx context.Context, o Options) ([]Migration, error) {
	d, err := driverOf(o.Config)
	if err != nil {
		return nil, err
	}
	return faulty(d.status(ctx, o))
}

// Pending lists the versions that Migrate would apply.
func Pending(ctx context.Context, o Options) ([]Migration, error) {
	all, err := Status(ctx, o)
	return pending(all), err
}

func pending(all []Migration) []Migration {
	return slices.DeleteFunc(all, func(m Migration) bool { return !m.AppliedAt.IsZero() })
}

// Migrate migrates the schema to the program's version and returns what it applied.
func Migrate(ctx context.Context, o Options) ([]Migration, error) {
	d, err := driverOf(o.Config)
	if err != nil {
		return nil, err
	}
	return faulty(migrateDated(ctx, o, d.migrate, d.status))
}

// migrateDated migrates, and returns the applied steps with the times that the store recorded.
func migrateDated(ctx context.Context, o Options, migrate, status func(context.Context, Options) ([]Migration, error)) ([]Migration, error) {
	taken, err := migrate(ctx, o)
	if err != nil || len(taken) == 0 {
		return taken, err
	}
	all, err := status(ctx, o)
	return slices.DeleteFunc(all, func(m Migration) bool {
		return !slices.ContainsFunc(taken, func(t Migration) bool { return t.Version == m.Version })
	}), err
}

// SQL returns the statements that migrate a store from a version to the program's.
func SQL(cfg config.Config, from int) (string, error) {
	d, err := driverOf(cfg)
	if err != nil {
		return "", err
	}
	text, err := d.sql(cfg, from)
	if err != nil {
		return "", fault.New(fault.Usage, "migrate get: %w", err)
	}
	return text, nil
}

// Fault turns an error of a backend, or any other, into a fault.
func Fault(err error) *fault.Fault {
	var (
		f      *fault.Fault
		file   *sqlite.FileError
		locked *sqlite.LockedError
	)
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &locked):
		what, do, _ := strings.Cut(locked.Error(), ": ")
		return &fault.Fault{Code: fault.Locked, What: what, Do: do, Err: err}
	case errors.As(err, &file):
		return fileFault(file, err)
	}
	if f := postgresFault(err); f != nil {
		return f
	}
	if f := objectFault(err); f != nil {
		return f
	}
	return fault.From(err)
}

func fileFault(e *sqlite.FileError, err error) *fault.Fault {
	f := &fault.Fault{Code: fault.StoreFailed, What: "database file " + e.Path + ": " + e.Problem, Do: e.Hint, Err: err}
	if e.Err != nil {
		f.What += ": " + e.Err.Error()
	}
	switch {
	case e.Problem == "cannot be written":
		f.Code = fault.ReadOnly
	case strings.HasPrefix(e.Problem, "cannot be"), errors.Is(e.Err, fs.ErrPermission):
		f.Code = fault.NoRight
	case e.Problem == "does not exist", e.Problem == "is gone", e.Problem == "its directory does not exist":
		f.Code = fault.Unreachable
	}
	return f
}
