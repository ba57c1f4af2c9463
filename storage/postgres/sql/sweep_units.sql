-- Deletes units of keys that were removed, with what else is kept of them, and remembers their highest generation.
with old as materialized (
	select u.daemon, u.index, greatest(u.generation,
		(select f.generation from {{fence}} f where f.daemon = u.daemon and f.index = u.index)) as generation
	from {{unit}} u
	where u.retired and u.owner is null and position(' ' in u.daemon) > 0
		and u.since < clock_timestamp() - $4::bigint * interval '1 microsecond' and {{fenced "$1" "$2::bigint" "$3::bigint"}}
	order by u.since, u.daemon limit $5::bigint
	for update of u
),
units as (delete from {{unit}} u using old where u.daemon = old.daemon and u.index = old.index),
fences as (delete from {{fence}} f using old where f.daemon = old.daemon and f.index = old.index),
states as (delete from {{unit_state}} s using old where s.daemon = old.daemon and s.index = old.index),
raised as (
	update {{counter}} c set generation_floor = greatest(c.generation_floor, (select max(generation) from old))
	where exists (select from old)
)
select count(*) from old
