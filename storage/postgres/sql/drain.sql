with clock as materialized (select clock_timestamp() as now),
me as (
	update {{node}} n set state = 'draining'
	where n.incarnation = $1 and {{written "$1"}}
	returning n.incarnation
),
revoked as (
	update {{unit}} u set
		state = t.next, since = clock.now, revoked_at = clock.now, reason = $2,
		drain_timeout = case when u.drain_timeout = 0 then $3::bigint else u.drain_timeout end
	from me, clock, (values {{lifecycle "revoke"}}) as t (state, step, next)
	where u.owner = me.incarnation and t.state = u.state
	returning u.*
),
news as (
	select row_number() over (order by daemon, index) as ord, 'assignment.revoking' as kind, name as node, node_id, incarnation,
		daemon, index, term, 0 as term_ordinal, generation, reason, null::json as detail
	from revoked
),
{{tell}},
awake as (select t.incarnation, true as leader from {{term}} t, me where {{held "t"}}),
{{wake}}
select count(*) from woken
