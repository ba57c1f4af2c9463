-- Decides whether a candidate is elected, by the rules of storage.Decide, clause by clause, and writes the result.
-- Statements before this one locked term and lease. If the first of them refused the candidate, this one does nothing.
with clock as materialized (select clock_timestamp() as now),
seen as materialized (
	select t.number, t.ordinal, t.node_id, t.incarnation, t.name, {{held "t"}} as held,
		l.renewals, l.expires_at, n.id as my_id, n.incarnation as me, n.name as my_name,
		{{held "t"}} and t.node_id = n.id and t.incarnation = n.incarnation as mine
	from {{term}} t, {{lease}} l, {{node}} n
	where n.incarnation = $1 and {{eligible "$1"}} and current_setting('emitd.candidate', true) = $1
),
verdict as materialized (
	select seen.*, clock.now, case
		when mine and number > $3::bigint then 1
		when not held or mine then 2
		when number = $4::bigint and renewals = $5::bigint and ($6::boolean or clock.now >= expires_at) then 2
		else 0
	end as verdict
	from seen, clock
),
elected as (
	update {{term}} t set
		number = greatest(t.number + 1, floor(extract(epoch from v.now) * 1000)::bigint,
			(select max(highest_term) from {{node}}) + 1),
		ordinal = t.ordinal + 1, node_id = v.my_id, incarnation = v.me, name = v.my_name,
		elected_at = v.now, vacant = false
	from verdict v where v.verdict = 2
	returning t.number, t.ordinal
),
leased as (
	update {{lease}} l set
		term = coalesce((select number from elected), l.term), incarnation = v.me,
		expires_at = v.now + $2::bigint * interval '1 microsecond',
		renewals = case v.verdict when 1 then l.renewals + 1 else 0 end,
		last_pass_at = case when v.verdict = 2 then null when $7::bigint > l.pass_seq then v.now else l.last_pass_at end,
		pass_seq = case when v.verdict = 2 then 0 else greatest(l.pass_seq, $7::bigint) end
	from verdict v where v.verdict > 0
),
news as (
	select 1 as ord, 'leader.lost' as kind, v.name as node, v.node_id, v.incarnation,
		'' as daemon, null::int as index, v.number as term, v.ordinal as term_ordinal, 0 as generation,
		case when v.incarnation = v.me then 'replaced' else 'expired' end as reason,
		json_build_object('lease_ended_at',
			to_char(least(v.expires_at, v.now) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) as detail
	from verdict v, elected where v.held
	union all
	select 2, 'leader.elected', v.my_name, v.my_id, v.me, '', null, e.number, e.ordinal, 0, '', null
	from verdict v, elected e
),
{{tell}},
-- Wakes the former leader: if it still runs, it should learn that it was replaced.
awake as (select v.incarnation, true as leader from verdict v, elected where v.held and not v.mine),
{{wake}}
select v.verdict, (select count(*) from woken) from verdict v
