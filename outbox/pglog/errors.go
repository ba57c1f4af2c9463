package pglog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/outbox"
)

var (
	errClosed  = errors.New("the log is closed")
	errServer  = fmt.Errorf("%w: the connection leads to another server, or it has restarted", outbox.ErrMoved)
	errStandby = errors.New("the server is recovering or a standby, which does not show open transactions: connect to the primary (target_session_attrs=read-write)")
)

const hintMigrate = "migrate it (emitd migrate up --outbox, or pglog.Migrate)"

// code returns an error's SQLSTATE, or "".
func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// explain says what was attempted and, where it is known, what to do. No text of it holds a secret.
func (c Config) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	for _, answer := range []error{outbox.ErrFenced, outbox.ErrNotFound, outbox.ErrSchema, outbox.ErrMoved, errClosed, errStandby} {
		if errors.Is(err, answer) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	hint := hintOf(code(err), c)
	switch hint {
	case hintMigrate:
		return fmt.Errorf("%s: %w: the outbox's tables are missing or of another version: %s: %w", what, outbox.ErrSchema, hint, c.stripped(err))
	case "":
		return fmt.Errorf("%s: %w", what, c.stripped(err))
	}
	return fmt.Errorf("%s: %s: %w", what, hint, c.stripped(err))
}

// hintOf says what to do about an SQLSTATE, if that is known.
func hintOf(code string, c Config) string {
	switch code {
	case "42P01", "3F000", "42703", "42883": // no table, schema, column, function
		return hintMigrate
	case "42501":
		return fmt.Sprintf("the role lacks privileges: grant usage on schema %s and its sequences, select, insert, update, delete on its tables, and execute on its functions to it", c.Schema)
	case "28P01", "28000":
		return "the server refuses the user or password"
	case "3D000":
		return "the database does not exist: create it first"
	case "25006":
		return "the server is read-only or a standby: connect to the primary"
	case "08P01":
		return "the connection is refused, perhaps by a pooler: its log says why"
	case "53300":
		return "the server has no connection left: lower the outbox's max connections or raise its max_connections"
	case "57014", "55P03":
		return "no answer within the query timeout, something holds a lock"
	case "23514":
		return "the log has no partition for the next id: run the sweeper (emitd serve, or Log.Sweep)"
	case "40P01":
		return "two transactions locked the same keys in different orders: publish for all keys in one call, or in one order"
	}
	return ""
}

// bare is an error without secrets that still answers for the server's code, the end of a context and
// a network that leads nowhere.
type bare struct {
	text   string
	causes []error
}

func (e *bare) Error() string   { return e.text }
func (e *bare) Unwrap() []error { return e.causes }

// stripped copies what callers may ask of an error and leaves its chain behind: pgx keeps the
// configuration, password included, in some of its errors.
func (c Config) stripped(err error) error {
	b := &bare{text: redact(err.Error(), c.URL)}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		b.causes = append(b.causes, pg)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		b.causes = append(b.causes, op)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		b.causes = append(b.causes, dns)
	}
	for _, ctx := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, ctx) {
			b.causes = append(b.causes, ctx)
		}
	}
	return b
}

var (
	userinfo = regexp.MustCompile(`(?i)(postgres(?:ql)?://)[^@\s/]*@`)
	keyvalue = regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)`)
)

// redact removes whatever may be a secret of the connection string from a text.
func redact(text, connection string) string {
	hide := func(secret string) {
		for _, s := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret)} {
			if s != "" {
				text = strings.ReplaceAll(text, s, "xxxxx")
			}
		}
	}
	if u, err := url.Parse(connection); err == nil {
		password, _ := u.User.Password()
		hide(password)
	}
	if cfg, err := pgconn.ParseConfig(connection); err == nil {
		hide(cfg.Password)
	}
	for _, m := range keyvalue.FindAllStringSubmatch(connection, -1) {
		hide(strings.Trim(m[2], "'"))
	}
	return keyvalue.ReplaceAllString(userinfo.ReplaceAllString(text, "${1}xxxxx@"), "${1}xxxxx")
}
