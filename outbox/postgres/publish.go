package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/wakeup"
)

// Publisher inserts messages into the log in transactions of the caller. Its methods may be called from
// any goroutine.
type Publisher struct {
	cfg       Config
	names     names
	notifier  *wakeup.Notifier
	unordered bool
}

// New returns a publisher. pool is the caller's. New itself does not use it, and the publisher uses it
// only for notifications after commits. If it is nil, relays are not woken. The database must have the
// outbox's tables ([Migrate]).
func New(pool *pgxpool.Pool, cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("create an outbox publisher: %w", err)
	}
	return &Publisher{cfg: cfg, names: cfg.names(), notifier: newNotifier(pool, cfg)}, nil
}

// Close waits until hooks and relays are notified of all commits, or ctx ends.
func (p *Publisher) Close(ctx context.Context) error { return p.notifier.Close(ctx) }

// Ordered returns a copy of the publisher with or without locks on keys; it shares everything else. On is
// the default: Publish waits until no other open transaction has published for the same key, so that
// messages of a key are in the order of their commits. Off saves that wait. It is right if the caller's
// transaction locks a row that stands for the key before it publishes, or if order does not matter.
func (p *Publisher) Ordered(on bool) *Publisher {
	out := *p
	out.unordered = !on
	return &out
}

// Publish inserts messages into the log as part of tx. If tx was made by [Publisher.InTx] or
// [Publisher.Wrap], relays are woken after its commit; otherwise they find the messages by polling.
//
// One message is one statement, which also locks its key. Several are one statement with arrays, and
// 1,000 or more undelayed ones a COPY; the statements that lock their keys come first. An error aborts
// the transaction, as after any statement, unless it is an error of validation.
func (p *Publisher) Publish(ctx context.Context, tx pgx.Tx, messages ...outbox.Message) error {
	messages, err := outbox.Prepare(ctx, messages)
	if err != nil || len(messages) == 0 {
		return err
	}
	if err := p.publish(ctx, tx, messages); err != nil {
		return p.cfg.explain("publish", err)
	}
	if w, ok := tx.(*Tx); ok {
		w.add(messages)
	}
	return nil
}

// copyFrom is the number of messages from which a COPY pays for its extra round trip.
const copyFrom = 1000

func (p *Publisher) publish(ctx context.Context, tx pgx.Tx, messages []outbox.Message) error {
	if len(messages) < copyFrom || anyDelayed(messages) {
		return execute(ctx, tx, p.statements(messages))
	}
	if err := execute(ctx, tx, p.lockKeys(messages)); err != nil {
		return err
	}
	columns := []string{"shard", "dedup_id", "key", "topic", "type", "headers", "traceparent", "tracestate", "payload"}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{p.names.schema, p.names.prefix + "outbox"}, columns,
		pgx.CopyFromSlice(len(messages), func(i int) ([]any, error) { return values(messages[i]), nil }))
	return err
}

func execute(ctx context.Context, tx pgx.Tx, statements []statement) error {
	for _, s := range statements {
		if _, err := tx.Exec(ctx, s.text, s.args...); err != nil {
			return err
		}
	}
	return nil
}

// Queue adds what Publish does to a batch of the caller's, which must run in a transaction. If it returns
// an error, it has added nothing. Relays find the messages by polling.
func (p *Publisher) Queue(ctx context.Context, batch *pgx.Batch, messages ...outbox.Message) error {
	messages, err := outbox.Prepare(ctx, messages)
	if err != nil || len(messages) == 0 {
		return err
	}
	for _, s := range p.statements(messages) {
		batch.Queue(s.text, s.args...)
	}
	return nil
}

// together is how many messages one statement of PublishTx inserts.
const together = 50

// PublishTx is [Publisher.Publish] for a transaction of database/sql, with any driver for Postgres.
// Relays find the messages by polling.
func (p *Publisher) PublishTx(ctx context.Context, tx *sql.Tx, messages ...outbox.Message) error {
	messages, err := outbox.Prepare(ctx, messages)
	if err != nil {
		return err
	}
	for _, s := range p.txStatements(messages) {
		if _, err := tx.ExecContext(ctx, s.text, s.args...); err != nil {
			return p.cfg.explain("publish", err)
		}
	}
	return nil
}

