-- Stores a text that is absent, and marks one that was not used for a while, so that no sweep deletes it during a
-- registration. Replicas of one program, which register the same text, then neither write it nor wait for each other.
-- The mark comes first: its lock keeps a sweep from deleting the text after the insert found it.
with marked as (
	update {{advert}} set used_at = clock_timestamp()
	where hash = $1 and used_at < clock_timestamp() - interval '30 minutes'
	returning 1
)
insert into {{advert}} (hash, body, used_at)
select $1, $2, clock_timestamp() from (select count(*) from marked) as first
on conflict (hash) do nothing
