update {{command}} k set
	done_at = clock_timestamp(),
	result = case when k.term <> 0 and k.term <> $4
		then 'conflict: expected term ' || k.term || ', the term is ' || (select number from {{term}})
		else 'done' end
where k.id = $3 and k.done_at is null
	and exists (select from {{node}} n where n.incarnation = $1 and n.seq = $2 and {{written "n"}})
