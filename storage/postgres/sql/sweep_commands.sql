-- Deletes old commands. The limit is what the events of the same sweep have left of theirs.
delete from {{command}} where id in (
	select id from {{command}}
	where done_at < clock_timestamp() - $4::bigint * interval '1 microsecond' and {{fenced "$1" "$2::bigint" "$3::bigint"}}
	order by number limit $5::bigint
)