// txStatements returns the statements of PublishTx. All keys are locked before the first message is
// inserted, so that calls lock in one order however many messages they have. The text of a statement does
// not depend on the number of messages, because the server's statement statistics have an entry for each
// text.
func (p *Publisher) txStatements(messages []outbox.Message) []statement {
	if single(messages) {
		return p.statements(messages)
	}
	out := p.lockKeys(messages)
	for part := range slices.Chunk(messages, together) {
		out = append(out, p.insertPacked(part))
	}
	for _, s := range out {
		for i, arg := range s.args {
			s.args[i] = arrayText(arg)
		}
	}
	return out
}

// statement is the text of a statement and its arguments.
type statement struct {
	text string
	args []any
}

// locks returns the shards and keys to lock, or only the shards (whole) if there are more than 64 keys,
// because Postgres has room for only some thousand locks. A publisher that locks a key also takes a
// shared lock on its shard, so the two ways exclude each other. All locks are sorted, so that calls
// cannot deadlock.
func (p *Publisher) locks(messages []outbox.Message) (shards, keys []int32, whole bool) {
	if p.unordered {
		return nil, nil, false
	}
	const most = 64
	ofShards, ofKeys := map[int32]bool{}, map[int32]bool{}
	for _, m := range messages {
		if m.Key == "" {
			continue
		}
		ofShards[int32(outbox.ShardOf(m.Key))] = true // below Shards
		if len(ofKeys) <= most {
			ofKeys[outbox.LockOf(m.Key)] = true
		}
	}
	shards = slices.Sorted(maps.Keys(ofShards))
	if len(ofKeys) > most {
		return shards, nil, true
	}
	return shards, slices.Sorted(maps.Keys(ofKeys)), false
}

// statements returns the statements that lock the keys of messages and insert the messages.
func (p *Publisher) statements(messages []outbox.Message) []statement {
	in, locks := p.insert(messages), p.lockKeys(messages)
	if single(messages) && len(locks) > 0 {
		// One key takes one statement with four more arguments. The row is selected from the locks, so its id
		// is drawn after the key is locked.
		in.text += ` from (select pg_catalog.pg_advisory_xact_lock_shared($10::int, $11::int), pg_catalog.pg_advisory_xact_lock($12::int, $13::int)) as locked`
		in.args = append(in.args, locks[0].args...)
		return []statement{in}
	}
	return append(locks, in)
}

// single reports whether the messages are inserted as one row.
func single(messages []outbox.Message) bool {
	return len(messages) == 1 && messages[0].NotBefore.IsZero()
}

// lockKeys returns the statements that lock the keys of messages. They run before ids are drawn.
func (p *Publisher) lockKeys(messages []outbox.Message) []statement {
	shards, keys, whole := p.locks(messages)
	class := p.names.locks()
	switch {
	case len(shards) == 0:
		return nil
	case whole:
		return []statement{{`select pg_catalog.pg_advisory_xact_lock($1::int, s) from unnest($2::int[]) s`, []any{class, shards}}}
	case len(keys) == 1:
		return []statement{{`select pg_catalog.pg_advisory_xact_lock_shared($1::int, $2::int), pg_catalog.pg_advisory_xact_lock($3::int, $4::int)`, []any{class, shards[0], class + 1, keys[0]}}}
	}
	return []statement{
		{`select pg_catalog.pg_advisory_xact_lock_shared($1::int, s) from unnest($2::int[]) s`, []any{class, shards}},
		{`select pg_catalog.pg_advisory_xact_lock($1::int, k) from unnest($2::int[]) k`, []any{class + 1, keys}},
	}
}

func anyDelayed(messages []outbox.Message) bool {
	return slices.ContainsFunc(messages, func(m outbox.Message) bool { return !m.NotBefore.IsZero() })
}

// nullable returns nil for an empty text, because a null takes no space.
func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// headerText encodes headers as JSON; no headers give nil.
func headerText(headers map[string]string) *string {
	if len(headers) == 0 {
		return nil
	}
	text, err := json.Marshal(headers)
	if err != nil {
		panic("outbox/postgres: headers are plain text: " + err.Error())
	}
	s := string(text)
	return &s
}

// payloadOf distinguishes an empty payload from a missing one.
func payloadOf(m outbox.Message) any {
	if m.Payload == nil {
		return nil
	}
	return m.Payload
}

// values returns the columns of a message for a COPY. The ID is of pgx's own type: of another it would first try, for
// each message, whether its text is in the format of the COPY.
func values(m outbox.Message) []any {
	return []any{int16(m.Shard()), pgtype.UUID{Bytes: m.ID, Valid: true}, nullable(m.Key), m.Topic, nullable(m.Type), headerText(m.Headers), nullable(m.TraceParent), nullable(m.TraceState), payloadOf(m)} // below Shards
}

