package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// laneTable holds the columns of lanes as arrays, the arguments of a statement.
type laneTable struct {
	shards   []int16
	keys     []string
	solos    []int64
	held     []bool
	attempts []int
	micros   []int64 // until the next attempt
	causes   []string
}

func (t *laneTable) add(at ranges.ParkedKey, o outbox.Outcome) {
	t.shards, t.keys, t.solos = append(t.shards, int16(at.Shard)), append(t.keys, at.Key), append(t.solos, at.Seq) // below Shards
	held, cause := ranges.HeldCause(o)
	t.held, t.attempts = append(t.held, held), append(t.attempts, o.Attempts)
	t.micros, t.causes = append(t.micros, max(o.RetryIn, 0).Microseconds()), append(t.causes, cause)
}

// inDue computes the time of the next attempt of a waiting lane.
const inDue = clock + ` + l.micros * interval '1 microsecond'`

// storeOutcomes stores the outcomes of messages that were read from the log.
func (c *cursor) storeOutcomes(q *query, outcomes []outbox.Outcome) error {
	var dead, attempts, parked, solos []int64
	var causes, keys []string
	first := map[ranges.ParkedKey]outbox.Outcome{}  // the last outcome of each lane's first message
	lowest := map[ranges.ParkedKey]outbox.Outcome{} // the outcome of each lane's message with the lowest id
	already := c.replayedParked(q, outcomes)
	for _, o := range outcomes {
		if o.Row.Shard < c.Lo || o.Row.Shard > c.Hi {
			return fmt.Errorf("message %d of shard %d is outside the range or position being stored", o.Row.Seq, o.Row.Shard)
		}
		at := ranges.ParkedKeyOf(o.Row)
		if is, found := already[o.Row.Seq]; found && is != at && o.Kind != outbox.Dead {
			continue // it was put back by an operator, and has a lane of its own
		}
		switch o.Kind {
		case outbox.Delivered, outbox.Dropped:
			continue
		case outbox.Dead:
			dead, attempts, causes = append(dead, o.Row.Seq), append(attempts, int64(o.Attempts)), append(causes, ranges.Cause(o.Cause))
			continue
		case outbox.Waiting, outbox.Held:
			first[at] = o
		case outbox.Behind:
		default:
			return fmt.Errorf("message %d has %q, which is not an outcome", o.Row.Seq, o.Kind)
		}
		if l, found := lowest[at]; !found || o.Row.Seq < l.Row.Seq {
			lowest[at] = o
		}
		parked, solos, keys = append(parked, o.Row.Seq), append(solos, at.Seq), append(keys, at.Key)
	}
	sub := c.claim.Subscription
	if len(dead) > 0 {
		q.exec(`insert into ~outbox_dead (subscription, id, shard, attempts, cause, created_at, `+bodyColumns+`)
			select $1, o.id, o.shard, d.attempts, d.cause, o.created_at, `+bodyColumns+`
			from (select distinct on (d.id) d.* from unnest($2::bigint[], $3::bigint[], $4::text[]) with ordinality d (id, attempts, cause, n) order by d.id, d.n desc) d
			cross join lateral (select * from ~outbox o where o.id = d.id offset 0) o
			on conflict (subscription, id) do update set attempts = excluded.attempts, cause = excluded.cause, died_at = excluded.died_at`, sub, dead, attempts, causes)
	}
	q.setLanes(sub, first)
	q.putBehind(sub, lowest)
	if len(parked) > 0 { // after a replay the message may be there already
		q.exec(`insert into ~outbox_parked (subscription, id, shard, lane, solo, created_at, `+bodyColumns+`)
			select $1, o.id, o.shard, p.lane, p.solo, o.created_at, `+bodyColumns+`
			from unnest($2::bigint[], $3::bigint[], $4::text[]) p (id, solo, lane)
			cross join lateral (select * from ~outbox o where o.id = p.id offset 0) o on conflict do nothing`, sub, parked, solos, keys)
	}
	return q.err
}

