package pglog

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/outbox"
)

// Bounds of reading.
const (
	defaultRows  = 1000
	defaultBytes = 4 << 20
	// ahead is how many pages are asked for at once, and aheadBytes what they may take.
	ahead      = 8
	aheadBytes = 8 << 20
	// window is how many ids one statement looks at: messages of other ranges lie between those of
	// this one, and its time must not depend on whose messages follow.
	window = 100_000
	// lateMost is how many messages of transactions that took long are found by their transaction;
	// more are found by reading the log from the first of them.
	lateMost = 1000
	// An empty page carries a mark when so many ids were drawn, or when the stored position is so old
	// and somebody waits for it: it is what reading begins at, and what partitions are kept by.
	keepEvery = 2000
	keepAfter = 5 * time.Second
)

// reader reads ahead of Next. A round reads every part up to one snapshot; each part's share is a
// tick. While a flight (one goroutine that reads a chunk) is under way, it owns the parts.
type reader struct {
	c    *cursor
	turn int64           // of the claim
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	parts  []tick
	target view  // of the round
	upto   int64 // no message that target sees has a higher id
	floor  int64 // of target
	low    int64 // whatever was open in the snapshot of the only part has ids above it
	next   int   // the part whose turn it is
	page   outbox.Limit
	size   int // of a message, on the average
	looked time.Time

	served []position // behind what Next has returned
	kept   int64      // the last id that was drawn when a mark was offered last,
	keptAt time.Time  // and when that was

	mu      sync.Mutex
	news    chan struct{} // something below has changed
	keptBy  snapshot      // of the mark that was offered last
	seen    look          // the last one
	batches []batch
	rows    int // in batches,
	bytes   int // and what they take
	chunk   int // rows of the last chunk
	flying  bool
	round   bool // not every part is at target
	err     error
}

// tick is a part that is read: its position is where reading is, ahead of what is served.
type tick struct {
	outbox.Range
	position
	done bool    // it is at target
	set  bool    // the three below are
	late []int64 // messages of transactions that took long, to be read first
	scan int64   // the log is read up to here,
	upto int64   // and is to be, up to there
}

// batch is a piece of what was read ahead.
type batch struct {
	part  int
	rows  []outbox.Row
	bytes int
	from  position // before it; with last as that of a row, behind the row
	after position // behind it
	whole bool     // after is of all parts, which are one from now on
}

func (r *reader) begin(c *cursor) {
	r.c, r.news, r.turn = c, make(chan struct{}, 1), c.stored[0].Turn
	r.ctx, r.stop = context.WithCancel(c.log.ctx)
	for _, p := range c.stored {
		r.parts = append(r.parts, tick{Range: p.Range, position: p.position})
		r.served = append(r.served, p.position)
		r.round = r.round || p.to.at != ""
		r.kept, r.keptBy = max(r.kept, p.drawn), p.from.at
	}
	r.round = r.round || len(r.parts) > 1
	r.keptAt = time.Now()
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
	page, err := c.reader.take(ctx, limit)
	if err != nil {
		return outbox.Page{}, c.explain("read messages", err)
	}
	page.Replayed = c.replayed
	return page, nil
}

// take returns what was read ahead, waits for what is being read, or looks for more.
func (r *reader) take(ctx context.Context, limit outbox.Limit) (outbox.Page, error) {
	for {
		page, found, busy, err := r.serve(limit)
		switch {
		case err != nil:
			return page, err
		case found:
			return page, nil
		case busy:
			select {
			case <-r.news:
			case <-ctx.Done():
				return page, context.Cause(ctx)
			}
			continue
		}
		if err := ctx.Err(); err != nil {
			return page, err
		}
		page, found, err = r.glance(ctx)
		if err != nil || !found {
			return page, err
		}
		r.fly(limit)
	}
}

// serve cuts a page off what was read ahead, and has more read if that runs low. While a chunk comes
// in it waits until there is enough for a page.
func (r *reader) serve(limit outbox.Limit) (page outbox.Page, found, busy bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || len(r.batches) == 0 || r.flying && r.rows < limit.Rows && r.bytes < limit.Bytes {
		return page, false, r.flying, r.err
	}
	left := limit
	page.Rows = r.cut(&left)
	for len(r.batches) > 0 && len(page.Rows) > 0 {
		if next := &r.batches[0]; len(next.rows) > left.Rows || next.bytes > left.Bytes {
			break
		}
		page.Rows = append(page.Rows, r.cut(&left)...)
	}
	r.rows -= len(page.Rows)
	page.More = len(r.batches) > 0 || r.flying || r.round
	page.Due, page.Delayed = r.seen.due, r.seen.delayed
	page.Mark = r.mark()
	if r.round && !r.flying && r.rows <= r.chunk/2 {
		r.flyLocked(limit)
	}
	return page, true, false, nil
}

