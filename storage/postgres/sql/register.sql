-- Inserts the row, revives a tombstone that the leader made of it, or renews what a present node
-- advertises. It does nothing to a row that has a newer sequence number or that its own process
-- ended. It does nothing if another process with this ID sent a heartbeat within its TTL and is not
-- proven to have ended, or if the store belongs to a cluster of another name.
with clock as materialized (select clock_timestamp() as now),
old as (select * from {{node}} where incarnation = $1),
other as materialized (
	select cluster from {{counter}}
	where cluster <> $12 and $12 <> '' and not exists (select from old where old.departed or old.seq >= $5::bigint)
),
taken as (
	select n.id, n.name, n.incarnation, n.last_heartbeat_at, n.traits->'host' as host
	from {{node}} n, clock,
		coalesce(nullif((n.traits #>> '{timing,node_registration_ttl}')::bigint, 0) / 1000, $4::bigint) as ttl
	where n.id = $2 and n.incarnation <> $1 and n.state <> 'removed' and n.incarnation <> all($13::text[])
		-- A stamp further ahead was made before the clock was set back.
		and clock.now - n.last_heartbeat_at < ttl * interval '1 microsecond'
		and n.last_heartbeat_at - clock.now < ttl * interval '1 microsecond'
		and not exists (select from old where old.state <> 'removed' or old.departed or old.seq >= $5::bigint)
		and not exists (select from other)
	order by n.incarnation limit 1
),
inserted as (
	insert into {{node}} (incarnation, seq, heard, last_heartbeat_at, heard_at, highest_term, highest_generation,
		registered_at, never_lead, witnessed, departed, state, judged, id, name, advert, end_reason, traits)
	select $1, $5::bigint, $6::bigint, now, now, $7::bigint, $8::bigint, now, $9::boolean, false, false, 'live', '', $2, $3, $10, '', $11::jsonb
	from clock
	where not exists (select from old) and not exists (select from taken) and not exists (select from other)
	returning name
),
kept as (
	update {{node}} n set
		seq = $5::bigint,
		last_heartbeat_at = clock.now,
		heard_at = case when old.state = 'removed' or $6::bigint > old.heard then clock.now else old.heard_at end,
		heard = greatest(old.heard, $6::bigint),
		highest_term = greatest(old.highest_term, $7::bigint),
		highest_generation = greatest(old.highest_generation, $8::bigint),
		never_lead = $9::boolean, advert = $10, traits = $11::jsonb,
		id = case when old.state = 'removed' then $2 else old.id end,
		name = case when old.state = 'removed' then $3 else old.name end,
		registered_at = case when old.state = 'removed' then clock.now else old.registered_at end,
		witnessed = old.witnessed and old.state <> 'removed',
		judged = case when old.state = 'removed' then '' else old.judged end,
		ended_at = null, end_reason = '',
		state = case when old.state = 'removed' then 'live' else old.state end
	from old, clock
	where n.incarnation = $1 and not old.departed and old.seq < $5::bigint
		and (old.state <> 'removed' or not exists (select from taken)) and not exists (select from other)
	returning old.state = 'removed' as returned
),
news as (
	select 1 as ord, 'node.registered' as kind, $3 as node, $2 as node_id, $1 as incarnation,
		'' as daemon, null::int as index, 0 as term, 0 as term_ordinal, 0 as generation, reason, null::json as detail
	from (select '' as reason from inserted union all select 'returned' from kept where returned) as joined
),
{{tell}},
awake as (select t.incarnation, true as leader from {{term}} t, news where {{held "t"}}),
{{wake}}
select (select count(*) from inserted) + (select count(*) from kept) > 0,
	coalesce(t.id, ''), coalesce(t.name, ''), coalesce(t.incarnation, ''), t.last_heartbeat_at, t.host,
	(select count(*) from woken),
	case when exists (select from inserted) or exists (select from kept) then {{mark "$1 || case when $9::boolean then '' else '!' end"}} end,
	coalesce((select cluster from other), ''), (select seq from old)
from (select) as always left join taken t on true
