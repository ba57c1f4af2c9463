-- A registration marks its text as used before it writes its row.
delete from {{advert}} a
where a.used_at < clock_timestamp() - interval '1 hour' and {{fenced "$1" "$2" "$3"}}
	and not exists (select from {{node}} n where n.advert = a.hash)
