with clock as materialized (select clock_timestamp() as now),
old as (select n.* from {{node}} n where n.incarnation = $1 and {{written "$1"}}),
me as (
	update {{node}} n set
		departed = true, state = 'removed',
		ended_at = case when old.state = 'removed' then n.ended_at else clock.now end,
		end_reason = case when old.state = 'removed' then n.end_reason else $2 end
	from old, clock where n.incarnation = old.incarnation
	returning n.*, old.state <> 'removed' as ended
),
freed as (
	update {{unit}} u set state = t.next, since = clock.now, reason = $2, forced = true
	from me, clock, (values {{lifecycle "expire"}}) as t (state, step, next)
	where me.ended and u.owner = me.incarnation and t.state = u.state
	returning u.*
),
news as (
	select row_number() over (order by daemon, index) as ord, 'assignment.forced' as kind, name as node, node_id, incarnation,
		daemon, index, term, 0 as term_ordinal, generation, reason, null::json as detail
	from freed
	union all
	select 1 + (select count(*) from freed), 'node.removed', name, id, incarnation, '', null, 0, 0, 0, $2, null
	from me where ended
),
{{tell}},
awake as (select t.incarnation, true as leader from {{term}} t, me where me.ended and {{held "t"}}),
{{wake}}
select count(*) from woken
