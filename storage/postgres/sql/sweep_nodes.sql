delete from {{node}} where incarnation in (
	select incarnation from {{node}}
	where state = 'removed' and ended_at < clock_timestamp() - $4 * interval '1 microsecond' and {{fenced "$1" "$2" "$3"}}
	order by ended_at, incarnation limit $5
	for update
)
