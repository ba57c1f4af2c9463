package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/storage"
)

// unavailable is an error that passes by itself.
type unavailable struct {
	text  string
	cause error
}

func (e *unavailable) Error() string { return storage.ErrUnavailable.Error() + ": " + e.text }
func (e *unavailable) Unwrap() []error {
	return []error{storage.ErrUnavailable, e.cause}
}

// errNoCounter says that the schema lacks the row that every write updates.
var errNoCounter = errors.New("the table counter has no row: restore the whole schema, or drop it and migrate")

// Classes and codes of SQLSTATE that decide the kind of an error.
const (
	codeIsolation      = "25000" // invalid_transaction_state: raised by the function heartbeat_8
	codeReadOnly       = "25006" // read_only_sql_transaction
	codeRecovery       = "55000" // object_not_in_prerequisite_state: log functions of a standby
	codeStarting       = "57P03" // cannot_connect_now
	codeLockTimeout    = "55P03" // lock_not_available
	codeCancelled      = "57014" // query_canceled, statement_timeout among them
	codeNoTable        = "42P01"
	codeNoSchema       = "3F000"
	codeNoFunction     = "42883"
	codeNoPrivilege    = "42501"
	codeBadPassword    = "28P01"
	codeNoRole         = "28000"
	codeNoDatabase     = "3D000"
	codeTooMany        = "53300"
	codeSerialization  = "40001"
	codeDeadlock       = "40P01"
	codeAdminShutdown  = "57P01"
	codeCrashShutdown  = "57P02"
	classConnection    = "08"
	classNoResources   = "53"
	codeDuplicateTable = "42P07"
	codeNoRow          = "P0002" // no_data_found: raised by the function heartbeat_8
)

// isReadOnlyServer reports whether the server that answered cannot be written to, because it is a
// standby or a primary that is recovering. Connections to it are useless.
func isReadOnlyServer(err error) bool {
	switch pgerror.Code(err) {
	case codeReadOnly, codeStarting:
		return true
	case codeRecovery:
		return strings.Contains(err.Error(), "recovery")
	}
	return false
}

// fail adds what was attempted and explains in words what is wrong. Its text never contains a
// secret.
func (s *Store) fail(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, explain(err, s.cfg))
}

// explain turns an error of pgx into one of this package. Answers of the contract stay; other
// errors say what to do.
func explain(err error, cfg Config) error {
	if isAnswer(err) {
		return err
	}
	clean := func(text string) error {
		return &unavailable{pgerror.Redact(text, cfg.URL), pgerror.Strip(err, cfg.URL)}
	}
	switch c := pgerror.Code(err); {
	case c == codeNoTable || c == codeNoSchema:
		return &storage.SchemaError{Want: Version, Hint: hintMigrate(cfg)}
	case c == codeNoFunction: // although the schema says that it has version 8, which brings the functions: see [Store.callFunction]
		return &storage.SchemaError{Have: 7, Want: Version, Hint: hintMigrate(cfg)}
	case c == codeNoPrivilege:
		return denied(err, cfg)
	case c == codeNoRow:
		return errNoCounter
	case c == codeBadPassword || c == codeNoRole:
		return fmt.Errorf("the server refuses the user or password in store.url: %w", pgerror.Strip(err, cfg.URL))
	case c == codeNoDatabase:
		return fmt.Errorf("the database in store.url does not exist: create it first: %w", pgerror.Strip(err, cfg.URL))
	case isReadOnlyServer(err):
		return clean("the server that answered is read-only or recovering; its connections were dropped: " + sentence(err))
	case c == codeTooMany:
		return clean("the server has no connection left: lower store.max_connections or raise the server's max_connections: " + sentence(err))
	case c == codeCancelled || c == codeLockTimeout:
		return clean("no answer within the query timeout; another session may hold a lock: " + sentence(err))
	case c == codeSerialization || c == codeDeadlock || c == codeAdminShutdown || c == codeCrashShutdown,
		strings.HasPrefix(c, classConnection), strings.HasPrefix(c, classNoResources):
		return clean(sentence(err))
	case c != "":
		return pgerror.Strip(err, cfg.URL)
	}
	return explainTransport(err, cfg)
}

// explainTransport does the same for errors that no server sent.
func explainTransport(err error, cfg Config) error {
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &connect):
		return &unavailable{"cannot reach the database: " + pgerror.Redact(connect.Error(), cfg.URL), pgerror.Strip(err, cfg.URL)}
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return &unavailable{"no answer in time", err}
	case errors.As(err, &network), errors.Is(err, net.ErrClosed), pgconn.SafeToRetry(err), pgconn.Timeout(err), isEnd(err):
		return &unavailable{"the connection broke: " + pgerror.Redact(err.Error(), cfg.URL), pgerror.Strip(err, cfg.URL)}
	}
	return pgerror.Strip(err, cfg.URL)
}

// isEnd reports whether the connection ended in the middle of an answer.
func isEnd(err error) bool {
	text := err.Error()
	return strings.Contains(text, "EOF") || strings.Contains(text, "conn closed") || strings.Contains(text, "closed pool")
}

// isAnswer reports whether the error is one of the contract's own.
func isAnswer(err error) bool {
	for _, answer := range []error{
		storage.ErrTermLost, storage.ErrStaleSeq, storage.ErrNotRegistered, storage.ErrIDInUse, storage.ErrOtherCluster,
		storage.ErrNodesLive, storage.ErrStoreChanged, storage.ErrUnavailable,
		storage.ErrSchema, storage.ErrLocked, storage.ErrLockLost, daemon.ErrStale, errClosed,
		daemon.ErrStateRevision,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// migrationDenied marks a privilege error of a role that tried to create tables.
type migrationDenied struct{ error }

func (e *migrationDenied) Unwrap() error { return e.error }

// denied explains a privilege error: it names the object and what to do.
func denied(err error, cfg Config) error {
	what := "lacks privileges in schema " + cfg.Schema
	hint := "grant what emitd migrate get --grants-only prints (GrantSQL) to it"
	if _, migrates := errors.AsType[*migrationDenied](err); migrates {
		what = "may not create the tables of schema " + cfg.Schema
		hint = "run what emitd migrate get prints as a role that may, once; the role of the nodes needs only the grants at its end"
	}
	return fmt.Errorf("the role in store.url %s (%s): %s: %w", what, sentence(err), hint, pgerror.Strip(err, cfg.URL))
}

// sentence returns the server's own message.
func sentence(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Message
	}
	return err.Error()
}
