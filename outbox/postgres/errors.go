package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/outbox"
)

var (
	errClosed  = errors.New("the log is closed")
	errServer  = fmt.Errorf("%w: the connection leads to another server, or it has restarted", outbox.ErrMoved)
	errStandby = errors.New("the server is recovering or a standby, which does not show open transactions: connect to the primary (target_session_attrs=read-write)")
)

const hintMigrate = "migrate it (emitd migrate up --outbox; in a program of your own postgres.Migrate of emitd/outbox/postgres, or Config.AutoMigrate)"

// explain adds to an error what was attempted and, if it is known, what to do. Its texts contain no
// secret.
func (c Config) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	for _, answer := range []error{outbox.ErrFenced, outbox.ErrNotFound, outbox.ErrSchema, outbox.ErrMoved, errClosed, errStandby} {
		if errors.Is(err, answer) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	hint := hintOf(pgerror.Code(err), c)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "23514" && pg.ConstraintName != "" { // else it is the partition
		hint = "the message is longer than outbox.Message allows"
	}
	switch hint {
	case hintMigrate:
		return fmt.Errorf("%s: %w: the outbox's tables are missing or of another version: %s: %w", what, outbox.ErrSchema, hint, pgerror.Strip(err, c.URL))
	case "":
		return fmt.Errorf("%s: %w", what, pgerror.Strip(err, c.URL))
	}
	return fmt.Errorf("%s: %s: %w", what, hint, pgerror.Strip(err, c.URL))
}

// hintOf says what to do about an SQLSTATE; "" if that is unknown.
func hintOf(code string, c Config) string {
	switch code {
	case "42P01", "3F000", "42703", "42883": // no table, schema, column, function
		return hintMigrate
	case "42501":
		return fmt.Sprintf("the role lacks privileges in schema %s: grant what emitd migrate get --outbox --grants-only prints (postgres.GrantSQL); to create tables, run emitd migrate up --outbox as a role that may", c.Schema)
	case "28P01", "28000":
		return "the server refuses the user or password"
	case "3D000":
		return "the database does not exist: create it first"
	case "25006":
		return "the server is read-only or a standby: connect to the primary"
	case "08P01":
		return "the connection is refused, perhaps by a pooler: its log says why"
	case "53300":
		return "the server has no connection left: lower outbox.max_connections or raise the server's max_connections"
	case "57014", "55P03":
		return "no answer within the query timeout; another session may hold a lock"
	case "23514":
		return "the log has no partition for the next id: run the sweeper (emitd serve, or Log.Sweep)"
	case "40P01":
		return "two transactions locked the same keys in different orders: publish for all keys in one call, or in one order"
	}
	return ""
}
