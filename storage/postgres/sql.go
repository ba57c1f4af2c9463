package postgres

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgschema"
)

// sources are the statements, one in each file, as text/template. The names of tables, and pieces
// that several statements share, are functions of [names].
//
//go:embed sql/*.sql
var sources embed.FS

// tables are the names that statements and migrations use as {{node}}, {{term}}, ….
var tables = []string{
	"node", "advert", "term", "lease", "unit", "fence", "event", "counter", "command", "lock", "migration",
	"unit_state",
}

// longestName is the longest name that gets the prefix.
const longestName = "heartbeat_8"

// names says where a store's tables are.
type names struct {
	schema, prefix string
	silent         bool // no notifications
	kept           bool // outcomes are kept for the end of the message
}

func (n names) validate() error { return pgschema.CheckNames("store", n.schema, n.prefix, longestName) }

// table returns the quoted, qualified name of a table.
func (n names) table(name string) string { return pgx.Identifier{n.schema, n.prefix + name}.Sanitize() }

// scope names the store among others in the same database.
func (n names) scope() string { return "emitd." + n.schema + "." + n.prefix }

// channel is the channel of the notifications.
func (n names) channel() string { return pgschema.Channel(strings.TrimSuffix(n.scope(), ".")) }

// functions are the functions that a template may call.
func (n names) functions() template.FuncMap {
	f := template.FuncMap{
		"schema":  func() string { return pgx.Identifier{n.schema}.Sanitize() },
		"name":    func(s string) string { return pgx.Identifier{n.prefix + s}.Sanitize() },
		"literal": func(s string) string { return pgschema.Literal(n.scope() + ":" + s + ":") },
		"held":    func(alias string) string { return fmt.Sprintf("(%[1]s.number <> 0 and not %[1]s.vacant)", alias) },
		"mark":    func(who string) string { return "set_config('emitd.written', " + who + ", true)" },
		"written": func(who string) string {
			return "current_setting('emitd.written', true) in (" + who + ", " + who + " || '!')"
		},
		"channel": func() string { return pgschema.Literal(n.channel()) },
		"same":    func() string { return sameStore },
		"started": func() string { return serverStarted },
		"history": func() string { return serverHistory },
		"oldest":  func() string { return oldestRunning },
		"seen":    func(unit string) string { return fmt.Sprintf(seenTransactions, unit) },
		"comparable": func(oldest, history string) string {
			return fmt.Sprintf("(%s = %s and pg_snapshot_xmax(pg_current_snapshot())::text::bigint - %s::bigint between 0 and 1000000000)", history, serverHistory, oldest)
		},
		"eligible":     func(who string) string { return "current_setting('emitd.written', true) = " + who + " || '!'" },
		"include":      n.include,
		"largest":      func() int { return largestAnswer },
		"revised":      func() []string { return []string{n.table("term"), n.table("unit")} }, // in the order of locks
		"lifecycle":    lifecycle,
		"tell":         n.insertEvents,
		"wake":         n.wake,
		"outcomes":     n.outcomes,
		"leads":        n.leads,
		"fenced":       n.fenced,
		"generation":   n.generation,
		"embargo":      n.embargo,
		"commandevent": func() string { return commandEvent },
		"fornodes":     func() string { return kindsForNodes },
		"returned": func(embargo, incarnation, generation string) string {
			return fmt.Sprintf("(%[1]s->>'incarnation' = %[2]s and coalesce((%[1]s->>'run')::bigint, 0) between 1 and %[3]s)", embargo, incarnation, generation)
		},
	}
	for _, t := range tables {
		f[t] = func() string { return n.table(t) }
	}
	return f
}

// lifecycle lists the rows (state, step, next) of daemon.Next for some steps, so that the table is
// written only once, in package daemon.
func lifecycle(steps ...string) string {
	var rows []string
	for _, state := range []daemon.State{daemon.Unassigned, daemon.Assigning, daemon.Active, daemon.Revoking, daemon.Deleted} {
		for _, step := range steps {
			if next, ok := daemon.Next(state, daemon.Step(step)); ok {
				rows = append(rows, fmt.Sprintf("('%s', '%s', '%s')", state, step, next))
			}
		}
	}
	return strings.Join(rows, ", ")
}

