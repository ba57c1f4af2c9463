-- Takes the holder's steps. An earlier statement locked the rows, so the transaction commits against what
-- this snapshot shows. No unit occurs twice in the input.
with clock as materialized (select clock_timestamp() as now),
me as (select * from {{node}} n where n.incarnation = $1 and {{written "$1"}}),
-- A generation that the holder renews is at least the present term. The term's number is above
-- every generation of a lost history.
present as materialized (select number from {{term}}),
input as materialized (
	select * from json_to_recordset($2) as x (ord int, daemon text, index int, generation bigint, step text,
		reason text, error text, failures int, retry bigint, embargo bigint, acknowledge bigint)
),
own as materialized (
	select i.*, u.state as old_state, u.failures as old_failures, u.failing_since as old_failing, t.next
	from input i
	join {{unit}} u using (daemon, index)
	join me on u.node_id = me.id and u.incarnation = me.incarnation
	left join (values {{lifecycle "acknowledge" "postpone" "confirm" "release" "abandon" "resume" "fail" "recover"}}) as t (state, step, next)
		on t.state = u.state and t.step = i.step
	where u.generation = i.generation
),
-- Repeating one's own report is harmless.
repeated as (
	select ord from own
	where step = 'acknowledge' and old_state = 'active' or step in ('confirm', 'release', 'abandon') and old_state = 'deleted'
		or step = 'recover' and old_state = 'active' and old_failures = 0
),
stepped as (
	update {{unit}} u set
		state = o.next,
		since = case when o.step in ('fail', 'recover') then u.since else clock.now end,
		-- A unit that stays with its holder keeps the reason of its assignment.
		reason = case when o.step in ('acknowledge', 'resume', 'postpone', 'fail', 'recover') then u.reason else o.reason end,
		error = case when o.error <> '' then o.error else u.error end,
		failures = case
			when o.step = 'recover' then 0
			when o.step = 'fail' then greatest(u.failures, o.failures, 1)
			when o.step = 'release' and o.error <> '' then u.failures + greatest(o.failures, 1)
			else u.failures end,
		failing_since = case
			when o.step = 'recover' then null
			when o.step = 'fail' or o.step = 'release' and o.error <> '' then coalesce(u.failing_since, clock.now)
			else u.failing_since end,
		retry_at = case
			when o.step = 'fail' then clock.now + o.retry * interval '1 microsecond'
			when o.step in ('acknowledge', 'resume', 'postpone') then u.retry_at end,
		forced = case when o.step in ('confirm', 'release') then false when o.step = 'abandon' then true else u.forced end,
		generation = case when o.step not in ('resume', 'postpone') then u.generation
			else {{generation "u.generation" "greatest(u.term, (select number from present))" "0" "u"}} end,
		assigned_at = case when o.step = 'postpone' then clock.now else u.assigned_at end,
		acknowledge_timeout = case when o.step = 'postpone' and o.acknowledge <> 0 then o.acknowledge else u.acknowledge_timeout end,
		embargoes = case
			when o.step in ('release', 'abandon') and o.embargo <> 0 then {{embargo "u.embargoes" "u.incarnation" "o.embargo" "o.reason" "case o.step when 'abandon' then u.generation else 0 end"}}
			else u.embargoes end
	from own o, clock
	where u.daemon = o.daemon and u.index = o.index and o.next is not null
		and o.ord not in (select ord from repeated)
	returning o.ord, o.step, o.reason as told, o.error as failure, o.old_failing, u.*, u as whole
),
news as (
	select ord, case
			when step = 'acknowledge' then 'assignment.active'
			when step = 'abandon' then 'assignment.abandoned'
			when step = 'resume' then 'assignment.resumed'
			when step = 'fail' then 'assignment.failing'
			when step = 'recover' then 'assignment.recovered'
			when step = 'postpone' then 'assignment.postponed'
			when step = 'release' and failure <> '' then 'assignment.failed'
			else 'assignment.deleted' end as kind,
		name as node, node_id, incarnation, daemon, index, term, 0 as term_ordinal, generation, told as reason, null::json as detail
	from stepped
	-- Of a run that fails again and again, only the first report makes an event.
	where step <> 'fail' or old_failing is null
),
{{tell}},
awake as (select t.incarnation, true as leader from {{term}} t where {{held "t"}} and exists (select from news)),
{{wake}},
outcome as (
	select ord, true as applied, whole from stepped
	union all
	select i.ord, i.ord in (select ord from repeated), u
	from input i join {{unit}} u using (daemon, index)
	where i.ord not in (select ord from stepped)
)
{{outcomes "(select count(*) from woken)"}}
