with old as (
	select name from {{lock}}
	where owner = '' and expires_at < clock_timestamp() - $4::bigint * interval '1 microsecond' and {{fenced "$1" "$2::bigint" "$3::bigint"}}
	order by expires_at, name limit $5::bigint
	for update
),
gone as (delete from {{lock}} l using old where l.name = old.name returning l.number),
moved as (
	update {{counter}} c set lock_floor = greatest(c.lock_floor, (select max(number) from gone))
	where exists (select from gone)
)
select count(*) from gone
