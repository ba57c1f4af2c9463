-- Takes the leader's steps with nodes. No node occurs twice in the input.
with clock as materialized (select clock_timestamp() as now),
input as materialized (
	select * from json_to_recordset($4) as x (ord int, incarnation text, seq bigint, state text, reason text, stamp timestamptz)
	where {{leads "$1::bigint" "$2" "$3"}}
),
changed as (
	update {{node}} n set
		state = case when i.state = 'removed' then 'removed' else n.state end,
		ended_at = case when i.state = 'removed' then clock.now else n.ended_at end,
		end_reason = case when i.state = 'removed' then i.reason else n.end_reason end,
		judged = case i.state when 'removed' then n.judged when 'live' then '' else i.state end
	from input i, clock
	where n.incarnation = i.incarnation and n.state <> 'removed' and case i.state
		when 'removed' then n.seq = i.seq
		when 'live' then n.judged <> ''
		-- Late and Deaf apply only if the row still has the stamp that was too old.
		when 'late' then n.judged <> 'late' and coalesce(i.stamp = n.last_heartbeat_at, true)
		when 'deaf' then n.judged <> 'deaf' and coalesce(i.stamp = n.heard_at, true)
		else false end
	returning i.ord, i.state as step, i.reason, n.name, n.id, n.incarnation
),
news as (
	select ord, 'node.' || step as kind, name as node, id as node_id, incarnation, '' as daemon, null::int as index,
		0 as term, 0 as term_ordinal, 0 as generation, reason, null::json as detail
	from changed where step <> 'live'
),
{{tell}}
select count(*) from changed
