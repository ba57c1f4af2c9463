-- Uses what the limit leaves after the events of the same step.
delete from {{command}} where id in (
	select id from {{command}}
	where done_at < clock_timestamp() - $4 * interval '1 microsecond' and {{fenced "$1" "$2" "$3"}}
	order by number limit $5
)