// insertEvents numbers the events in news and writes them, in the order of ord, stamped with clock.now.
func (n names) insertEvents() string {
	return fmt.Sprintf(`counted as (
	update %s c set head = c.head + k.n, rolled = case when k.roll then c.head + k.n else c.rolled end
	from (select count(*) as n, bool_or(kind like 'node.%%') as roll from news) k where k.n > 0
	returning c.head - k.n as base
),
told as (
	insert into %s (seq, at, kind, node, node_id, incarnation, daemon, index, term, term_ordinal, generation, reason, detail)
	select counted.base + row_number() over (order by news.ord), clock.now, news.kind, news.node, news.node_id, news.incarnation,
		news.daemon, news.index, news.term, news.term_ordinal, news.generation, news.reason, news.detail
	from news, counted, clock
)`, n.table("counter"), n.table("event"))
}

// wake notifies the incarnations in awake; a null incarnation is everybody. Notifications are sent
// with the commit. A list that would not fit into one notification becomes a wake-up for everybody.
func (n names) wake() string {
	if n.silent {
		return `woken as (select from awake where false)`
	}
	return fmt.Sprintf(`woken as (
	select pg_notify(%s, case when length(payload) > 7000 then '{"Leader":true}' else payload end)
	from (
		select json_build_object('Nodes', case when count(*) = count(incarnation) then json_agg(distinct incarnation) end,
			'Leader', bool_or(leader))::text as payload
		from awake having count(*) > 0
	) as hint
)`, pgschema.Literal(n.channel()))
}

// keptSuffix is that of a statement which keeps its outcomes.
const keptSuffix = "_kept"

// outcomes answers with the rows of outcome, and with a value that is of no interest. A statement that keeps them adds them
// to a setting of the session instead, which outlives the transaction: see [message.outcomes].
func (n names) outcomes(value string) string {
	if !n.kept {
		return "select o.*, " + value + " from outcome o"
	}
	return `select set_config('emitd.outcomes', (coalesce(nullif(current_setting('emitd.outcomes', true), ''), '{}')::text[]
	|| array(select o::text from outcome o))::text, false) is null, ` + value
}

// commandEvent lists the columns of an event about a row of command.
const commandEvent = `'operator.' || regexp_replace(kind, '^.*[.]', '') as kind, '' as node, '' as node_id, '' as incarnation, '' as daemon,
		null::int as index, term, 0 as term_ordinal, 0 as generation, reason,
		json_strip_nulls(json_build_object('command', nullif(id, ''), 'actor', nullif(actor, ''), 'result', nullif(result, ''), 'args', args)) as detail`

// kindsForNodes lists the kinds of command on which nodes act: see daemon.CommandKind.ForNodes.
const kindsForNodes = "'" + string(daemon.CommandResign) + "', '" + string(daemon.CommandDrain) + "'"

// sameStore is true if same.sql has found, in this transaction, that the store is the one that the
// caller has read.
const sameStore = `current_setting('emitd.store', true) = 'same'`

// serverStarted is when the server process was started. Its text is the same in every session. That of the moment itself
// depends on the session's time zone, and two sessions of one server would pass for two servers.
const serverStarted = "extract(epoch from pg_postmaster_start_time())"

// serverHistory names the run of the server since its newest recovery: when it was started, the timeline that it
// writes, and when it reset its statistics, which a recovery after a crash does. Until any of them changes, the server
// loses no transaction and gives no number of one twice.
const serverHistory = "(" + serverStarted + "::text || ' ' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)" +
	" || ' ' || extract(epoch from pg_stat_get_bgwriter_stat_reset_time())::text" +
	")"

// oldestRunning is the oldest transaction that still runs. What earlier ones have written can be seen.
const oldestRunning = "pg_snapshot_xmin(pg_current_snapshot())"

// seenTransactions lists the transactions, of those that are not older than the oldest running one, that wrote these units.
// A row keeps the number of its transaction for good, while numbers repeat after four thousand millions. After half of them an
// old row looks as if a later transaction had written it: age is negative. That transaction, once there is one, is not seen.
const seenTransactions = "coalesce((array_agg(distinct %[1]s.xmin::text::bigint) filter (where age(%[1]s.xmin) between 0 and age(" + oldestRunning + "::xid)))::text, '{}')"

// leads is true while exactly this leader holds the term, in the store that it has read.
func (n names) leads(number, id, incarnation string) string {
	return fmt.Sprintf(`(%s and exists (select from %s t where t.number = %s and t.node_id = %s and t.incarnation = %s and t.number <> 0 and not t.vacant))`,
		sameStore, n.table("term"), number, id, incarnation)
}

