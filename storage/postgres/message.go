package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/internal/pgschema"
)

// message holds one call's statements, which are sent together and answered together. pgx fills in their arguments,
// as quoted literals, for the simple protocol. Strings must be cleaned before: see cleanText.
type message struct {
	statements    statements
	batch         pgx.Batch
	serverTimeout string // how long the server may take, in milliseconds
	otherDates    bool   // the session writes times in another style than ISO
}

// do appends a statement whose answer is not needed.
func (m *message) do(name string, args ...any) *pgx.QueuedQuery {
	return m.batch.Queue(m.statements.get(name), args...)
}

// largestAnswer is how many bytes, about, a transaction that has locks may answer. The server sends an answer while the
// transaction still runs. An answer of this size fits into the server's own buffer or, if it is a little larger, into the
// system's. A larger one waits until the client takes it, with all locks, and no timeout of the server ends that wait. A
// client that was stopped, or whose host is lost, would hold them until the network gives up, a quarter of an hour later.
const largestAnswer = 8000

// fewRows is how many rows an answer of that size has. A row has a reason, an error and embargoes: a kilobyte or two.
const fewRows = 4

// query appends a statement and receives its rows, one by one. What was read of a row is valid only during the call.
func (m *message) query(read func(*composite) error, name string, args ...any) {
	m.do(name, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			row := columnsOf(rows)
			if err := cmp.Or(read(row), row.err); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// count appends a statement and receives how many rows it affected.
func (m *message) count(rows func(n int64), name string, args ...any) {
	m.do(name, args...).Exec(func(tag pgconn.CommandTag) error {
		rows(tag.RowsAffected())
		return nil
	})
}

// set appends a statement that is not one of the sources.
func (m *message) set(sql string, args ...any) { m.batch.Queue(sql, args...) }

// cleanText makes a text that Postgres can store: valid UTF-8 without NUL. A bad character in a user's
// error must not prevent a report from being written.
func cleanText(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// send sends the message and passes the answers to those that wait for them.
func (m *message) send(ctx context.Context, conn *pgx.Conn) error {
	for _, query := range m.batch.QueuedQueries {
		// The simple protocol ends a message at NUL. Strings are cleaned before; this check is the second safeguard.
		if slices.ContainsFunc(query.Arguments, holdsNUL) {
			return errors.New("a value holds NUL")
		}
	}
	return conn.SendBatch(ctx, &m.batch).Close()
}

func holdsNUL(value any) bool {
	text, _ := value.(string)
	return strings.IndexByte(text, 0) >= 0
}

// Isolation levels of a call. In a write, every statement sees what was committed before it. It is
// therefore never older than the lock that the statement before it waited for. In a read, all
// statements see the same moment. The function heartbeat_8 checks its isolation and limits its
// waits itself, which costs less than a statement for each. Its plans are too small to be compiled.
//
// [message.commit] ends a write in the middle of a message. What is large is read after it, by a transaction without locks.
const (
	writing    = "set transaction isolation level read committed"
	reading    = "set transaction isolation level repeatable read, read only"
	inFunction = ""
)

// begin puts the settings of the transaction first, so that nothing depends on a session which a
// pooler may give to another client. Times are written in one style, whatever the database's style
// is. Compilation (jit) is off: Postgres takes tables that were never analyzed for large ones. It
// would compile a statement for a second that runs for a millisecond.
//
// Joins that read whole tables are off for the same reason. A call names the rows that it changes, and the server does
// not know how few they are. It would read all units for a report of one of them.
//
// Settings that differ from call to call stand in a SELECT. The server's statistics
// (pg_stat_statements) remove the constants from a SELECT, but before version 18 not from a SET.
// There each value would be an entry of its own and evict the user's entries.
func (m *message) begin(conn *pgconn.PgConn, isolation string, total, lock time.Duration) {
	m.serverTimeout = milliseconds(total)
	m.otherDates = !strings.HasPrefix(conn.ParameterStatus("DateStyle"), "ISO")
	m.settings(isolation)
	if lock > 0 {
		m.set("select set_config('lock_timeout', $1, true)", milliseconds(lock))
	}
}

// settings appends those of a transaction.
func (m *message) settings(isolation string) {
	if isolation != inFunction {
		m.set(isolation)
		m.set("set local search_path = " + pgschema.SearchPath)
		m.set("select set_config('jit', 'off', true), set_config('enable_hashjoin', 'off', true), "+
			"set_config('enable_mergejoin', 'off', true), set_config('statement_timeout', $1, true)", m.serverTimeout)
	}
	if m.otherDates {
		m.set("set local datestyle = 'ISO'")
	}
}

// commit ends the transaction here and not at the end of the message, so that what follows is sent without its locks. The
// statements after it read, at one moment, in a transaction of their own. If one of them fails, the call has happened.
//
// Statements that are sent together are a transaction of which BEGIN makes an ordinary one, which COMMIT may end. With
// BEGIN in front of all, an error would leave the session in a transaction that failed.
func (m *message) commit() {
	m.set("begin")
	m.set("commit")
	m.settings(reading)
}

// milliseconds returns a server-side timeout for a call that ends after left. It is a tenth
// shorter, so that the server's answer arrives before the caller gives up and loses the connection.
func milliseconds(left time.Duration) string {
	return strconv.FormatInt(max((left-left/10).Milliseconds(), 1), 10)
}
