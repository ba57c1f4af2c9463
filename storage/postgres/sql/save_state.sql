-- Replaces a unit's state, if the run has the fence, which an earlier statement holds, and if the state has the revision
-- before. It is not written a second time, and the next statement tells why.
with clock as materialized (select clock_timestamp() as now),
saved as (
	insert into {{unit_state}} as s (daemon, index, generation, revision, saved_at, data)
	select $1, $2::int, $3::bigint, $4::bigint, clock.now, $5::json
	from clock
	where {{fenced "$1" "$2::bigint" "$3::bigint"}}
		and ($4::bigint = 1 or exists (select from {{unit_state}} o where o.daemon = $1 and o.index = $2::bigint))
	on conflict (daemon, index) do update set
		generation = excluded.generation, revision = excluded.revision, saved_at = excluded.saved_at, data = excluded.data
	where s.revision = excluded.revision - 1
	returning s.revision
),
news as (
	select x.ord, x.kind, coalesce(u.name, '') as node, coalesce(u.node_id, '') as node_id,
		coalesce(u.incarnation, '') as incarnation, $1 as daemon, $2::int as index, coalesce(u.term, 0) as term,
		0 as term_ordinal, $3::bigint as generation, x.reason, x.detail
	from saved cross join json_to_recordset($6) as x (ord int, kind text, reason text, detail json)
	left join {{unit}} u on u.daemon = $1 and u.index = $2::bigint and u.generation = $3::bigint
),
{{tell}}
select count(*) from saved
