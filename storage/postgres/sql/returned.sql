-- Ends the embargoes that were imposed for abandoned runs of this process that have returned. A
-- statement before locked the rows. No unit occurs twice in the input.
with lifted as (
	update {{unit}} u set embargoes = (
		select jsonb_agg(e order by place) from jsonb_array_elements(u.embargoes) with ordinality as x (e, place)
		where not {{returned "e" "$1" "i.generation"}}
	)
	from json_to_recordset($2) as i (daemon text, index int, generation bigint)
	where u.daemon = i.daemon and u.index = i.index and {{written "$1"}}
		and exists (select from jsonb_array_elements(u.embargoes) as x (e) where {{returned "e" "$1" "i.generation"}})
	returning 1
),
awake as (select t.incarnation, true as leader from {{term}} t where {{held "t"}} and exists (select from lifted)),
{{wake}}
select count(*) from woken
