package postgres

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// composite reads one table row that Postgres has written as a single value: (a,"b c",,7). Asking for rows in this
// form saves the server from planning twenty columns for a statement that finds two rows. That planning is most of
// the work of a heartbeat.
//
// Fields come in the order of the table's columns. Columns that a later version of the schema appends are not read.
// An array is read in the same way, its elements as fields. The first error stays; the reader checks it at the end,
// and separately for a row or array within another one.
type composite struct {
	rest    []byte
	bracket byte     // the bracket that closes rest
	values  [][]byte // instead of rest: the columns of a row of an answer
	err     error
}

// errRow says that a value is neither a row nor an array of rows.
var errRow = errors.New("not the text of a row or an array of rows")

// columnsOf reads the columns of the present row of an answer in the same way. They are valid until the next row.
func columnsOf(rows pgx.Rows) *composite { return &composite{values: rows.RawValues()} }

func rowOf(text []byte) *composite {
	if len(text) < 2 || text[0] != '(' || text[len(text)-1] != ')' {
		return &composite{err: errRow}
	}
	return &composite{rest: text[1:], bracket: ')'}
}

// field returns the next field; null is nil.
func (c *composite) field() (text []byte, null bool) {
	if c.err != nil {
		return nil, true
	}
	if len(c.values) > 0 {
		text, c.values = c.values[0], c.values[1:]
		return text, text == nil
	}
	if len(c.rest) == 0 {
		c.err = errRow
		return nil, true
	}
	if c.ends(c.rest[0]) {
		c.rest = c.rest[1:]
		return nil, true
	}
	if c.rest[0] != '"' {
		for i, b := range c.rest {
			if c.ends(b) {
				text, c.rest = c.rest[:i], c.rest[i+1:]
				return text, false
			}
		}
		c.err = errRow
		return nil, true
	}
	return c.quoted(), false
}

// array reads a field that is an array of rows; the rows become its fields. Null is an empty array. An array's
// elements escape quotes with backslashes, where a row doubles them.
func (c *composite) array() *composite {
	text, null := c.field()
	switch {
	case c.err != nil || null:
		return &composite{err: c.err}
	case len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}':
		return &composite{err: errRow}
	}
	return &composite{rest: text[1:], bracket: '}'}
}

// more reports whether an array has another element. Of an empty array only the bracket is left; of one that was
// read to its end, nothing is.
func (c *composite) more() bool { return c.err == nil && len(c.rest) > 1 }

// ends reports whether a byte outside quotes ends a field.
func (c *composite) ends(b byte) bool { return b == ',' || b == c.bracket }

// quoted reads a field in quotes, in which quotes and backslashes are doubled.
func (c *composite) quoted() []byte {
	in := c.rest[1:]
	plain := true
	for i := 0; i < len(in); i++ {
		switch in[i] {
		case '\\':
			plain = false
			i++
		case '"':
			if i+1 < len(in) && in[i+1] == '"' {
				plain = false
				i++
				continue
			}
			if i+1 == len(in) || !c.ends(in[i+1]) {
				c.err = errRow
				return nil
			}
			c.rest = in[i+2:]
			if plain {
				return in[:i]
			}
			return unquote(in[:i])
		}
	}
	c.err = errRow
	return nil
}

func unquote(in []byte) []byte {
	out := make([]byte, 0, len(in))
	for i := 0; i < len(in); i++ {
		if in[i] == '\\' || in[i] == '"' {
			i++
		}
		if i < len(in) {
			out = append(out, in[i])
		}
	}
	return out
}

// skip skips n fields.
func (c *composite) skip(n int) {
	for range n {
		c.field()
	}
}

// row reads a field that is a row.
func (c *composite) row() *composite {
	text, null := c.field()
	if null {
		return &composite{err: errRow}
	}
	return rowOf(text)
}

// text reads a string; null is empty.
func (c *composite) text() string {
	t, _ := c.field()
	return string(t)
}

// int reads a whole number; null is 0.
func (c *composite) int() int64 {
	n, _ := c.intOrNull()
	return n
}

func (c *composite) intOrNull() (n int64, null bool) {
	t, null := c.field()
	if null {
		return 0, true
	}
	n, err := strconv.ParseInt(string(t), 10, 64)
	c.fail(err)
	return n, false
}

// bool reads t or f; null is false.
func (c *composite) bool() bool {
	t, _ := c.field()
	return len(t) == 1 && t[0] == 't'
}

// time reads a time of the store, in UTC; null is the zero time.
func (c *composite) time() time.Time {
	t, null := c.field()
	if null {
		return time.Time{}
	}
	at, err := parseTime(t)
	c.fail(err)
	return at
}

// json reads a document into v; null leaves v as it is.
func (c *composite) json(v any) {
	if t, null := c.field(); !null {
		c.fail(json.Unmarshal(t, v))
	}
}

// raw reads a document as it is; null is nil.
func (c *composite) raw() json.RawMessage {
	t, null := c.field()
	if null {
		return nil
	}
	return append(json.RawMessage(nil), t...)
}

func (c *composite) fail(err error) {
	if c.err == nil && err != nil {
		c.err = err
	}
}

// parseTime reads a timestamptz in the ISO style. The zone is the session's. It may have minutes and, for times
// long ago, seconds.
func parseTime(text []byte) (at time.Time, err error) {
	const date = len("2006-01-02")
	zone := bytes.LastIndexAny(text, "+-")
	if zone < date || text[date] != ' ' {
		return at, fmt.Errorf("time %q does not parse", text)
	}
	if colons := bytes.Count(text[zone:], []byte(":")); colons == 2 {
		at, err = time.Parse("2006-01-02 15:04:05.999999999Z07:00:00", string(text))
	} else {
		// This is by far the fastest of the formats that package time reads.
		rfc3339 := append(make([]byte, 0, len(text)+len(":00")), text...)
		rfc3339[date] = 'T'
		if colons == 0 {
			rfc3339 = append(rfc3339, ":00"...)
		}
		err = at.UnmarshalText(rfc3339)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("time %q does not parse", text)
	}
	return at.UTC(), nil
}
