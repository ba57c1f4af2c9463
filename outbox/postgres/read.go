package postgres

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Limits of reading.
const (
	defaultRows  = 1000
	defaultBytes = 4 << 20
	// ahead is how many pages one chunk has, and aheadBytes how large it may be.
	ahead      = 8
	aheadBytes = 8 << 20
	// window is how many ids one statement scans. Messages of other ranges lie between those of this one,
	// and the time of a statement must not depend on how many they are.
	window = 100_000
	// lateMost is how many messages of long transactions are looked up by their transaction. If there are
	// more, the log is read again from the first of them.
	lateMost = 1000
	// An empty page has a mark if markEveryIDs ids were drawn since the last mark, or if that is older than
	// markAfter and a newer position is of use. The stored position matters, because the next claim starts
	// reading there, and because partitions are kept for it.
	markEveryIDs = 2000
	markAfter    = 5 * time.Second
)

// reader reads ahead of Next. A round reads every cursor row of the range up to one target
// snapshot. A goroutine (startReading) reads one chunk; while it runs, it owns the row readers and all fields above
// mu that it uses.
type reader struct {
	c       *cursor
	readRev int64           // the column turn of the cursor rows when they were claimed
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	wg      sync.WaitGroup

	rowReaders []rowReader
	target     view  // the snapshot that the round reads up to
	upto       int64 // no message that target sees has a higher id
	floor      int64 // the floor of target
	low        int64 // transactions open in the snapshot of the only row have ids above it
	next       int   // the row that is read next
	page       outbox.Limit
	size       int // average size of a message in bytes
	polledAt   time.Time

	served   []position // the positions after what Next has returned
	markedID int64      // the last id drawn when a mark was last offered,
	markedAt time.Time  // and the time of that

	mu             sync.Mutex
	changed        chan struct{} // receives a value when a field below has changed
	markedSnapshot snapshot      // the snapshot of the mark that was last offered
	lastPoll       pollResult    // the result of the last query
	batches        []batch
	rows           int // in batches,
	bytes          int // and their size in bytes
	chunk          int // rows of the last chunk so far
	reading        bool
	round          bool // not every row has reached target
	err            error
}

// rowReader is the reading state of a cursor row. Its position is ahead of the position that Next has reached.
type rowReader struct {
	outbox.Range
	position
	done bool    // the row has reached target
	set  bool    // start has set the three fields below
	late []int64 // ids of messages of long transactions, to be read first
	scan int64   // the log has been read up to this id,
	upto int64   // and is read up to this one
}

// batch is a piece of a chunk, in memory until Next returns it.
type batch struct {
	index int // of the row reader
	rows  []outbox.Row
	bytes int
	from  position // position before the batch; with last set to a row's id, the position after that row
	after position // position after the batch
	whole bool     // after is the position of all rows, which have become one
}

func (r *reader) begin(c *cursor) {
	r.c, r.changed, r.readRev = c, make(chan struct{}, 1), c.rows[0].ReadRev
	r.ctx, r.stop = context.WithCancel(c.log.ctx)
	for _, p := range c.rows {
		r.rowReaders = append(r.rowReaders, rowReader{Range: p.Range, position: p.position})
		r.served = append(r.served, p.position)
		r.round = r.round || p.to.at != ""
		r.markedID, r.markedSnapshot = max(r.markedID, p.drawn), p.from.at
	}
	r.round = r.round || len(r.rowReaders) > 1
	r.markedAt = time.Now()
}

func (r *reader) close() {
	r.stop()
	r.wg.Wait()
}

// Next implements [outbox.Cursor].
func (c *cursor) Next(ctx context.Context, limit outbox.Limit) (outbox.Page, error) {
	if limit.Rows <= 0 {
		limit.Rows = defaultRows
	}
	if limit.Bytes <= 0 {
		limit.Bytes = defaultBytes
	}
	page, err := c.reader.nextPage(ctx, limit)
	if err != nil {
		return outbox.Page{}, c.explain("read messages", err)
	}
	page.Replayed = c.replayed
	return page, nil
}

// nextPage returns a page from memory. If there is none, it waits for the goroutine that reads, or asks the server
// whether there is more.
func (r *reader) nextPage(ctx context.Context, limit outbox.Limit) (outbox.Page, error) {
	for {
		page, found, busy, err := r.serve(limit)
		switch {
		case err != nil:
			return page, err
		case found:
			return page, nil
		case busy:
			select {
			case <-r.changed:
			case <-ctx.Done():
				return page, context.Cause(ctx)
			}
			continue
		}
		if err := ctx.Err(); err != nil {
			return page, err
		}
		page, found, err = r.poll(ctx)
		if err != nil || !found {
			return page, err
		}
		r.startReading(limit)
	}
}