const inserted = "shard, dedup_id, key, topic, type, headers, traceparent, tracestate, payload"

// insert returns the statement for one message, or the one with arrays for several.
func (p *Publisher) insert(messages []outbox.Message) statement {
	if single(messages) {
		m := messages[0]
		return statement{
			p.names.q(`insert into ~outbox (` + inserted + `) select $1::smallint, $2::uuid, $3::text, $4::text, $5::text, $6::json, $7::text, $8::text, $9::bytea`),
			[]any{int16(m.Shard()), m.ID.String(), nullable(m.Key), m.Topic, nullable(m.Type), headerText(m.Headers), nullable(m.TraceParent), nullable(m.TraceState), payloadOf(m)}, // below Shards
		}
	}
	args := arrays(messages)
	const from = ` from unnest($1::smallint[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::json[], $7::text[], $8::text[], $9::bytea[]`
	if !anyDelayed(messages) {
		return statement{p.names.q(`insert into ~outbox (` + inserted + `) select ` + inserted + from + `) m (` + inserted + `)`), args}
	}
	return statement{p.names.q(`with m as materialized (select *` + from + `, $10::timestamptz[]) with ordinality m (` + inserted + `, due, n))` + byTime), append(args, dueTimes(messages))}
}

// arrays returns the columns of messages as arrays.
func arrays(messages []outbox.Message) []any {
	n := len(messages)
	shards, ids, topics, payloads := make([]int16, n), make([]string, n), make([]string, n), make([][]byte, n)
	keys, types, headers, parents, states := make([]*string, n), make([]*string, n), make([]*string, n), make([]*string, n), make([]*string, n)
	for i, m := range messages {
		shards[i], ids[i], topics[i], payloads[i] = int16(m.Shard()), m.ID.String(), m.Topic, m.Payload // below Shards
		keys[i], types[i], headers[i], parents[i], states[i] = nullable(m.Key), nullable(m.Type), headerText(m.Headers), nullable(m.TraceParent), nullable(m.TraceState)
	}
	return []any{shards, ids, keys, topics, types, headers, parents, states, payloads}
}

// dueTimes returns the times at which messages are due.
func dueTimes(messages []outbox.Message) []pgtype.Timestamptz {
	out := make([]pgtype.Timestamptz, len(messages))
	for i, m := range messages {
		out[i] = timeOf(m.NotBefore)
	}
	return out
}

// insertPacked returns the statement for several messages with all payloads concatenated in one argument.
// In an array in text form, each byte of them would take two.
func (p *Publisher) insertPacked(messages []outbox.Message) statement {
	packed := []byte{} // not null
	begins, sizes := make([]int32, len(messages)), make([]*int32, len(messages))
	for i, m := range messages {
		begins[i] = int32(len(packed)) + 1 // together messages of at most MaxPayload
		if packed = append(packed, m.Payload...); m.Payload != nil {
			sizes[i] = new(int32(len(m.Payload))) // at most MaxPayload
		}
	}
	const (
		columns = "shard, dedup_id, key, topic, type, headers, traceparent, tracestate"
		values  = ` select ` + columns + `, pg_catalog.substring($9::bytea, begins, size) as payload`
		from    = ` from unnest($1::smallint[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::json[], $7::text[], $8::text[], $10::int[], $11::int[]`
	)
	args := slices.Concat(arrays(messages)[:8], []any{packed, begins, sizes})
	if !anyDelayed(messages) {
		return statement{p.names.q(`insert into ~outbox (` + inserted + `)` + values + from + `) m (` + columns + `, begins, size)`), args}
	}
	return statement{p.names.q(`with m as materialized (` + values + `, due, n` + from + `, $12::timestamptz[]) with ordinality m (` + columns + `, begins, size, due, n))` + byTime), append(args, dueTimes(messages))}
}

// byTime inserts the rows of m that are due into the log, and the others into the delayed messages. Both
// use one reading of the clock.
const byTime = `, clock as materialized (select pg_catalog.clock_timestamp() as now),
	later as (insert into ~outbox_delayed (not_before, ` + inserted + `) select due, ` + inserted + ` from m, clock where due > now order by n)
	insert into ~outbox (` + inserted + `) select ` + inserted + ` from m, clock where due is null or due <= now order by n`

