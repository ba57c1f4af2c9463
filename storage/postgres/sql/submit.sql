-- Stores a command. If it asks another term than the present one to resign, it is stored as done, with a conflict.
with clock as materialized (select clock_timestamp() as now),
filed as (
	insert into {{command}} (id, kind, actor, reason, term, cooldown, args, created_at, done_at, result)
	select $1, $2, $3, $4, $5::bigint, $6::bigint, $7::json, clock.now,
		case when late then clock.now end,
		case when late then 'conflict: expected term ' || $5::bigint || ', the term is ' || t.number else '' end
	from clock, {{term}} t, lateral (select $2 = 'leader.resign' and $5::bigint <> 0 and $5::bigint <> t.number as late) l
	where not exists (select from {{command}} where id = $1)
	returning *
),
news as (
	select 1 as ord, 'operator.resign' as kind, '' as node, '' as node_id, '' as incarnation, '' as daemon, null::int as index,
		term, 0 as term_ordinal, 0 as generation, reason,
		json_strip_nulls(json_build_object('command', nullif(id, ''), 'actor', nullif(actor, ''), 'result', nullif(result, ''))) as detail
	from filed where kind = 'leader.resign'
),
{{tell}},
-- Wakes the leader's node for a heartbeat, not for a pass, because only heartbeats read commands.
awake as (select t.incarnation, false as leader from {{term}} t, filed where {{held "t"}}),
{{wake}}
select count(*) from woken
