with clock as materialized (select clock_timestamp() as now),
taken as (
	update {{lock}} l set
		owner = $2,
		number = case when l.owner = $2 and clock.now < l.expires_at then l.number
			else greatest(l.number + 1, (select lock_floor + 1 from {{counter}}),
				floor(extract(epoch from clock.now) * 1000)::bigint) end,
		expires_at = clock.now + $3 * interval '1 microsecond'
	from clock
	where l.name = $1 and (l.owner = '' or l.owner = $2 or clock.now >= l.expires_at)
	returning l.owner, l.number, l.expires_at
)
select true, owner, number, expires_at, clock.now from taken, clock
union all
select false, owner, number, expires_at, clock.now from {{lock}}, clock where name = $1 and not exists (select from taken)
