package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// Claim implements [outbox.Log].
func (l *Log) Claim(ctx context.Context, c outbox.ClaimRequest) (outbox.Cursor, error) {
	what := fmt.Sprintf("claim %q, unit %d of %d at epoch %d", c.Subscription, c.Index, c.Instances, c.Epoch)
	if err := ranges.Valid(c); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	l.extendIfDue(ctx)
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	cur := &cursor{log: l, claim: c, Range: outbox.RangeOf(c.Index, c.Instances)}
	var err error
	if cur.server, err = l.currentServer(ctx); err != nil {
		return nil, l.cfg.explain(what, err)
	}
	err = l.read(ctx, &cur.server, func(q *query) error {
		cur.newestFloor, err = q.newFloor()
		return err
	})
	if err == nil {
		err = l.write(ctx, &cur.server, cur.claimRows)
	}
	if err != nil {
		return nil, l.cfg.explain(what, err)
	}
	cur.begin()
	return cur, nil
}

// idFloor is the pair that a writing transaction knows about itself: its transaction ID, and the last id
// that was drawn before it got that. Transactions with higher transaction IDs have ids above drawn. So if
// a snapshot sees tx, every transaction that had not begun in it has ids above drawn.
type idFloor struct {
	lastID int64
	tx     uint64
}

// lastDrawn is the last id that was drawn, 0 if none was. A statement that only selects last_value may find up to 32 more:
// nextval sets it that far ahead for a moment while it writes to the server's log, and a SELECT does not wait for the lock
// of the page. As a floor, such an id would hide messages that are still to come. The function waits for the lock. Where
// the right to read the sequence is missing, later versions of the function return null; FROM makes that an error.
const lastDrawn = `(select coalesce(pg_catalog.pg_sequence_last_value('~outbox_id'::regclass), 0) from ~outbox_id)`

// The last id must be read before the transaction ID is drawn. The CTEs enforce that, because the columns of at
// are computed after the row of seen exists.
const writing = `with seen as materialized (select ` + lastDrawn + ` as drawn),
	at as materialized (select drawn, pg_current_xact_id() as tx from seen)`

// newFloor obtains a floor in a transaction of its own.
func (q *query) newFloor() (w idFloor, err error) {
	var recovering bool
	if q.one(`select pg_is_in_recovery()`, nil, &recovering); recovering {
		return w, errStandby
	}
	q.one(writing+` select drawn, tx::text::bigint from at`, nil, &w.lastID, &w.tx)
	return w, q.err
}

// claimRows makes this cursor the owner of the range.
func (c *cursor) claimRows(q *query) error {
	instances, instancesEpoch := c.subscribe(q)
	rows, owners := q.cursorRows(c.claim.Subscription)
	// The snapshot is taken while all rows are locked, so no stored position of this server can be ahead of
	// it.
	var now string
	if q.one(`select pg_current_snapshot()::text`, nil, &now); q.err != nil {
		return q.err
	}
	if err := ranges.CheckClaim(rows, c.Range, c.claim, instances, instancesEpoch); err != nil {
		return err
	}
	q.exec(`update ~outbox_subscription set instances = $2, instances_epoch = greatest(instances_epoch, $3) where name = $1`,
		c.claim.Subscription, c.claim.Instances, c.claim.Epoch)
	era, err := c.era(q, rows, snapshot(now))
	if err != nil {
		return err
	}
	// A row that neither overlaps the range nor belongs to an earlier era stays untouched, because its owner
	// may be writing it.
	var ofClaim []cursorRow
	for _, r := range rows {
		if r.era < era {
			r.position, r.era = r.rewound(r.drawn), era
			r.floor = 0
		} else if !ranges.Overlap(r.Range, c.Range) && !ranges.Overlap(r.ClaimedRange, c.Range) {
			continue
		}
		ofClaim = append(ofClaim, r)
	}
	rest, mine := ranges.SplitRows(ofClaim, c.Range, c.claim.Epoch, (*cursorRow).merge)
	c.rows = mine
	c.parked = q.parkedKeys(c.claim.Subscription, c.Range)
	return q.rewrite(c.claim, ofClaim, rest, mine, owners)
}

// subscribe creates the subscription if it is new. It returns the number of instances that it is claimed
// with, and the epoch stored with that number. The row stays locked, so claims and operators exclude each
// other.
func (c *cursor) subscribe(q *query) (instances int, instancesEpoch int64) {
	name := c.claim.Subscription
	made := q.exec(`insert into ~outbox_subscription (name, instances, instances_epoch) values ($1, $2, 0) on conflict do nothing`, name, c.claim.Instances)
	q.one(`select instances, instances_epoch, replayed from ~outbox_subscription where name = $1 for update`, []any{name}, &instances, &instancesEpoch, &c.replayed)
	if made == 0 {
		return instances, instancesEpoch
	}
	// Newest starts after what this transaction sees. That includes everything published before Claim was
	// called.
	from, floor := string(emptySnapshot), int64(0)
	if c.claim.Newest {
		floor = c.newestFloor.lastID
		q.one(`select pg_current_snapshot()::text`, nil, &from)
	}
	q.exec(`insert into ~outbox_cursor (subscription, lo, hi, claim_lo, claim_hi, epoch, turn, rev, era, snap_from, base_from, floor, drawn)
		select $1, 0, $2::int, 0, $2::int, 0, 0, 0, s.era, $3::pg_snapshot, case when $4 then s.base else 0 end, $5,
			case when $4 then `+lastDrawn+` else 0 end
		from ~outbox_state s`,
		name, outbox.Shards-1, from, c.claim.Newest, floor)
	return c.claim.Instances, 0
}

