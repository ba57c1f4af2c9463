with clock as materialized (select clock_timestamp() as now),
news as (
	select 1 as ord, 'fence.waiting' as kind, coalesce(u.name, '') as node, coalesce(u.node_id, '') as node_id,
		coalesce(u.incarnation, '') as incarnation, $1 as daemon, $2::int as index, coalesce(u.term, 0) as term, 0 as term_ordinal,
		$3::bigint as generation, 'a transaction of an earlier run holds the fence' as reason, null::json as detail
	from (select) as always left join {{unit}} u on u.daemon = $1 and u.index = $2::bigint
),
{{tell}}
select 1
