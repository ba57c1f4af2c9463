-- Deletes texts that no node names any more. A registration marks its text as used before it writes its row, so the text
-- of one that is under way is young.
delete from {{advert}} a
where a.used_at < clock_timestamp() - interval '1 hour' and {{fenced "$1" "$2::bigint" "$3::bigint"}}
	and not exists (select from {{node}} n where n.advert = a.hash)
