-- Locks the rows of keys that exist.
select from {{unit}} u
where u.index = 0 and u.daemon in (select $1 || ' ' || k.key from unnest($2::text[]) as k (key))
order by u.daemon for update