// era returns the current era. It begins a new one if this is not the server that has numbered the
// transactions so far.
func (c *cursor) era(q *query, rows []cursorRow, now snapshot) (era int, err error) {
	var sysid *string
	q.one(`select era, sysid from ~outbox_state`, nil, &era, &sysid)
	other := sysid != nil && c.server.id != "" && *sysid != c.server.id
	for _, r := range rows {
		other = other || r.era == era && r.replayAfter == never && r.from.at.xmax() > now.xmax()
	}
	switch {
	case q.err != nil:
		return 0, q.err
	case other:
		q.exec(`select ~outbox_begin_era($1, $2)`, era, c.server.id)
		q.one(`select era from ~outbox_state`, nil, &era)
	case sysid == nil && c.server.id != "":
		q.exec(`update ~outbox_state set sysid = $1 where sysid is null`, c.server.id)
	}
	return era, q.err
}

// owner holds the columns that a claim must preserve in rows outside its range.
type owner struct {
	outbox.Range
	node    string
	at      time.Time
	problem string
}

// cursorRows reads and locks all rows of a subscription, ordered by shard.
func (q *query) cursorRows(subscription string) (out []cursorRow, owners []owner) {
	q.each(`select lo, hi, claim_lo, claim_hi, snap_from::text, base_from, coalesce(snap_to::text, ''), base_to, last, coalesce(again, -1), floor,
			drawn, epoch, turn, rev, era, node, updated_at, trouble
		from ~outbox_cursor where subscription = $1 order by lo for update`, []any{subscription}, func(row pgx.Rows) error {
		var p cursorRow
		var o owner
		err := row.Scan(&p.Lo, &p.Hi, &p.ClaimedRange.Lo, &p.ClaimedRange.Hi, &p.from.at, &p.from.base, &p.to.at, &p.to.base, &p.last, &p.replayAfter, &p.floor,
			&p.drawn, &p.Epoch, &p.ReadRev, &p.Rev, &p.era, &o.node, &o.at, &o.problem)
		o.Range = p.Range
		out, owners = append(out, p), append(owners, o)
		return err
	})
	return out, owners
}

// rewrite replaces rows of a subscription. Rows outside the claimed range keep their node, time and
// problem.
func (q *query) rewrite(c outbox.ClaimRequest, old, rest, mine []cursorRow, owners []owner) error {
	var at []int
	for _, p := range old {
		at = append(at, p.Lo)
	}
	q.exec(`delete from ~outbox_cursor where subscription = $1 and lo = any($2)`, c.Subscription, at)
	put := func(p cursorRow, node string, at *time.Time, problem string) {
		q.exec(`insert into ~outbox_cursor (subscription, lo, hi, claim_lo, claim_hi, snap_from, base_from, snap_to, base_to, last, again, floor,
				drawn, epoch, turn, rev, era, node, updated_at, trouble)
			values ($1, $2, $3, $4, $5, $6::pg_snapshot, $7, nullif($8::text, '')::pg_snapshot, $9, $10, nullif($11::bigint, -1), $12, $13, $14, $15, $16, $17, $18, coalesce($19, clock_timestamp()), $20)`,
			c.Subscription, p.Lo, p.Hi, p.ClaimedRange.Lo, p.ClaimedRange.Hi, string(p.from.at), p.from.base, string(p.to.at), p.to.base, p.last, p.replayAfter, p.floor,
			p.drawn, p.Epoch, p.ReadRev, p.Rev, p.era, node, at, problem)
	}
	for _, p := range rest {
		for _, o := range owners {
			if ranges.Overlap(o.Range, p.Range) {
				put(p, o.node, &o.at, o.problem)
				break
			}
		}
	}
	for _, p := range mine {
		put(p, c.Node, nil, "")
	}
	return q.err
}

// parkedKeys returns the parked keys of a range. Lanes of a single message are left out, because they stand for
// no key.
func (q *query) parkedKeys(subscription string, r outbox.Range) (out []string) {
	q.each(`select key from ~outbox_lane where subscription = $1 and shard between $2 and $3 and solo = 0`,
		[]any{subscription, r.Lo, r.Hi}, func(row pgx.Rows) error {
			var key string
			err := row.Scan(&key)
			out = append(out, key)
			return err
		})
	return out
}

// refusal returns the error for a cursor whose rows are not as it left them: fenced if a higher epoch
// owns part of the range, else ErrMoved.
func (c *cursor) refusal(q *query) error {
	fenced := &outbox.FencedError{}
	fenced.Floor = q.number(`select max(epoch) from ~outbox_cursor where subscription = $1 and lo <= $3 and hi >= $2 and epoch > $4`,
		c.claim.Subscription, c.Lo, c.Hi, c.claim.Epoch)
	if q.err != nil {
		return q.err
	}
	if fenced.Floor == 0 {
		return outbox.ErrMoved
	}
	instancesEpoch := int64(0)
	if q.one(`select instances, instances_epoch from ~outbox_subscription where name = $1`, []any{c.claim.Subscription}, &fenced.Instances, &instancesEpoch) {
		fenced.Resized = ranges.Resized(c.claim, fenced.Instances, instancesEpoch)
	}
	return fenced
}
