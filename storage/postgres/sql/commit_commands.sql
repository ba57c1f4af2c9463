-- Writes the leader's results into open commands. No command occurs twice in the input. An earlier statement locked the
-- rows.
with clock as materialized (select clock_timestamp() as now),
input as materialized (
	select * from json_to_recordset($4) as x (ord int, id text, result text, done boolean)
	where {{leads "$1::bigint" "$2" "$3"}}
),
answered as (
	update {{command}} k set result = i.result, done_at = case when i.done then clock.now end
	from input i, clock
	where k.id = i.id and k.done_at is null and (i.done or k.result <> i.result)
	returning i.ord, k.*
),
news as (
	select ord, {{commandevent}}
	from answered
),
{{tell}}
select count(*) from answered