// serve returns a page from the batches in memory, and starts reading the next chunk if half of the last one has
// been returned. While a chunk is being read, serve returns nothing until there is enough for a full page.
func (r *reader) serve(limit outbox.Limit) (page outbox.Page, found, busy bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || len(r.batches) == 0 || r.reading && r.rows < limit.Rows && r.bytes < limit.Bytes {
		return page, false, r.reading, r.err
	}
	left := limit
	page.Rows = r.take(&left)
	for len(r.batches) > 0 && len(page.Rows) > 0 {
		if next := &r.batches[0]; len(next.rows) > left.Rows || next.bytes > left.Bytes {
			break
		}
		page.Rows = append(page.Rows, r.take(&left)...)
	}
	r.rows -= len(page.Rows)
	page.More = len(r.batches) > 0 || r.reading || r.round
	page.Due, page.Delayed = r.lastPoll.due, r.lastPoll.delayed
	page.Mark = r.mark()
	if r.round && !r.reading && r.rows <= r.chunk/2 {
		r.startReadingLocked(limit)
	}
	return page, true, false, nil
}

// take removes up to limit from the first batch, and reduces the limit by what it took.
func (r *reader) take(limit *outbox.Limit) []outbox.Row {
	b := &r.batches[0]
	if n := fitting(b, *limit); n < len(b.rows) {
		rows, at := b.rows[:n:n], b.from
		at.last = rows[n-1].Seq
		r.served[b.index] = at
		for _, row := range rows {
			b.bytes -= sizeOf(row)
			r.bytes -= sizeOf(row)
		}
		b.rows, b.from = b.rows[n:], at
		limit.Rows = 0
		return rows
	}
	r.batches = r.batches[1:]
	limit.Rows, limit.Bytes, r.bytes = limit.Rows-len(b.rows), limit.Bytes-b.bytes, r.bytes-b.bytes
	if r.served[b.index] = b.after; b.whole {
		r.served = []position{b.after}
	}
	return b.rows[:len(b.rows):len(b.rows)]
}

// fitting returns how many rows of a batch fit into a page.
func fitting(b *batch, limit outbox.Limit) int {
	n := min(len(b.rows), limit.Rows)
	if b.bytes <= limit.Bytes && n == len(b.rows) {
		return n
	}
	size := 0
	for i, row := range b.rows[:n] {
		if size += sizeOf(row); size > limit.Bytes && i > 0 {
			return i
		}
	}
	return n
}

// sizeOf returns the approximate size of a message in bytes.
func sizeOf(row outbox.Row) int {
	n := len(row.Payload)
	for name, value := range row.Headers {
		n += len(name) + len(value)
	}
	return n
}

// mark returns the position that Next has reached. mu must be held.
func (r *reader) mark() outbox.Mark {
	r.markedID, r.markedAt, r.markedSnapshot = max(r.markedID, r.upto), time.Now(), r.served[0].from.at
	return mark{r.c, slices.Clone(r.served)}
}

// poll asks the server whether there is anything to read. If so, it begins or continues a round and
// found is true.
func (r *reader) poll(ctx context.Context) (page outbox.Page, found bool, err error) {
	r.c.log.extendIfDue(ctx)
	idle := !r.round && r.rowReaders[0].replayAfter == never
	seen, err := r.query(ctx, idle)
	if err != nil {
		return page, false, err
	}
	page.Paused, page.Due, page.Delayed = seen.paused, seen.due && !seen.paused, seen.delayed
	if seen.paused {
		return page, false, nil
	}
	if r.round {
		if r.target.at == "" {
			r.beginRound(seen)
		}
		return page, true, nil
	}
	if !idle || seen.found || seen.drawn > r.rowReaders[0].floor+window {
		if seen, err = r.refreshFloor(ctx, seen); err == nil {
			r.beginRound(seen)
		}
		return page, err == nil, err
	}
	// S2 sees nothing that S1 does not, so reading continues from S2.
	p := &r.rowReaders[0]
	p.from, p.floor = seen.now, r.floorOf(seen.now, p.floor)
	r.served[0], r.upto = p.position, seen.drawn
	if seen.drawn-r.markedID >= markEveryIDs || (seen.drawn > r.markedID || seen.blocksRemoval) && time.Since(r.markedAt) >= markAfter {
		r.mu.Lock()
		defer r.mu.Unlock()
		page.Mark = r.mark()
	}
	return page, false, nil
}

// refreshFloor draws a new floor and queries again if the newest floor is more than window ids old, as after a
// pause. With the old floor, the round would end far below the newest id, and everything above the floor would be
// scanned once more.
func (r *reader) refreshFloor(ctx context.Context, seen pollResult) (pollResult, error) {
	if seen.drawn-r.c.floorOfWrites().lastID <= window {
		return seen, nil
	}
	ctx, cancel := r.c.log.bounded(ctx)
	defer cancel()
	var w idFloor
	err := r.c.log.read(ctx, &r.c.server, func(q *query) (err error) {
		w, err = q.newFloor()
		return err
	})
	if err != nil {
		return seen, err
	}
	r.c.recordFloor(w)
	return r.query(ctx, false)
}

