-- Adds keys and removes others. An earlier statement locked the rows that existed. Of two transactions that insert the
-- same key, the second waits for the first and then adds nothing.
with clock as materialized (select clock_timestamp() as now),
named as (
	select a.key, a.ord, false as retired from unnest($2::text[]) with ordinality as a (key, ord)
	union all
	select r.key, r.ord, true from unnest($3::text[]) with ordinality as r (key, ord)
),
input as materialized (
	select * from named
	where not $4::boolean or {{fenced "$10" "$11::bigint" "$12::bigint"}}
),
marked as (
	update {{unit}} u set
		retired = i.retired,
		since = case when u.owner is null then clock.now else u.since end,
		reason = case when u.owner is not null then u.reason when i.retired then $7 else $6 end
	from input i, clock
	where u.daemon = $1 || ' ' || i.key and u.index = 0 and u.retired <> i.retired
	returning i.key, i.retired, i.ord
),
made as (
	insert into {{unit}} as u (daemon, index, state, name, node_id, incarnation, generation, term, since,
		acknowledge_timeout, drain_timeout, failures, forced, retired, reason, error)
	select $1 || ' ' || i.key, 0, 'unassigned', '', '', '', 0, 0, clock.now, 0, 0, 0, false, false, $6, ''
	from input i, clock
	where not i.retired
	order by 1
	on conflict (daemon, index) do nothing
	returning u.daemon
),
changed as materialized (
	select key, retired, ord from marked
	union all
	select i.key, false, i.ord from made m join input i on not i.retired and m.daemon = $1 || ' ' || i.key
),
news as (
	select 1 as ord, 'units.changed' as kind, '' as node, '' as node_id, '' as incarnation, $1 as daemon, null::int as index,
		0 as term, 0 as term_ordinal, 0 as generation, $8 as reason,
		json_strip_nulls(json_build_object('actor', nullif($5, ''),
			'added', count(*) filter (where not retired), 'removed', count(*) filter (where retired),
			'added_keys', (array_agg(key order by ord) filter (where not retired))[1:$9::int],
			'removed_keys', (array_agg(key order by ord) filter (where retired))[1:$9::int])) as detail
	from changed having count(*) > 0
),
{{tell}},
awake as (select t.incarnation, true as leader from {{term}} t where {{held "t"}} and exists (select from changed)),
{{wake}}
select count(*) filter (where not retired), count(*) filter (where retired), (select count(*) from woken) from changed
