-- Takes the leader's steps with units. An earlier statement locked the rows. No unit occurs twice in the input. A
-- change whose row no longer matches its guard is skipped.
with clock as materialized (select clock_timestamp() as now),
input as materialized (
	select * from json_to_recordset($4) as x (ord int, daemon text, index int, step text, state text, generation bigint,
		target text, acknowledge bigint, drain bigint, dead text, seq bigint, forced boolean, embargo bigint,
		retired boolean, reason text, detail json)
	where {{leads "$1::bigint" "$2" "$3"}}
),
stepped as (
	update {{unit}} u set
		state = t.next, since = clock.now, reason = i.reason,
		name = coalesce(n.name, u.name),
		node_id = coalesce(n.id, u.node_id),
		incarnation = coalesce(n.incarnation, u.incarnation),
		generation = case when i.step <> 'assign' then u.generation
			else {{generation "u.generation" "$1::bigint" "$5::bigint" "u"}} end,
		term = case when i.step = 'expire' then u.term else $1::bigint end,
		assigned_at = case when i.step = 'assign' then clock.now else u.assigned_at end,
		revoked_at = case i.step when 'assign' then null when 'revoke' then clock.now else u.revoked_at end,
		acknowledge_timeout = case when i.step = 'assign' then i.acknowledge else u.acknowledge_timeout end,
		drain_timeout = case when i.step = 'assign' then i.drain else u.drain_timeout end,
		forced = case i.step when 'assign' then false when 'expire' then i.forced else u.forced end,
		retry_at = case when i.step = 'assign' then null else u.retry_at end,
		retired = u.retired or i.step = 'expire' and i.retired,
		embargoes = case when i.step = 'expire' and i.embargo <> 0
			then {{embargo "u.embargoes" "u.incarnation" "i.embargo" "i.reason" "0"}} else u.embargoes end
	from input i
	join (values {{lifecycle "assign" "revoke" "expire"}}) as t (state, step, next) on t.state = i.state and t.step = i.step
	left join {{node}} n on i.step = 'assign' and n.incarnation = i.target and n.state = 'live'
	cross join clock
	where u.daemon = i.daemon and u.index = i.index and u.state = i.state and u.generation = i.generation
		and (i.step <> 'assign' or n.incarnation is not null)
		and (i.step <> 'expire' or not exists (
			select from {{node}} d where d.incarnation = i.dead and d.state <> 'removed' and d.seq <> i.seq))
	returning i.ord, i.step, i.detail, u.*, u as whole
),
news as (
	select ord, case
			when step = 'assign' then 'assignment.assigned'
			when step = 'revoke' then 'assignment.revoking'
			when forced then 'assignment.forced'
			else 'assignment.deleted' end as kind,
		name as node, node_id, incarnation, daemon, index, $1::bigint as term, 0 as term_ordinal, generation, reason, detail
	from stepped
),
{{tell}},
awake as (select incarnation, false as leader from stepped),
{{wake}},
outcome as (
	select ord, true as applied, whole from stepped
	union all
	select i.ord, false, u from input i join {{unit}} u using (daemon, index)
	where i.ord not in (select ord from stepped)
)
{{outcomes "(select count(*) from woken)"}}
