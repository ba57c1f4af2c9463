-- Appends an event about what was done elsewhere.
with clock as materialized (select clock_timestamp() as now),
news as (
	select x.ord, x.kind, '' as node, '' as node_id, '' as incarnation, '' as daemon, 0 as index, 0 as term,
		0 as term_ordinal, 0 as generation, x.reason, x.detail
	from json_to_recordset($1) as x (ord int, kind text, reason text, detail json)
),
{{tell}}
select count(*) from news
