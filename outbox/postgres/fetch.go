package postgres

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/outbox"
)

// startReading starts a goroutine that reads a chunk.
func (r *reader) startReading(limit outbox.Limit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.startReadingLocked(limit)
}

// startReadingLocked is startReading for a caller that holds mu.
func (r *reader) startReadingLocked(limit outbox.Limit) {
	r.reading, r.page = true, limit
	r.wg.Go(func() {
		err := r.readNext()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reading = false
		if err != nil && r.err == nil {
			r.err = err
		}
		r.signal()
	})
}

// signal wakes the goroutine that waits in nextPage.
func (r *reader) signal() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// push adds a batch. chunk is the number of rows of the chunk so far, and round says whether the round
// goes on.
func (r *reader) push(b batch, chunk int, round bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches, r.rows, r.bytes = append(r.batches, b), r.rows+len(b.rows), r.bytes+b.bytes
	r.chunk, r.round = chunk, round
	r.signal()
}

// freshFor is how long the result of the last query is used. Reading a round may take long: the repeated
// query notices pauses, claims and lanes that became due meanwhile.
const freshFor = 20 * time.Millisecond

// readNext reads one chunk of the cursor row that is next in rotation.
func (r *reader) readNext() error {
	if time.Since(r.polledAt) > freshFor {
		seen, err := r.query(r.ctx, false)
		if err != nil {
			return err
		}
		if seen.paused { // the next call of take reports it
			return nil
		}
	}
	for r.rowReaders[r.next].done {
		r.next = (r.next + 1) % len(r.rowReaders)
	}
	i := r.next
	r.next = (r.next + 1) % len(r.rowReaders)
	ctx, cancel := r.c.log.bounded(r.ctx)
	defer cancel()
	return r.c.log.session(ctx, &r.c.server, func(conn *pgx.Conn) error { return r.read(ctx, conn, i) })
}

// read reads one chunk of cursor row i.
func (r *reader) read(ctx context.Context, conn *pgx.Conn, i int) error {
	p := &r.rowReaders[i]
	if !p.set {
		if err := r.start(ctx, conn, p); err != nil {
			return err
		}
	}
	f := &fetch{r: r, index: i, from: p.position}
	limit := r.chunkRows()
	if len(p.late) > 0 {
		n := min(limit, len(p.late))
		whole, err := f.run(ctx, conn, lateRows, idsText(p.late[:n]))
		if err != nil {
			return err
		}
		if !whole { // cut off: the messages after the last row are read again
			n = 0
			for n < len(p.late) && p.late[n] <= f.last {
				n++
			}
		}
		p.last, p.late = p.late[n-1], p.late[n:]
		return r.endChunk(f, i)
	}
	for {
		end := min(p.upto, p.scan+window)
		whole, err := f.run(ctx, conn, scanRows,
			number(p.scan), number(end), number(int64(p.Lo)), number(int64(p.Hi)), number(p.to.base), string(p.to.at),
			number(p.from.base), string(p.from.at), number(p.replayBound()), number(int64(limit)))
		if err != nil {
			return err
		}
		if !whole || f.count >= limit {
			p.scan, p.last = f.last, f.last
			return r.endChunk(f, i)
		}
		p.scan, p.last = end, end
		if f.count > 0 || p.scan >= p.upto {
			return r.endChunk(f, i)
		}
		// The whole window is empty: skip to the next existing id. A long gap is crossed in several chunks, so
		// that positions are stored on the way.
		next, err := nextID(ctx, conn, r.c.log.names, p.scan)
		if err != nil {
			return err
		}
		if next == 0 {
			next = p.upto + 1
		}
		p.scan = max(p.scan, min(next-1, p.upto))
		p.last = p.scan
		if f.windows++; f.windows == ahead || p.scan >= p.upto {
			return r.endChunk(f, i)
		}
	}
}

// replayBound returns the id above which every message is delivered, even one that was delivered before (a
// replay).
func (p *rowReader) replayBound() int64 {
	if p.replayAfter == never {
		return math.MaxInt64
	}
	return p.replayAfter
}

