-- Stores a command. If it expects another term than the present one, it is stored as done, with a conflict.
with clock as materialized (select clock_timestamp() as now),
filed as (
	insert into {{command}} (id, kind, actor, reason, term, cooldown, args, created_at, done_at, result)
	select $1, $2, $3, $4, $5::bigint, $6::bigint, $7::json, clock.now,
		case when late then clock.now end,
		case when late then 'conflict: expected term ' || $5::bigint || ', the term is ' || t.number else '' end
	from clock, {{term}} t, lateral (select $5::bigint <> 0 and $5::bigint <> t.number as late) l
	where not exists (select from {{command}} where id = $1)
	returning *
),
news as (
	select 1 as ord, {{commandevent}}
	from filed
),
{{tell}},
-- Wakes the leader's node for a heartbeat: it reads the commands on which nodes act, and then asks for a pass.
awake as (select t.incarnation, false as leader from {{term}} t, filed where {{held "t"}}),
{{wake}}
select count(*) from woken
