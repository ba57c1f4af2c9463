-- Marks the processes that are proven to have ended, and vacates the term if exactly one of them
-- holds it. Statements before this one locked term, lease and nodes.
with clock as materialized (select clock_timestamp() as now),
marked as (
	update {{node}} n set witnessed = true
	where n.incarnation = any($2::text[]) and n.incarnation <> $1 and n.state <> 'removed' and not n.witnessed
		and {{written "$1"}}
	returning 1
),
vacated as (
	update {{term}} t set vacant = true
	where {{held "t"}} and t.incarnation = any($2::text[]) and t.incarnation <> $1 and {{written "$1"}}
	returning t.*
),
-- A vacant term has no lease to renew.
over as (update {{lease}} l set term = 0 from vacated),
news as (
	select 1 as ord, 'leader.lost' as kind, name as node, node_id, incarnation, '' as daemon, null::int as index,
		number as term, ordinal as term_ordinal, 0 as generation, 'process_ended' as reason, null::json as detail
	from vacated
),
{{tell}},
-- Wakes the leader, which has units to reassign, or the candidates, which should campaign.
awake as (
	select null::text as incarnation, true as leader from vacated
	union all
	select t.incarnation, true from {{term}} t
	where {{held "t"}} and exists (select from marked) and not exists (select from vacated)
),
{{wake}}
select count(*) from woken
