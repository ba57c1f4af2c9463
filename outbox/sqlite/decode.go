package sqlite

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
)

// decoder decodes messages. Topics and types repeat from row to row, so equal ones share memory. All rows
// are scanned into the same fields.
type decoder struct {
	scanned outbox.Row
	dest    []any
	id      []byte
	headers string
	created int64
	texts   map[string]string
}

// row reads the columns of bodyOf, and the columns after them into more. n is the size of payload and
// headers. A program in another language may have written the row, so an ID or headers that do not parse
// are left out: an error would stop all messages behind the row.
func (d *decoder) row(scan func(...any) error, more ...any) (r outbox.Row, n int, err error) {
	if s := &d.scanned; d.dest == nil {
		d.dest = []any{
			&s.Seq, &s.Shard, &d.created, &d.id, &s.Key, &s.Topic, &s.Type, &d.headers, &s.TraceParent, &s.TraceState, &s.Payload,
		}
	}
	if err := scan(append(d.dest[:len(d.dest):len(d.dest)], more...)...); err != nil {
		return r, 0, err
	}
	r = d.scanned
	r.CreatedAt = time.Unix(0, d.created)
	if id, err := uuid.FromBytes(d.id); err == nil {
		r.ID = id
	}
	r.Topic, r.Type = d.intern(r.Topic), d.intern(r.Type)
	if d.headers != "" {
		r.Headers = headersOf(d.headers)
	}
	return r, len(r.Payload) + len(d.headers), nil
}

// intern returns a shared copy of a string that may repeat.
func (d *decoder) intern(s string) string {
	if known, ok := d.texts[s]; ok {
		return known
	}
	if d.texts == nil {
		d.texts = map[string]string{}
	}
	if len(d.texts) < 100 {
		d.texts[s] = s
	}
	return s
}

// headersOf parses headers. A value that is not a string becomes its text.
func headersOf(text string) map[string]string {
	var out map[string]string
	if json.Unmarshal([]byte(text), &out) == nil {
		return out
	}
	var loose map[string]any
	if json.Unmarshal([]byte(text), &loose) != nil {
		return nil
	}
	out = make(map[string]string, len(loose))
	for name, value := range loose {
		out[name] = fmt.Sprint(value)
	}
	return out
}
