-- $4 and $5 are the number and renewals that the caller has seen unchanged for their whole TTL.
with clock as materialized (select clock_timestamp() as now),
taken as (
	update {{lock}} l set
		owner = $2,
		number = case when l.owner = $2 then l.number
			else greatest(l.number + 1, (select lock_floor + 1 from {{counter}}),
				floor(extract(epoch from clock.now) * 1000)::bigint) end,
		renewals = case when l.owner = $2 then l.renewals + 1 else 0 end,
		ttl = $3::bigint,
		expires_at = clock.now + $3::bigint * interval '1 microsecond'
	from clock
	where l.name = $1 and (l.owner = '' or l.owner = $2 or l.number = $4::bigint and l.renewals = $5::bigint)
	returning l.owner, l.number, l.renewals, l.ttl, l.expires_at
)
select true, owner, number, renewals, ttl, expires_at, clock.now from taken, clock
union all
select false, owner, number, renewals, ttl, expires_at, clock.now from {{lock}}, clock where name = $1 and not exists (select from taken)