// beginRound begins a round with the snapshot of the last query as its target.
func (r *reader) beginRound(seen pollResult) {
	r.mu.Lock()
	r.round = true
	r.mu.Unlock()
	r.target, r.upto, r.floor = seen.now, seen.drawn, seen.drawn
	for _, p := range r.rowReaders {
		r.floor = min(r.floor, r.floorOf(seen.now, p.floor))
	}
	for i := range r.rowReaders {
		r.rowReaders[i].done = false
	}
}

// floorOf returns an id below the ids of all transactions that begin after the snapshot now. It is that
// of the newest floor if the snapshot sees its transaction; otherwise an earlier floor, which is still valid.
func (r *reader) floorOf(now view, earlier int64) int64 {
	if w := r.c.floorOfWrites(); w.tx < now.at.xmax() {
		return max(w.lastID, earlier)
	}
	return earlier
}

// pollResult is what one statement reports about the server and the subscription.
type pollResult struct {
	now                  view
	drawn                int64 // the last drawn id; now sees no message above it
	low                  int64 // transactions open in the reader's snapshot have ids above it
	paused, due, delayed bool
	found                bool // there are messages to read
	blocksRemoval        bool // a stored position keeps partitions from being removed
	owned                int  // number of shards that this cursor still owns
	recovering           bool
}

// query queries the server. If probe is set, it also finds out whether there is anything to read. That is
// possible only if there is a single cursor row and no round.
func (r *reader) query(ctx context.Context, probe bool) (s pollResult, err error) {
	ctx, cancel := r.c.log.bounded(ctx)
	defer cancel()
	p, c := r.rowReaders[0], r.c
	r.mu.Lock()
	kept := r.markedSnapshot
	r.mu.Unlock()
	var open []string
	if probe {
		if _, open, err = p.from.at.parse(); err != nil {
			return s, err
		}
	}
	err = c.log.read(ctx, &c.server, func(q *query) error {
		q.one(`select
				coalesce((select sum(c.hi - c.lo + 1) from ~outbox_cursor c
					where c.subscription = $1 and c.lo >= $2 and c.hi <= $3 and c.epoch = $4 and c.turn = $5), 0)::int,
				coalesce((select s.paused from ~outbox_subscription s where s.name = $1), false),
				exists (select from ~outbox_lane n where n.subscription = $1 and not n.held and n.next_at <= `+clock+` and n.shard between $2 and $3),
				exists (select from ~outbox_delayed d where d.not_before <= `+clock+` and d.shard between $2 and $3),
				pg_is_in_recovery(), pg_current_snapshot()::text, (select s.base from ~outbox_state s),
				`+lastDrawn+`,
				coalesce((select max(n.hi) - 1 from ~outbox_partition n where n.x0 < pg_snapshot_xmin($6::pg_snapshot)), 0),
				exists (select from ~outbox_partition n where n.emptied_at is null and n.x0 >= pg_snapshot_xmin($7::pg_snapshot)),
				$8::boolean and (
					exists (select from ~outbox o where o.id > $9 and o.id <= $9::bigint + `+windowText+` and o.shard between $2 and $3
						and not (o.id <= $10 or pg_visible_in_snapshot(o.tx, $6::pg_snapshot)))
					or exists (select from unnest($11::xid8[]) x (tx) cross join lateral (
						select from ~outbox o where o.tx = x.tx and o.id > $12 and o.id <= $9 and o.shard between $2 and $3 offset 0) late))`,
			[]any{
				c.claim.Subscription, c.Lo, c.Hi, c.claim.Epoch, r.readRev, string(p.from.at), string(kept), probe,
				p.floor, p.from.base, "{" + strings.Join(open, ",") + "}", max(r.low, p.from.base),
			},
			&s.owned, &s.paused, &s.due, &s.delayed, &s.recovering, &s.now.at, &s.now.base, &s.drawn, &s.low, &s.blocksRemoval, &s.found)
		switch {
		case q.err != nil:
			return q.err
		case s.recovering:
			return errStandby
		case s.owned != c.Hi-c.Lo+1:
			return c.refusal(q)
		case p.replayAfter == never && s.now.at.xmax() < p.from.at.xmax():
			return errServer
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	r.polledAt = time.Now()
	if len(r.rowReaders) == 1 && p.replayAfter == never { // a snapshot of another era does not compare
		r.low = max(r.low, s.low)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastPoll = s
	return s, nil
}

const windowText = "100000" // window

// clock is the log's time for comparisons with due times. It is a subquery, so that it is evaluated once.
// A bare volatile function may differ from row to row, so no index could be used, and all waiting rows
// would be read.
const clock = "(select clock_timestamp())"
