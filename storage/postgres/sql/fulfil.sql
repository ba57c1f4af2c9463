update {{command}} k set
	done_at = clock_timestamp(),
	result = case when k.term <> 0 and k.term <> $3::bigint
		then 'conflict: expected term ' || k.term || ', the term is ' || (select number from {{term}})
		else 'done' end
where k.id = $2 and k.done_at is null
	and {{written "$1"}}
