package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/internal/pgschema"
)

// message holds one call's statements, which are sent together and answered together.
type message struct {
	statements    statements
	text          []byte
	serverTimeout string // how long the server may take, in milliseconds
	takes         []receiver
	err           error
}

// receiver receives the answer of one statement: row gets its rows, one by one, and rows gets at the
// end how many rows the statement affected. A row's texts are valid only during the call. Either
// may be nil.
type receiver struct {
	row  func(values [][]byte) error
	rows func(n int64)
}

// do appends a statement whose answer is not needed.
func (m *message) do(name string, args ...any) { m.append(m.statements.get(name), args, receiver{}) }

// ask appends a statement and receives its rows.
func (m *message) ask(row func(values [][]byte) error, name string, args ...any) {
	m.append(m.statements.get(name), args, receiver{row: row})
}

// count appends a statement and receives how many rows it affected.
func (m *message) count(rows func(n int64), name string, args ...any) {
	m.append(m.statements.get(name), args, receiver{rows: rows})
}

// set appends a statement without arguments that is not one of the sources.
func (m *message) set(sql string) { m.append(statement{sql}, nil, receiver{}) }

// append appends a statement with its arguments filled in.
func (m *message) append(s statement, args []any, t receiver) {
	if len(m.text) > 0 {
		m.text = append(m.text, ';')
	}
	for i, part := range s {
		if i%2 == 0 {
			m.text = append(m.text, part...)
			continue
		}
		n, _ := strconv.Atoi(part)
		if n < 1 || n > len(args) {
			m.err = fmt.Errorf("statement wants argument %s of %d", part, len(args))
			return
		}
		m.text = quote(m.text, args[n-1])
	}
	m.takes = append(m.takes, t)
}

// statement is a text cut at its placeholders: text, number, text, number, …, text.
type statement []string

var placeholder = regexp.MustCompile(`\$(\d+)`)

// cut cuts a text at its placeholders. The sources contain a dollar sign nowhere else.
func cut(text string) statement {
	var s statement
	from := 0
	for _, at := range placeholder.FindAllStringSubmatchIndex(text, -1) {
		s = append(s, text[from:at[0]], text[at[2]:at[3]])
		from = at[1]
	}
	return append(s, text[from:])
}

// quote appends a value as a literal. Strings must be cleaned before. They are quoted for
// standard_conforming_strings = on, which [checkSession] ensures. Spaces and brackets separate a
// literal from the text around it.
func quote(text []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(text, " null "...)
	case bool:
		return strconv.AppendBool(append(text, ' '), v)
	case int:
		return quoteInt(text, int64(v))
	case int64:
		return quoteInt(text, v)
	case string:
		text = append(text, ' ', '\'')
		for i := range len(v) {
			if v[i] == '\'' {
				text = append(text, '\'')
			}
			text = append(text, v[i])
		}
		return append(text, '\'', ' ')
	}
	panic(fmt.Sprintf("postgres: no literal for a %T", value))
}

// quoteInt appends a number as a bigint, whatever its size. Without the quotes, an integer gets the
// smallest type that it fits into. One statement would then be several to the server's statistics,
// and each call would need a cast.
func quoteInt(text []byte, v int64) []byte {
	return append(strconv.AppendInt(append(text, " '"...), v, 10), "'::bigint "...)
}

// cleanText makes a text that Postgres can store: valid UTF-8 without NUL. A bad character in a user's
// error must not prevent a report from being written.
func cleanText(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// checkSession refuses sessions in which quotes have another meaning.
func checkSession(conn *pgconn.PgConn) error {
	for name, want := range map[string]string{"standard_conforming_strings": "on", "client_encoding": "UTF8"} {
		if got := conn.ParameterStatus(name); got != want {
			return fmt.Errorf("the session has %s = %q, want %q", name, got, want)
		}
	}
	return nil
}

// send sends the message and passes the answers to their takes.
func (m *message) send(ctx context.Context, conn *pgconn.PgConn) error {
	if m.err != nil {
		return m.err
	}
	if err := checkSession(conn); err != nil {
		return err
	}
	// The simple protocol ends a message at NUL. Strings are cleaned before; this check is the
	// second safeguard.
	if slices.Contains(m.text, 0) {
		return errors.New("a value holds NUL")
	}
	results := conn.Exec(ctx, string(m.text))
	var bad error
	for i := 0; results.NextResult() && i < len(m.takes); i++ {
		if err := m.takes[i].receive(results.ResultReader()); err != nil && bad == nil {
			bad = err
		}
	}
	return errors.Join(results.Close(), bad)
}

// receive reads one statement's answer to its end.
func (t receiver) receive(r *pgconn.ResultReader) (err error) {
	for r.NextRow() {
		if t.row != nil && err == nil {
			err = t.row(r.Values())
		}
	}
	tag, closed := r.Close()
	if closed != nil {
		return nil //nolint:nilerr // said again by the whole
	}
	if t.rows != nil {
		t.rows(tag.RowsAffected())
	}
	return err
}

// Isolation levels of a call. In a write, every statement sees what was committed before it. It is
// therefore never older than the lock that the statement before it waited for. In a read, all
// statements see the same moment. The function heartbeat_2 checks its isolation and limits its
// waits itself, which costs less than a statement for each. Its plans are too small to be compiled.
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
// Settings that differ from call to call stand in a SELECT. The server's statistics
// (pg_stat_statements) remove the constants from a SELECT, but before version 18 not from a SET.
// There each value would be an entry of its own and evict the user's entries.
func (m *message) begin(conn *pgconn.PgConn, isolation string, total, lock time.Duration) {
	m.serverTimeout = milliseconds(total)
	if isolation != inFunction {
		m.set(isolation)
		m.set("set local search_path = " + pgschema.SearchPath)
		m.set("select set_config('jit', 'off', true), set_config('statement_timeout', '" + m.serverTimeout + "', true)")
	}
	if !strings.HasPrefix(conn.ParameterStatus("DateStyle"), "ISO") {
		m.set("set local datestyle = 'ISO'")
	}
	if lock > 0 {
		m.set("select set_config('lock_timeout', '" + milliseconds(lock) + "', true)")
	}
}

// milliseconds returns a server-side timeout for a call that ends after left. It is a tenth
// shorter, so that the server's answer arrives before the caller gives up and loses the connection.
func milliseconds(left time.Duration) string {
	return strconv.FormatInt(max((left-left/10).Milliseconds(), 1), 10)
}
