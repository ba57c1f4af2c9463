-- Writes the leader's decisions that change no row.
with clock as materialized (select clock_timestamp() as now),
news as (
	select ord, kind, node, '' as node_id, '' as incarnation, daemon, null::int as index,
		$1::bigint as term, 0 as term_ordinal, 0 as generation, reason, detail
	from json_to_recordset($4) as x (ord int, kind text, node text, daemon text, reason text, detail json)
	where {{leads "$1::bigint" "$2" "$3"}}
),
{{tell}}
select count(*) from news