// timeOf converts a time. A time outside the range of Postgres becomes infinity.
func timeOf(t time.Time) pgtype.Timestamptz {
	switch {
	case t.IsZero():
		return pgtype.Timestamptz{}
	case t.Year() > 200_000:
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	case t.Year() < 1: // the text format has no such years
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

// arrayText writes an array in Postgres's text form, because database/sql has no arrays. Any other
// argument is returned unchanged.
func arrayText(arg any) any {
	switch list := arg.(type) {
	case []int16:
		return braces(list, func(b []byte, n int16) []byte { return strconv.AppendInt(b, int64(n), 10) })
	case []int32:
		return braces(list, func(b []byte, n int32) []byte { return strconv.AppendInt(b, int64(n), 10) })
	case []*int32:
		return braces(list, func(b []byte, n *int32) []byte {
			if n == nil {
				return append(b, "NULL"...)
			}
			return strconv.AppendInt(b, int64(*n), 10)
		})
	case []string:
		return braces(list, appendQuoted)
	case []*string:
		return braces(list, func(b []byte, text *string) []byte {
			if text == nil {
				return append(b, "NULL"...)
			}
			return appendQuoted(b, *text)
		})
	case []pgtype.Timestamptz:
		return braces(list, appendTime)
	}
	return arg
}

func braces[T any](list []T, add func(b []byte, one T) []byte) string {
	b := []byte{'{'}
	for i, one := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = add(b, one)
	}
	return string(append(b, '}'))
}

func appendQuoted(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		if c := text[i]; c == '"' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '"')
}

func appendTime(b []byte, t pgtype.Timestamptz) []byte {
	switch {
	case !t.Valid:
		return append(b, "NULL"...)
	case t.InfinityModifier != pgtype.Finite:
		return append(b, t.InfinityModifier.String()...)
	}
	return append(t.Time.UTC().AppendFormat(append(b, '"'), "2006-01-02 15:04:05.999999Z07:00"), '"')
}

// Beginner begins transactions: a [*pgxpool.Pool], a [*pgx.Conn], or a [pgx.Tx] for a savepoint.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// InTx runs fn in a transaction of its own: it is committed if fn returns nil, and rolled back otherwise.
// After the commit relays are woken and Config.OnPublished is called. If db is a [*Tx], the new
// transaction is a savepoint of it, and the messages are announced by the outer commit.
func (p *Publisher) InTx(ctx context.Context, db Beginner, fn func(tx *Tx) error) error {
	began, err := db.Begin(ctx)
	if err != nil {
		return p.cfg.explain("begin", err)
	}
	w, ours := began.(*Tx)
	if !ours {
		w = p.Wrap(began)
	}
	defer w.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing; a panic of fn must not leave the transaction open
	if err := fn(w); err != nil {
		return err
	}
	if err := w.Commit(ctx); err != nil {
		return p.cfg.explain("commit", err)
	}
	return nil
}

// Tx is a transaction whose commit wakes relays and calls OnPublished.
type Tx struct {
	pgx.Tx
	p         *Publisher
	outer     *Tx              // the transaction of a savepoint
	wrote     bool             // messages were published
	published []outbox.Message // these messages, if there is a hook
}

// add adds published messages. Without a hook nobody needs their payloads, of which a transaction may have many.
func (t *Tx) add(messages []outbox.Message) {
	t.wrote = true
	if t.p.cfg.OnPublished != nil {
		t.published = append(t.published, messages...)
	}
}

// Wrap returns a transaction whose commit wakes relays and calls OnPublished. The caller must commit that
// one instead of tx.
func (p *Publisher) Wrap(tx pgx.Tx) *Tx { return &Tx{Tx: tx, p: p} }

// Begin makes a savepoint. Messages published in it are announced by the commit of the whole transaction,
// unless the savepoint is rolled back.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &Tx{Tx: inner, p: t.p, outer: t}, nil
}

// Commit commits and announces the messages. If an error leaves open whether the transaction committed,
// relays are woken as well: a needless wake-up is harmless.
func (t *Tx) Commit(ctx context.Context) error {
	wrote, published := t.wrote, t.published
	t.wrote, t.published = false, nil
	err := t.Tx.Commit(ctx)
	switch {
	case !wrote, errors.Is(err, pgx.ErrTxClosed), errors.Is(err, pgx.ErrTxCommitRollback):
	case t.outer != nil:
		if err == nil {
			t.outer.add(published)
		}
	case err != nil:
		t.p.notifier.Committed(nil)
	default:
		t.p.notifier.Committed(published)
	}
	return err
}

// Rollback rolls back and announces nothing.
func (t *Tx) Rollback(ctx context.Context) error {
	t.wrote, t.published = false, nil
	return t.Tx.Rollback(ctx)
}