// start prepares the reading of a cursor row up to the target: the id to read from, and the messages below it
// that must be looked up by their transactions.
func (r *reader) start(ctx context.Context, conn *pgx.Conn, p *rowReader) error {
	if p.to.at == "" {
		p.to, p.last = r.target, 0
	}
	p.set, p.late, p.upto = true, nil, r.upto
	_, open, err := p.from.at.parse()
	if err != nil {
		return err
	}
	low := r.low
	if len(r.rowReaders) > 1 {
		low = 0
	}
	if p.replayAfter != never {
		// A replay is read by the whole condition, from the first message that may not have been delivered.
		p.scan = max(min(p.replayAfter, p.floor, low), p.last)
		return nil
	}
	p.scan = max(p.floor, p.last)
	if len(open) == 0 || p.last >= p.floor {
		return nil
	}
	q := &query{n: r.c.log.names, on: conn, ctx: ctx}
	q.each(`select o.id from unnest($1::xid8[]) x (tx) cross join lateral (
			select o.id from ~outbox o where o.tx = x.tx and o.id > $2 and o.id <= $3 and o.shard between $4 and $5 order by o.id limit $6) o
		where pg_visible_in_snapshot(x.tx, $7::pg_snapshot) order by o.id limit $6`,
		[]any{"{" + strings.Join(open, ",") + "}", max(p.last, p.from.base, low), p.floor, p.Lo, p.Hi, lateMost + 1, string(p.to.at)},
		func(row pgx.Rows) error {
			p.late = append(p.late, 0)
			return row.Scan(&p.late[len(p.late)-1])
		})
	if len(p.late) > lateMost {
		p.scan, p.late = p.late[0]-1, nil
	}
	return q.err
}

// endChunk pushes the last batch of a chunk. If the row has reached the target, it ends the row's share of the
// round. When all rows have reached it, they become one.
func (r *reader) endChunk(f *fetch, i int) error {
	p := &r.rowReaders[i]
	b := f.batch()
	ended := len(p.late) == 0 && p.scan >= p.upto
	if ended {
		p.from, p.to, p.last, p.replayAfter, p.set = p.to, view{}, 0, never, false
		p.done = p.from == r.target
		if p.done {
			p.floor = r.floor
		}
	}
	b.after = p.position
	round := false
	for _, other := range r.rowReaders {
		round = round || !other.done
	}
	if !round && len(r.rowReaders) > 1 {
		whole := rowReader{Range: r.c.Range, position: p.position, done: true}
		r.rowReaders, r.next, b.whole = []rowReader{whole}, 0, true
	}
	r.push(b, f.count, round)
	return nil
}

// chunkRows returns how many rows to request, from the average size of the rows so far.
func (r *reader) chunkRows() int {
	if r.size == 0 {
		return r.page.Rows
	}
	return max(min(aheadBytes/r.size, ahead*r.page.Rows), 1)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func idsText(ids []int64) string {
	text := []byte{'{'}
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, id, 10)
	}
	return string(append(text, '}'))
}

func nextID(ctx context.Context, conn *pgx.Conn, n names, after int64) (int64, error) {
	q := &query{n: n, on: conn, ctx: ctx}
	return q.number(`select id from ~outbox where id > $1 order by id limit 1`, after), q.err
}

// The statements that read messages. Their columns are in the order in which decode expects them.
const (
	bodyOf = "id, shard, created_at, dedup_id, key, topic, type, headers, traceparent, tracestate, payload"

	lateRows = `select ` + bodyOf + ` from ~outbox where id = any($1::bigint[]) order by id`

	// What the snapshot at the end of the row's share of the round sees and the one at its beginning does not.
	scanRows = `select ` + bodyOf + ` from ~outbox
		where id > $1 and id <= $2 and shard between $3 and $4
			and (id <= $5::bigint or pg_visible_in_snapshot(tx, $6::pg_snapshot))
			and (not (id <= $7::bigint or pg_visible_in_snapshot(tx, $8::pg_snapshot)) or id > $9::bigint)
		order by id limit $10::bigint`
)

// fetch reads the rows of one chunk into batches.
type fetch struct {
	r       *reader
	index   int      // of the row reader
	from    position // position before the current batch
	rows    []outbox.Row
	bytes   int
	count   int   // rows of the chunk
	total   int   // size of the chunk in bytes
	last    int64 // the id of the last row
	windows int
	decoder
}

// errEnough cuts off a chunk whose messages are much larger than those before.
var errEnough = errors.New("enough")

// run reads the rows of a statement. whole is false if the chunk was cut off because it was too large.
// Then the connection is closed, because that is what makes the server stop.
func (f *fetch) run(ctx context.Context, conn *pgx.Conn, text string, args ...string) (whole bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	statement := f.r.c.log.names.q(text)
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = []byte(a)
	}
	result, err := f.r.c.log.result(ctx, conn, statement, values)
	if err != nil {
		return false, err
	}
	for result.NextRow() {
		if err = f.row(result.Values()); err != nil {
			cancel()
			break
		}
	}
	_, closed := result.Close()
	if f.count > 0 {
		f.r.size = max(f.total/f.count, 1)
	}
	switch {
	case errors.Is(err, errEnough):
		_ = conn.Close(ctx) // broken already
		return false, nil
	case err == nil:
		err = closed
	}
	return err == nil, err
}

