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

// message is one call's statements, sent together and answered together.
type message struct {
	statements statements
	text       []byte
	patience   string // how long the server may take, in milliseconds
	takes      []take
	err        error
}

// take receives what one statement answers: its rows, one by one, whose texts are valid only
// meanwhile, and at the end how many rows it touched. Either may be nil.
type take struct {
	row  func(values [][]byte) error
	rows func(n int64)
}

// do appends a statement whose answer does not matter.
func (m *message) do(name string, args ...any) { m.append(m.statements.get(name), args, take{}) }

// ask appends a statement and receives its rows.
func (m *message) ask(row func(values [][]byte) error, name string, args ...any) {
	m.append(m.statements.get(name), args, take{row: row})
}

// count appends a statement and receives how many rows it touched.
func (m *message) count(rows func(n int64), name string, args ...any) {
	m.append(m.statements.get(name), args, take{rows: rows})
}

// set appends a statement without arguments that is no part of the sources.
func (m *message) set(sql string) { m.append(statement{sql}, nil, take{}) }

// append fills in the arguments.
func (m *message) append(s statement, args []any, t take) {
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

// cut finds the placeholders. The sources hold no dollar in any other place.
func cut(text string) statement {
	var s statement
	from := 0
	for _, at := range placeholder.FindAllStringSubmatchIndex(text, -1) {
		s = append(s, text[from:at[0]], text[at[2]:at[3]])
		from = at[1]
	}
	return append(s, text[from:])
}

// quote appends a value as a literal. Strings are cleaned and quoted as standard_conforming_strings
// wants it, which [checkSession] makes sure of; spaces and brackets keep a literal apart from what
// stands around it.
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

// quoteInt appends a number as a bigint, whatever its size: an integer without quotes is of the type
// it fits into, so that one statement would be several to a server that counts them, and is cast at
// every call.
func quoteInt(text []byte, v int64) []byte {
	return append(strconv.AppendInt(append(text, " '"...), v, 10), "'::bigint "...)
}

// plain makes a text that Postgres can hold: valid UTF-8 without NUL. A bad character in a
// user's error must not keep a report from being written.
func plain(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// checkSession refuses sessions in which quotes mean something else.
func checkSession(conn *pgconn.PgConn) error {
	for name, want := range map[string]string{"standard_conforming_strings": "on", "client_encoding": "UTF8"} {
		if got := conn.ParameterStatus(name); got != want {
			return fmt.Errorf("the session has %s = %q, want %q", name, got, want)
		}
	}
	return nil
}

// send sends the message and hands over the answers.
func (m *message) send(ctx context.Context, conn *pgconn.PgConn) error {
	if m.err != nil {
		return m.err
	}
	if err := checkSession(conn); err != nil {
		return err
	}
	// The simple protocol ends a message at NUL. Strings are cleaned; this is the second lock.
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
func (t take) receive(r *pgconn.ResultReader) (err error) {
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

// Isolation levels of a call. Every statement of a write sees what was committed before it, so
// that it is never older than the lock that the statement before it waited for; all statements
// of a read see the same. The function of heartbeats looks after its isolation and its patience by
// itself, at less cost than that of a statement each, and its plans are too small to be compiled.
const (
	writing    = "set transaction isolation level read committed"
	reading    = "set transaction isolation level repeatable read, read only"
	inFunction = ""
)

// begin puts first what holds for one transaction, so that nothing rests on a session which a
// pooler may hand to somebody else. Times are written in one style, whatever the database's is.
// Tables that were never analyzed are taken for large ones: compiling a statement for them costs
// a second, running it a millisecond.
//
// What differs from call to call stands in a select: the server's statistics (pg_stat_statements) take
// the constants out of a select, and before version 18 not out of a SET, so that each value would be an
// entry of its own and evict those of the user.
func (m *message) begin(conn *pgconn.PgConn, isolation string, total, lock time.Duration) {
	m.patience = milliseconds(total)
	if isolation != inFunction {
		m.set(isolation)
		m.set("set local search_path = " + pgschema.SearchPath)
		m.set("select set_config('jit', 'off', true), set_config('statement_timeout', '" + m.patience + "', true)")
	}
	if !strings.HasPrefix(conn.ParameterStatus("DateStyle"), "ISO") {
		m.set("set local datestyle = 'ISO'")
	}
	if lock > 0 {
		m.set("select set_config('lock_timeout', '" + milliseconds(lock) + "', true)")
	}
}

// milliseconds is a server-side timeout for a call that ends after left: a little less, so that
// the server's answer arrives before the caller gives up and with it the connection.
func milliseconds(left time.Duration) string {
	return strconv.FormatInt(max((left-left/10).Milliseconds(), 1), 10)
}
