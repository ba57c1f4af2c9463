with clock as materialized (select clock_timestamp() as now),
vacated as (
	update {{term}} t set vacant = true
	from {{node}} n
	where n.incarnation = $1 and n.seq = $2 and {{written "n"}}
		and t.number = $3 and {{held "t"}} and t.node_id = $4 and t.incarnation = $1
	returning t.*
),
news as (
	select 1 as ord, 'leader.lost' as kind, name as node, node_id, incarnation, '' as daemon, null::int as index,
		number as term, ordinal as term_ordinal, 0 as generation, $5 as reason, $6::json as detail
	from vacated
),
{{tell}},
-- Whoever may stand, should.
awake as (select null::text as incarnation, true as leader from vacated),
{{wake}}
select count(*) from woken
