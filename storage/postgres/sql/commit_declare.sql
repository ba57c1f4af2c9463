-- Declares units, retires them or takes the retirement back. No unit occurs twice in the input.
with clock as materialized (select clock_timestamp() as now),
input as materialized (
	select * from json_to_recordset($4) as x (ord int, daemon text, index int, state text, generation bigint,
		retired boolean, reason text)
	where {{leads "$1::bigint" "$2" "$3"}}
),
marked as (
	update {{unit}} u set retired = i.retired
	from input i
	where u.daemon = i.daemon and u.index = i.index and case
		when i.state = '' and i.generation = 0 then u.retired and not i.retired
		else u.state = i.state and u.generation = i.generation end
	returning i.ord, u as whole
),
made as (
	insert into {{unit}} as u (daemon, index, state, name, node_id, incarnation, generation, term, since,
		acknowledge_timeout, drain_timeout, failures, forced, retired, reason, error)
	select i.daemon, i.index, 'unassigned', '', '', '', 0, 0, clock.now, 0, 0, 0, false, i.retired, i.reason, ''
	from input i, clock
	where i.state = '' and i.generation = 0
		and not exists (select from {{unit}} o where o.daemon = i.daemon and o.index = i.index)
	returning u.daemon, u.index, u as whole
),
outcome as (
	select ord, true as applied, whole from marked
	union all
	select i.ord, true, m.whole from made m join input i using (daemon, index)
	union all
	select i.ord, false, u from input i join {{unit}} u using (daemon, index)
	where i.ord not in (select ord from marked)
)
{{outcomes "0"}}