// cut takes what fits of the first batch, and lowers the limit by it.
func (r *reader) cut(limit *outbox.Limit) []outbox.Row {
	b := &r.batches[0]
	if n := fitting(b, *limit); n < len(b.rows) {
		rows, at := b.rows[:n:n], b.from
		at.last = rows[n-1].Seq
		r.served[b.part] = at
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
	if r.served[b.part] = b.after; b.whole {
		r.served = []position{b.after}
	}
	return b.rows[:len(b.rows):len(b.rows)]
}

// fitting is how many rows of a batch a page may have.
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

// sizeOf is about what a message takes.
func sizeOf(row outbox.Row) int {
	n := len(row.Payload)
	for name, value := range row.Headers {
		n += len(name) + len(value)
	}
	return n
}

// mark is where serving is. The lock is held.
func (r *reader) mark() outbox.Mark {
	r.kept, r.keptAt, r.keptBy = max(r.kept, r.upto), time.Now(), r.served[0].from.at
	return mark{r.c, slices.Clone(r.served)}
}

// glance asks the server whether there is anything to read. If so a round is begun, or goes on.
func (r *reader) glance(ctx context.Context) (page outbox.Page, found bool, err error) {
	r.c.log.tend(ctx)
	idle := !r.round && r.parts[0].again == never
	seen, err := r.look(ctx, idle)
	if err != nil {
		return page, false, err
	}
	page.Paused, page.Due, page.Delayed = seen.paused, seen.due && !seen.paused, seen.delayed
	if seen.paused {
		return page, false, nil
	}
	if r.round {
		if r.target.at == "" {
			r.aim(seen)
		}
		return page, true, nil
	}
	if !idle || seen.found || seen.drawn > r.parts[0].floor+window {
		if seen, err = r.fresh(ctx, seen); err == nil {
			r.aim(seen)
		}
		return page, err == nil, err
	}
	// S2 sees nothing that S1 does not: reading goes on from S2.
	p := &r.parts[0]
	p.from, p.floor = seen.now, r.floorOf(seen.now, p.floor)
	r.served[0], r.upto = p.position, seen.drawn
	if seen.drawn-r.kept >= keepEvery || (seen.drawn > r.kept || seen.wanted) && time.Since(r.keptAt) >= keepAfter {
		r.mu.Lock()
		defer r.mu.Unlock()
		page.Mark = r.mark()
	}
	return page, false, nil
}

// fresh looks again, with a new witness, if the newest is far behind (after a pause): the floor of the
// round's end would be too, and all that the round delivers be looked at once more.
func (r *reader) fresh(ctx context.Context, seen look) (look, error) {
	if seen.drawn-r.c.witness().drawn <= window {
		return seen, nil
	}
	ctx, cancel := r.c.log.bounded(ctx)
	defer cancel()
	var w witness
	err := r.c.log.read(ctx, &r.c.server, func(q *query) (err error) {
		w, err = q.draw()
		return err
	})
	if err != nil {
		return seen, err
	}
	r.c.bears(w)
	return r.look(ctx, false)
}

// aim begins a round.
func (r *reader) aim(seen look) {
	r.mu.Lock()
	r.round = true
	r.mu.Unlock()
	r.target, r.upto, r.floor = seen.now, seen.drawn, seen.drawn
	for _, p := range r.parts {
		r.floor = min(r.floor, r.floorOf(seen.now, p.floor))
	}
	for i := range r.parts {
		r.parts[i].done = false
	}
}

// floorOf is an id that whatever began after a snapshot is above: the newest witness that the
// snapshot sees, or a floor of an earlier one.
func (r *reader) floorOf(now view, earlier int64) int64 {
	if w := r.c.witness(); w.tx < now.at.xmax() {
		return max(w.drawn, earlier)
	}
	return earlier
}

// look is what one statement tells of the server and the subscription.
type look struct {
	now                  view
	drawn                int64 // the last id, at least of what now sees
	low                  int64 // whatever was open in the reader's snapshot has ids above it
	paused, due, delayed bool
	found                bool // there is something to read
	wanted               bool // a stored position holds up the removal of partitions
	owned                int  // shards
	recovering           bool
}

// look asks. Whether the part, being the only one and at rest, has anything to read, is asked for only
// if ask is set.
func (r *reader) look(ctx context.Context, ask bool) (s look, err error) {
	ctx, cancel := r.c.log.bounded(ctx)
	defer cancel()
	p, c := r.parts[0], r.c
	r.mu.Lock()
	kept := r.keptBy
	r.mu.Unlock()
	var open []string
	if ask {
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
				(select case when is_called then last_value else 0 end from ~outbox_id),
				coalesce((select max(n.hi) - 1 from ~outbox_partition n where n.x0 < pg_snapshot_xmin($6::pg_snapshot)), 0),
				exists (select from ~outbox_partition n where n.emptied_at is null and n.x0 >= pg_snapshot_xmin($7::pg_snapshot)),
				$8::boolean and (
					exists (select from ~outbox o where o.id > $9 and o.id <= $9::bigint + `+windowText+` and o.shard between $2 and $3
						and not (o.id <= $10 or pg_visible_in_snapshot(o.tx, $6::pg_snapshot)))
					or exists (select from unnest($11::xid8[]) x (tx) cross join lateral (
						select from ~outbox o where o.tx = x.tx and o.id > $12 and o.id <= $9 and o.shard between $2 and $3 offset 0) late))`,
			[]any{
				c.claim.Subscription, c.Lo, c.Hi, c.claim.Epoch, r.turn, string(p.from.at), string(kept), ask,
				p.floor, p.from.base, "{" + strings.Join(open, ",") + "}", max(r.low, p.from.base),
			},
			&s.owned, &s.paused, &s.due, &s.delayed, &s.recovering, &s.now.at, &s.now.base, &s.drawn, &s.low, &s.wanted, &s.found)
		switch {
		case q.err != nil:
			return q.err
		case s.recovering:
			return errStandby
		case s.owned != c.Hi-c.Lo+1:
			return c.refusal(q)
		case p.again == never && s.now.at.xmax() < p.from.at.xmax():
			return errServer
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	r.looked = time.Now()
	if len(r.parts) == 1 && p.again == never { // a snapshot of another era tells nothing
		r.low = max(r.low, s.low)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = s
	return s, nil
}

const windowText = "100000" // window

// clock is the log's time as what is due is compared with it: read once, because a comparison with a
// function that may differ from row to row finds nothing by an index, and reads all that waits.
const clock = "(select clock_timestamp())"
