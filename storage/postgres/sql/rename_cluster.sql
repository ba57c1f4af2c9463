-- Replaces the name if it is the one that the caller knows and no node is live. Returns the
-- previous name and the name of a live node.
with clock as materialized (select clock_timestamp() as now),
live as materialized (
	select n.name from {{node}} n, clock
	where n.state <> 'removed'
		and clock.now - n.last_heartbeat_at < $3::bigint * interval '1 microsecond'
		and n.last_heartbeat_at - clock.now < $3::bigint * interval '1 microsecond'
	order by n.incarnation limit 1
),
old as materialized (select cluster from {{counter}}),
renamed as (update {{counter}} set cluster = $2 where cluster = $1 and not exists (select from live))
select old.cluster, live.name is not null, coalesce(live.name, '') from old left join live on true
