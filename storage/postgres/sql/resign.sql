with clock as materialized (select clock_timestamp() as now),
vacated as (
	update {{term}} t set vacant = true
	where t.number = $2::bigint and {{held "t"}} and t.node_id = $3 and t.incarnation = $1 and {{written "$1"}}
	returning t.*
),
-- A vacant term has no lease to renew.
ended as (update {{lease}} l set term = 0 from vacated),
news as (
	select 1 as ord, 'leader.lost' as kind, name as node, node_id, incarnation, '' as daemon, null::int as index,
		number as term, ordinal as term_ordinal, 0 as generation, $4 as reason, $5::json as detail
	from vacated
),
{{tell}},
-- Wakes the candidates, which should campaign.
awake as (select null::text as incarnation, true as leader from vacated),
{{wake}}
select count(*) from woken