// row adds one message. A full batch is pushed only when another row follows, because arrive pushes the
// last one.
func (f *fetch) row(v [][]byte) error {
	if len(f.rows) > 0 && (len(f.rows) == cap(f.rows) || f.bytes >= f.r.page.Bytes) {
		b := f.batch()
		b.after.last = f.last
		f.from = b.after
		f.r.push(b, f.count, true)
	}
	if f.rows == nil {
		f.rows = make([]outbox.Row, 0, f.r.page.Rows)
	}
	f.rows = append(f.rows, outbox.Row{})
	row := &f.rows[len(f.rows)-1]
	size, err := f.decode(row, len(f.rows)-1, v)
	if err != nil {
		return err
	}
	f.last = row.Seq
	f.count, f.total, f.bytes = f.count+1, f.total+size+64, f.bytes+size
	if f.total > 2*aheadBytes {
		return errEnough
	}
	return nil
}

// batch returns the rows read since the last batch.
func (f *fetch) batch() batch {
	f.texts(f.rows)
	b := batch{index: f.index, rows: f.rows, bytes: f.bytes, from: f.from, after: f.from}
	f.rows, f.bytes = nil, 0
	return b
}

// decoder decodes messages in Postgres's binary format. Topics and types repeat from row to row, so equal
// ones share memory. So do keys and payloads of a batch.
type decoder struct {
	known map[string]string
	keys  []byte
	spans [][2]int32 // of the keys in keys, by row
	slab  []byte
}

// epoch is the zero of Postgres's timestamps, in Unix microseconds.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// decode reads the columns of bodyOf. The key is set later, by texts. A program in another language may
// have written the row, so headers that do not parse are left out: an error would stop all messages
// behind the row.
func (d *decoder) decode(row *outbox.Row, i int, v [][]byte) (size int, err error) {
	if len(v) != 11 || len(v[0]) != 8 || len(v[1]) != 2 || len(v[2]) != 8 || len(v[3]) != len(uuid.UUID{}) {
		return 0, fmt.Errorf("%w: the outbox has columns of other types", outbox.ErrSchema)
	}
	row.Seq, row.Shard, row.Attempt = int64(binary.BigEndian.Uint64(v[0])), int(binary.BigEndian.Uint16(v[1])), 1
	row.CreatedAt = moment(int64(binary.BigEndian.Uint64(v[2])))
	copy(row.ID[:], v[3])
	from := int32(len(d.keys)) // at most a chunk
	d.keys = append(d.keys, v[4]...)
	d.spans = append(d.spans[:i], [2]int32{from, int32(len(d.keys))}) // at most a chunk
	row.Topic, row.Type = d.intern(v[5]), d.intern(v[6])
	if len(v[7]) > 0 {
		row.Headers = headersOf(v[7])
	}
	row.TraceParent, row.TraceState = string(v[8]), string(v[9])
	row.Payload = d.copy(v[10])
	return sizeOf(*row), nil
}

// moment converts a timestamptz. Infinity becomes the latest time that time.UnixMicro can represent.
func moment(micros int64) time.Time {
	if micros > math.MaxInt64-epoch {
		return time.UnixMicro(math.MaxInt64)
	}
	return time.UnixMicro(micros + epoch)
}

// texts sets the keys of the rows of a batch, from one string.
func (d *decoder) texts(rows []outbox.Row) {
	all := string(d.keys)
	for i := range rows {
		rows[i].Key = all[d.spans[i][0]:d.spans[i][1]]
	}
	d.keys, d.spans = d.keys[:0], d.spans[:0]
}

// intern returns a shared copy of a string that may repeat.
func (d *decoder) intern(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := d.known[string(b)]; ok {
		return s
	}
	if d.known == nil {
		d.known = map[string]string{}
	}
	s := string(b)
	if len(d.known) < 100 {
		d.known[s] = s
	}
	return s
}

// slabSize is the size of the memory block that small payloads share.
const slabSize = 64 << 10

// copy copies bytes whose buffer the connection will overwrite.
func (d *decoder) copy(b []byte) []byte {
	if b == nil {
		return nil
	}
	if len(b) > slabSize/16 {
		return append([]byte(nil), b...)
	}
	if cap(d.slab)-len(d.slab) < len(b) {
		d.slab = make([]byte, 0, slabSize)
	}
	from := len(d.slab)
	d.slab = append(d.slab, b...)
	return d.slab[from:len(d.slab):len(d.slab)]
}

// headersOf parses headers. A value that is not a string becomes its text.
func headersOf(text []byte) map[string]string {
	var out map[string]string
	if json.Unmarshal(text, &out) == nil {
		return out
	}
	var loose map[string]any
	if json.Unmarshal(text, &loose) != nil {
		return nil
	}
	out = make(map[string]string, len(loose))
	for name, value := range loose {
		out[name] = fmt.Sprint(value)
	}
	return out
}