// replayedParked returns the lanes of messages that a replay has read again and that are parked already.
func (c *cursor) replayedParked(q *query, outcomes []outbox.Outcome) map[int64]ranges.ParkedKey {
	var seqs []int64
	for _, o := range outcomes {
		if o.Row.Seq <= c.replayed {
			seqs = append(seqs, o.Row.Seq)
		}
	}
	if len(seqs) == 0 {
		return nil
	}
	return q.find(c.claim.Subscription, seqs)
}

// onLane updates lanes that exist. The primary key finds each of them, while an update statement would
// scan all lanes.
const onLane = ` on conflict (subscription, shard, key, solo) do update
	set held = excluded.held, attempts = excluded.attempts, next_at = excluded.next_at, cause = excluded.cause`

// setLanes stores the states of lanes, given the outcomes of their first messages.
func (q *query) setLanes(sub string, first map[ranges.ParkedKey]outbox.Outcome) {
	if len(first) == 0 {
		return
	}
	var t laneTable
	for at, o := range first {
		t.add(at, o)
	}
	q.exec(`insert into ~outbox_lane (subscription, shard, key, solo, held, attempts, next_at, cause)
		select $1, l.shard, l.key, l.solo, l.held, l.attempts, `+inDue+`, l.cause
		from unnest($2::smallint[], $3::text[], $4::bigint[], $5::boolean[], $6::integer[], $7::bigint[], $8::text[]) l (shard, key, solo, held, attempts, micros, cause)`+onLane,
		sub, t.shards, t.keys, t.solos, t.held, t.attempts, t.micros, t.causes)
}

// putBehind makes lanes due at once whose lowest message is Behind, and has no other before it in the lane: an operator has
// emptied the lane, or the message comes before those that are parked. That is so after a replay, and for publishers
// that do not lock keys. What is stored of the lane is then about another message.
func (q *query) putBehind(sub string, lowest map[ranges.ParkedKey]outbox.Outcome) {
	var t laneTable
	var seqs []int64
	for at, o := range lowest {
		if o.Kind == outbox.Behind {
			t.add(at, outbox.Outcome{})
			seqs = append(seqs, o.Row.Seq)
		}
	}
	if len(seqs) == 0 {
		return
	}
	q.exec(`insert into ~outbox_lane (subscription, shard, key, solo)
		select $1, l.shard, l.key, l.solo from unnest($2::smallint[], $3::text[], $4::bigint[], $5::bigint[]) l (shard, key, solo, id)
		where not exists (select from ~outbox_parked p
			where p.subscription = $1 and p.shard = l.shard and p.lane = l.key and p.solo = l.solo and p.id <= l.id offset 0)`+onLane,
		sub, t.shards, t.keys, t.solos, seqs)
}

// parkedOf lists the columns of a parked or dead message in the order in which body.scan reads them.
const parkedOf = "p.id, p.shard, p.created_at, p.dedup_id, p.key, p.topic, p.type, p.headers::text, p.traceparent, p.tracestate, p.payload"

// body scans the columns of a message through the driver, and further columns after them.
type body struct {
	row                                    outbox.Row
	key, kind, headers, parent, traceState *string
}

