delete from {{node}} where incarnation in (
	select incarnation from {{node}}
	where state = 'removed' and ended_at < clock_timestamp() - $4::bigint * interval '1 microsecond' and {{fenced "$1" "$2::bigint" "$3::bigint"}}
	order by ended_at, incarnation limit $5::bigint
	for update
)