// fenced is true while exactly this run has the fence.
func (n names) fenced(daemon, index, generation string) string {
	return fmt.Sprintf(`exists (select from %s f where f.daemon = %s and f.index = %s and f.generation = %s and f.generation > 0)`,
		n.table("fence"), daemon, index, generation)
}

// generation is storage.NextGeneration. The result is higher than the unit's last generation, than
// every one that a node has reported or the caller has seen, that a sweep has deleted, and than the fence's stamp. It is at
// least the term. The stamp counts because a failover may have kept it and lost the row.
func (n names) generation(previous, term, seen, unit string) string {
	return fmt.Sprintf(`greatest(%s + 1, %s, greatest(%s,
		(select max(g.highest_generation) from %s g), (select c.generation_floor from %s c),
		(select f.generation from %s f where f.daemon = %[7]s.daemon and f.index = %[7]s.index)) + 1)`,
		previous, term, seen, n.table("node"), n.table("counter"), n.table("fence"), unit)
}

// embargo is a unit's list with one process's embargo added or raised by a strike. If the older
// embargo is still in force (daemon.Embargo.HeldGeneration), the later of the two ends counts. An embargo
// for a failure and one for an abandoned run (run is its generation, 0 for a failure) stand beside
// each other. The function also drops embargoes of processes whose row is gone, which bounds the
// list.
func (n names) embargo(list, incarnation, micros, reason, run string) string {
	return strings.NewReplacer(
		"LIST", list, "WHO", incarnation, "NAME", strings.TrimSuffix(incarnation, "incarnation")+"name", "MICROS", micros, "REASON", reason, "RUN", run, "NODE", n.table("node"),
		"SAME", `(x->>'incarnation' = `+incarnation+` and (coalesce((x->>'run')::bigint, 0) = 0) = (`+run+` = 0))`,
	).Replace(`(
	select jsonb_agg(e order by e->>'incarnation' collate "C", (e->>'run')::bigint) from (
		select x as e from jsonb_array_elements(coalesce(LIST, '[]')) x
		where not SAME and exists (select from NODE k where k.incarnation = x->>'incarnation')
		union all
		select jsonb_build_object('incarnation', WHO, 'node', NAME, 'reason', REASON, 'run', RUN,
			'strikes', 1 + coalesce((x->>'strikes')::int, 0),
			'until', case when stands then x->'until' else to_jsonb(to_char(
				(clock.now + MICROS * interval '1 microsecond') at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) end,
			'length', case when stands then x->'length' else to_jsonb(MICROS * 1000) end)
		from (select) as always
		left join jsonb_array_elements(coalesce(LIST, '[]')) x on SAME
		cross join lateral (select (x->>'until')::timestamptz > clock.now + MICROS * interval '1 microsecond'
			and (x->>'until')::timestamptz <= clock.now + (x->>'length')::bigint / 1000 * interval '1 microsecond') as older (stands)
	) as embargoed)`)
}

// statements are the sources with the names filled in, by file name without .sql.
type statements map[string]string

var comment = regexp.MustCompile(`(?m)^\s*--.*\n`)

// compile fills in the names. An unknown name in a source is a programming error.
func (n names) compile() statements {
	out := statements{}
	files, err := fs.Glob(sources, "sql/*.sql")
	if err != nil || len(files) == 0 {
		panic("postgres: the statements are not embedded")
	}
	for _, file := range files {
		text, err := sources.ReadFile(file)
		if err != nil {
			panic("postgres: " + err.Error())
		}
		name := strings.TrimSuffix(path.Base(file), ".sql")
		out[name] = strings.TrimSpace(n.fill(file, string(text)))
		if later := n; strings.Contains(string(text), "{{outcomes") {
			later.kept = true
			out[name+keptSuffix] = strings.TrimSpace(later.fill(file, string(text)))
		}
	}
	return out
}

// fill expands one template. It removes the comments, which the server need not read.
func (n names) fill(name, text string) string {
	t, err := template.New(name).Funcs(n.functions()).Parse(comment.ReplaceAllString(text, ""))
	if err != nil {
		panic("postgres: " + err.Error())
	}
	var out bytes.Buffer
	if err := t.Execute(&out, nil); err != nil {
		panic("postgres: " + err.Error())
	}
	return out.String()
}

// get returns a statement. A missing one is a programming error.
func (s statements) get(name string) string {
	sql, ok := s[name]
	if !ok {
		panic("postgres: no statement " + name)
	}
	return sql
}
