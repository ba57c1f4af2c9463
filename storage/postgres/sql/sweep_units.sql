-- Deletes units of keys that were removed, with what else is kept of them, and remembers their highest generation. A unit
-- whose fence a transaction holds is left for a later sweep: this one locks the counter and must not wait with it.
with due as materialized (
	select u.daemon, u.index, u.generation
	from {{unit}} u
	where u.retired and u.owner is null and position(' ' in u.daemon) > 0
		and u.since < clock_timestamp() - $4::bigint * interval '1 microsecond' and {{fenced "$1" "$2::bigint" "$3::bigint"}}
	order by u.since, u.daemon limit $5::bigint
	for update of u
),
free as materialized (
	select f.daemon, f.index, f.generation
	from {{fence}} f where (f.daemon, f.index) in (select due.daemon, due.index from due)
	order by f.daemon, f.index
	for update of f skip locked
),
old as materialized (
	select due.daemon, due.index, greatest(due.generation, free.generation) as generation
	from due left join free using (daemon, index)
	where free.daemon is not null
		or not exists (select from {{fence}} f where f.daemon = due.daemon and f.index = due.index)
),
units as (delete from {{unit}} u using old where u.daemon = old.daemon and u.index = old.index),
fences as (delete from {{fence}} f using old where f.daemon = old.daemon and f.index = old.index),
states as (delete from {{unit_state}} s using old where s.daemon = old.daemon and s.index = old.index),
raised as (
	update {{counter}} c set generation_floor = greatest(c.generation_floor, (select max(generation) from old))
	where exists (select from old)
)
select count(*) from old