func (b *body) scan(row pgx.Rows, more ...any) error {
	*b = body{}
	r := &b.row
	err := row.Scan(append([]any{
		&r.Seq, &r.Shard, &r.CreatedAt, &r.ID, &b.key, &r.Topic, &b.kind, &b.headers, &b.parent, &b.traceState, &r.Payload,
	}, more...)...)
	for _, f := range []struct {
		to   *string
		from *string
	}{{&r.Key, b.key}, {&r.Type, b.kind}, {&r.TraceParent, b.parent}, {&r.TraceState, b.traceState}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if b.headers != nil {
		r.Headers = headersOf([]byte(*b.headers))
	}
	return err
}

// Due implements [outbox.Cursor]. The sum shard + 0 keeps a server without statistics from the primary key: it would
// read and sort all lanes that are due, after a replay 100,000, for each call.
func (c *cursor) Due(ctx context.Context, limit int) (out [][]outbox.Row, err error) {
	if limit <= 0 {
		limit = defaultRows
	}
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	err = c.log.read(ctx, &c.server, func(q *query) error {
		owned, paused := 0, false
		q.one(`select coalesce(sum(hi - lo + 1), 0)::int, coalesce((select s.paused from ~outbox_subscription s where s.name = $1), false)
			from ~outbox_cursor where subscription = $1 and lo >= $2 and hi <= $3 and epoch = $4 and turn = $5`,
			[]any{c.claim.Subscription, c.Lo, c.Hi, c.claim.Epoch, c.reader.readRev}, &owned, &paused)
		switch {
		case q.err != nil:
			return q.err
		case owned != c.Hi-c.Lo+1:
			return c.refusal(q)
		case paused:
			return nil
		}
		var b body
		var place, last int64
		var attempts int
		var cause string
		q.each(`select `+parkedOf+`, n.place, n.attempts, case when n.attempts > 0 then n.cause else '' end from (
				select l.*, row_number() over (order by next_at, shard, key, solo) as place from ~outbox_lane l
				where subscription = $1 and not held and next_at <= `+clock+` and shard + 0 between $2 and $3
				order by next_at, shard, key, solo limit $4) n
			cross join lateral (
				select * from (
					select p.*, sum(coalesce(octet_length(p.payload), 0)) over (order by p.id) as size
					from (select * from ~outbox_parked p where p.subscription = n.subscription and p.shard = n.shard and p.lane = n.key and p.solo = n.solo
						order by p.id limit case when n.attempts > 0 then 1 else $5::int end) p) p
				where p.size <= $6 or p.size = octet_length(p.payload)) p order by n.place, p.id`,
			[]any{c.claim.Subscription, c.Lo, c.Hi, limit, ranges.ParkedRows, ranges.ParkedBytes}, func(row pgx.Rows) error {
				if err := b.scan(row, &place, &attempts, &cause); err != nil {
					return err
				}
				b.row.Attempt, b.row.Missing = 1, false
				if place != last || len(out) == 0 {
					b.row.Attempt, b.row.Missing = attempts+1, ranges.Missing(cause)
					out = append(out, nil)
				}
				last = place
				out[len(out)-1] = append(out[len(out)-1], b.row)
				return nil
			})
		return q.err
	})
	if err != nil {
		return nil, c.explain("read parked messages", err)
	}
	return out, nil
}

// StoreParked implements [outbox.Cursor]. Messages that an operator has taken out of their lane meanwhile are
// ignored.
func (c *cursor) StoreParked(ctx context.Context, outcomes []outbox.Outcome) (emptied []string, err error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	err = c.whileOwner(ctx, "settle parked messages", func(q *query) (err error) {
		emptied, err = c.storeParked(q, outcomes)
		return err
	})
	if err != nil {
		return nil, err
	}
	return emptied, nil
}

func (c *cursor) storeParked(q *query, outcomes []outbox.Outcome) (emptied []string, err error) {
	sub := c.claim.Subscription
	var gone, dead, attempts []int64
	var causes []string
	var stay []outbox.Outcome
	again := map[int64]bool{} // messages that a replay delivers again
	for _, o := range outcomes {
		switch o.Kind {
		case outbox.Delivered:
			if o.Row.Seq <= c.replayed {
				again[o.Row.Seq] = true
			}
		case outbox.Dropped:
		case outbox.Dead:
			dead, attempts, causes = append(dead, o.Row.Seq), append(attempts, int64(o.Attempts)), append(causes, ranges.Cause(o.Cause))
		case outbox.Waiting, outbox.Held:
			stay = append(stay, o)
			continue
		case outbox.Behind:
			continue
		default:
			return nil, fmt.Errorf("message %d has %q, which is not an outcome", o.Row.Seq, o.Kind)
		}
		gone = append(gone, o.Row.Seq)
	}
	if len(gone) > 0 {
		where := q.find(sub, gone)
		for seq, at := range where {
			if at.Shard < c.Lo || at.Shard > c.Hi {
				return nil, fmt.Errorf("message %d is of shard %d", seq, at.Shard)
			}
		}
		q.addDeadLetters(sub, dead, attempts, causes)
		if len(again) > 0 { // those before which the replay has put others meanwhile come again after them
			before := q.lowestLeft(sub, gone, where)
			gone = slices.DeleteFunc(gone, func(seq int64) bool {
				lowest, left := before[where[seq]]
				return again[seq] && left && lowest < seq
			})
		}
		emptied = q.leaveLanes(sub, gone, where)
	}
	return emptied, c.updateLanes(q, stay)
}

// parkedOne joins the parked message with the id l.id. The lateral subquery looks up each one by its key;
// a plain join would scan the messages of all lanes.
const parkedOne = `cross join lateral (select * from ~outbox_parked p where p.subscription = $1 and p.id = l.id offset 0) p`

// notFirst says that p is behind another message of its lane. It too is evaluated for each message alone.
const notFirst = `exists (select from ~outbox_parked f where f.subscription = p.subscription and f.shard = p.shard and f.lane = p.lane and f.solo = p.solo and f.id < p.id offset 0)`

// updateLanes stores the states of lanes whose messages stay parked. A message that is no longer the first of its lane
// is ignored.
func (c *cursor) updateLanes(q *query, stay []outbox.Outcome) error {
	if len(stay) == 0 {
		return q.err
	}
	var seqs []int64
	var t laneTable
	for _, o := range stay {
		seqs = append(seqs, o.Row.Seq)
		t.add(ranges.ParkedKeyOf(o.Row), o)
	}
	kept := q.exec(`insert into ~outbox_lane (subscription, shard, key, solo, held, attempts, next_at, cause)
		select $1, p.shard, p.lane, p.solo, l.held, l.attempts, `+inDue+`, l.cause
		from unnest($2::bigint[], $3::boolean[], $4::integer[], $5::bigint[], $6::text[]) l (id, held, attempts, micros, cause) `+parkedOne+`
		where p.shard between $7 and $8 and not `+notFirst+onLane,
		c.claim.Subscription, seqs, t.held, t.attempts, t.micros, t.causes, c.Lo, c.Hi)
	if int(kept) == len(stay) || q.err != nil {
		return q.err
	}
	// The others are gone, are behind another message, or are not of this range.
	wrong := q.number(`select p.id from unnest($2::bigint[]) l (id) `+parkedOne+`
		where p.shard not between $3 and $4 limit 1`, c.claim.Subscription, seqs, c.Lo, c.Hi)
	if wrong != 0 {
		return fmt.Errorf("message %d is not a parked message of a key in this range", wrong)
	}
	return q.err
}

// find returns the lanes of messages.
func (q *query) find(sub string, seqs []int64) map[int64]ranges.ParkedKey {
	out := map[int64]ranges.ParkedKey{}
	q.each(`select p.id, p.shard, p.lane, p.solo from unnest($2::bigint[]) l (id) `+parkedOne, []any{sub, seqs}, func(row pgx.Rows) error {
		var seq int64
		var at ranges.ParkedKey
		err := row.Scan(&seq, &at.Shard, &at.Key, &at.Seq)
		out[seq] = at
		return err
	})
	return out
}

// lowestLeft returns the first message that stays in each lane when messages leave, if it is before the last one that leaves.
func (q *query) lowestLeft(sub string, leave []int64, where map[int64]ranges.ParkedKey) map[ranges.ParkedKey]int64 {
	last := map[ranges.ParkedKey]int64{}
	for seq, at := range where {
		last[at] = max(last[at], seq)
	}
	var t laneTable
	var most []int64
	for at, seq := range last {
		t.add(at, outbox.Outcome{})
		most = append(most, seq)
	}
	out := map[ranges.ParkedKey]int64{}
	q.each(`select p.shard, p.lane, p.solo, min(p.id) from unnest($2::smallint[], $3::text[], $4::bigint[], $5::bigint[]) l (shard, key, solo, most)
		cross join lateral (select p.id, p.shard, p.lane, p.solo from ~outbox_parked p
			where p.subscription = $1 and p.shard = l.shard and p.lane = l.key and p.solo = l.solo and p.id < l.most offset 0) p
		where not exists (select from unnest($6::bigint[]) leaves (id) where leaves.id = p.id) group by p.shard, p.lane, p.solo`,
		[]any{sub, t.shards, t.keys, t.solos, most, leave}, func(row pgx.Rows) error {
			var at ranges.ParkedKey
			var lowest int64
			err := row.Scan(&at.Shard, &at.Key, &at.Seq, &lowest)
			out[at] = lowest
			return err
		})
	return out
}

// addDeadLetters copies parked messages to the dead letters.
func (q *query) addDeadLetters(sub string, seqs, attempts []int64, causes []string) {
	if len(seqs) == 0 {
		return
	}
	q.exec(`insert into ~outbox_dead (subscription, id, shard, attempts, cause, created_at, `+bodyColumns+`)
		select p.subscription, p.id, p.shard, l.attempts, l.cause, p.created_at, `+bodyColumns+`
		from unnest($2::bigint[], $3::bigint[], $4::text[]) l (id, attempts, cause) `+parkedOne+`
		on conflict (subscription, id) do update set attempts = excluded.attempts, cause = excluded.cause, died_at = excluded.died_at`,
		sub, seqs, attempts, causes)
}

// leaveLanes removes messages from their lanes and returns the keys whose lanes are gone with them. Where
// the first message left, the next is due at once, with its attempts counted from zero.
func (q *query) leaveLanes(sub string, seqs []int64, where map[int64]ranges.ParkedKey) (emptied []string) {
	seen := map[ranges.ParkedKey]bool{}
	var t laneTable
	for _, seq := range seqs {
		if at, found := where[seq]; found && !seen[at] {
			seen[at] = true
			t.add(at, outbox.Outcome{})
		}
	}
	if len(t.keys) == 0 {
		return nil
	}
	lanes := []any{sub, t.shards, t.keys, t.solos, seqs}
	const ofThese = `unnest($2::smallint[], $3::text[], $4::bigint[]) l (shard, key, solo)`
	const first = `(select min(p.id) from ~outbox_parked p where p.subscription = $1 and p.shard = l.shard and p.lane = l.key and p.solo = l.solo)`
	q.exec(`insert into ~outbox_lane (subscription, shard, key, solo) select $1, l.shard, l.key, l.solo from `+ofThese+`
		where `+first+` = any($5)`+onLane, lanes...)
	q.exec(`delete from ~outbox_parked where ctid = any(array(select p.ctid from unnest($2::bigint[]) l (id)
		cross join lateral (select p.ctid from ~outbox_parked p where p.subscription = $1 and p.id = l.id offset 0) p))`, sub, seqs)
	q.each(`delete from ~outbox_lane where ctid = any(array(select n.ctid from `+ofThese+`
		cross join lateral (select n.ctid from ~outbox_lane n where n.subscription = $1 and n.shard = l.shard and n.key = l.key and n.solo = l.solo offset 0) n
		where `+first+` is null)) returning key, solo`, lanes[:4], func(row pgx.Rows) error {
		var key string
		var solo int64
		err := row.Scan(&key, &solo)
		if solo == 0 {
			emptied = append(emptied, key)
		}
		return err
	})
	return emptied
}
